"""All formats of an answer's files. Every command and route renders its files by this table."""

from base64 import b64decode
from collections.abc import Callable, Mapping

from config import OutputFormat
from whosaid.answer import documents, subtitles, tables
from whosaid.answer.rendering import Rendering

FORMATS: Mapping[OutputFormat, Callable[[Rendering], str]] = {
    "srt": subtitles.render_srt,
    "vtt": subtitles.render_vtt,
    "txt": documents.render_txt,
    "md": documents.render_md,
    "docx": documents.render_docx,
    "html": documents.render_html,
    "tsv": tables.render_tsv,
    "rttm": tables.render_rttm,
}
IN_BASE64 = {"docx"}
MEDIA_TYPES = {
    "json": "application/json",
    "srt": "text/plain",
    "vtt": "text/vtt",
    "txt": "text/plain",
    "md": "text/markdown",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "html": "text/html",
    "tsv": "text/tab-separated-values",
    "rttm": "text/plain",
}


def file_bytes(form: str, text: str) -> bytes:
    """Return the bytes of a file, given its text as in an answer's `output`. Raises ValueError."""
    return b64decode(text) if form in IN_BASE64 else text.encode(errors="surrogatepass")
