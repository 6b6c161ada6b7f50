"""Samples that failed and were replaced: counted, and listed in the quarantine file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

from feedline import _native
from feedline._errors import TooManyFailuresError


class FailedSamples:
    """The distinct samples of a run that failed, by source and index."""

    def __init__(self, most: int | None, quarantine: Any) -> None:
        """More than `most` end the run; `quarantine` is the path of a file, or None."""
        self._most = most
        # Replaced, never changed: a state is taken in one look while another thread waits for a batch.
        self._picks: frozenset[tuple[int, int]] = frozenset()
        self._file: Any = None
        if quarantine is not None:
            descriptor = _native.open_quarantine(os.fsencode(quarantine))
            self._file = open(descriptor, "a", encoding="utf-8", errors="surrogateescape")  # noqa: SIM115

    def __len__(self) -> int:
        return len(self._picks)

    @property
    def picks(self) -> list[tuple[int, int]]:
        """All of them, in order."""
        return sorted(self._picks)

    def restore(self, picks: Iterable[tuple[int, int]]) -> None:
        """Those of a run that is resumed."""
        self._picks = frozenset(picks)

    def add(self, record: dict[str, Any]) -> None:
        """Adds a sample that failed."""
        text = record.pop("text")
        pick = record["source"], record["index"]
        if pick not in self._picks:
            if self._file is not None:
                self._file.write(json.dumps(record) + "\n")
                self._file.flush()
            self._picks |= {pick}
        failed = len(self._picks)
        if self._most is not None and failed > self._most:
            raise TooManyFailuresError(
                f"{failed} samples failed, more than max_failures = {self._most} allows; the last: {text}",
                failed=failed,
                allowed=self._most,
                **record,
            )

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
