"""Installs what a package-lock.json names, as `npm ci` does, on machines without Node.

    python3 requirements/web.py crates/feedline-view/web

Each package is fetched from the registry that the lock file names, or from $npm_config_registry,
compared with the lock file's hash, and unpacked into node_modules. Nothing of it is run.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
import urllib.request
from pathlib import Path

REGISTRY = "https://registry.npmjs.org/"


def fetched(address: str, integrity: str) -> bytes:
    """The archive, if it is the one that the lock file means."""
    address = address.replace(REGISTRY, os.environ.get("npm_config_registry", REGISTRY).rstrip("/") + "/")  # noqa: SIM112
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            archive: bytes = answer.read(64_000_000)
    except OSError as error:
        sys.exit(f"cannot fetch {address}: {error}; run it again, or run `npm ci` in that folder")
    kind, _, expected = integrity.partition("-")
    found = base64.b64encode(hashlib.new(kind, archive).digest()).decode()
    if found != expected:
        sys.exit(f"{address} is not the archive that the lock file names: its {kind} is {found}")
    return archive


def unpack(archive: bytes, folder: Path) -> None:
    """Puts the regular files of an archive into a folder, which appears as a whole."""
    partial = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            parts = Path(member.name).parts[1:]
            content = files.extractfile(member)
            if not member.isfile() or content is None or ".." in parts:
                continue
            path = partial.joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.read())
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def main() -> None:
    web = Path(sys.argv[1])
    packages = json.loads((web / "package-lock.json").read_text())["packages"]
    for place, package in packages.items():
        folder = web / place
        if not place:
            continue
        known = folder / "package.json"
        if known.exists() and json.loads(known.read_text()).get("version") == package["version"]:
            continue
        print(f"Fetching {place} {package['version']}", file=sys.stderr)
        folder.parent.mkdir(parents=True, exist_ok=True)
        unpack(fetched(package["resolved"], package["integrity"]), folder)


if __name__ == "__main__":
    main()
