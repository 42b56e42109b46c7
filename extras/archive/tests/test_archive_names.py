"""Results are named like their recordings, uniquely, and for any file system."""

from hashlib import sha256

import pytest

pytest.importorskip("pyarrow")

from hypothesis import given, settings
from hypothesis import strategies as st

from extras.archive.manifest import Recording
from extras.archive.names import LONGEST_PART, name_results


def names(*paths: str, places: tuple[str, ...] = ("/in",)) -> list[str]:
    found = [Recording(f"{n:020}", path, 1, 1) for n, path in enumerate(paths)]
    return [each.result for each in name_results(found, places)]


PLACES = ("/in", "/in/talks", "/mnt")
# Of the path, and of neither parameters nor a name of the manifest.
DIGESTS = [sha256(b'["/%b/a.wav",null,null]' % each).hexdigest()[:20] for each in (b"x", b"y")]


@pytest.mark.parametrize(
    ("paths", "places", "expected"),
    [
        (("/in/talks/deep/a.b.wav", "/in/tuesday.OGG"), ("/in",), ["talks/deep/a.b", "tuesday"]),
        (("s3://calls/talks/a b#%2B.wav",), ("s3://calls/talks",), ["a b#%2B"]),
        # Of several places the nearest one counts, and else the name alone.
        (("/in/talks/a.wav", "/mnt/x/b.wav", "/linked/d.wav"), PLACES, ["a", "x/b", "d"]),
        # Names that would be alike keep their endings, and then get digests of their paths.
        (("/in/a.mp3", "/in/A.wav", "/in/b.wav"), ("/in",), ["a.mp3", "A.wav", "b"]),
        (("/x/a.wav", "/y/a.wav"), ("/x", "/y"), [f"a.wav-{each}" for each in DIGESTS]),
        # A folder that looks like a result cannot stand in its place.
        (("/in/a.json/b.wav", "/in/a.wav"), ("/in",), ["a.json_/b", "a"]),
    ],
)
def test_results_are_called_as_recordings(paths, places, expected):
    assert names(*paths, places=places) == expected


def test_a_name_from_the_user_names_the_result():
    own = Recording("call-1-" + "0" * 20, "/in/x/a.wav", 1, 1, name="call-1")
    twice = Recording("call-1-" + "1" * 20, "/in/x/b.wav", 1, 1, name="call-1")
    assert [each.result for each in name_results([own], ["/in"])] == ["call-1"]
    assert len({each.result for each in name_results([own, twice], ["/in"])}) == 2


PARTS = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(PARTS, min_size=1, max_size=3), max_size=8, unique_by=tuple))
def test_names_are_unique_visible_and_short(paths):
    found = names(*("/in/" + "/".join(each) for each in paths))
    assert len({name.casefold() for name in found}) == len(found)
    for part in (part for name in found for part in name.split("/")):
        assert part
        assert not part.startswith(".")
        assert len(part.encode()) <= LONGEST_PART + 21
        assert part.isprintable() or not any(ord(c) < 32 or c == "\x7f" for c in part)
