"""Finds or makes the virtual environment for a requirements file, and prints its path.

    python3 requirements/environment.py build            make it if it is not there
    python3 requirements/environment.py --where build    only print where it is or would be

Environments live in ${XDG_CACHE_HOME:-~/.cache}/feedline, outside the clone, so that clones share
them (the one with torch takes several GB). The name carries a hash of the requirements and of the
Python version: a change of either makes a new one and never breaks one that is in use.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
OLDEST = (3, 10)


def requirement_texts(name: str) -> list[str]:
    """The requirements file and the ones that it includes."""
    text = (FOLDER / f"{name}.txt").read_text()
    included = [line.split()[1] for line in text.splitlines() if line.startswith("-r ")]
    return [text, *(part for file in included for part in requirement_texts(Path(file).stem))]


def location(name: str) -> Path:
    """Where the environment is or will be."""
    # Not sys.executable: it may be one of several links to the same interpreter. The base prefix
    # counts, because an environment dies with the interpreter it was made from.
    interpreter = f"{platform.python_version()} {sysconfig.get_platform()} {sys.base_prefix}"
    digest = hashlib.sha256("\0".join([interpreter, *requirement_texts(name)]).encode()).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "feedline" / f"{name}-{digest[:12]}"


def make(name: str, path: Path) -> None:
    """Makes the environment in place (they cannot be moved); the marker comes last."""
    print(f"Making the virtual environment {path} (once)", file=sys.stderr)
    shutil.rmtree(path, ignore_errors=True)
    try:
        subprocess.run([sys.executable, "-m", "venv", str(path)], check=True, stdout=sys.stderr)
    except subprocess.CalledProcessError:
        sys.exit("Python cannot make virtual environments; Debian, Ubuntu: apt-get install python3-venv")
    pip = [str(path / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install"]
    command = [*pip, "--quiet", "-r", str(FOLDER / f"{name}.txt")]
    if subprocess.run(command, stdout=sys.stderr).returncode != 0:
        sys.exit(f"Installing requirements/{name}.txt failed; the reason is above. Run it again to retry.")
    (path / ".complete").touch()


def main() -> None:
    if sys.version_info < OLDEST:
        found = platform.python_version()
        sys.exit(f"feedline needs Python 3.10 or newer, not {found}; say make PYTHON=python3.x")
    only_where, name = "--where" in sys.argv[1:], sys.argv[-1]
    path = location(name)
    if not only_where:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Two clones may want the same environment at once; the lock goes with its process.
        with open(path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (path / ".complete").exists():
                make(name, path)
    print(path)


if __name__ == "__main__":
    main()
