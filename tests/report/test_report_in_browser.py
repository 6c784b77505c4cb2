"""The page of a comparison in a browser: zooms, hovers, strategies switched off."""

import os
import shutil

import pytest

from hetjax.report import Comparison

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
VIEW = """const view = [...Bokeh.index].find(
  view => document.getElementById(place).contains(view.el));
"""
# where a point of a plot is on the screen
TO_SCREEN = f"""([place, x, y]) => {{
  {VIEW}
  const box = view.el.getBoundingClientRect(), {{x_scale, y_scale}} = view.frame;
  return [box.x + x_scale.compute(x), box.y + y_scale.compute(y)];
}}"""
STATE = f"""place => {{
  {VIEW}
  const {{x_range, renderers}} = view.model;
  const visible = renderers.filter(r => r.name).map(r => [r.name, r.visible]);
  return {{x: [x_range.start, x_range.end], visible}};
}}"""

# the texts of a tooltip, which is a tree of shadow roots
TEXTS = """tip => {
  const texts = node => node.nodeType == Node.TEXT_NODE ? [node.data]
    : node.localName == "style" ? []
    : [...(node.shadowRoot?.childNodes ?? []), ...node.childNodes].flatMap(texts);
  return texts(tip).join(" ");
}"""


@pytest.fixture(scope="module")
def browser():
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed")
    sync_api = pytest.importorskip("playwright.sync_api")
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    with sync_api.sync_playwright() as playwright:
        options = ["--no-sandbox"] if root else []
        launched = playwright.chromium.launch(executable_path=found, args=options)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def histories_shown(make_histories):
    histories = make_histories()
    sync = histories[0]
    sync.workers[0].batch_size_over_time = [(0.0, 32.0), (5.0, 48.0)]
    sync.timeline.numbers = type(sync.timeline.numbers)("d")
    for k in range(10):
        sync.timeline.add(0, "busy", float(k), k + 0.75)
        sync.timeline.add(0, "merging", k + 0.75, k + 1.0)
    return histories


@pytest.fixture
def page(browser, histories_shown, tmp_path):
    """The opened page; an error on it fails the test."""
    runs = Comparison(histories_shown, data={"name": "hand-made"}, machine={})
    runs.report(tmp_path / "report.html")
    context = browser.new_context(viewport={"width": 1000, "height": 900}, offline=True)
    opened, errors = context.new_page(), []
    opened.on("pageerror", lambda error: errors.append(error))
    opened.on("requestfailed", lambda request: errors.append(request.url))
    opened.goto((tmp_path / "report.html").as_uri())
    for place in ("plot0", "plot3"):
        opened.locator(f"#{place} canvas").first.wait_for()
    opened.wait_for_function("[...Bokeh.index].some(v => v.frame)")
    yield opened
    assert not errors
    context.close()


def at(page, place, x, y):
    """The pixels of a point of a plot, which is scrolled into view."""
    page.locator(f"#{place}").scroll_into_view_if_needed()
    return page.evaluate(TO_SCREEN, [place, x, y])


def tip_at(page, place, x, y):
    """The text that a plot shows when the mouse is at a point."""
    page.mouse.move(*at(page, place, x, y))
    tip = page.locator(".bk-Tooltip:visible")
    tip.wait_for()
    return " ".join(tip.evaluate(TEXTS).split())


@pytest.mark.full
def test_a_timeline_is_zoomed_and_read(page):
    place = "plot3"
    assert page.evaluate(STATE, place)["x"] == [0.0, 10.0]
    page.mouse.move(*at(page, place, 4.0, 0.0))
    page.mouse.down()
    page.mouse.move(*at(page, place, 6.0, 0.5), steps=5)
    page.mouse.up()
    page.wait_for_function(f"({STATE})('{place}').x[1] < 9")
    start, end = page.evaluate(STATE, place)["x"]
    assert start == pytest.approx(4.0, abs=0.05)
    assert end == pytest.approx(6.0, abs=0.05)
    text = tip_at(page, place, 5.5, 0.0)
    for part in ("kind: busy", "worker: w0", "time: 5 to 5.75 s", "round: 6"):
        assert part in text, text
    assert "batch size: 48" in text
    assert "last test loss: 1.06" in text  # at 3 s, the last evaluation
    page.locator(f"#{place} .bk-tool-icon-reset").click()
    page.wait_for_function(f"({STATE})('{place}').x[1] == 10")


@pytest.mark.full
def test_a_strategy_is_switched_off_and_a_curve_is_read(page):
    place = "plot0"
    visible = page.evaluate(STATE, place)["visible"]
    assert visible == [["sync", True], ["sync", True], ["async", True]]
    text = tip_at(page, place, 2.0, 0.8)
    for part in ("strategy: async", "accuracy: 0.8000", "seconds: 2", "updates: 20"):
        assert part in text, text
    page.locator(f"#{place} .bk-Legend .bk-item").first.click()
    page.wait_for_function(f"!({STATE})('{place}').visible[0][1]")
    visible = page.evaluate(STATE, place)["visible"]
    assert visible == [["sync", False], ["sync", False], ["async", True]]
    page.locator(f"#{place} .bk-Legend .bk-item").first.click()
    page.wait_for_function(f"({STATE})('{place}').visible[0][1]")


@pytest.mark.full
def test_a_closed_part_is_drawn_when_it_is_opened(page):
    assert page.locator("#plot4 canvas").count() == 0
    page.locator("summary", has_text="async, seed 0").click()
    page.locator("#plot4 canvas").first.wait_for()


@pytest.mark.full
@pytest.mark.parametrize("width", [800, 1400])
def test_the_page_fits_its_width(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.wait_for_timeout(200)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
