"""The code in the README runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
BLOCK = re.compile(r"(<!-- not run -->\s*)?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> list[str]:
    return (
        [code for skipped, code in BLOCK.findall(README.read_text()) if not skipped]
        if README.exists()
        else []
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with a small set of photos under the name that the README uses."""
    path = tmp_path_factory.mktemp("readme")
    command = ["sample-data", "photos", "--count", "200", "--classes", "4"]
    subprocess.run([sys.executable, "-m", "feedline", *command], check=True, capture_output=True, cwd=path)
    return path


def test_there_is_code() -> None:
    assert len(blocks()) >= 2


@pytest.mark.parametrize("code", blocks(), ids=lambda code: code.strip().splitlines()[0][:40])
def test_code_runs(code: str, folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, f"{code}\n{done.stderr}"
