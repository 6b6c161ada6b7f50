"""The live view: the page of a process, and the figures of loaders whose batches Python makes."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import sys
import time
from collections import deque
from typing import Any, Protocol

from feedline import _native

_log = logging.getLogger("feedline")
_VARIABLE = "FEEDLINE_DASHBOARD"
# What was logged or printed once.
_said: set[str] = set()
# Ports that were asked for, and that the page does not have.
_complained_of: set[int] = set()

# What a process that is killed leaves behind is removed by the next who looks or listens.
atexit.register(_native.stop_watching)


def _close_listeners() -> None:
    """In a forked child: whoever knocks there after the parent's end must not wait for an answer."""
    for descriptor in _native.inherited_listeners():
        with contextlib.suppress(OSError):
            os.close(descriptor)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_listeners)


def is_worker() -> bool:
    """Whether this process makes samples for another one, which is the one to look at.

    A rank of a training run that `multiprocessing` started is none.
    """
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None:
        return False
    data = sys.modules.get("torch.utils.data")
    if data is not None and data.get_worker_info() is not None:
        return True
    return bool(process.current_process().daemon)


def hide_workers() -> None:
    """Called where a loader is about to be used: nobody looks at workers."""
    if is_worker():
        _native.stay_hidden()


# Verdicts are over so many seconds.
_JUDGED = 30.0


class Watchable(Protocol):
    """What the dashboard asks a loader of Python code for."""

    def stats(self) -> dict[str, Any]:
        """What happened so far."""

    def mark(self) -> dict[str, Any]:
        """Its counters as they stand."""

    def report_since(self, before: dict[str, Any]) -> dict[str, Any]:
        """What happened since a mark, judged."""


class Live:
    """A loader on the board of its process: others see its figures, a second old at most."""

    def __init__(self, name: str, batch_size: int, quarantine: Any = None) -> None:
        path = None if quarantine is None else os.fspath(quarantine)
        self._watched = _native.Watched(name, batch_size, path)
        self._seen, self._due = False, 0.0
        self._marks: deque[tuple[float, dict[str, Any]]] = deque()
        self._verdict: dict[str, Any] | None = None

    def asked(self, loader: Watchable) -> None:
        """The program asks for a batch, and waits from now on."""
        if not self._seen:
            # It is seen before its first batch is there, which may take long.
            self._push(loader)
            self._seen, self._due = True, 0.0
        self._watched.waits(True)

    def left(self, loader: Watchable) -> None:
        """The program waits no longer, and has no batch: the last figures stand until it asks again."""
        self._watched.waits(False)
        self._due = 0.0
        self._push(loader)

    def handed(self, loader: Watchable) -> None:
        """The program has its batch. The loader is asked for figures once a second at most."""
        self._watched.waits(False)
        self._push(loader)

    def _push(self, loader: Watchable) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + 1.0
        if is_worker():
            return
        marks = self._marks
        while len(marks) > 1 and marks[1][0] <= now - _JUDGED:
            marks.popleft()
        report = loader.report_since(marks[0][1] if marks else {})
        if report["batches"] > 0:
            self._verdict = report["verdict"]
        marks.append((now, loader.mark()))
        self._watched.push(json.dumps({**loader.stats(), "verdict": self._verdict}))

    def close(self) -> None:
        """The loader is closed."""
        self._seen, self._due, self._verdict = False, 0.0, None
        self._marks.clear()
        self._watched.close()


def open_dashboard(asked: bool | int | None) -> str | None:
    """Serves the page of this process if that was asked for, here or in the environment."""
    _warn_once(_native.watch_complaint())
    port = _port_of(asked)
    if port is not None:
        url: str | None = _at_this_port_or_another(port)
    elif asked is None and not is_worker():
        url = _as_the_environment_says(os.environ.get(_VARIABLE, ""))
    else:
        url = None
    if url is not None and url not in _said:
        _said.add(url)
        _log.info("dashboard: %s", url)
        print(f"feedline: dashboard: {url}", file=sys.stderr, flush=True)
    return url


def _at_this_port_or_another(port: int) -> str:
    """Several processes of a job are given the same number, and there is one such port."""
    named = f"dashboard={port}: "
    try:
        url = _native.dashboard(port)
    except OSError as error:
        if not port:
            raise
        _complained_of.add(port)
        _warn_once(f"{named}{error}; any free port is used")
        return _native.dashboard(0)
    if port and f":{port}/" not in url and port not in _complained_of:
        _complained_of.add(port)
        _warn_once(f"{named}a process has one page, and this one's has another port already")
    return url


def _as_the_environment_says(text: str) -> str | None:
    """Whatever is wrong with it, a training run does not end for that."""
    port = _port_of_environment(text)
    if port is None:
        return None
    # Several processes of a job have the same environment, and there is one such port.
    for attempt in dict.fromkeys((port, 0)):
        try:
            return _native.dashboard(attempt)
        except Exception as error:
            then = "any free port is used" if attempt else "there is no dashboard"
            _warn_once(f"{_VARIABLE}={text}: {error}; {then}")
    return None


def _warn_once(complaint: str | None) -> None:
    if complaint is not None and complaint not in _said:
        _said.add(complaint)
        _log.warning("%s", complaint)


def _port_of(asked: bool | int | None) -> int | None:
    if asked is None or asked is False:
        return None
    if asked is True:
        return 0
    if isinstance(asked, int) and 0 <= asked < 65536:
        return asked
    raise ValueError(f"dashboard = {asked!r}: is neither True, False nor a port")


def _port_of_environment(text: str) -> int | None:
    if text.lower() in ("", "0", "false", "no", "off"):
        return None
    if text.lower() in ("1", "true", "yes", "on"):
        return 0
    if text.isascii() and text.isdigit() and int(text) < 65536:
        return int(text)
    _warn_once(f"{_VARIABLE}={text}: is neither 0, 1 nor a port, and ignored")
    return None
