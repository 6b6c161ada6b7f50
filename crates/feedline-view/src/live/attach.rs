//! Lets other processes of the same user look at this one, without its having asked for it: a Unix
//! socket in a folder that is the user's own.
//!
//! One thread sleeps on the socket. A client sends a word and a line feed: `snapshot`, or
//! `dashboard`, which opens the page. The answer is one JSON object, and the end of the stream.

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::net::SendFlags;
use serde_json::json;

use super::board::board;
use super::folders;
use super::listening::{self, Listener};
use super::server::serve;

/// A client may take so long to ask and to listen.
const PATIENCE: Duration = Duration::from_secs(2);

/// Bytes of a request.
const LONGEST: u64 = 256;

/// The process that has its socket, or tried.
static ATTACHED: AtomicU32 = AtomicU32::new(0);

/// The socket's path, for the end.
static SOCKET: Mutex<Option<(u32, PathBuf)>> = Mutex::new(None);

/// This process is somebody's worker: nobody looks at it.
static WORKER: AtomicU32 = AtomicU32::new(0);

/// This process makes batches for another one, which is the one to look at: [`attach()`] does
/// nothing from now on.
pub fn stay_hidden() {
    WORKER.store(std::process::id(), Ordering::Relaxed);
}

/// Lets others look at this process from now on, once; `FEEDLINE_WATCH=0` forbids it, and a path in
/// it is the folder for the socket. Where the system does not allow it, the loader runs on without.
pub fn attach() {
    let here = std::process::id();
    if ATTACHED.load(Ordering::Relaxed) == here || ATTACHED.swap(here, Ordering::Relaxed) == here {
        return;
    }
    if WORKER.load(Ordering::Relaxed) == here {
        return;
    }
    // A training run must never end because nobody can look at it.
    let _ = listen(here);
}

/// Takes the socket away. What it leaves behind when a process is killed is removed by the next
/// who looks.
pub fn detach() {
    // A lock that a thread of the parent held stays locked in a forked child, whose socket it is not.
    let Ok(mut socket) = SOCKET.try_lock() else { return };
    if let Some((_, path)) = socket.take_if(|(process, _)| *process == std::process::id()) {
        let _ = fs::remove_file(path);
    }
}

/// Listens in the first folder in which that can be done.
fn listen(here: u32) -> io::Result<()> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for folder in folders::to_listen() {
        match bind(&folder, here) {
            Ok((listener, path)) => return start(listener, path, here),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn bind(folder: &Path, here: u32) -> io::Result<(UnixListener, PathBuf)> {
    folders::make_private(folder)?;
    folders::sweep(folder);
    let path = folder.join(format!("{here}.sock"));
    let listener = match UnixListener::bind(&path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && folders::is_stale(&path) => {
            fs::remove_file(&path)?;
            UnixListener::bind(&path)?
        }
        bound => bound?,
    };
    Ok((listener, path))
}

fn start(listener: UnixListener, path: PathBuf, here: u32) -> io::Result<()> {
    let descriptor = listener.as_raw_fd();
    thread::Builder::new()
        .name("feedline-watch".to_owned())
        .spawn(move || listener.incoming().for_each(|client| answer(client, here)))?;
    listening::note(Listener::Socket, descriptor);
    if let Ok(mut socket) = SOCKET.try_lock() {
        *socket = Some((here, path));
    }
    Ok(())
}

fn answer(client: io::Result<UnixStream>, here: u32) {
    let Ok(client) = client else {
        thread::sleep(Duration::from_millis(200));
        return;
    };
    let limited = client.set_read_timeout(Some(PATIENCE)).is_ok()
        && client.set_write_timeout(Some(PATIENCE)).is_ok();
    let mut request = String::new();
    if !limited || BufReader::new((&client).take(LONGEST)).read_line(&mut request).is_err() {
        return;
    }
    if request.is_empty() {
        // Somebody saw that the socket is alive.
        return;
    }
    let Some(board) = board() else { return };
    let answer = match request.trim_end() {
        "snapshot" => {
            board.look();
            json!(board.snapshot())
        }
        "dashboard" => match serve(&board, 0) {
            Ok(address) => json!({"pid": here, "url": address}),
            Err(error) => json!({"error": error.to_string()}),
        },
        _ => json!({"error": "the requests are: snapshot, dashboard"}),
    };
    // A client that went away got what it wanted.
    let _ = send(&client, answer.to_string().as_bytes());
    // A child that was forked meanwhile has this connection too, and would keep it open.
    let _ = client.shutdown(Shutdown::Both);
}

/// Sends all, without the signal that a closed connection raises: a program that did not ask to be
/// watched may have made it deadly, as those do that are piped into `head`.
fn send(client: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let sent = retry_on_intr(|| rustix::net::send(client, bytes, SendFlags::NOSIGNAL))?;
        bytes = bytes.get(sent..).unwrap_or_default();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_socket_answers_and_goes() {
        let here = std::process::id();
        let folder = std::env::temp_dir().join(format!("feedline-attach-{here}"));
        let (listener, path) = bind(&folder, here).unwrap();
        start(listener, path.clone(), here).unwrap();
        let own_socket = || SOCKET.lock().unwrap().as_ref().map(|(_, path)| path.clone());
        assert_eq!(own_socket().as_ref(), Some(&path));
        let ask = |word: &str| {
            let mut stream = UnixStream::connect(&path).unwrap();
            stream.write_all(word.as_bytes()).unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            serde_json::from_str::<serde_json::Value>(&text).unwrap()
        };
        assert_eq!(ask("snapshot\n")["pid"], std::process::id());
        assert!(ask("rm -rf\n")["error"].as_str().unwrap().contains("snapshot"));
        let long = "x".repeat(200);
        assert!(ask(&format!("{long}\n"))["error"].is_string());
        detach();
        assert!(!path.exists() && own_socket().is_none());
        fs::remove_dir_all(&folder).unwrap();
    }
}
