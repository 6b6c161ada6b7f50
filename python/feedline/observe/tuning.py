"""What a loader changes by itself while it runs, and how to keep it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import shutil
import time
from pathlib import Path
from typing import Any, Protocol

from feedline import _native
from feedline._errors import Error
from feedline.observe.counters import Counters
from feedline.workers import Processes, Threads

_log = logging.getLogger("feedline")

# Between two looks, in seconds.
_PAUSE = 1.0


class Adjusted(Protocol):
    """Something whose workers are adjusted."""

    @property
    def closed(self) -> bool: ...

    def decisions(self, seen: int) -> tuple[int, str]:
        """How many decisions there were, and as JSON those after the first `seen`."""


class Decisions:
    """Logs what `num_workers="auto"` decided, each decision once."""

    __slots__ = ("_due", "_loader", "_seen")

    def __init__(self, loader: Adjusted) -> None:
        self._loader = loader
        self._seen = 0
        self._due = 0.0

    def look(self, epoch_ended: bool) -> None:
        """Called at every batch; most of the time there is nothing to do."""
        now = time.monotonic()
        if now < self._due and not epoch_ended:
            return
        self._due = now + _PAUSE
        if not _log.isEnabledFor(logging.INFO) or self._loader.closed:
            return
        # Another thread may close the loader meanwhile: the batch in hand is not lost for that.
        with contextlib.suppress(Error):
            self._seen, news = self._loader.decisions(self._seen)
            for decision in json.loads(news):
                _log.info("%s", _sentence(decision))


def _sentence(decision: dict[str, Any]) -> str:
    name, before, after = decision["setting"], decision["from"], decision["to"]
    change = f"{name} stays at {after}" if before == after else f"{name} {before} -> {after}"
    return f"auto: {change} after {decision['seconds']:.1f} s: {decision['reason']}"


class CodeTuning:
    """Adjusts the threads or processes that run Python code."""

    closed = False

    def __init__(self, auto: bool, workers: int) -> None:
        self._auto, self.workers = auto, workers
        self._controller: _native.Controller | None = None
        self._first = self._due = 0.0
        # Whether it is known that the workers are none that can be changed.
        self._settled = False

    def handed(self, executor: object, counters: Counters) -> None:
        """A batch was handed over. Most of the time there is nothing to do."""
        now = time.monotonic()
        if now < self._due or not self._auto:
            return
        if not isinstance(executor, Threads | Processes):
            self._settled = True
            return
        if self._controller is None:
            self._controller = _native.Controller(self.workers, executor.capacity)
            self._first = now
        wait = counters.waited - (counters.first_batch or 0.0) - counters.turnover
        busy = counters.code + counters.join
        wanted, due = self._controller.look(
            now - self._first, counters.batches, counters.samples, wait, counters.stepped, busy
        )
        self._due = self._first + due
        if wanted != executor.active:
            executor.adjust(wanted)
            self.workers = wanted

    def decisions(self, seen: int) -> tuple[int, str]:
        """How many decisions there were, and as JSON those after the first `seen`."""
        return (0, "[]") if self._controller is None else self._controller.decisions(seen)

    def stats(self) -> dict[str, Any]:
        """What `stats()` says of it."""
        if self._controller is not None:
            return {"reason": None, **json.loads(self._controller.tuning())}
        fixed = "workers with a state or a seed each, and workers whose number was given stay as they are"
        return {
            "auto": self._auto and not self._settled,
            "reason": fixed if self._settled or not self._auto else "nothing was made yet",
            "num_workers": self.workers,
            "most_workers": self.workers,
            "prefetch": None,
            "decisions": [],
            "decisions_left_out": 0,
        }


def frozen_file(path: str | os.PathLike[str]) -> Path:
    """The file for frozen settings, whose ending says how they are written."""
    where = Path(path)
    if where.suffix not in (".toml", ".json"):
        raise ValueError(f"freeze: {str(where)!r}: the name must end in .toml or .json")
    return where


def freeze_code(
    path: str | os.PathLike[str], stats: dict[str, Any], prefetch_factor: int | None, maker: str
) -> None:
    """Writes the settings of a loader over objects of the program, which a file cannot hold. `maker`
    is what takes them."""
    where = frozen_file(path)
    settings: dict[str, Any] = {"num_workers": stats["tuning"]["num_workers"]}
    if prefetch_factor:
        settings["prefetch_factor"] = prefetch_factor
    decided = [one["reason"] for one in stats["tuning"]["decisions"] if one["setting"] == "num_workers"]
    why = {"num_workers": decided[-1] if decided else "as it was set, or one for each core"}
    chosen = stats["executor"]
    if chosen is not None:
        settings["executor"] = chosen["name"]
        why["executor"] = chosen["reason"]
    if where.suffix == ".json":
        _write_whole(where, json.dumps(settings, indent=2) + "\n")
        return
    lines = [
        "# Settings of a loader over objects of the program. To use them:",
        f"#   {maker}(my_dataset, ..., **tomllib.loads(Path({where.name!r}).read_text()))",
    ]
    for key, value in settings.items():
        if key in why:
            lines.append(f"# {' '.join(why[key].split())}")
        lines.append(f"{key} = {json.dumps(value)}")
    _write_whole(where, "\n".join(lines) + "\n")


def _write_whole(where: Path, text: str) -> None:
    """Whoever reads the file meanwhile sees the one before, whose permissions it keeps."""
    # A link stays one.
    where = where.resolve()
    if where.exists() and not where.is_file():
        # A device or a pipe stays what it is.
        where.write_text(text, encoding="utf-8")
        return
    # New and of a name that nobody can guess: a link in its place would lead to another file.
    partial = where.with_name(f".{where.name}.{secrets.token_hex(8)}.partial")
    try:
        with partial.open("x", encoding="utf-8") as file:
            file.write(text)
        if where.exists():
            shutil.copymode(where, partial)
        partial.replace(where)
    finally:
        partial.unlink(missing_ok=True)
