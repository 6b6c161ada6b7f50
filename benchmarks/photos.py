"""Real photographs to measure with, cut once from the wallpapers that Debian ships; prints their folder.

    python benchmarks/photos.py

Makes `standard` (4,000 JPEGs of about 500x375 and 93 kB, as in ImageNet) and `large` (400 of about
1896x1606 and 523 kB) in ${XDG_CACHE_HOME:-~/.cache}/feedline/photos-<hash of the recipe>. Every draw is
seeded by the photo's number. Another libjpeg may round otherwise, so a hash of the bytes is kept in
`made.json` and in every benchmark's record.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import io
import json
import math
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

PACKAGES = (
    "lomiri-wallpapers-16.04",
    "lomiri-wallpapers-20.04",
    "mate-backgrounds",
    "plasma-workspace-wallpapers",
)
#: The wallpapers that are photographs: drawings are smoother than what people train on.
LOMIRI = [
    "Bridge_by_Sander_Klootwijk",
    "Dragonfly_by_Bolly",
    "Kleiber_by_Lukas_Baubkus",
    "Picture_0B_by_freespace",
    "Wine_by_Jakkub_Mede",
    "aitzgorri_by_Aitzol_Berasategi",
    "friends_by_Aitzol_Berasategi",
    "greentock_by_Peter_Nerlich",
    "life_by_Aitzol_Berasategi",
    "picosdeeuropa_by_Aitzol_Berasategi",
    "seeding_by_Clements_Engelhardt",
    "sunset_by_Aitzol_Berasategi",
]
MATE = ["Blinds", "Dune", "Garden", "LadyBird", "RainDrops", "Storm", "TwoWings", "YellowFlower"]
PLASMA = ["BytheWater", "ColorfulCups", "EveningGlow", "FallenLeaf", "Grey", "OneStandsOut", "Path"]
ORIGINALS = (
    *(f"backgrounds/{name}.jpg" for name in LOMIRI),
    *(f"backgrounds/mate/nature/{name}.jpg" for name in MATE),
    *(f"wallpapers/{name}/contents/images/2560x1600.jpg" for name in PLASMA),
    "wallpapers/Volna/contents/images/5120x2880.jpg",
)
SEED = 20261115
COUNTS = {"standard": 4000, "large": 400}
CLASSES = 20
#: What the recipe gave with Pillow 13.0.0's libjpeg-turbo and the packages of Debian 12.
EXPECTED = {
    "standard": "406c4da2501d8fbd55dffeaf6b2dc1d2a003302b360608136514fde6519c6c21",
    "large": "ee62e2df24fc49337d9236a8cbab1214ca24d6de83f9095c47168fb830291f4e",
}


def folder() -> Path:
    """Where the photos are or will be."""
    recipe = json.dumps([ORIGINALS, SEED, COUNTS, CLASSES, "1"])
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "feedline" / f"photos-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def fetch(into: Path) -> Path:
    """Unpacks the wallpapers below `into`, without installing anything; returns their folder."""
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            sys.exit(f"{program} is missing: the photos come from the Debian packages {', '.join(PACKAGES)}")
    download = ["apt-get", "download", "-qq", *PACKAGES]
    done = subprocess.run(download, cwd=into, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0 and os.getuid() == 0:
        subprocess.run(["apt-get", "update", "-qq"], check=True, stdout=sys.stderr)
        done = subprocess.run(download, cwd=into, stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{done.stderr}Cannot download {', '.join(PACKAGES)}; try `sudo apt-get update` first")
    for package in into.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package.name, "files"], cwd=into, check=True)
    return into / "files" / "usr" / "share"


@functools.cache
def original(path: Path) -> Image.Image:
    return Image.open(path).convert("RGB")


def wanted(kind: str, draw: random.Random) -> tuple[int, int, int, float]:
    """Width, height, quality, and how many pixels of the original one of ours must span at least."""
    if kind == "large":
        sides = draw.randint(1900, 2100), draw.randint(1400, 1600)
        width, height = sides if draw.random() < 0.8 else sides[::-1]
        return width, height, draw.randint(90, 92), 0.75
    # The shapes of ImageNet: most are 500 wide, some 500 high, a few smaller or larger.
    shape = draw.random()
    if shape < 0.70:
        width, height = 500, draw.randint(333, 400)
    elif shape < 0.88:
        width, height = draw.randint(333, 400), 500
    elif shape < 0.95:
        width, height = draw.randint(240, 479), draw.randint(240, 479)
    else:
        width, height = draw.randint(500, 800), draw.randint(400, 600)
    return width, height, draw.randint(94, 96), 0.9


def cut(kind: str, number: int, share: Path) -> bytes:
    """One JPEG: a random part of a random photograph, at a random scale."""
    draw = random.Random(f"{SEED} {kind} {number}")
    while True:
        photo = original(share / draw.choice(ORIGINALS))
        width, height, quality, least = wanted(kind, draw)
        most = min(photo.width / width, photo.height / height)
        if most < least:
            continue
        # The square root leans towards wide views; a narrow one of a large photograph is a blur.
        scale = least * (most / least) ** math.sqrt(draw.random())
        left = draw.uniform(0, photo.width - width * scale)
        top = draw.uniform(0, photo.height - height * scale)
        box = (left, top, left + width * scale, top + height * scale)
        part = photo.resize((width, height), Image.Resampling.LANCZOS, box=box, reducing_gap=2.0)
        if draw.random() < 0.5:
            part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        file = io.BytesIO()
        part.save(file, "JPEG", quality=quality, subsampling="4:2:0")
        # ImageNet has about half a byte per pixel; sky and blur have less and are mostly passed over.
        smooth = 5 * (0.5 - file.tell() / (width * height))
        if kind == "large" or draw.random() >= min(0.93, max(0.0, smooth)):
            return file.getvalue()


def make_one(task: tuple[str, int, Path, Path]) -> tuple[int, str]:
    kind, number, share, into = task
    data = cut(kind, number, share)
    path = into / kind / f"class_{number % CLASSES:02}" / f"{number:05}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return len(data), hashlib.sha256(data).hexdigest()


def make(share: Path, into: Path) -> dict[str, Any]:
    """Cuts all photos; returns their counts, mean sizes and hashes."""
    for name in ORIGINALS:
        # Decoded before the fork, so that the processes share the pixels.
        original(share / name)
    made = {}
    with multiprocessing.get_context("fork").Pool(len(os.sched_getaffinity(0))) as pool:
        for kind, count in COUNTS.items():
            tasks = [(kind, number, share, into) for number in range(count)]
            sizes, hashes = [], []
            for size, digest in pool.imap(make_one, tasks, chunksize=8):
                sizes.append(size)
                hashes.append(digest)
                if len(sizes) % 500 == 0 or len(sizes) == count:
                    print(f"{kind} photos: {len(sizes):,} of {count:,}", file=sys.stderr)
            digest = hashlib.sha256("".join(hashes).encode()).hexdigest()
            made[kind] = {"count": count, "mean_bytes": sum(sizes) // count, "sha256": digest}
    return made


def ensure() -> Path:
    """The folder of the photos, made if it is not there."""
    path = folder()
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            print(f"Cutting photos into {path} (once, about two minutes)", file=sys.stderr)
            # Beside the goal, because a rename does not cross file systems.
            with tempfile.TemporaryDirectory(dir=path.parent, prefix="photos-") as work:
                into = Path(work) / "made"
                into.mkdir()
                made = make(fetch(Path(work)), into)
                (into / "made.json").write_text(json.dumps(made, indent=1) + "\n")
                into.rename(path)
    made = json.loads((path / "made.json").read_text())
    for kind, digest in EXPECTED.items():
        if made[kind]["sha256"] != digest:
            text = f"The {kind} photos differ from the usual ones (another libjpeg?); ratios still hold"
            print(text, file=sys.stderr)
    return path


if __name__ == "__main__":
    print(ensure())
