"""Texts for people, read back with the libraries that read such files."""

import base64
import hashlib
import re
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import InferenceConfig
from tests.helpers.page_person import chromium, using
from tests.helpers.readers import read_docx, read_html, read_md
from tests.support.audio_files import speech, wav_file
from whosaid.answer.formats import FORMATS, file_bytes
from whosaid.answer.rendering import Rendering
from whosaid.transcript import SpeakerSegment

# Syntax of HTML, XML, Markdown and URLs, and letters that XML forbids.
LETTERS = st.sampled_from("ab.1)-+=<>&\"'`*_[](){}\\|~#!:/?%$@^語é\u200f\u2028\x00\x07\ufffe\t\n ")
TEXTS = st.one_of(
    st.text(LETTERS, max_size=30),
    st.sampled_from(
        ("<script>x</script>", "&lt;", "![a](b)", "a  \n# b", "]]>", "\\*", "<!--", "~~a~~")
    ),
)
# A letter that XML forbids is left out, and the space before it stays.
ENDS = re.compile(r"[^\x00\x07\ufffe\s]\s*$")
NAMES = st.one_of(st.none(), st.text(LETTERS, min_size=1, max_size=12).filter(ENDS.search))
FILES = st.one_of(st.none(), st.text(LETTERS, min_size=1, max_size=12).filter(str.strip))


@st.composite
def renderings(draw) -> Rendering:
    found, now = [], 0.0
    for speaker, text, seconds in draw(
        st.lists(st.tuples(NAMES, TEXTS, st.integers(0, 400_000)), max_size=5)
    ):
        found.append(SpeakerSegment(speaker, text, now, now + seconds / 100))
        now += seconds / 100
    layout = InferenceConfig(recording_name=draw(FILES), txt_times=draw(st.booleans()))
    return Rendering(now, (), found, (), layout)


def time_of(seconds: float) -> str:
    whole = int(seconds)
    return f"[{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}]"


def flat(text: str) -> str:
    """The text in single spaces, without what no XML can hold and no parser keeps."""
    return " ".join(re.sub("[\x00\x07\ufffe\ufffd]", "", text).split())


def lines_of(rendering: Rendering) -> list[str]:
    return [
        flat(
            f"{time_of(each.start)} {f'{flat(each.speaker)}: ' if each.speaker else ''}{each.text}"
        )
        for each in rendering.segments
    ]


@given(renderings())
def test_every_document_has_times_names_and_texts(rendering):
    title = flat(rendering.layout.recording_name or "Transcript")
    expected = lines_of(rendering)
    content = file_bytes("docx", FORMATS["docx"](rendering))
    page = read_html(FORMATS["html"](rendering))
    read = {"docx": read_docx(content), "md": read_md(FORMATS["md"](rendering))}
    read["html"] = [*page.texts["h1"], *page.texts.get("p", ())]
    for form, texts in read.items():
        assert [flat(each) for each in texts] == [title, *expected], form
    lines = FORMATS["txt"](rendering).split("\n")[:-1]
    cut = 0 if rendering.layout.txt_times else len("[00:00:00] ")
    assert [flat(each) for each in lines] == [flat(each[cut:]) for each in expected]
    assert file_bytes("docx", FORMATS["docx"](rendering)) == content


@given(renderings())
def test_html_plays_its_recording_and_runs_nothing_else(rendering):
    name = rendering.layout.recording_name
    page = read_html(FORMATS["html"](rendering))
    tags = [tag for tag, _ in page.elements]
    known = "html head meta title style body h1 audio p a b script"
    assert {*tags} <= {*known.split()}
    attributes = [value for _, given in page.elements for value in given.items()]
    sources = [value for key, value in attributes if key in ("src", "href")]
    begin = {unquote(source.partition("#")[0]) for source in sources}
    assert begin == ({f"./{name}"} if name else set())
    assert not any("/" in source[2:] or "?" in source for source in sources)
    assert not [key for key, _ in attributes if key.startswith("on")]
    times = [float(given["data-start"]) for tag, given in page.elements if tag == "a"]
    assert times == [round(each.start, 2) for each in rendering.segments] * bool(name)
    (policy,) = [value for key, value in attributes if key == "content" and "default-src" in value]
    for tag in ("style", "script"):
        for text in page.texts.get(tag, ()):
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert f"{tag}-src 'sha256-{digest}'" in policy


@pytest.mark.slow
def test_a_click_plays_from_its_time_under_the_policy(tmp_path):
    name = 'Gespräch #1 "a".wav'
    (tmp_path / name).write_bytes(wav_file(speech(6.0), 16_000))
    said = [SpeakerSegment("<b>Zoë", f" {text}", 3.25 * at, 6.0) for at, text in enumerate("ab")]
    page = tmp_path / "talk.html"
    rendering = Rendering(6.0, (), said, (), InferenceConfig(recording_name=name))
    page.write_text(FORMATS["html"](rendering), encoding="utf-8")
    with chromium(tmp_path) as browser, using(browser) as person:
        browser.get(page.as_uri())
        person.all("a")[1].click()
        person.wait(lambda: person.do("document.querySelector('audio').currentTime") > 3.25)
        assert browser.current_url == page.as_uri()
