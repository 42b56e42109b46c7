"""The files of an answer, read by the libraries with which people open them."""

import csv
import io
import tempfile
from html.parser import HTMLParser
from pathlib import Path

import pysubs2
import webvtt
from docx import Document
from markdown_it import MarkdownIt
from pyannote.database.util import load_rttm


def read_srt(text: str) -> list[pysubs2.SSAEvent]:
    """The events that pysubs2 reads.

    It takes digits on the last line of a file for a cue's number, so that a last cue is added here.
    """
    closed = f"{text}\n0\n99:00:00,000 --> 99:00:01,000\nend\n"
    *events, last = pysubs2.SSAFile.from_string(closed, format_="srt").events
    assert last.plaintext == "end"
    return events


def read_vtt(text: str) -> list[webvtt.Caption]:
    captions: list[webvtt.Caption] = webvtt.from_string(text).captions
    return captions


def read_tsv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline=""), delimiter="\t"))


def read_rttm(text: str) -> list[tuple[str, float, float]]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "audio.rttm"
        file.write_text(text)
        found = load_rttm(str(file))
    turns = found["audio"].itertracks(yield_label=True) if text else ()
    return [(speaker, part.start, part.end) for part, _, speaker in turns]


class _Page(HTMLParser):
    """Collects elements with their attributes, and the text of paragraphs."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("title", "style", "script", "h1", "p"):
            self.texts.setdefault(tag, []).append("")
            self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.texts[self._inside][-1] += data


def read_html(text: str) -> _Page:
    page = _Page()
    page.feed(text)
    page.close()
    return page


def read_md(text: str) -> list[str]:
    page = read_html(MarkdownIt("gfm-like", {"linkify": False}).render(text))
    assert {tag for tag, _ in page.elements} <= {"h1", "p", "strong"}
    return [each.strip() for each in (*page.texts["h1"], *page.texts.get("p", ()))]


def read_docx(content: bytes) -> list[str]:
    return [paragraph.text for paragraph in Document(io.BytesIO(content)).paragraphs]
