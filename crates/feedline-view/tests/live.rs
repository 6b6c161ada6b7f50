//! The page's server over real connections: who may read what, and what it costs to misbehave.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use feedline_view::live::{About, Board, Seen, Watched, fetch, serve};
use serde_json::{Value, json};

struct Page {
    port: u16,
    token: String,
    address: String,
    watched: Watched,
}

fn page() -> Page {
    let board = Arc::new(Board::new());
    let about = About { name: "photos".to_owned(), batch_size: 4, quarantine: None };
    let watched = board.watch_pushed(about);
    watched.push(json!({
        "batches": 5, "samples": 20, "wait_seconds": 1.0, "step_seconds": 3.0,
        "seconds_per_sample": {"decode": 0.001},
    }));
    let address = serve(&board, 0).unwrap();
    assert_eq!(serve(&board, 0).unwrap(), address, "a process has one page");
    let rest = address.strip_prefix("http://127.0.0.1:").unwrap();
    let (port, token) = rest.trim_end_matches('/').split_once('/').unwrap();
    Page { port: port.parse().unwrap(), token: token.to_owned(), watched, address: address.clone() }
}

impl Page {
    fn send(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
        // The server may close before it has read all of a request that it refuses.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn get_with(&self, path: &str, headers: &str) -> String {
        self.send(format!("GET {path} HTTP/1.1\r\n{headers}\r\n").as_bytes())
    }

    fn get(&self, path: &str) -> String {
        self.get_with(path, &format!("Host: 127.0.0.1:{}\r\n", self.port))
    }

    fn data(&self, query: &str) -> Value {
        let answer = self.get(&format!("/{}/data{query}", self.token));
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    }
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

fn without_date(answer: &str) -> String {
    answer.lines().filter(|line| !line.starts_with("date:")).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_page_and_its_files_are_there_for_who_knows_the_token() {
    let page = page();
    assert_eq!(page.token.len(), 32);
    for file in
        ["", "dashboard.js", "dashboard.css", "base.js", "base.css", "uplot.js", "uplot.css"]
    {
        let answer = page.get(&format!("/{}/{file}", page.token));
        assert_eq!(status(&answer), 200, "{file}");
        let head = answer.split_once("\r\n\r\n").unwrap().0.to_ascii_lowercase();
        for header in [
            "cache-control: no-store",
            "x-frame-options: deny",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "content-security-policy: default-src 'none'; script-src 'self'",
        ] {
            assert!(head.contains(header), "{file} has no {header}: {head}");
        }
        assert!(!head.contains("access-control"), "{head}");
    }
    assert_eq!(status(&page.get(&format!("/{}/../etc/passwd", page.token))), 404);
    assert_eq!(status(&page.get(&format!("/{}", page.token))), 308);
}

#[test]
fn a_wrong_token_learns_nothing() {
    let page = page();
    let expected = page.get("/");
    assert_eq!(status(&expected), 403);
    let mut almost = page.token.clone();
    let last = if almost.pop() == Some('0') { '1' } else { '0' };
    almost.push(last);
    let longer = format!("{}0", page.token);
    let paths = [
        format!("/{almost}/"),
        format!("/{almost}/data"),
        format!("/{longer}/data"),
        format!("/data?token={}", page.token),
        "/data".to_owned(),
        "/nothing/here".to_owned(),
        "/metrics".to_owned(),
        "/metrics?token=".to_owned(),
        format!("/metrics?token={almost}"),
        "//".to_owned(),
        "/%00/".to_owned(),
    ];
    for path in paths {
        let answer = page.get(&path);
        assert_eq!(without_date(&answer), without_date(&expected), "{path}");
    }
    assert!(!expected.contains("photos") && !expected.contains(&page.token));
}

#[test]
fn another_host_is_refused_even_with_the_token() {
    let page = page();
    let path = format!("/{}/data", page.token);
    for host in
        ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::2]", "192.168.0.1", ""]
    {
        let answer = page.get_with(&path, &format!("Host: {host}\r\n"));
        assert!([421, 400].contains(&status(&answer)), "{host}: {answer}");
        assert!(!answer.contains("photos"));
    }
    let none = page.get_with(&path, "");
    assert!([421, 400].contains(&status(&none)), "{none}");
    let two = page.get_with(&path, "Host: 127.0.0.1\r\nHost: evil.example\r\n");
    assert!([421, 400].contains(&status(&two)), "{two}");
    assert_eq!(status(&page.get_with(&path, "Host: localhost:1\r\n")), 200);
}

#[test]
fn there_is_nothing_but_to_read() {
    let page = page();
    for method in ["HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE"] {
        let head = "Host: 127.0.0.1\r\nContent-Length: 5\r\n\r\nhello";
        let answer = page.send(format!("{method} /{}/ HTTP/1.1\r\n{head}", page.token).as_bytes());
        assert_eq!(status(&answer), 405, "{method}: {answer}");
    }
    for noise in [&b"\x16\x03\x01\x02\x00\x01\x00"[..], b"\0\0\0\0\r\n\r\n", b"GET\r\n\r\n", b""] {
        let answer = page.send(noise);
        assert!(answer.is_empty() || status(&answer) == 400, "{answer}");
    }
}

#[test]
fn what_is_too_large_is_refused() {
    let page = page();
    let long = "x".repeat(64 * 1024);
    let address = page.get(&format!("/{}/{long}", page.token));
    assert!([0, 400, 414, 431].contains(&status(&address)), "{}", status(&address));
    let header = page.get_with("/", &format!("Host: 127.0.0.1\r\nX: {long}\r\n"));
    assert!([0, 400, 431].contains(&status(&header)), "{}", status(&header));
    let many: String = (0..5000).map(|n| format!("X{n}: 1\r\n")).collect();
    let headers = page.get_with("/", &format!("Host: 127.0.0.1\r\n{many}"));
    assert!([0, 400, 431].contains(&status(&headers)), "{}", status(&headers));
    assert_eq!(status(&page.get(&format!("/{}/", page.token))), 200);
}

#[test]
fn figures_come_with_what_is_new_of_the_history() {
    let page = page();
    let first = page.data("");
    assert_eq!(first["loaders"][0]["name"], "photos");
    assert_eq!(first["loaders"][0]["samples"], 20);
    assert_eq!(first["loaders"][0]["wait_share"], 0.25, "{first}");
    assert_eq!(first["history"]["tick"][0], 0);
    let none = page.data(&format!("?since={}", u64::MAX));
    assert_eq!(
        (&none["loaders"][0]["samples"], &none["history"]["tick"]),
        (&json!(20), &json!([]))
    );
    page.watched.push(json!({"batches": 6, "samples": 24}));
    let deadline = Instant::now() + Duration::from_secs(300);
    let later = loop {
        let later = page.data("?loader=0&since=0");
        if later["tick"].as_u64() > Some(1) || Instant::now() > deadline {
            break later;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(later["loaders"][0]["samples"], 24);
    assert_eq!(later["history"]["tick"][0], 1, "{later}");
    assert_eq!(page.data("?loader=nonsense&since=-1")["history"]["tick"][0], 0);
}

#[test]
fn prometheus_may_use_a_header_or_a_parameter() {
    let page = page();
    let by_parameter = page.get(&format!("/metrics?token={}", page.token));
    let bearer = format!("Host: localhost\r\nAuthorization: Bearer {}\r\n", page.token);
    let by_header = page.get_with("/metrics", &bearer);
    let by_path = page.get(&format!("/{}/metrics", page.token));
    for answer in [by_parameter, by_header, by_path] {
        assert_eq!(status(&answer), 200);
        assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");
        assert!(answer.contains("feedline_samples_total{loader=\"0\"} 20\n"), "{answer}");
    }
}

#[test]
fn a_watcher_reads_the_same_by_the_address() {
    let page = page();
    let Seen::Snapshot(snapshot) = fetch(&page.address) else { panic!("nothing was seen") };
    assert_eq!((snapshot.pid, snapshot.loaders[0].samples), (std::process::id(), 20));
    let wrong = page.address.replace(&page.token, &"0".repeat(32));
    let Seen::Silent(error) = fetch(&wrong) else { panic!("a wrong token was taken") };
    assert!(error.to_string().contains("token"), "{error}");
    for bad in ["", "photos", "https://127.0.0.1/", "ftp://x/", "http://"] {
        assert!(matches!(fetch(bad), Seen::Silent(_)), "{bad}");
    }
    assert!(matches!(fetch("http://127.0.0.1:1/x/"), Seen::Ended));
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = serve(&Arc::new(Board::new()), port).unwrap_err().to_string();
    assert!(error.contains(&format!("port {port}")) && error.contains("0 for any"), "{error}");
}
