"""Chromium and the pages to look at."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import run
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
# The training process that tests of the live view start is there.
sys.path.append(str(ROOT / "tests" / "python"))
DRAWN = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
# Notes every text that is drawn on a canvas with its box in the canvas's pixels, the axes' too.
NOTE_TEXTS = """(() => {
  window.texts_drawn = [];
  const own = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...more) {
    const size = this.measureText(text);
    const at = this.getTransform();
    const corners = [
      [x - size.actualBoundingBoxLeft, y - size.actualBoundingBoxAscent],
      [x + size.actualBoundingBoxRight, y + size.actualBoundingBoxDescent],
    ].map(([a, b]) => [at.a * a + at.c * b + at.e, at.b * a + at.d * b + at.f]);
    const [xs, ys] = [0, 1].map((axis) => corners.map((corner) => corner[axis]));
    const box = [Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys)];
    window.texts_drawn.push({ text, canvas: this.canvas, box });
    return own.call(this, text, x, y, ...more);
  };
})()"""
# Those that leave their canvas.
CUT_TEXTS = """() => window.texts_drawn
  .filter(({ text, canvas }) => text.trim() && canvas.isConnected)
  .filter(({ canvas, box: [left, top, right, bottom] }) =>
    left < -1 || top < -1 || right > canvas.width + 1 || bottom > canvas.height + 1)
  .map(({ text, canvas, box }) => `${text} at ${box} of ${canvas.width} x ${canvas.height}`)"""
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The system's Chromium, without a window."""
    names = (os.environ.get("CHROMIUM") or "chromium", "chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    assert path, "Chromium is missing; Debian, Ubuntu: apt-get install chromium, or set CHROMIUM"
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pages and plots of made-up results."""
    folder = tmp_path_factory.mktemp("pictures")
    made = os.environ.get("FEEDLINE_PICTURES")
    if made:
        return Path(made)
    # With the features of the wheel, for which all but the example is built.
    features = ["--workspace", "--no-default-features"]
    build = ["cargo", "build", "--release", "--quiet", *features, "--example", "pictures"]
    run(build, cwd=ROOT, check=True, timeout=1800)
    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
    run([target / "release" / "examples" / "pictures", folder], cwd=ROOT, check=True, timeout=300)
    return folder


class Visit:
    """An open page and what it did that it should not have."""

    def __init__(self, page: Page) -> None:
        self.page = page
        page.add_init_script(NOTE_TEXTS)
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def blameless(self, address: str) -> None:
        """Nothing was fetched but the page, and nothing was complained about."""
        assert self.complaints == []
        assert self.requests == [address]

    def settle(self) -> None:
        """Plots are drawn in the frame after the one that they were changed in."""
        self.page.evaluate(DRAWN)

    def texts(self) -> list[str]:
        """What was drawn on canvases."""
        found: list[str] = self.page.evaluate("texts_drawn.map(({ text }) => text)")
        return found

    def cut_texts(self) -> list[str]:
        """What was drawn on canvases and does not fit there."""
        found: list[str] = self.page.evaluate(CUT_TEXTS)
        return found


Open = Callable[..., Visit]


@pytest.fixture
def visit(browser: Browser) -> Iterator[Open]:
    """Opens pages: `visit(path, width=400, color_scheme="dark")`."""
    contexts = []

    def opened(path: Path, width: int = 1280, **options: Any) -> Visit:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        context.set_default_timeout(300_000)
        found = Visit(context.new_page())
        found.page.goto(path.as_uri())
        found.page.wait_for_selector("html[data-ready=yes]", timeout=300_000)
        found.settle()
        return found

    yield opened
    for context in contexts:
        context.close()
