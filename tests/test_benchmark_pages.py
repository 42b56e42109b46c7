"""Pages and the figures between their marks: what is replaced, what stays, what is refused."""

from __future__ import annotations

import re
from argparse import Namespace

import pytest

from benchmarks import charts, pages
from benchmarks.charts import Chart
from benchmarks.pages import NOTHING, PLACE, fill, write_page
from benchmarks.report import PAGES, read

PAGE = """# Title

By hand.

<!-- figures: times -->
<!-- end -->

Between.

<!-- figures: settings -->

- cores: 1

<!-- end -->
"""
SETTINGS = {"cores": 2}
QUICK, WHOLE, PUBLISHED = (
    Namespace(quick=quick, publish=publish)
    for quick, publish in ((True, False), (False, False), (False, True))
)
PICTURE = Chart("How long?", " s", ("",), {"ours": (1.0,)}, "by hand")


@pytest.fixture
def page(tmp_path, monkeypatch):
    """PAGE in a folder of its own."""
    monkeypatch.setattr(pages, "PAGES", tmp_path)
    monkeypatch.setattr(charts, "PAGES", tmp_path)
    monkeypatch.setattr(charts, "RESULTS", tmp_path / "results")
    path = tmp_path / "example.md"
    path.write_text(PAGE, encoding="utf-8")
    return path


def test_figures_stand_between_their_marks_and_nothing_else_changes():
    once = fill(PAGE, {"times": r"| \1 |", "settings": "- cores: 2"})
    assert r"<!-- figures: times -->" + "\n\n" + r"| \1 |" + "\n\n<!-- end -->" in once
    assert "- cores: 1" not in once
    assert PLACE.sub("", once) == PLACE.sub("", PAGE)
    assert fill(once, {"times": r"| \1 |", "settings": "- cores: 2"}) == once
    assert NOTHING in fill(PAGE, {"times": "", "settings": "-"})


@pytest.mark.parametrize(
    ("text", "figures", "said"),
    [
        (PAGE, {"settings"}, "no figures for times"),
        (PAGE, {"settings", "times", "more"}, "no place for more"),
        (PAGE + PAGE, {"settings", "times"}, "more than one place for settings, times"),
        (PAGE.replace("<!-- end -->", "", 1), {"settings", "times"}, "a comment is missing"),
        (PAGE.replace("<!-- end -->", "<!-- End -->"), {"settings"}, "a comment is missing"),
        (PAGE + "<!-- end -->", {"settings", "times"}, "a comment is missing"),
        (PAGE + "<!-- figures:  -->", {"settings", "times"}, "a comment is missing"),
    ],
)
def test_a_page_and_figures_that_do_not_fit_are_refused(text, figures, said):
    with pytest.raises(ValueError, match=said):
        fill(text, dict.fromkeys(figures, "x"))


def test_nothing_is_written_where_page_and_figures_do_not_fit(page):
    with pytest.raises(ValueError, match=r"example\.md: no place for pictures"):
        write_page("example", {"settings": SETTINGS}, {"times": "x"}, {"drawn": PICTURE})
    assert page.read_text(encoding="utf-8") == PAGE
    assert list(page.parent.iterdir()) == [page]


def test_a_run_fills_the_page_where_it_is_to_publish_and_a_copy_of_it_else(
    page, tmp_path, monkeypatch
):
    monkeypatch.setattr(pages, "RESULTS", tmp_path / "build")
    page.write_text(PAGE + "\n<!-- figures: pictures -->\n<!-- end -->\n", encoding="utf-8")
    results, before = {"settings": SETTINGS}, page.read_text(encoding="utf-8")
    pages.keep("example", results, {"times": "quick"}, QUICK, {"drawn": PICTURE})
    copy = (tmp_path / "build" / "example-quick.md").read_text(encoding="utf-8")
    assert "quick" in copy
    assert "- cores: 2" in copy
    assert "drawn" not in copy
    assert page.read_text(encoding="utf-8") == before
    assert not (tmp_path / "drawn.svg").exists()
    pages.keep("example", results, {"times": "whole"}, WHOLE, {"drawn": PICTURE})
    assert "whole" in (tmp_path / "build" / "example.md").read_text(encoding="utf-8")
    assert page.read_text(encoding="utf-8") == before
    pages.keep("example", results, {"times": "whole"}, PUBLISHED, {"drawn": PICTURE})
    assert "whole" in (filled := page.read_text(encoding="utf-8"))
    assert "![How long?](drawn.svg)" in filled
    assert (tmp_path / "drawn.svg").exists()
    assert read(tmp_path / "build" / "example.json") == results


@pytest.mark.parametrize("path", sorted(PAGES.glob("*.md")), ids=lambda path: path.stem)
def test_every_page_tells_its_settings_and_has_its_pictures(path):
    text = path.read_text(encoding="utf-8")
    assert "settings" in {found[1] for found in PLACE.finditer(text)}
    for picture in re.findall(r"\]\(([^)]+\.svg)\)", text):
        assert (PAGES / picture).exists()
