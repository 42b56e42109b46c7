"""Pages and the figures between their marks: what is replaced, what stays, what is refused."""

from __future__ import annotations

import re
from argparse import Namespace

import pytest

from benchmarks import charts, pages
from benchmarks.charts import Chart
from benchmarks.diarization import __main__ as diarization
from benchmarks.options import read_options
from benchmarks.pages import NOTHING, PLACE, fill, write_page
from benchmarks.report import PAGES, read, save, table_of
from benchmarks.speed import cpu, kernels
from tests.benchmark_pages import rows_of, run_quick

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


def test_rows_of_a_table_have_the_same_columns():
    assert table_of([]) == ""
    drawn = table_of([{"a": "1", "b": "2"}, {"a": "3", "b": "4"}])
    assert rows_of(drawn) == [["a", "b"], ["---", "---:"], ["1", "2"], ["3", "4"]]
    for other in ({"a": "3"}, {"a": "3", "b": "4", "c": "5"}, {"b": "4", "a": "3"}):
        with pytest.raises(ValueError, match="the columns a, b"):
            table_of([{"a": "1", "b": "2"}, other])


@pytest.mark.parametrize("path", sorted(PAGES.glob("*.md")), ids=lambda path: path.stem)
def test_a_page_that_is_filled_with_what_it_has_stays_as_it_is(path):
    text = path.read_text(encoding="utf-8")
    places = {
        found[1]: found[0].split("\n\n", 1)[1].rsplit("\n\n", 1)[0]
        for found in PLACE.finditer(text)
    }
    assert fill(text, places) == text
    assert "settings" in places
    for picture in re.findall(r"\]\(([^)]+\.svg)\)", text):
        assert (PAGES / picture).exists()


def test_what_kernels_measure_stands_on_their_page(tmp_path, monkeypatch):
    linear = ["demo, 480 x 160, int8", *(f"{count}.0" for count in kernels.POSITIONS)]
    attended = ["demo, 4 heads of 40, int8", *map(str, kernels.QUERIES)]
    monkeypatch.setattr(kernels, "linear_layers", lambda *_: iter([linear]))
    monkeypatch.setattr(kernels, "attentions", lambda *_: iter([attended]))
    rows = rows_of(run_quick(kernels, "kernels", tmp_path, monkeypatch))
    assert linear in rows
    assert attended in rows


def test_what_the_engine_s_choices_rest_on_stands_on_their_page(tmp_path, monkeypatch):
    measured = {
        "positions": ["demo, 1 x 4", *(f"{count}.5" for count in cpu.POSITIONS)],
        "encoders": ["demo", "1.27"],
        "threads": ["demo", "1.97"],
        "neighbours": ["demo", "1.1", "2.2", "3.3"],
    }
    for name, row in measured.items():
        monkeypatch.setattr(cpu, name, lambda *_, row=row: iter([row]))
    rows = rows_of(run_quick(cpu, "cpu", tmp_path, monkeypatch))
    assert all(row in rows for row in measured.values())


def test_what_diarization_takes_stands_on_its_page(tmp_path, monkeypatch):
    seconds = {diarization.OURS: [1.0, 1.2, 1.1], diarization.STOCK: [3.0, 3.6, 3.3]}
    embedded = ["this project", "78 windows", "1e-05", "1.23", "1.00 (1.00-1.00)"]
    beside = ["1", "1.07", "2.11", "2.26", "1.07", "0.73"]
    monkeypatch.setattr(diarization, "diarize", lambda _: seconds)
    monkeypatch.setattr(diarization, "embed_demo", lambda _: [embedded])
    monkeypatch.setattr(diarization, "beside_recognition", lambda *_: beside)
    page = run_quick(diarization, "diarization", tmp_path, monkeypatch)
    rows = rows_of(page)
    assert [diarization.STOCK, "3.30", "3.00 (3.00-3.00)"] in rows
    assert embedded in rows
    assert beside in rows
    assert "- seconds of the conversation: 20" in page
    # A quick run leaves the memory out, and has no pipeline of real weights.
    assert f"<!-- figures: published -->\n\n{NOTHING}" in page
    assert f"## Memory\n\n<!-- figures: memory -->\n\n{NOTHING}" in page


def test_tables_that_a_run_leaves_out_stay(tmp_path, monkeypatch):
    known = {"published": [["an hour", "9"]], "memory": [["20 min", "400"]]}
    headers = {"published": ["audio", "seconds"], "memory": ["audio", "MiB"]}
    kept = []

    def sections(bench, options, seconds):
        yield "conversation", ["", "seconds"], [["ours", str(len(kept))]]
        for name, rows in known.items():
            asked = options.pipeline if name == "published" else options.minutes
            yield name, headers[name], rows if asked else []

    monkeypatch.setattr(diarization, "diarize", lambda _: {diarization.OURS: [1.0]})
    monkeypatch.setattr(diarization, "_sections", sections)
    monkeypatch.setattr(diarization, "_chart", lambda *_: None)
    monkeypatch.setattr(diarization, "RESULTS", tmp_path)

    def keep(name, results, figures, *_):
        save(tmp_path / "diarization.json", results)
        kept.append(figures)

    monkeypatch.setattr(diarization, "keep", keep)
    pipeline = ["--pipeline", "real", "--lengths", "1", "--stock-minutes", "1"]
    for options in (pipeline, ["--minutes", "0"], ["--minutes", "0", "--fresh"]):
        diarization.main(read_options("diarization", options))
    whole, partly, fresh = kept
    assert "| an hour | 9 |" in whole["published"]
    assert partly | {"conversation": ""} == whole | {"conversation": ""}
    assert "| ours | 1 |" in partly["conversation"]
    assert (fresh["published"], fresh["memory"]) == ("", "")
