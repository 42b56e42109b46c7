"""What results are called: as their recordings, unique, and fit for any file system."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from hypothesis import given, settings
from hypothesis import strategies as st

from extras.archive.manifest import Recording
from extras.archive.names import LONGEST_PART, name_results


def names(*paths: str, places: tuple[str, ...] = ("/in",)) -> list[str]:
    found = [Recording(f"{n:020}", path, 1, 1) for n, path in enumerate(paths)]
    return [each.result for each in name_results(found, places)]


def test_folders_and_names_are_those_of_the_recordings():
    paths = ("/in/talks/monday.mp3", "/in/talks/deep/a.b.wav", "/in/tuesday.OGG")
    assert names(*paths) == ["talks/monday", "talks/deep/a.b", "tuesday"]
    assert names("s3://calls/talks/a b#%2B.wav", places=("s3://calls/talks",)) == ["a b#%2B"]


def test_of_several_places_the_nearest_one_counts_and_else_the_name_alone():
    places = ("/in", "/in/talks", "/mnt")
    paths = ("/in/talks/a.wav", "/mnt/x/b.wav", "/in/x/c.wav", "/linked/d.wav")
    assert names(*paths, places=places) == ["a", "x/b", "x/c", "d"]


def test_those_who_would_be_called_alike_keep_their_endings_and_then_get_their_ids():
    assert names("/in/a.mp3", "/in/A.wav", "/in/b.wav") == ["a.mp3", "A.wav", "b"]
    assert names("/x/a.wav", "/y/a.wav", places=("/x", "/y")) == [
        f"a.wav-{0:020}",
        f"a.wav-{1:020}",
    ]
    both = names("/in/a.mp3", "/in/a.wav", "/in/a.mp3.flac")
    assert both == [f"a.mp3-{0:020}", "a.wav", f"a.mp3.flac-{2:020}"]


def test_a_name_that_its_user_gave_is_the_results():
    own = Recording("call-1-" + "0" * 20, "/in/x/a.wav", 1, 1, name="call-1")
    twice = Recording("call-1-" + "1" * 20, "/in/x/b.wav", 1, 1, name="call-1")
    assert [each.result for each in name_results([own], ["/in"])] == ["call-1"]
    assert len({each.result for each in name_results([own, twice], ["/in"])}) == 2


def test_a_folder_that_looks_like_a_result_cannot_stand_in_its_place():
    assert names("/in/a.json/b.wav", "/in/a.wav") == ["a.json_/b", "a"]


PARTS = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(PARTS, min_size=1, max_size=3), max_size=8, unique_by=tuple))
def test_whatever_they_are_called_names_are_unique_visible_and_short(paths):
    found = names(*("/in/" + "/".join(each) for each in paths))
    assert len({name.casefold() for name in found}) == len(found)
    for name in found:
        for part in name.split("/"):
            assert part
            assert not part.startswith(".")
            assert len(part.encode()) <= LONGEST_PART + 21
            assert part.isprintable() or not any(ord(c) < 32 or c == "\x7f" for c in part)
