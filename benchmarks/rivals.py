"""The rivals' environments: made by requirements/environment.py, one for each that needs its own.

python benchmarks/rivals.py    # installs what is missing, tells what does not install
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from contest import reason
from works import LOADERS

ROOT = Path(__file__).resolve().parents[1]
#: What FFCV is compiled against: Debian packages, and what pkg-config calls them.
SYSTEM = {"rivals/ffcv": (("libopencv-dev", "libturbojpeg0-dev", "pkg-config"), ("opencv4", "libturbojpeg"))}


class Missing(Exception):
    """An environment that cannot be had, with the reason."""


def need_system_packages(environment: str) -> None:
    packages, modules = SYSTEM.get(environment, ((), ()))
    if not packages:
        return

    def there() -> bool:
        if shutil.which("pkg-config") is None:
            return False
        return subprocess.run(["pkg-config", "--exists", *modules]).returncode == 0

    if there():
        return
    if os.getuid() == 0 and shutil.which("apt-get"):
        print(f"Installing {', '.join(packages)} for {environment}", file=sys.stderr)
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], stdout=subprocess.DEVNULL)
        subprocess.run(install, env=quiet, stdout=subprocess.DEVNULL)
    if not there():
        raise Missing(f"needs the Debian packages {', '.join(packages)}")


def environment(name: str) -> Path:
    """The folder of an environment, installed if it is not there."""
    script = [sys.executable, str(ROOT / "requirements" / "environment.py")]
    where = subprocess.run([*script, "--where", name], stdout=subprocess.PIPE, text=True, check=True)
    path = Path(where.stdout.strip())
    if not (path / ".complete").exists():
        need_system_packages(name)
        done = subprocess.run([*script, name], capture_output=True, text=True)
        if done.returncode != 0:
            raise Missing(reason(done.stderr))
    return path


def versions(python: Path, packages: list[str]) -> dict[str, str]:
    """The installed versions of packages, without importing them."""
    code = (
        "import importlib.metadata as m, json, sys\n"
        "print(json.dumps({name: m.version(name) for name in sys.argv[1:]}))"
    )
    done = subprocess.run([str(python), "-c", code, *packages], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


@functools.cache
def limit_program() -> Path:
    """The benchmark of bare libjpeg-turbo, built by cargo."""
    command = ["cargo", "bench", "--no-run", "-p", "feedline", "--bench", "limit"]
    done = subprocess.run([*command, "--message-format=json"], cwd=ROOT, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] == "limit":
            return Path(message["executable"])
    raise Missing(f"`{' '.join(command)}` failed: {done.stderr.strip().splitlines()[-1:]}")


if __name__ == "__main__":
    for name in sorted({loader.environment for loader in LOADERS.values() if loader.environment}):
        try:
            print(f"{name}: {environment(name)}")
        except Missing as missing:
            print(f"{name}: did not install: {missing}")
