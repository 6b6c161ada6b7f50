"""The command that the package ships."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import feedline
from conftest import HANG, files_below, until


def installed_script() -> Path | None:
    """The script of the installed package; `pip install --target` puts it into `bin` beside it."""
    try:
        importlib.metadata.version("feedline")
    except importlib.metadata.PackageNotFoundError:
        return None
    for folder in (Path(feedline.__file__).parents[1] / "bin", Path(sysconfig.get_path("scripts"))):
        if (folder / "feedline").exists():
            return folder / "feedline"
    return None


def test_the_wheel_ships_the_command() -> None:
    script = installed_script()
    assert script is not None and os.access(script, os.X_OK)
    # Not by its first line: an installation to a folder may be used by another interpreter.
    done = subprocess.run([sys.executable, str(script), "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip() == f"feedline {feedline.__version__}"
    assert importlib.metadata.version("feedline") == feedline.__version__


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "feedline", *arguments], capture_output=True, text=True)


def test_exit_codes() -> None:
    assert run("--version").stdout.strip() == f"feedline {feedline.__version__}"
    assert run("--help").returncode == 0
    assert run("no-such-command").returncode == 2
    done = run("sample-data", "/proc/nowhere", "--count", "1")
    assert done.returncode == 1 and done.stderr


def test_arguments_that_are_no_utf_8(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff"
    command = [sys.executable, "-m", "feedline", "sample-data", os.fsdecode(folder), "--count", "2"]
    assert subprocess.run([*command, "--classes", "1"], capture_output=True).returncode == 0
    assert os.path.isdir(folder)


def test_ctrl_c_ends_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "feedline", "sample-data", str(tmp_path / "p"), "--preset", "large"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: any(".jpg" in path.name for path in files_below(tmp_path)), "the first photo")
    process.send_signal(signal.SIGINT)
    assert process.wait(HANG) in (-signal.SIGINT, 130)
    assert sum(1 for _ in tmp_path.rglob("*.jpg")) < 1000, "it ended long before it was done"
    shutil.rmtree(tmp_path / "p", ignore_errors=True)
