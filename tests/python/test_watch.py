"""`feedline watch`: looking at a running process, which did not ask for it."""

from __future__ import annotations

import fcntl
import http.server
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest
from conftest import HANG, picture, until
from live_session import Session, session
from PIL import Image

THREE = np.arange(3)
FIGURES = {"batches", "samples", "samples_per_second", "wait_share", "queue", "memory", "stages", "verdict"}


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of sockets of the test's own."""
    monkeypatch.setenv("FEEDLINE_WATCH", str(tmp_path / "sockets"))
    return tmp_path / "sockets"


def watch(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "feedline", "watch", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


def once(running: Session) -> dict[str, Any]:
    done = watch(str(running.pid), "--json", "--once")
    assert done.returncode == 0, done.stderr
    snapshot: dict[str, Any] = json.loads(done.stdout)
    return snapshot


@pytest.mark.parametrize("kind", ["code", "torch"])
def test_an_epoch_that_is_over_is_seen_to_its_end(runtime: Path, kind: str) -> None:
    if kind == "torch":
        pytest.importorskip("torch")
    script = (
        "import os, subprocess, sys; from live_process import loader_of\n"
        f"loader = loader_of({kind!r}, '')\n"
        "assert len(list(loader)) == 100\n"
        "look = [sys.executable, '-m', 'feedline', 'watch', str(os.getpid()), '--json', '--once']\n"
        "subprocess.run(look, check=True, timeout=300)\n"
    )
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=here, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    [found] = json.loads(done.stdout)["loaders"]
    assert found["batches"] == 100, found


@pytest.mark.parametrize("kind", ["arrays", "code", "torch"])
def test_any_loader_can_be_watched_by_its_process_number(runtime: Path, kind: str) -> None:
    if kind == "torch":
        pytest.importorskip("torch")
    with session(kind) as running:
        assert [path.name for path in runtime.iterdir()] == [f"{running.pid}.sock"]
        assert runtime.stat().st_mode & 0o777 == 0o700
        first = once(running)
        assert first["command"] == "watch" and first["pid"] == running.pid
        [loader] = first["loaders"]
        assert loader.keys() >= FIGURES
        assert loader["batch_size"] == 4 and loader["batches"] >= 1
        until(lambda: once(running)["loaders"][0]["batches"] > loader["batches"], "figures that move")
        text = watch(str(running.pid), "--once")
        assert "samples/s" in text.stdout and "waited" in text.stdout
        running.end()
    assert not list(runtime.iterdir()), "the socket is removed at the end"


@pytest.mark.parametrize("kind", ["code", "torch"])
def test_a_wait_that_goes_on_is_seen(runtime: Path, kind: str) -> None:
    if kind == "torch":
        pytest.importorskip("torch")
    with session(kind, TEST_STUCK="100") as running:
        until(lambda: (once(running)["loaders"][0]["waiting_seconds"] or 0.0) > 3.0, "that it waits")
        [loader] = once(running)["loaders"]
        assert loader["longest_wait_seconds"] >= loader["waiting_seconds"]
        assert loader["wait_share"] > 0.5
        assert "waiting" in watch(str(running.pid), "--once").stdout


def test_it_ends_with_the_process(runtime: Path) -> None:
    with session() as running:
        command = [sys.executable, "-m", "feedline", "watch", str(running.pid), "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watcher:
            assert watcher.stdout is not None and watcher.stderr is not None
            lines = [json.loads(watcher.stdout.readline()) for _ in range(3)]
            assert [line["pid"] for line in lines] == [running.pid] * 3
            assert lines[0]["tick"] < lines[2]["tick"]
            running.process.kill()
            assert watcher.wait(30) == 0
            assert f"process {running.pid} has ended" in watcher.stderr.read()
    # What a killed process leaves is removed by the next who looks.
    assert [path.name for path in runtime.iterdir()] == [f"{running.pid}.sock"]
    assert watch().returncode == 1
    assert not list(runtime.iterdir())


def test_ctrl_c_ends_the_watcher_and_not_the_process(runtime: Path) -> None:
    with session() as running:
        command = [sys.executable, "-m", "feedline", "watch", str(running.pid)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watcher:
            assert watcher.stdout is not None
            assert "samples/s" in watcher.stdout.readline()
            watcher.send_signal(signal.SIGINT)
            assert watcher.wait(30) == 130
        assert once(running)["pid"] == running.pid


def test_clients_that_go_away_do_no_harm(runtime: Path) -> None:
    with session(TEST_DASHBOARD="1") as running:
        address = urllib.parse.urlsplit(running.url)
        request = f"GET {address.path}uplot.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
        for _ in range(30):
            with socket.socket(socket.AF_UNIX) as left:
                left.connect(str(runtime / f"{running.pid}.sock"))
                left.sendall(b"snapshot\n")
            with socket.create_connection(("127.0.0.1", address.port or 0)) as web:
                web.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                web.sendall(request)
        assert once(running)["pid"] == running.pid
        assert running.process.poll() is None


def test_a_stopped_process_is_waited_for(runtime: Path) -> None:
    with session() as running:
        command = [sys.executable, "-m", "feedline", "watch", str(running.pid), "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watcher:
            assert watcher.stdout is not None and watcher.stderr is not None
            watcher.stdout.readline()
            running.process.send_signal(signal.SIGSTOP)
            assert "does not answer" in watcher.stderr.readline()
            running.process.send_signal(signal.SIGCONT)
            assert json.loads(watcher.stdout.readline())["pid"] == running.pid
            watcher.kill()


def test_without_a_process_and_with_several(runtime: Path) -> None:
    nobody = watch()
    assert nobody.returncode == 1 and "no process" in nobody.stderr
    assert str(runtime) in re.sub(r"\s+", "", nobody.stderr), "it says where it looked"
    with session() as one:
        assert json.loads(watch("--json", "--once").stdout)["pid"] == one.pid
        with session("code") as two:
            listed = watch()
            assert listed.returncode == 0
            for running in (one, two):
                assert re.search(rf"live_process\.py.*\b{running.pid}\b", listed.stdout), listed.stdout
            found = json.loads(watch("--json").stdout)["processes"]
            assert {process["pid"] for process in found} == {one.pid, two.pid}


def test_what_cannot_be_watched_is_reported(runtime: Path) -> None:
    assert watch("photos").returncode == 2
    assert "neither the number" in watch("photos").stderr
    gone = watch(str(2**22 + 1))
    assert gone.returncode == 1 and "cannot be watched" in gone.stderr
    assert watch("http://127.0.0.1:9/token/").returncode == 1
    with session(FEEDLINE_WATCH="0") as running:
        assert not runtime.exists() or not list(runtime.iterdir())
        forbidden = watch(str(running.pid))
        assert forbidden.returncode == 1 and "FEEDLINE_WATCH=0" in forbidden.stderr


def test_stale_sockets_and_foreign_files(runtime: Path) -> None:
    runtime.mkdir(mode=0o700)
    stale = runtime / "123456.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(stale))
    (runtime / "notes.txt").write_text("mine")
    assert watch().returncode == 1
    assert [path.name for path in runtime.iterdir()] == ["notes.txt"]


def test_a_folder_that_others_may_enter_is_not_used(runtime: Path) -> None:
    runtime.mkdir()
    runtime.chmod(0o755)
    with session() as running:
        assert not list(runtime.iterdir())
        assert watch(str(running.pid)).returncode == 1
    left = runtime / "123456.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(left))
    assert watch().returncode == 1 and left.exists(), "nothing is touched there"


def test_by_default_sockets_lie_in_the_runtime_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEEDLINE_WATCH", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with session() as running:
        assert (tmp_path / f"feedline-{os.geteuid()}" / f"{running.pid}.sock").is_socket()
        assert once(running)["pid"] == running.pid


def test_the_page_can_be_opened_from_outside(runtime: Path) -> None:
    with session() as running:
        done = watch("--web", str(running.pid))
        url = done.stdout.strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[0-9a-f]{32}/", url), done
        assert watch("--web", str(running.pid)).stdout.strip() == url
        with urllib.request.urlopen(f"{url}data") as answer:
            assert json.load(answer)["pid"] == running.pid
        assert json.loads(watch(url, "--json", "--once").stdout)["pid"] == running.pid
        wrong = url[:-2] + ("0/" if url[-2] != "0" else "1/")
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(wrong)
        refused = watch(wrong)
        assert refused.returncode == 1 and "token" in refused.stderr


def test_the_dashboard_argument(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEEDLINE_DASHBOARD", raising=False)
    with feedline.Loader(THREE) as plain:
        assert plain.dashboard_url is None
    for bad in (-1, 65536, "yes", 2.5):
        with pytest.raises(ValueError, match="dashboard = "):
            feedline.Loader(THREE, dashboard=bad)  # type: ignore[arg-type]
    with feedline.Loader(THREE, dashboard=True) as loader:
        url = loader.dashboard_url
        assert url is not None and url in capfd.readouterr().err
    monkeypatch.setenv("FEEDLINE_DASHBOARD", "1")
    with feedline.Loader(THREE) as second, feedline.Loader(THREE, dashboard=False) as third:
        assert second.dashboard_url == url, "a process has one page"
        assert third.dashboard_url is None
    assert not capfd.readouterr().err, "it is reported once"
    assert feedline.Loader.from_spec({"source": THREE}, dashboard=True).dashboard_url == url
    with feedline.Loader(THREE, dashboard=1) as elsewhere:
        assert elsewhere.dashboard_url == url
    assert "dashboard=1: a process has one page" in caplog.text


def test_quarantined_samples_are_named(runtime: Path, tmp_path: Path) -> None:
    folder = tmp_path / "photos" / "class"
    folder.mkdir(parents=True)
    for number in range(9):
        Image.fromarray(picture(number)).save(folder / f"{number}.png")
    (folder / "torn.jpg").write_bytes(b"\xff\xd8\xff\xe0 torn")
    with session("bad", tmp_path / "photos") as running:
        until(lambda: once(running)["loaders"][0]["quarantined"])
        [loader] = once(running)["loaders"]
        assert loader["failed"] == 1
        assert loader["quarantined"][0]["name"].endswith("torn.jpg")
        assert "cannot decode" in loader["quarantined"][0]["reason"]


def test_a_forked_child_has_its_own_socket(runtime: Path) -> None:
    script = """
import os, sys, time
import numpy as np
from feedline import Loader
loader = Loader({"x": np.arange(100)}, batch_size=2, num_workers=1)
next(iter(loader))
child = os.fork()
if child == 0:
    next(iter(loader))
    both = {f"{os.getppid()}.sock", f"{os.getpid()}.sock"}
    print("child", set(os.listdir(sys.argv[1])) == both, flush=True)
    sys.exit(0)
os.waitpid(child, 0)
print("parent", os.listdir(sys.argv[1]) == [f"{os.getpid()}.sock"], flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(runtime)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.split("\n")[:2] == ["child True", "parent True"], done
    assert not list(runtime.iterdir())


def test_a_child_left_behind_does_not_answer_for_its_parent(runtime: Path) -> None:
    script = """
import os, sys, time
import numpy as np
from feedline import Loader
loader = Loader({"x": np.arange(100)}, batch_size=2, num_workers=1, dashboard=True)
next(iter(loader))
child = os.fork()
if child == 0:
    sys.stdout.close()
    os.close(1)
    os.close(2)
    time.sleep(3600)
    os._exit(0)
print(child, loader.dashboard_url.split("/")[2].split(":")[1], flush=True)
os.kill(os.getpid(), 9)
"""
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    child, port = map(int, done.stdout.split())
    try:
        with socket.socket() as knocking:
            assert knocking.connect_ex(("127.0.0.1", port)) != 0, "the page is gone"
        [left] = runtime.iterdir()
        with socket.socket(socket.AF_UNIX) as knocking:
            assert knocking.connect_ex(str(left)) != 0, "the socket is dead"
        # The next process that listens sweeps.
        with session() as running:
            assert [path.name for path in runtime.iterdir()] == [f"{running.pid}.sock"]
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("daemon", [True, False])
def test_workers_are_not_listed_but_ranks_are(runtime: Path, daemon: bool) -> None:
    script = """
import multiprocessing, os, sys
import numpy as np
from feedline import Loader

def use(loader, folder):
    loader = loader or Loader({"x": np.arange(100)}, batch_size=2, num_workers=1)
    next(iter(loader))
    print(f"{os.getpid()}.sock" in os.listdir(folder), loader.dashboard_url is not None, flush=True)

if __name__ == "__main__":
    folder, daemon = sys.argv[1], sys.argv[2] == "True"
    os.makedirs(folder, mode=0o700, exist_ok=True)
    os.environ["FEEDLINE_DASHBOARD"] = "1"
    for method in ("fork", "spawn"):
        worker = multiprocessing.get_context(method).Process(target=use, args=(None, folder), daemon=daemon)
        worker.start()
        worker.join()
"""
    file = runtime.parent / "ranks.py"
    file.write_text(script)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(file), str(runtime), str(daemon)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.split() == [str(not daemon)] * 4, done


def test_a_bad_environment_does_not_end_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    script = """
import logging
logging.basicConfig(format="%(message)s")
import numpy as np
from feedline import Loader
with Loader(np.arange(8), batch_size=2) as loader, Loader(np.arange(8), batch_size=2) as other:
    print(len(list(loader)) + len(list(other)), loader.dashboard_url)
"""

    def run(**environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", script]
        env = {**os.environ, **environment}
        return subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)

    bad = run(FEEDLINE_DASHBOARD="1", FEEDLINE_DASHBOARD_TOKEN="short", FEEDLINE_WATCH="relative/path")
    assert bad.stdout.split() == ["8", "None"], bad
    assert bad.stderr.count("FEEDLINE_DASHBOARD=1: ") == 1, bad
    assert bad.stderr.count("FEEDLINE_WATCH=relative/path: is neither") == 1, bad
    assert run(FEEDLINE_DASHBOARD="nonsense", FEEDLINE_WATCH="off").stdout.split() == ["8", "None"]


def test_a_port_that_another_process_has_does_not_end_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEEDLINE_DASHBOARD", raising=False)
    script = """
import logging, sys
logging.basicConfig(format="%(message)s")
import numpy as np
from feedline import Loader
port = int(sys.argv[1])
with Loader(np.arange(8), dashboard=port) as loader, Loader(np.arange(8), dashboard=port) as other:
    print(loader.dashboard_url == other.dashboard_url, f":{port}/" in loader.dashboard_url)
"""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-c", script, str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["True", "False"], done
    assert done.stderr.count(f"dashboard={port}: ") == done.stderr.count("any free port is used") == 1, done


def test_a_loader_without_the_dashboard_that_it_needs_is_closed() -> None:
    with pytest.raises(ValueError, match="dashboard = ") as raised:
        feedline.Loader(THREE, dashboard=-1)
    [loader] = [at.locals["self"] for at in raised.traceback if "self" in at.locals][-1:]
    assert loader._backend.closed


def test_who_takes_over_the_port_is_not_the_process() -> None:
    class Page(http.server.BaseHTTPRequestHandler):
        """The page of a process once, then of somebody who knows nothing of its token."""

        answered = False

        def do_GET(self) -> None:
            seen = {"pid": 1, "program": "", "session": "a", "tick": 1, "time": 1.0, "memory": 0}
            body = json.dumps({**seen, "cores_busy": None, "cores": 1, "loaders": []}).encode()
            self.send_response(403 if Page.answered else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            Page.answered = True

    with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = watch(f"http://127.0.0.1:{server.server_port}/token/", "--json")
        server.shutdown()
    assert done.returncode == 0 and "has ended" in done.stderr, done
    assert len(done.stdout.splitlines()) == 1


def test_the_screen_on_a_terminal(runtime: Path) -> None:
    def size(lines: int, columns: int) -> None:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def drawn_until(mark: bytes) -> bytes:
        """What is drawn, until this is seen."""
        seen = b""
        while mark not in seen:
            assert select.select([terminal], [], [], HANG)[0], seen
            seen += os.read(terminal, 65536)
        return seen

    with session() as running:
        command = [sys.executable, "-m", "feedline", "watch", str(running.pid)]
        terminal, slave = pty.openpty()
        size(30, 100)
        before = termios.tcgetattr(slave)
        environment = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
        ends = {"stdin": slave, "stdout": slave, "stderr": slave}
        with subprocess.Popen(command, **ends, start_new_session=True, env=environment) as watcher:
            try:
                drawn = drawn_until(b"q ends")
                assert b"\x1b[?1049h" in drawn, "a screen of its own"
                assert f"process {running.pid}".encode() in drawn and b"queue" in drawn
                assert termios.tcgetattr(slave)[3] != before[3], "keys come at once"
                size(20, 60)
                # All is drawn anew.
                assert b"queue" in drawn_until(b"q ends")
                os.write(terminal, b"q")
                drawn = drawn_until(b"\x1b[?1049l")
                assert watcher.wait(HANG) == 0
                assert b"\x1b[?25h" in drawn + left(terminal)
            finally:
                watcher.kill()
        assert termios.tcgetattr(slave) == before, "the terminal is as it was"
        os.close(slave)
        os.close(terminal)


def left(terminal: int) -> bytes:
    """What is still to be read of a process that has ended."""
    seen = b""
    while select.select([terminal], [], [], 0)[0]:
        seen += os.read(terminal, 65536)
    return seen
