"""Renders texts for people: plain text, Markdown, Word and HTML."""

import re
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from html import escape
from io import BytesIO
from typing import NamedTuple
from urllib.parse import quote
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from whosaid.answer.phrases import on_one_line
from whosaid.answer.rendering import Rendering

# Markdown's syntax within a line, and characters that XML forbids.
MARKDOWN = re.compile(r"[\\`*_\[\]<>&#~|$]")
NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
STYLE = (
    "body{max-width:45em;margin:2em auto;padding:0 1em;font:1rem/1.5 sans-serif}"
    "audio{position:sticky;top:0;width:100%}a{color:inherit}"
)
SCRIPT = (
    'const audio=document.querySelector("audio");'
    'document.addEventListener("click",(event)=>{'
    'const link=event.target.closest("a[data-start]");if(!link)return;event.preventDefault();'
    "audio.currentTime=Number(link.dataset.start);audio.play()})"
)


class Paragraph(NamedTuple):
    """A block's text on one line, from `start` seconds; `speaker` is "" if unknown."""

    start: float
    speaker: str
    text: str

    @property
    def time(self) -> str:
        """Return the start as [00:12:31], rounded down, so that playback begins before the text."""
        minutes, seconds = divmod(int(self.start), 60)
        return f"[{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}]"


def _paragraphs(rendering: Rendering) -> Iterator[Paragraph]:
    for block in rendering.blocks:
        yield Paragraph(block.start, on_one_line(block.speaker or ""), on_one_line(block.text))


def _title(rendering: Rendering) -> str:
    return on_one_line(rendering.layout.recording_name or "Transcript")


def render_txt(rendering: Rendering) -> str:
    """Render each block as a line, which begins with its time if wanted, and its speaker."""
    lines = []
    for each in _paragraphs(rendering):
        time = f"{each.time} " if rendering.layout.txt_times else ""
        name = f"{each.speaker}: " if each.speaker else ""
        lines.append(f"{time}{name}{each.text}\n")
    return "".join(lines)


def render_md(rendering: Rendering) -> str:
    """Render CommonMark: the recording's name, and a paragraph for each block."""
    parts = [f"# {_in_markdown(_title(rendering))}\n"]
    for each in _paragraphs(rendering):
        name = f" {_in_markdown(each.speaker)}:" if each.speaker else ""
        parts.append(f"**{_in_markdown(each.time)}{name}** {_in_markdown(each.text)}\n")
    return "\n".join(parts)


def _in_markdown(text: str) -> str:
    return MARKDOWN.sub(r"\\\g<0>", text)


def render_html(rendering: Rendering) -> str:
    """Render a page that plays the recording in its own folder, from the time that is clicked. Its
    policy allows only this script, this style and media; without scripts a time is a link.
    """
    recording, title = rendering.layout.recording_name, escape(_title(rendering))
    policy = (
        f"default-src 'none'; media-src * file:; style-src '{_hash(STYLE)}';"
        f" script-src '{_hash(SCRIPT)}'"
    )
    source = f"./{quote(recording, '')}" if recording else ""
    lines = [
        '<!DOCTYPE html>\n<html>\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>",
    ]
    if source:
        lines.append(f'<audio controls preload="metadata" src="{source}"></audio>')
    for each in _paragraphs(rendering):
        time = each.time
        if source:
            link = f'href="{source}#t={each.start:.2f}" data-start="{each.start:.2f}"'
            time = f"<a {link}>{time}</a>"
        name = f" <b>{escape(each.speaker)}:</b>" if each.speaker else ""
        lines.append(f'<p dir="auto">{time}{name} {escape(each.text)}</p>')
    lines += [f"<script>{SCRIPT}</script>"] if source else []
    return "\n".join([*lines, "</body>\n</html>\n"])


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def render_docx(rendering: Rendering) -> str:
    """Render a Word document in base64, a paragraph for each block. Equal content, equal bytes."""
    from docx import Document  # takes a tenth of a second

    document = Document()
    document.core_properties.author = ""
    title = _in_xml(_title(rendering))
    document.core_properties.title = title[:255]
    document.add_heading(title)
    for each in _paragraphs(rendering):
        paragraph = document.add_paragraph(f"{each.time} ")
        if each.speaker:
            speaker = " ".join(each.speaker.split())
            paragraph.add_run(f"{_in_xml(speaker)}:").bold = True
            paragraph.add_run(" ")
        paragraph.add_run(_in_xml(each.text))
    written = BytesIO()
    document.save(written)
    return b64encode(_without_dates(written)).decode()


def _in_xml(text: str) -> str:
    return NOT_XML.sub("\ufffd", text)


def _without_dates(archive: BytesIO) -> bytes:
    copy = BytesIO()
    with ZipFile(archive) as source, ZipFile(copy, "w", ZIP_DEFLATED) as target:
        for entry in source.infolist():
            target.writestr(ZipInfo(entry.filename), source.read(entry), ZIP_DEFLATED)
    return copy.getvalue()
