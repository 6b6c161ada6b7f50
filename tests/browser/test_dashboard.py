"""The dashboard in a real browser."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_session import session
from PIL import Image
from playwright.sync_api import Browser, Page, expect

CHARTS = ("Throughput", "Waiting", "Queue", "Time of a sample in each stage", "Memory", "Reading")
TOKEN = "a-token-of-this-test"
# Milliseconds that end a hang.
PATIENCE = 300_000


@pytest.fixture
def dashboard(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens a page; fails in the end if a script failed, or asked for anything but its own server."""
    contexts, problems = [], []

    def open_page(url: str, width: int = 1280, scheme: Any = "light") -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        origin = url.split("/", 3)[2]
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: _note(message, problems))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith((f"http://{origin}/", "data:"))
                else problems.append(f"asked for {request.url}")
            ),
        )
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not problems, problems


def _note(message: Any, problems: list[str]) -> None:
    # A server that is gone is what some tests are about; a violated policy is not.
    if message.type == "error" and "Failed to load resource" not in message.text:
        problems.append(message.text)


def state(page: Page, expected: str) -> None:
    expect(page.locator("#connection")).to_have_attribute("data-state", expected, timeout=PATIENCE)


def shows_figures(page: Page) -> None:
    """The first look may come before the first batch."""
    state(page, "live")
    expect(page.locator("[data-tile=Batches]")).to_be_visible(timeout=PATIENCE)


def fetched(url: str) -> dict[str, Any]:
    """What the server reports, once it has seen a loader."""
    answer: dict[str, Any] = {}

    def seen() -> bool:
        with urllib.request.urlopen(f"{url}data") as response:
            answer.update(json.load(response))
        return "history" in answer

    until(seen)
    return answer


def tile(page: Page, name: str) -> str:
    return page.locator(f'[data-tile="{name}"] .value').inner_text()


def number(text: str) -> int:
    return int(re.sub(r"\D", "", text) or 0)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE / 1000
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def drawn_colours(page: Page, chart: str) -> int:
    """Colours of a chart's picture: an empty one has a grid and texts only."""
    canvas = page.locator(f'[data-chart="{chart}"] canvas')
    canvas.scroll_into_view_if_needed()
    pixels = np.asarray(Image.open(io.BytesIO(canvas.screenshot())).convert("RGB")).reshape(-1, 3).astype(int)
    # Grey is the grid and the text; what is coloured was drawn from figures.
    coloured = (pixels.max(axis=1) - pixels.min(axis=1)) > 40
    return int(coloured.sum())


def keep(page: Page, name: str) -> None:
    """Leaves a picture where a person can look at it, if that is asked for."""
    folder = os.environ.get("FEEDLINE_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


def no_sideways_scrolling(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dozen pictures of noise."""
    return make_photos(tmp_path_factory.mktemp("photos"), 12)


def make_photos(root: Path, count: int) -> Path:
    folder = root / "class"
    folder.mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    for place, pixels in enumerate(noise):
        Image.fromarray(pixels).save(folder / f"{place}.png")
    return root


def test_figures_move_and_charts_are_drawn(dashboard: Callable[..., Page]) -> None:
    with session(TEST_DASHBOARD="1") as running:
        page = dashboard(running.url)
        shows_figures(page)
        first = number(tile(page, "Batches"))
        until(lambda: number(tile(page, "Batches")) > first)
        expect(page.locator("#verdict")).to_contain_text("trainer", ignore_case=True)
        expect(page.locator("#process")).to_contain_text(f"process {running.pid}")
        assert "of 64 MB" in page.locator('[data-tile="Memory"]').inner_text()
        until(lambda: number(page.locator('[data-chart="Queue"]').get_attribute("data-points") or "") >= 6)
        assert page.locator(".chart").count() == len(CHARTS)
        for chart in ("Throughput", "Queue", "Memory"):
            until(lambda chart=chart: drawn_colours(page, chart) > 100)  # type: ignore[misc]
        assert "samples" in page.locator('[data-chart="Throughput"] .swatches').inner_text()
        keep(page, "dashboard-1280")


@pytest.mark.parametrize("kind", ["code", "bad"])
def test_other_loaders(dashboard: Callable[..., Page], tmp_path: Path, kind: str) -> None:
    folder = make_photos(tmp_path / "photos", 9) / "class"
    hostile = "<img src=x onerror=alert(1)>.jpg"
    (folder / hostile.replace("/", "")).write_bytes(b"\xff\xd8\xff\xe0 torn")
    with session(kind, folder.parent, TEST_DASHBOARD="1") as running:
        page = dashboard(running.url)
        shows_figures(page)
        until(lambda: number(tile(page, "Batches")) > 3)
        if kind == "bad":
            expect(page.locator("#quarantine")).to_contain_text(hostile, timeout=PATIENCE)
            expect(page.locator("#quarantine")).to_contain_text("cannot decode")
            assert page.locator("#quarantine img").count() == 0, "a name became markup"
            until(lambda: drawn_colours(page, "Time of a sample in each stage") > 50)
        keep(page, f"dashboard-{kind}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen(dashboard: Callable[..., Page], scheme: str) -> None:
    with session(TEST_DASHBOARD="1") as running:
        page = dashboard(running.url, 400, scheme)
        shows_figures(page)
        until(lambda: number(page.locator('[data-chart="Queue"]').get_attribute("data-points") or "") >= 6)
        assert no_sideways_scrolling(page)
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 200) == (scheme == "dark")
        # A line of few points grows with them, as fast as this machine makes batches.
        until(lambda: drawn_colours(page, "Throughput") > 50)
        small = page.evaluate(
            "[...document.querySelectorAll('main *')].filter(e => e.textContent.trim() && "
            "parseFloat(getComputedStyle(e).fontSize) < 12).length"
        )
        assert small == 0, "texts are too small to read"
        keep(page, f"dashboard-400-{scheme}")


def test_a_wrong_token_is_refused(dashboard: Callable[..., Page]) -> None:
    with session(TEST_DASHBOARD="1") as running:
        wrong = running.url[:-2] + ("0/" if running.url[-2] != "0" else "1/")
        for url in (wrong, running.url.split("/", 3)[0] + "//" + running.url.split("/", 3)[2] + "/"):
            page = dashboard(url)
            text = page.locator("body").inner_text()
            assert text.startswith("403") and "token" in text
            assert str(running.pid) not in text and page.locator("#verdict").count() == 0


def test_a_stopped_process_is_reconnected(dashboard: Callable[..., Page]) -> None:
    with session(TEST_DASHBOARD="1") as running:
        page = dashboard(running.url)
        shows_figures(page)
        running.process.send_signal(signal.SIGSTOP)
        state(page, "lost")
        expect(page.locator("#connection")).to_contain_text("reconnecting")
        keep(page, "dashboard-lost")
        # However long it is stopped, it has not ended.
        for _ in range(2):
            page.wait_for_event("requestfailed", timeout=PATIENCE)
        state(page, "lost")
        before = number(tile(page, "Batches"))
        running.process.send_signal(signal.SIGCONT)
        state(page, "live")
        until(lambda: number(tile(page, "Batches")) > before)


def test_it_ends_with_the_process_and_finds_the_next_one(dashboard: Callable[..., Page]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {"FEEDLINE_DASHBOARD": port, "FEEDLINE_DASHBOARD_TOKEN": TOKEN}
    with session(**environment) as first:
        page = dashboard(first.url)
        shows_figures(page)
        until(lambda: number(tile(page, "Batches")) > 5)
        first.end()
        state(page, "ended")
        expect(page.locator("#connection")).to_have_text("the process has ended")
        keep(page, "dashboard-ended")
    with session(**environment) as second:
        assert second.url == f"http://127.0.0.1:{port}/{TOKEN}/"
        state(page, "live")
        expect(page.locator("#process")).to_contain_text(f"process {second.pid}", timeout=PATIENCE)


def test_the_command_serves_it_too(dashboard: Callable[..., Page], photos: Path) -> None:
    command = [sys.executable, "-m", "feedline", "run", str(photos), "--dashboard", "--train-step", "30ms"]
    command += ["--epochs", "100000", "--batch-size", "4"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            url = process.stderr.readline().removeprefix("dashboard: ").strip()
            page = dashboard(url)
            shows_figures(page)
            expect(page.locator("#title")).to_contain_text(photos.name)
            until(lambda: number(tile(page, "Batches")) > 3)
            until(lambda: drawn_colours(page, "Time of a sample in each stage") > 50)
            keep(page, "dashboard-run")
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE / 1000) == 130
            state(page, "ended")
        finally:
            process.kill()


def test_an_hour_in_bounded_memory(dashboard: Callable[..., Page]) -> None:
    with session(TEST_DASHBOARD="1") as running:
        real = fetched(running.url)
        asked: list[str] = []
        reached = [0]

        def two_hours(route: Any) -> None:
            """Ten minutes of made-up seconds in each answer."""
            asked.append(route.request.url)
            ticks = list(range(reached[0], reached[0] + 600))
            reached[0] += 600
            columns = {
                name: [float(tick % 60) for tick in ticks] for name in real["history"] if name != "stages"
            }
            columns |= {"tick": ticks, "time": [1.7e9 + tick for tick in ticks]}
            stages = {"read": [0.001] * 600, "decode": [0.002] * 600}
            body = {**real, "loader": 0, "tick": ticks[-1], "history": {**columns, "stages": stages}}
            route.fulfill(json=body)

        page = dashboard(running.url)
        page.unroute_all()
        page.route("**/data?*", two_hours)
        page.reload()
        page.get_by_role("button", name="1 hour").click()
        chart = page.locator('[data-chart="Throughput"]')
        # The page keeps an hour; answers are made while it is waited for.
        expect(chart).to_have_attribute("data-points", "3600", timeout=PATIENCE)
        while reached[0] < 7200 + 600:
            page.wait_for_event("response", timeout=PATIENCE)
        assert chart.get_attribute("data-points") == "3600"
        assert any(re.search(r"since=\d{4}", url) for url in asked), "only what is new is asked for"
        until(lambda: drawn_colours(page, "Throughput") > 500)
        keep(page, "dashboard-hour")


def test_prometheus_reads_the_metrics() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    with session(TEST_DASHBOARD="1", FEEDLINE_DASHBOARD_TOKEN=TOKEN) as running:
        fetched(running.url)
        base = running.url.removesuffix(f"/{TOKEN}/")
        request = urllib.request.Request(f"{base}/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            text = answer.read().decode()
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    assert families["feedline_samples"].type == "counter"
    assert families["feedline_samples"].samples[0].labels == {"loader": "0"}
    assert families["feedline_memory_limit_bytes"].samples[0].value == 64e6
    assert families["feedline_verdict"].samples[0].value == 1


def test_nothing_of_a_closed_loader_stays(dashboard: Callable[..., Page]) -> None:
    with session(TEST_DASHBOARD="1") as running:
        real = fetched(running.url)
        page = dashboard(running.url)
        shows_figures(page)
        none = {name: value for name, value in real.items() if name not in ("loader", "history")}
        page.route("**/data?*", lambda route: route.fulfill(json={**none, "loaders": []}))
        state(page, "idle")
        expect(page.locator(".tile")).to_have_count(0)
        assert page.locator("#stall > *, #stall-names > *, #advice > *").count() == 0
        assert page.title() == "no loader · feedline"
        assert page.locator("#title").inner_text() == "feedline"


def test_levels_of_tiles_and_charts_without_values(dashboard: Callable[..., Page]) -> None:
    with session(TEST_DASHBOARD="1") as running:
        real = fetched(running.url)
        loader = {
            **real["loaders"][0],
            "wait_share": 0.005,
            "queue": {"ready": 4, "open": 4, "most": 4},
            "memory": {"used": 97, "limit": 100},
            "stages": [{"name": "__proto__", "seconds": 0.1}],
        }
        length = len(real["history"]["tick"])
        history = {
            **real["history"],
            "bytes_per_second": [None] * length,
            "stages": {"__proto__": [0.1] * length},
        }
        page = dashboard(running.url)
        page.route(
            "**/data?*", lambda route: route.fulfill(json={**real, "loaders": [loader], "history": history})
        )
        page.reload()
        shows_figures(page)
        fill = {
            name: page.locator(f'[data-tile="{name}"] .fill').get_attribute("class")
            for name in ("Waited", "Queue", "Memory")
        }
        assert {name: (value or "").split()[1:] for name, value in fill.items()} == {
            "Waited": ["good"],
            "Queue": [],
            "Memory": ["full"],
        }
        expect(page.locator('[data-chart="Reading"]')).to_be_hidden()
        expect(page.locator('[data-chart="Time of a sample in each stage"] .swatches')).to_contain_text(
            "__proto__"
        )


def test_it_stays_on_the_loader_that_was_picked(dashboard: Callable[..., Page]) -> None:
    with session(TEST_DASHBOARD="1") as running:
        real = fetched(running.url)
        kinds = {"train": 1, "valid": 0}
        later: dict[str, Any] = {"earlier": []}

        def answer(route: Any) -> None:
            """Two loaders, of which the server prefers the one for training."""
            loaders = [
                {**real["loaders"][0], "id": number, "name": name, "earlier": []}
                for name, number in sorted(kinds.items(), key=lambda item: item[1])
            ]
            loaders = [{**one, **later} if one["name"] == "valid" else one for one in loaders]
            asked = re.search(r"loader=(\d+)", route.request.url)
            numbers = [one["id"] for one in loaders]
            shown = int(asked[1]) if asked and int(asked[1]) in numbers else 1
            route.fulfill(json={**real, "loaders": loaders, "loader": shown})

        page = dashboard(running.url)
        page.route("**/data?*", answer)
        page.reload()
        shows_figures(page)
        title = page.locator("#title")
        expect(title).to_have_text("train", timeout=PATIENCE)
        page.locator("select").select_option("0")
        expect(title).to_have_text("valid", timeout=PATIENCE)
        # It is closed after its epoch: the other one is shown, until the next one takes its place.
        del kinds["valid"]
        expect(title).to_have_text("train", timeout=PATIENCE)
        kinds["valid"] = 7
        later["earlier"] = [0]
        expect(title).to_have_text("valid", timeout=PATIENCE)
        expect(page.locator("select")).to_have_value("7")
