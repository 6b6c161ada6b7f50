"""The report's page in a real browser: it is complete, legible and safe, and its timeline zooms."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from subprocess import run

import numpy as np
import pytest
from conftest import Open, Visit
from PIL import Image
from playwright.sync_api import Browser, Locator

PAGES = ("benchmark", "diagnosis", "hostile", "large", "empty")
WIDTHS = (1280, 400)
GROUND = "() => getComputedStyle(document.body).backgroundColor"

# Every text that is seen: its size, and its contrast with the ground behind it (WCAG 2).
TEXTS = """() => {
  const parts = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const light = (rgb) => {
    const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = rgb.map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parts(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || !element.checkVisibility()) continue;
    if (/script|style/i.test(element.tagName)) continue;
    const style = getComputedStyle(element);
    const [a, b] = [light(parts(style.color).slice(0, 3)), light(ground(element))].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    found.push({ text: node.data.slice(0, 40), size: parseFloat(style.fontSize), contrast });
  }
  return found;
}"""


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def colours(place: Locator) -> int:
    """How many different colours a part of the page has, in steps of eight."""
    found = pixels(place.screenshot()).reshape(-1, 3) // 8
    return len(np.unique(found, axis=0))


@pytest.fixture(scope="module")
def folder_of_noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small pictures."""
    folder = tmp_path_factory.mktemp("noise")
    noise = np.random.default_rng(0).integers(0, 256, (24, 48, 48, 3), dtype=np.uint8)
    (folder / "class").mkdir()
    for place, picture in enumerate(noise):
        Image.fromarray(picture).save(folder / "class" / f"{place}.png")
    return folder


@pytest.fixture(scope="module")
def benched(folder_of_noise: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a short run of the command itself."""
    folder = tmp_path_factory.mktemp("benched")
    command = [sys.executable, "-m", "feedline", "bench", str(folder_of_noise), "--quiet"]
    command += ["--workers", "1,2", "--prefetch", "1,4", "--batch-sizes", "4,8", "--train-step", "2ms"]
    # Long enough for memory to be looked at several times.
    command += ["--epochs", "60", "--repeats", "2", "--report", str(folder / "report.html")]
    run(command, check=True, timeout=300, capture_output=True)
    return folder / "report.html"


@pytest.mark.parametrize("width", WIDTHS)
def test_a_real_report(visit: Open, benched: Path, width: int) -> None:
    found = visit(benched, width)
    found.blameless(benched.as_uri())
    assert found.page.locator(".plot").count() >= 5
    assert found.cut_texts() == []
    # Bars that are drawn differ: eight configurations have eight labels.
    data = json.loads(found.page.locator("#data").inner_text())
    names = [one["name"] for one in data["configurations"] if one["summary"]]
    drawn = " ".join(found.texts())
    assert len(set(names)) == 8
    for name in names:
        assert all(word in drawn for word in name.split()), f"{name} is cut"
    # A step of a fixed time takes twice the samples in batches of twice the size.
    assert data["wanted"] is None and "what the trainer can use" not in found.page.inner_text("body")
    labels = {"samples/s", "time that the trainer waited, %", "memory", "seconds", "workers"}
    assert labels <= set(found.texts())


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ("benchmark", "diagnosis", "hostile", "large"))
def test_no_label_is_cut(visit: Open, pictures: Path, name: str, width: int) -> None:
    found = visit(pictures / name / "report.html", width)
    assert found.cut_texts() == [] and len(found.texts()) > 10
    for _ in range(6):
        found.page.locator(".timeline").press("+")
        found.page.locator(".timeline").press("ArrowRight")
        found.settle()
    assert found.cut_texts() == []


def test_long_names_stay_distinguishable(visit: Open, pictures: Path) -> None:
    found = visit(pictures / "benchmark" / "report.html", 400)
    drawn = found.texts()
    assert any("prefetch=8" in text for text in drawn)


def test_a_table_says_that_it_scrolls(visit: Open, pictures: Path) -> None:
    table = visit(pictures / "benchmark" / "report.html", 400).page.locator(".scrolls").first
    assert table.evaluate("(one) => one.scrollWidth > one.clientWidth")

    def edges() -> tuple[float, float]:
        shot = pixels(table.screenshot()).mean(axis=2)
        ground = shot[:, 40:60].max()
        return float(ground - shot[:, 1].max()), float(ground - shot[:, -2].max())

    left, right = edges()
    assert left < 8 and right > 20, "more lies at the right"
    table.evaluate("(one) => { one.scrollLeft = one.scrollWidth; }")
    left, right = edges()
    assert left > 20 and right < 8, "more lies at the left"


def timeline_range(found: Visit) -> tuple[float, float]:
    begin, end = found.page.locator(".timeline").get_attribute("data-range").split()
    return float(begin), float(end)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_it_loads_nothing_and_fits(visit: Open, pictures: Path, name: str, width: int) -> None:
    path = pictures / name / "report.html"
    found = visit(path, width)
    found.blameless(path.as_uri())
    wide, room = found.page.evaluate(
        "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert wide <= room
    shot = pixels(found.page.screenshot(full_page=True))
    assert shot.shape[1] == width
    ground = shot[0, 0]
    drawn = (np.abs(shot - ground).sum(axis=2) > 30).mean()
    assert drawn > 0.005, "the page is blank"


@pytest.mark.parametrize("scheme", ("light", "dark"))
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ("benchmark", "diagnosis"))
def test_texts_can_be_read(visit: Open, pictures: Path, name: str, width: int, scheme: str) -> None:
    found = visit(pictures / name / "report.html", width, color_scheme=scheme)
    texts = found.page.evaluate(TEXTS)
    assert len(texts) > 30
    assert [text for text in texts if text["size"] < 11] == []
    assert [text for text in texts if text["contrast"] < 4.5] == []


@pytest.mark.parametrize("scheme", ("light", "dark"))
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name, plots", (("benchmark", 6), ("diagnosis", 4)))
def test_every_plot_is_drawn(
    visit: Open, pictures: Path, name: str, plots: int, width: int, scheme: str
) -> None:
    found = visit(pictures / name / "report.html", width, color_scheme=scheme)
    shown = found.page.locator(".plot")
    assert shown.count() == plots
    for place in range(plots):
        assert colours(shown.nth(place)) > 5, shown.nth(place).get_attribute("aria-label")
        box = shown.nth(place).bounding_box()
        canvas = shown.nth(place).locator("canvas").bounding_box()
        assert canvas["x"] + canvas["width"] <= box["x"] + box["width"] + 1, "a plot leaves its box"


def test_what_was_found_is_said(visit: Open, pictures: Path) -> None:
    page = visit(pictures / "benchmark" / "report.html").page
    text = page.inner_text("body")
    for part in (
        "The trainer waited 31 %",
        "feedline pack photos fast --crop-index",
        "diminishing returns",
        "best",
        "baseline",
        "no GPU was found",
    ):
        assert part in text
    cells = page.locator("td:nth-child(2)").first
    assert cells.evaluate("(cell) => getComputedStyle(cell).textAlign") == "right"
    assert "±" in cells.inner_text()


def test_the_timeline_zooms_and_comes_back(visit: Open, pictures: Path) -> None:
    found = visit(pictures / "diagnosis" / "report.html")
    page, timeline = found.page, found.page.locator(".timeline")
    whole, picture = timeline_range(found), pixels(timeline.screenshot())
    over = page.locator(".timeline .u-over").bounding_box()
    at = over["y"] + 10
    page.mouse.move(over["x"] + over["width"] * 0.3, at)
    page.mouse.down()
    page.mouse.move(over["x"] + over["width"] * 0.4, at, steps=5)
    page.mouse.up()
    found.settle()
    begin, end = timeline_range(found)
    assert abs((end - begin) / (whole[1] - whole[0]) - 0.1) < 0.02
    assert abs((begin - whole[0]) / (whole[1] - whole[0]) - 0.3) < 0.02
    page.mouse.move(0, 0)
    assert (pixels(timeline.screenshot()) != picture).mean() > 0.05
    page.get_by_role("button", name="Show all").click()
    page.mouse.move(0, 0)
    found.settle()
    assert timeline_range(found) == whole
    assert (np.abs(pixels(timeline.screenshot()) - picture) > 8).mean() < 0.01
    # The same by keys, and by a double click.
    for key, factor in (("+", 0.5), ("+", 0.25), ("-", 0.5), ("0", 1.0)):
        timeline.press(key)
        found.settle()
        begin, end = timeline_range(found)
        assert (end - begin) / (whole[1] - whole[0]) == pytest.approx(factor, rel=1e-6)
    timeline.press("+")
    timeline.press("ArrowRight")
    found.settle()
    assert timeline_range(found)[0] > whole[0]
    page.mouse.dblclick(over["x"] + 50, at)
    for _ in range(1000):
        if timeline_range(found) == whole:
            break
        found.settle()
    assert timeline_range(found) == whole
    assert found.complaints == []


def test_the_timeline_tells_what_is_under_the_pointer(visit: Open, pictures: Path) -> None:
    page = visit(pictures / "diagnosis" / "report.html").page
    page.locator(".timeline").scroll_into_view_if_needed()
    over = page.locator(".timeline .u-over").bounding_box()
    # The first thing is the trainer's wait for its first batch.
    page.mouse.move(over["x"] + 5, over["y"] + 10)
    tip = page.locator(".timeline .tip")
    tip.wait_for(state="visible")
    assert tip.inner_text().startswith("trainer: waiting for a batch\n") and "batch 0" in tip.inner_text()


def test_rows_split_into_stages(visit: Open, pictures: Path) -> None:
    found = visit(pictures / "diagnosis" / "report.html")
    tall = found.page.locator(".timeline").bounding_box()["height"]
    # Few workers: their stages have rows from the beginning.
    assert "worker 0: decode" in found.texts()
    found.page.get_by_role("button", name="One row for each worker", exact=True).click()
    found.settle()
    assert found.page.locator(".timeline").bounding_box()["height"] < tall / 2
    found.page.get_by_role("button", name="One row for each worker and stage").click()
    found.settle()
    assert found.page.locator(".timeline").bounding_box()["height"] == tall
    assert colours(found.page.locator(".timeline")) > 5
    assert found.complaints == []


def test_a_long_timeline_stays_fluid(visit: Open, pictures: Path) -> None:
    found = visit(pictures / "large" / "report.html")
    assert "older ones were left out" in found.page.inner_text("body")
    milliseconds = found.page.evaluate(
        """async () => {
          const button = document.querySelector('[aria-label="Zoom in"]');
          const began = performance.now();
          for (let time = 0; time < 10; time += 1) {
            button.click();
            await new Promise(requestAnimationFrame);
          }
          return (performance.now() - began) / 10;
        }"""
    )
    # A frame takes some 20 ms on a quiet machine.
    assert milliseconds < 1000


def test_another_configurations_timeline(visit: Open, pictures: Path) -> None:
    found = visit(pictures / "benchmark" / "report.html")
    before = found.page.locator(".timeline").bounding_box()["height"]
    found.page.locator("select.choice").select_option("4")
    found.settle()
    after = found.page.locator(".timeline").bounding_box()["height"]
    assert after < before, "one worker has fewer rows than eight"
    assert found.complaints == []


def test_light_and_dark(visit: Open, pictures: Path) -> None:
    path = pictures / "benchmark" / "report.html"
    assert visit(path).page.evaluate(GROUND) == "rgb(255, 255, 255)"
    found = visit(path, color_scheme="dark")
    assert found.page.evaluate(GROUND) == "rgb(20, 23, 28)"
    # The plots follow: their corners are the panel's colour, their lines change.
    plot = found.page.locator(".plot").nth(1)
    dark = pixels(plot.screenshot())
    found.page.locator("button.theme").click()
    assert found.page.evaluate(GROUND) == "rgb(255, 255, 255)"
    light = pixels(plot.screenshot())
    assert dark.mean() < 90 and light.mean() > 180
    found.page.reload()
    found.page.wait_for_selector("html[data-ready=yes]")
    assert found.page.evaluate(GROUND) == "rgb(255, 255, 255)", "the choice is remembered"


def test_it_prints(visit: Open, pictures: Path) -> None:
    found = visit(pictures / "benchmark" / "report.html", color_scheme="dark")
    document = found.page.pdf(format="A4", print_background=True)
    assert document.startswith(b"%PDF") and len(document) > 50_000
    # A4 at 96 dots an inch, without its margins.
    found.page.set_viewport_size({"width": 688, "height": 1000})
    found.page.emulate_media(media="print")
    found.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert not found.page.locator("button.theme").is_visible()
    assert (
        found.page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    )
    widths = found.page.eval_on_selector_all("canvas", "(all) => all.map((one) => one.clientWidth)")
    assert widths and max(widths) <= 640, "plots fit on paper"
    assert found.page.evaluate("document.documentElement.scrollWidth") <= 688, "tables fit on paper"
    assert found.complaints == []


@pytest.mark.parametrize("width", WIDTHS)
def test_hostile_names_do_nothing(visit: Open, pictures: Path, width: int) -> None:
    found = visit(pictures / "hostile" / "report.html", width)
    found.page.locator("select.choice").select_option("2")
    assert found.page.evaluate("typeof window.pwned") == "undefined"
    assert found.page.locator("img").count() == 0
    assert "<script>window.pwned=1</script>" in found.page.inner_text("h1")
    # The policy holds even against a script that is put in afterwards.
    found.page.evaluate(
        """() => {
          const script = document.createElement('script');
          script.textContent = 'window.pwned = 1';
          document.body.append(script);
        }"""
    )
    assert found.page.evaluate("typeof window.pwned") == "undefined"


@pytest.mark.parametrize("name", ("configurations", "stall", "throughput", "wait", "memory", "timeline"))
def test_plots_for_papers(pictures: Path, browser: Browser, name: str) -> None:
    folder = pictures / "benchmark"
    with Image.open(folder / f"{name}.png") as picture:
        shown = np.asarray(picture.convert("RGB")).astype(int)
    assert (shown[0, 0] == 255).all() and (shown.sum(axis=2) < 600).mean() > 0.005
    context = browser.new_context()
    page = context.new_page()
    page.goto((folder / f"{name}.svg").as_uri())
    drawn = pixels(page.locator("svg").screenshot())
    context.close()
    # The same picture at half the size: ink in the same places, though fonts differ.
    assert abs(drawn.shape[1] * 2 - shown.shape[1]) <= 2
    inks = [(one.sum(axis=2) < 600).mean() for one in (drawn, shown)]
    assert abs(inks[0] - inks[1]) < 0.05
    assert min(inks) > 0.005, "a picture is blank"


def test_the_timeline_of_a_long_run_has_its_workers(folder_of_noise: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "feedline", "bench", str(folder_of_noise), "--quiet"]
    command += ["--workers", "1", "--prefetch", "4", "--batch-sizes", "8", "--train-step", "100us"]
    # A worker's lane keeps 20,000 spans, of which a sample takes three; the trainer's has room for all.
    command += ["--epochs", "600", "--repeats", "1", "--svg", str(tmp_path)]
    run(command, check=True, timeout=300, capture_output=True)
    assert "worker 0: decode" in (tmp_path / "timeline.svg").read_text()


def test_the_budget_is_drawn_beside_the_memory(visit: Open, pictures: Path) -> None:
    diagnosis = visit(pictures / "diagnosis" / "report.html").page.inner_text("body")
    assert "the loader's budget, 1.1 GB" in diagnosis
    assert "budget" not in visit(pictures / "benchmark" / "report.html").page.inner_text("body")
