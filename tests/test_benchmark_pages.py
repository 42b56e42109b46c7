"""Pages and the tables between their marks: what is replaced, what stays, what is refused."""

from __future__ import annotations

import pytest

from benchmarks import pages
from benchmarks.pages import NOTHING, PLACE, fill, publish
from benchmarks.report import PAGES

PAGE = """# Title

By hand.

<!-- figures: times -->
<!-- end -->

Between.

<!-- figures: settings -->

- cores: 1

<!-- end -->
"""


def test_figures_stand_between_their_marks_and_nothing_else_changes():
    once = fill(PAGE, {"times": r"| \1 |", "settings": "- cores: 2"})
    assert r"<!-- figures: times -->" + "\n\n" + r"| \1 |" + "\n\n<!-- end -->" in once
    assert "- cores: 1" not in once
    assert PLACE.sub("", once) == PLACE.sub("", PAGE)
    assert fill(once, {"times": r"| \1 |", "settings": "- cores: 2"}) == once
    assert NOTHING in fill(PAGE, {"times": "", "settings": "-"})


@pytest.mark.parametrize("names", [["settings"], ["settings", "times", "more"]])
def test_a_page_and_figures_that_do_not_fit_are_refused(names):
    with pytest.raises(ValueError, match="the page has places for"):
        fill(PAGE, dict.fromkeys(names, "x"))


@pytest.mark.parametrize("in_place", [False, True])
def test_a_page_is_filled_in_place_or_beside_its_results(in_place, tmp_path, monkeypatch, capsys):
    folder, results = tmp_path / "docs", tmp_path / "build" / "example.json"
    for each in (folder, results.parent):
        each.mkdir()
    monkeypatch.setattr(pages, "PAGES", folder)
    (folder / "example.md").write_text(PAGE, encoding="utf-8")
    tables = {"times": [{"a": "1"}]}
    publish("example", results, {"cores": 2}, tables, in_place)
    assert "a\n1" in capsys.readouterr().out
    written = folder / "example.md" if in_place else results.with_suffix(".md")
    text = written.read_text(encoding="utf-8")
    assert "| a |\n| --- |\n| 1 |" in text
    assert "cores: 2" in text
    if not in_place:
        assert (folder / "example.md").read_text(encoding="utf-8") == PAGE


@pytest.mark.parametrize("path", sorted(PAGES.glob("*.md")), ids=lambda path: path.stem)
def test_every_page_tells_its_settings(path):
    assert "settings" in PLACE.findall(path.read_text(encoding="utf-8"))
