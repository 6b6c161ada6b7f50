//! The page of this process: on the loopback address only, and only for who knows the token.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use super::board::Board;
use super::error::LiveError;
use super::listening::{self, Listener};
use super::{assets, metrics, token};

/// A request's head may take so many bytes.
const HEAD: usize = 16 * 1024;

/// What connections may take.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// So many are open at the same time. One more, and the oldest that has not asked for anything
    /// is closed: those that are idle hold nobody up.
    connections: usize,
    /// A request's head may take so long to arrive.
    head: Duration,
    /// A connection may last so long, from its first byte to its last: each serves one request.
    whole: Duration,
}

const LIMITS: Limits =
    Limits { connections: 64, head: Duration::from_secs(5), whole: Duration::from_secs(15) };

/// After a failure to accept (no file descriptors left), a breath is taken.
const PAUSE: Duration = Duration::from_millis(200);

/// The same for whatever is wrong with a token, so that nothing can be learnt from it.
const REFUSED: &str = "403: the address of this page has a token, and this is not it. Use the whole address that feedline printed.\n";

/// Allows the page its own files and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Serves the page of `board`, if that is not done already, and returns its address. The port 0 is
/// any that is free. The server ends with the process.
pub fn serve(board: &Arc<Board>, port: u16) -> Result<String, LiveError> {
    // One at a time: two loaders of a program may ask at once.
    let mut page = board.page.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(address) = page.as_ref() {
        return Ok(address.clone());
    }
    let token = match std::env::var(token::VARIABLE) {
        Ok(chosen) => token::check(&chosen).map(|()| chosen).map_err(LiveError::Token)?,
        Err(_) => token::random().map_err(LiveError::Start)?,
    };
    let bound = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let listener = bound.map_err(|source| LiveError::Port { port, source })?;
    listener.set_nonblocking(true).map_err(LiveError::Start)?;
    let port = listener.local_addr().map_err(LiveError::Start)?.port();
    let address = format!("http://127.0.0.1:{port}/{token}/");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(LiveError::Start)?;
    let site = Arc::new(Site { board: board.clone(), token });
    let descriptor = listener.as_raw_fd();
    thread::Builder::new()
        .name("feedline-page".to_owned())
        .spawn(move || runtime.block_on(accept(listener, site, LIMITS)))
        .map_err(LiveError::Start)?;
    listening::note(Listener::Page, descriptor);
    board.look_always();
    *page = Some(address.clone());
    Ok(address)
}

struct Site {
    board: Arc<Board>,
    token: String,
}

async fn accept(listener: std::net::TcpListener, site: Arc<Site>, limits: Limits) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    let mut open = VecDeque::new();
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(_) => {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        make_room(&mut open, limits.connections);
        let (site, asked) = (site.clone(), Arc::new(AtomicBool::new(false)));
        let noted = asked.clone();
        let task = tokio::spawn(async move { converse(stream, peer, &site, &noted, limits).await });
        open.push_back(Connection { task: task.abort_handle(), asked });
        // Who has asked already is heard before more come in, and might be taken for idle.
        tokio::task::yield_now().await;
    }
}

/// A connection that may still be open.
struct Connection {
    task: AbortHandle,
    /// Its request has arrived.
    asked: Arc<AtomicBool>,
}

/// Forgets connections that are closed, the oldest first, and closes one if there are too many.
fn make_room(open: &mut VecDeque<Connection>, most: usize) {
    open.retain(|connection| !connection.task.is_finished());
    if open.len() >= most {
        let idle = open.iter().position(|connection| !connection.asked.load(Relaxed));
        // With none idle, the oldest has had its time.
        let closed = open.remove(idle.unwrap_or(0));
        closed.into_iter().for_each(|connection| connection.task.abort());
    }
}

/// One request and its answer, within a bounded time.
async fn converse(
    stream: TcpStream,
    peer: SocketAddr,
    site: &Arc<Site>,
    asked: &AtomicBool,
    limits: Limits,
) {
    if !peer.ip().is_loopback() {
        return;
    }
    let service = service_fn(|request: Request<Incoming>| {
        asked.store(true, Relaxed);
        let answer = site.answer(&request);
        async move { Ok::<_, Infallible>(answer) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(HEAD)
        .keep_alive(false)
        .half_close(true)
        // One send at a time never raises the signal of a closed connection; several at once do.
        .writev(false)
        .serve_connection(TokioIo::new(stream), service);
    // Whether the other side got its answer is its own affair.
    let _ = tokio::time::timeout(limits.whole, connection).await;
}

impl Site {
    fn answer<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        if !is_loopback(request.headers()) {
            return plain(
                StatusCode::MISDIRECTED_REQUEST,
                "421: this server is only for 127.0.0.1\n",
            );
        }
        if request.method() != Method::GET {
            return plain(
                StatusCode::METHOD_NOT_ALLOWED,
                "405: there is nothing here but to read\n",
            );
        }
        let path = request.uri().path();
        let query = request.uri().query().unwrap_or("");
        let (first, rest) = path.trim_start_matches('/').split_once('/').unwrap_or((path, ""));
        let allowed = |given: &str| token::same(given.as_bytes(), self.token.as_bytes());
        if path == "/metrics" {
            let bearer = request.headers().get(header::AUTHORIZATION);
            let bearer = bearer.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
            let given = bearer.or_else(|| parameter(query, "token")).unwrap_or("");
            return if allowed(given) { self.page("metrics", "") } else { refused() };
        }
        if path.strip_prefix('/').is_some_and(allowed) {
            // Without the last slash, the page would look for its files elsewhere.
            return self.moved();
        }
        if allowed(first) { self.page(rest, query) } else { refused() }
    }

    fn moved(&self) -> Response<Full<Bytes>> {
        let mut response = plain(StatusCode::PERMANENT_REDIRECT, "308: there is a / at the end\n");
        if let Ok(place) = HeaderValue::from_str(&format!("/{}/", self.token)) {
            response.headers_mut().insert(header::LOCATION, place);
        }
        response
    }

    /// What lies behind the token.
    fn page(&self, name: &str, query: &str) -> Response<Full<Bytes>> {
        let number = |name: &str| parameter(query, name).and_then(|value| value.parse().ok());
        match name {
            "data" => {
                let data = self.board.data(number("loader"), number("since"));
                found("application/json", data.to_string())
            }
            "metrics" => found(metrics::CONTENT_TYPE, metrics::text(&self.board.snapshot())),
            _ => match assets::find(name) {
                Some((kind, text)) => found(kind, text),
                None => plain(StatusCode::NOT_FOUND, "404: there is no such page\n"),
            },
        }
    }
}

/// The Host that a browser names. A foreign name that leads here (DNS rebinding) is refused.
fn is_loopback(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    let Ok(host) = host.to_str() else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    name == "127.0.0.1" || name.eq_ignore_ascii_case("localhost")
}

/// A parameter of a query. All that are used here are plain letters and digits.
fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

fn refused() -> Response<Full<Bytes>> {
    plain(StatusCode::FORBIDDEN, REFUSED)
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = found("text/plain; charset=utf-8", text);
    *response.status_mut() = status;
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET"));
    }
    response
}

fn found(kind: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    let headers = response.headers_mut();
    let mut set = |name: header::HeaderName, value: &'static str| {
        headers.insert(name, HeaderValue::from_static(value));
    };
    set(header::CONTENT_TYPE, kind);
    set(header::CACHE_CONTROL, "no-store");
    set(header::CONTENT_SECURITY_POLICY, POLICY);
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(header::X_FRAME_OPTIONS, "DENY");
    // The token stands in the address, which must not travel to others.
    set(header::REFERRER_POLICY, "no-referrer");
    set(header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin");
    response
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::TcpStream;

    use super::*;

    /// A page on which idle connections stay until they are in the way.
    fn patient(connections: usize) -> (u16, String) {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let hour = Duration::from_secs(3600);
        let limits = Limits { connections, head: hour, whole: hour };
        let token = token::random().unwrap();
        let site = Arc::new(Site { board: Arc::new(Board::new()), token: token.clone() });
        thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
            runtime.unwrap().block_on(accept(listener, site, limits));
        });
        (port, format!("GET /{token}/data HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"))
    }

    fn connect(port: u16) -> TcpStream {
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap()
    }

    #[test]
    fn idle_connections_hold_nobody_up() {
        let (port, request) = patient(64);
        // Some have sent a part of a request.
        let idle: Vec<TcpStream> = (0..200)
            .map(|number| {
                let mut stream = connect(port);
                stream.write_all(&request.as_bytes()[..number % 3]).unwrap();
                stream
            })
            .collect();
        for _ in 0..3 {
            let mut real = connect(port);
            real.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            real.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
        let is_open = |mut stream: &TcpStream| {
            stream.set_nonblocking(true).unwrap();
            stream.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        };
        // The newest stay: one was closed for each of the three at most.
        assert!(idle[200 - 61..].iter().all(is_open));
        assert!(idle.iter().filter(|stream| is_open(stream)).count() <= 64);
    }

    #[test]
    fn who_has_asked_is_answered_however_many_come_after() {
        let (port, request) = patient(2);
        for _ in 0..50 {
            let mut real = connect(port);
            real.write_all(request.as_bytes()).unwrap();
            let idle: Vec<TcpStream> = (0..20).map(|_| connect(port)).collect();
            let mut answer = String::new();
            real.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            drop(idle);
        }
    }
}
