"""The pages, looked at in a real browser."""

import shutil

import pytest

import resolvent as rv
from resolvent.studies.paper import page as _page
from resolvent.studies.paper import reproduce

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
pytestmark = pytest.mark.unchecked


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    rv.train("digits", epochs=1, sizes=(4, 4), out=folder / "digits")
    rv.train("sunspots", epochs=1, sizes=(4, 4), seeds=2, out=folder / "sunspots")
    reproduce(folder / "paper", polynomial_steps=2, sine_steps=2, only="dense small")
    return folder


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize(
    ("page", "heading", "pictures"),
    [
        ("digits/report.html", "digit", 4),
        ("sunspots/report.html", "sunspots", 4),
        ("paper/paper.html", "Machines of finite depth, reproduced", 7),
    ],
)
def test_a_page_renders_with_its_pictures_and_asks_for_nothing(page, heading, pictures, pages):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1000, "height": 800})
        requests, complaints = [], []
        tab.on("request", lambda request: requests.append(request.url))
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        url = (pages / page).as_uri()
        tab.goto(url)
        widths = tab.evaluate("Array.from(document.images, image => image.complete ? image.naturalWidth : 0)")
        wide = tab.evaluate("document.documentElement.scrollWidth")
        assert tab.inner_text("h1") == heading
        assert len(widths) == pictures
        assert min(widths) > 100
        assert wide <= 1000
        assert {request for request in requests if not request.startswith("data:")} == {url}
        assert not complaints
        browser.close()


def test_the_papers_table_has_its_twelve_rows(pages):
    text = (pages / "paper" / "paper.html").read_text()
    for case in ("dense small", "convolution medium", "recurrent medium"):
        assert text.count(f"<th>{case}</th>") == 2
    assert "29,504" in text


def test_rows_that_were_not_measured_have_the_authors_numbers_alone():
    head, *rows = _page.timings({})
    assert len(rows) == 12
    for row in rows:
        assert len(row) == len(head) == 11
        assert row[2:8] == ["–"] * 6
        assert float(row[8].replace(",", "")) > 0


def test_what_comes_from_the_data_is_escaped(tmp_path):
    import pandas as pd

    name = "<script>alert(1)</script>"
    table = pd.DataFrame({"a": range(60), name: [0.5 * i for i in range(60)]})
    rv.train(table, target=name, epochs=1, out=tmp_path / "run")
    text = (tmp_path / "run" / "report.html").read_text()
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_the_papers_network_has_its_levels():
    assert [row[0] for row in _page.formulas(_page.complex_shortcuts())] == ["f1", "f2", "f3", "f4", "f5"]
    assert _page.complex_shortcuts().depth == 4
