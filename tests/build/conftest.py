"""What is built outside of the workspace: with the tools that a user has, from what is published."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Crates of other people are built once, for the workspace. Ours are built anew, in little time.
QUICK = [
    part
    for crate in ("feedline", "feedline-resample", "feedline-cli", "feedline-view", "feedline-py")
    for part in ("--config", f"profile.release.package.{crate}.opt-level=0")
]


@pytest.fixture(scope="session")
def target() -> Path:
    """Where the workspace is built."""
    return ROOT / "target"
