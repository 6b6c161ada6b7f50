"""The file for Perfetto, in Perfetto itself: its own page and engine read it."""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import viztracer
from feedline.observe.timeline import Timeline
from PIL import Image
from playwright.sync_api import Browser, Page, Route

ROWS = """
async ([query, columns]) => {
  const found = [];
  for (const row = (await app.trace.engine.query(query)).iter(columns); row.valid(); row.next())
    found.push(Object.keys(columns).map((name) => row[name]));
  return found;
}
"""
TEXT, NUMBER = "str", 0


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""


@pytest.fixture(scope="module")
def perfetto(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of Perfetto's page, which has our traces beside it."""
    folder = tmp_path_factory.mktemp("perfetto") / "page"
    shutil.copytree(Path(viztracer.__file__).parent / "web_dist", folder)
    for trace in pictures.glob("*/trace.json"):
        shutil.copy(trace, folder / f"{trace.parent.name}.json")
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def stay_here(route: Route) -> None:
    """The page would ask for fonts and the like elsewhere."""
    if route.request.url.startswith(("http://127.0.0.1:", "data:", "blob:")):
        route.continue_()
    else:
        route.abort()


@pytest.fixture
def opened(browser: Browser, perfetto: str) -> Iterator[Any]:
    """Opens a trace in Perfetto."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.route("**/*", stay_here)

    def open_trace(name: str) -> Page:
        page = context.new_page()
        page.goto(f"{perfetto}/#!/?url={perfetto}/{name}.json")
        page.wait_for_function("() => globalThis.app?.trace?.engine !== undefined", timeout=300_000)
        page.evaluate("() => waitForPerfettoIdle()")
        return page

    yield open_trace
    context.close()


def rows(page: Page, query: str, **columns: str | int) -> list[list[Any]]:
    """What Perfetto's engine answers."""
    found: list[list[Any]] = page.evaluate(ROWS, [query, columns])
    return found


@pytest.mark.parametrize("name", ["benchmark", "diagnosis", "hostile", "large"])
def test_perfetto_reads_every_span(opened: Any, name: str, pictures: Path, tmp_path: Path) -> None:
    page = opened(name)
    wrong = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
    assert rows(page, wrong, name=TEXT, value=NUMBER) == []
    query = """
        select process.name as run, thread.name as lane, slice.name as span, count(*) as number,
          thread.is_main_thread as main
        from slice join thread_track on slice.track_id = thread_track.id
          join thread using (utid) join process using (upid)
        group by 1, 2, 3 order by 1, 2, 3
    """
    found = rows(page, query, run=TEXT, lane=TEXT, span=TEXT, number=NUMBER, main=NUMBER)
    trainer = [row for row in found if row[1] == "trainer"]
    assert {row[2] for row in trainer} == {"wait", "step"}
    assert all(row[4] == (row[1] == "trainer") for row in found), "the trainer's row is the first"
    assert any(row[1].startswith("worker ") for row in found)
    written = (pictures / name / "trace.json").read_text().count('"ph":"X"')
    assert sum(row[3] for row in found) == written > 0
    shot = tmp_path / "perfetto.png"
    page.screenshot(path=shot)
    with Image.open(shot) as picture:
        assert len(picture.convert("RGB").getcolors(1 << 20) or ()) > 20, "an empty page"


def test_lanes_of_python_code_begin_where_none_has_lost_anything() -> None:
    timeline = Timeline(4)
    began = timeline._began
    for second in range(10):
        timeline.span(0, "code", began + second, began + second + 1, second)
    for second in (0, 5):
        timeline.span(2, "code", began + second, began + second + 4, second)
    kept = [[round(span["begin"] / 1e9) for span in lane] for lane in timeline.lanes()]
    assert kept == [[6, 7, 8, 9], [], [5]]
