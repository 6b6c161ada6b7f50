//! Those who look at a process: by its socket, or by the address of its page.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::{Request, Uri, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;

use super::folders::{connect, is_dead, is_stale, searched, sockets};
use super::snapshot::Snapshot;

/// An answer takes no more.
const LARGEST: usize = 16 << 20;

/// An answer takes no longer.
const PATIENCE: Duration = Duration::from_secs(5);

/// An answer of a process that seems to have ended.
const SHORT_PATIENCE: Duration = Duration::from_secs(1);

/// A socket that was made is listened to within this time.
const BREATH: Duration = Duration::from_millis(50);

/// A process that can be looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its number.
    pub pid: u32,
    socket: PathBuf,
}

/// What a look at a process gave.
#[derive(Debug)]
pub enum Seen {
    /// Its figures.
    Snapshot(Box<Snapshot>),
    /// It does not answer, for now.
    Silent(io::Error),
    /// It is gone.
    Ended,
}

/// The processes of this user that can be looked at. What ended processes left is removed.
#[must_use]
pub fn peers() -> Vec<Peer> {
    let mut peers: Vec<Peer> = searched().iter().flat_map(|folder| peers_in(folder)).collect();
    peers.sort_by_key(|peer| peer.pid);
    peers
}

fn peers_in(folder: &Path) -> Vec<Peer> {
    let peers = sockets(folder).into_iter().filter_map(|(pid, socket)| {
        let peer = Peer { pid, socket };
        if is_dead(pid) {
            if is_stale(&peer.socket) {
                // Somebody else may have removed it first.
                let _ = fs::remove_file(&peer.socket);
                return None;
            }
            // One of another container seems to be dead from here. A child that a process left
            // behind may keep its socket open, and never answers: what is not known is not removed.
            return peer.ask("snapshot", SHORT_PATIENCE).is_ok().then_some(peer);
        }
        // A process that has made its socket may not listen to it yet.
        let stale = is_stale(&peer.socket) && {
            thread::sleep(BREATH);
            is_stale(&peer.socket)
        };
        (!stale).then_some(peer)
    });
    peers.collect()
}

impl Peer {
    /// Looks at it.
    #[must_use]
    pub fn look(&self) -> Seen {
        let answer = if is_dead(self.pid) {
            // It may live in another container, and be slow: once is no sign.
            let first = self.ask("snapshot", SHORT_PATIENCE);
            first.or_else(|_| self.ask("snapshot", SHORT_PATIENCE))
        } else {
            self.ask("snapshot", PATIENCE)
        };
        match answer {
            Ok(value) => match serde_json::from_value(value) {
                Ok(snapshot) => Seen::Snapshot(Box::new(snapshot)),
                Err(error) => Seen::Silent(io::Error::other(format!(
                    "its answer cannot be read ({error}): it may run another version of feedline"
                ))),
            },
            Err(error) if is_gone(&error) || is_dead(self.pid) => Seen::Ended,
            Err(error) => Seen::Silent(error),
        }
    }

    /// Opens its page, if it has none yet, and returns the address.
    pub fn dashboard(&self) -> io::Result<String> {
        let answer = self.ask("dashboard", PATIENCE)?;
        match (answer["url"].as_str(), answer["error"].as_str()) {
            (Some(address), _) => Ok(address.to_owned()),
            (None, Some(error)) => Err(io::Error::other(error.to_owned())),
            (None, None) => Err(io::Error::other("it gave no address")),
        }
    }

    fn ask(&self, word: &str, patience: Duration) -> io::Result<Value> {
        let mut stream = connect(&self.socket)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        stream.write_all(format!("{word}\n").as_bytes())?;
        let mut text = Vec::new();
        stream.take(LARGEST as u64).read_to_end(&mut text)?;
        if text.is_empty() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        serde_json::from_slice(&text).map_err(io::Error::other)
    }
}

impl Seen {
    /// What it means for who saw the process of this session before at the same place: another one
    /// that has its number, or whoever listens at the port of its page now, is not the one.
    #[must_use]
    pub fn after(self, session: &str) -> Seen {
        use io::ErrorKind::{InvalidData, PermissionDenied};
        match self {
            Seen::Snapshot(snapshot) if snapshot.session != session => Seen::Ended,
            Seen::Silent(error) if matches!(error.kind(), InvalidData | PermissionDenied) => {
                Seen::Ended
            }
            seen => seen,
        }
    }
}

/// Nobody is there any more, rather than slow.
fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotFound};
    matches!(error.kind(), ConnectionRefused | NotFound)
}

/// Looks at the process whose page has this address.
#[must_use]
pub fn fetch(address: &str) -> Seen {
    match get(address) {
        Ok(text) => match serde_json::from_slice(&text) {
            Ok(snapshot) => Seen::Snapshot(Box::new(snapshot)),
            Err(error) => {
                let text = format!("{address} is not the page of a feedline process: {error}");
                Seen::Silent(io::Error::new(io::ErrorKind::InvalidData, text))
            }
        },
        Err(error) if is_gone(&error) => Seen::Ended,
        Err(error) => Seen::Silent(error),
    }
}

fn get(address: &str) -> io::Result<Bytes> {
    let page = address.split(['?', '#']).next().unwrap_or(address).trim_end_matches('/');
    // Nothing is newer than that: the history is not wanted.
    let uri: Uri = format!("{page}/data?since={}", u64::MAX)
        .parse()
        .map_err(|error| io::Error::other(format!("{address:?} is no address: {error}")))?;
    let host = uri.host().filter(|_| uri.scheme_str() == Some("http"));
    let Some(host) = host else {
        return Err(io::Error::other(format!(
            "{address:?} is no address of a dashboard, such as http://127.0.0.1:8080/TOKEN/"
        )));
    };
    let (host, port) = (host.to_owned(), uri.port_u16().unwrap_or(80));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let exchange = async {
            let stream = tokio::net::TcpStream::connect((host.as_str(), port)).await?;
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream))
                    .await
                    .map_err(io::Error::other)?;
            tokio::spawn(connection);
            let path = uri.path_and_query().map_or("/", |path| path.as_str());
            let request = Request::get(path)
                .header(header::HOST, format!("{host}:{port}"))
                .body(Empty::<Bytes>::new())
                .map_err(io::Error::other)?;
            let response = sender.send_request(request).await.map_err(io::Error::other)?;
            let status = response.status();
            let body = Limited::new(response.into_body(), LARGEST).collect().await;
            let body = body.map_err(io::Error::other)?.to_bytes();
            if status.is_success() {
                return Ok(body);
            }
            let text = String::from_utf8_lossy(&body).chars().take(200).collect::<String>();
            Err(io::Error::new(io::ErrorKind::PermissionDenied, text.trim().to_owned()))
        };
        let timed = tokio::time::timeout(PATIENCE, exchange).await;
        timed.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixListener;

    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};

    use super::*;
    use crate::live::folders::make_private;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("feedline-{name}-{}", std::process::id()));
        make_private(&folder).unwrap();
        folder
    }

    /// Made, and not listened to.
    fn bound(path: &Path) -> OwnedFd {
        let made = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        bind(&made, &SocketAddrUnix::new(path).unwrap()).unwrap();
        made
    }

    #[test]
    fn only_what_the_dead_left_is_removed() {
        let base = folder("peers");
        let path = |process: u32| base.join(format!("{process}.sock"));
        let (here, dead, silent) = (std::process::id(), u32::MAX, u32::MAX - 1);
        let (early, _left) = (bound(&path(here)), bound(&path(dead)));
        // It seems to be dead from here, and does not answer: it may be a stopped one elsewhere.
        let _silent = UnixListener::bind(path(silent)).unwrap();
        assert_eq!(peers_in(&base), []);
        assert!(path(here).exists() && !path(dead).exists() && path(silent).exists());
        listen(&early, 8).unwrap();
        let found: Vec<u32> = peers_in(&base).iter().map(|peer| peer.pid).collect();
        assert_eq!(found, [here], "it has begun to listen");
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn a_process_elsewhere_that_is_slow_once_has_not_ended() {
        let base = folder("slow");
        let peer = Peer { pid: u32::MAX, socket: base.join("slow.sock") };
        let listener = UnixListener::bind(&peer.socket).unwrap();
        let answering = thread::spawn(move || {
            let _slow = listener.accept().unwrap();
            let (mut asked, _) = listener.accept().unwrap();
            // What is not read would break the connection.
            asked.read_exact(&mut [0; "snapshot\n".len()]).unwrap();
            let answer = serde_json::to_vec(&Snapshot::default()).unwrap();
            asked.write_all(&answer).unwrap();
        });
        assert!(matches!(peer.look(), Seen::Snapshot(_)));
        answering.join().unwrap();
        assert!(matches!(peer.look(), Seen::Ended), "nobody listens any more");
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn who_took_the_place_of_a_process_is_not_the_process() {
        let snapshot =
            || Seen::Snapshot(Box::new(Snapshot { session: "a".into(), ..Snapshot::default() }));
        assert!(matches!(snapshot().after("a"), Seen::Snapshot(_)));
        assert!(matches!(snapshot().after("b"), Seen::Ended));
        let silent = |kind: io::ErrorKind| Seen::Silent(kind.into()).after("a");
        assert!(matches!(silent(io::ErrorKind::PermissionDenied), Seen::Ended));
        assert!(matches!(silent(io::ErrorKind::InvalidData), Seen::Ended));
        assert!(matches!(silent(io::ErrorKind::TimedOut), Seen::Silent(_)));
    }
}
