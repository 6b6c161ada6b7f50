"""The code in the README and in the page about moving from torch runs as it stands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
MOVING = README.parent / "docs" / "torch.md"
BLOCK = re.compile(r"(<!-- not run -->\s*)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str, page: Path = README) -> list[str]:
    found = BLOCK.findall(page.read_text())
    return [code for skipped, kind, code in found if kind == language and not skipped]


def commands() -> list[str]:
    lines = "".join(blocks("sh")).splitlines()
    return [line.partition("#")[0].strip() for line in lines if line.startswith("feedline ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with a small set of photos under the name that the README uses."""
    path = tmp_path_factory.mktemp("readme")
    command = ["sample-data", "photos", "--count", "200", "--classes", "4"]
    subprocess.run([sys.executable, "-m", "feedline", *command], check=True, capture_output=True, cwd=path)
    (path / "pipeline.toml").write_text(blocks("toml")[0])
    return path


def test_there_is_code() -> None:
    assert len(blocks("python")) >= 2
    assert len(commands()) >= 4


def test_every_example_is_on_the_page() -> None:
    text = README.read_text() + MOVING.read_text()
    for path in (README.parent / "examples").glob("with_*.py"):
        assert f"examples/{path.name})" in text and f"../examples/{path.name})" in text, path.name


@pytest.mark.parametrize("command", commands())
def test_commands_run(command: str, folder: Path) -> None:
    # The set of the README's own size would take a while.
    line = command.replace("sample-data photos", "sample-data more --count 20 --classes 2")
    arguments = [sys.executable, "-m", "feedline", *shlex.split(line)[1:]]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, f"{line}\n{done.stderr}"
    assert done.stdout.strip()


@pytest.mark.parametrize(
    "code", blocks("python") + blocks("python", MOVING), ids=lambda code: code.strip().splitlines()[0][:40]
)
def test_code_runs(code: str, folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, f"{code}\n{done.stderr}"
