"""A crate outside of the workspace: the default features, with Rust and a C compiler alone."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import feedline
import numpy as np
from conftest import QUICK, ROOT
from feedline.transforms import Resize
from PIL import Image

#: What a machine with Rust and a C compiler has.
TOOLS = ["cargo", "rustc", "cc", "gcc", "ar", "as", "ld", "ranlib", "sh", "uname"]

#: Of a stripped program that loads photos.
LARGEST_PROGRAM = 15_000_000

MANIFEST = """
[package]
name = "outside"
version = "0.1.0"
edition = "2024"

[dependencies]
feedline = {{ path = "{crate}" }}

[profile.release]
debug = "line-tables-only"
incremental = true
codegen-units = 16

[profile.release.package."*"]
debug = false

[workspace]
"""

MAIN = """
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data = std::env::args().nth(1).ok_or("a path")?;
    let mut loader = feedline::Loader::builder(data)
        .transform(feedline::spec::OpSpec::new("Resize").with("size", vec![40, 40]))
        .batch_size(1)
        .build()?;
    for batch in loader.epoch() {
        let batch = batch?;
        let pixels: &[u8] = batch.get("image").ok_or("no image")?.as_slice().ok_or("no bytes")?;
        println!("{pixels:?}");
    }
    Ok(())
}
"""


def photos(folder: Path) -> None:
    """JPEGs that are not plain, which a library decodes, and other images."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for height, width in ((64, 64), (37, 51), (9, 120)):
        rough = rng.integers(0, 256, (height // 4 + 2, width // 4 + 2, 3), np.uint8)
        photo = Image.fromarray(rough).resize((width, height), Image.Resampling.BICUBIC)
        name = f"{height}x{width}"
        for subsampling in ("4:4:4", "4:2:2", "4:2:0"):
            path = folder / f"{name}-{subsampling.replace(':', '')}.jpg"
            photo.save(path, quality=85, subsampling=subsampling, progressive=True)
        photo.convert("L").save(folder / f"{name}-gray.jpg", progressive=True)
        photo.convert("CMYK").save(folder / f"{name}-cmyk.jpg", quality=80)
        photo.save(folder / f"{name}-plain.jpg", quality=92)
        photo.save(folder / f"{name}.webp", quality=80)
        photo.save(folder / f"{name}.png")


def test_the_default_features_need_rust_and_a_c_compiler(tmp_path: Path, target: Path) -> None:
    """They build, run, and decode to the same pixels as libjpeg-turbo does in the wheel."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None, tool
        (tools / tool).symlink_to(found)
    for tool in ("cmake", "nasm", "yasm"):
        assert shutil.which(tool, path=str(tools)) is None

    crate = tmp_path / "outside"
    (crate / "src").mkdir(parents=True)
    (crate / "Cargo.toml").write_text(MANIFEST.format(crate=ROOT / "crates" / "feedline"))
    (crate / "src" / "main.rs").write_text(MAIN)
    shutil.copy(ROOT / "Cargo.lock", crate)
    env = {**os.environ, "PATH": str(tools), "CARGO_TARGET_DIR": str(target)}
    build = ["cargo", "build", "--release", "--manifest-path", str(crate / "Cargo.toml"), *QUICK[:4]]
    subprocess.run(build, env=env, check=True)

    program = tmp_path / "program"
    subprocess.run(["strip", "-o", program, target / "release" / "outside"], check=True)
    # Ours is not optimised here: optimised it has 6.4 MB.
    assert program.stat().st_size < LARGEST_PROGRAM

    photos(tmp_path / "photos")
    run = [program, tmp_path / "photos"]
    lines = subprocess.run(run, check=True, capture_output=True, text=True).stdout.splitlines()
    transforms = [Resize((40, 40))]
    expected = list(feedline.Loader(tmp_path / "photos", transforms, batch_size=1))
    assert len(lines) == len(expected) == 24
    for line, batch in zip(lines, expected, strict=True):
        pixels = np.array([int(number) for number in line.strip("[]").split(", ")], np.uint8)
        found = hashlib.sha256(pixels.tobytes()).hexdigest()
        assert found == hashlib.sha256(np.ascontiguousarray(batch["image"]).tobytes()).hexdigest()
