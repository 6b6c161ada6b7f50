"""The source distribution: pip builds and installs it in a clean environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from conftest import QUICK, ROOT


def test_the_source_distribution_installs(tmp_path: Path, target: Path) -> None:
    subprocess.run(["maturin", "sdist", "--out", tmp_path], cwd=ROOT, check=True)
    (archive,) = tmp_path.glob("feedline-*.tar.gz")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    env = {**os.environ, "CARGO_TARGET_DIR": str(target), "MATURIN_PEP517_ARGS": " ".join(QUICK)}
    env.pop("PYTHONPATH", None)
    python = tmp_path / "env" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    subprocess.run([*install, "install", "--quiet", archive], env=env, cwd=tmp_path, check=True)
    code = "import feedline, feedline._native; print(feedline.__version__)"
    shown = subprocess.run([python, "-c", code], env=env, cwd=tmp_path, check=True, capture_output=True)
    assert shown.stdout.strip()
    for command in (["--version"], ["sample-data", "photos", "--count", "4"], ["run", "photos"]):
        feedline = [tmp_path / "env" / "bin" / "feedline", *command]
        subprocess.run(feedline, env=env, cwd=tmp_path, check=True, capture_output=True)
