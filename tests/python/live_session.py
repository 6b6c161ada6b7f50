"""What the tests of the live view share: a training process beside them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SCRIPT = Path(__file__).with_name("live_process.py")


class Session:
    """A training process that has made its first batch."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.url = process, url

    @property
    def pid(self) -> int:
        """Its number."""
        return self.process.pid

    def end(self) -> None:
        """Lets it end as a program ends."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(300)


@contextmanager
def session(kind: str = "arrays", folder: object = "", **environment: str) -> Iterator[Session]:
    """A training process, until the end of the block at the latest."""
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), kind, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        assert words[:1] == ["ready"], "the process did not come to its first batch"
        yield Session(process, words[1])
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
