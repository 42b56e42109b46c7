"""Renders subtitles: SRT and VTT."""

from collections.abc import Callable, Iterator

from whosaid.answer.cues import Cue, name_prefix
from whosaid.answer.phrases import on_one_line
from whosaid.answer.rendering import Rendering

SRT_LOOKALIKES = str.maketrans("<>{}\\", "\u2039\u203a()\u2216")


def render_srt(rendering: Rendering) -> str:
    """Render SubRip, which has no escapes.

    Players read `<b>` as a tag, `{...}` and backslashes as SubStation codes, and `-->` as a line of
    times. VLC decodes `&lt;`; MPC-HC and pysubs2 print it. So these characters are replaced by
    similar ones of the same width.
    """
    blocks = []
    shown = _shown(rendering, True, lambda text: text.translate(SRT_LOOKALIKES))
    for number, (start, end, _, text) in enumerate(shown, 1):
        blocks.append(f"{number}\n{_clock(start, ',')} --> {_clock(end, ',')}\n{text}\n")
    return "\n".join(blocks)


def render_vtt(rendering: Rendering) -> str:
    """Render WebVTT with voice tags; escapes keep players from taking text for tags or times."""
    blocks = ["WEBVTT\n"]
    for start, end, speaker, text in _shown(rendering, False, _escape):
        named = speaker if rendering.layout.subtitle_speakers else None
        voice = f"<v {_escape(on_one_line(named))}>" if named else ""
        blocks.append(f"{_clock(start, '.')} --> {_clock(end, '.')}\n{voice}{text}\n")
    return "\n".join(blocks)


def _shown(
    rendering: Rendering, named: bool, escape: Callable[[str], str]
) -> list[tuple[int, int, str | None, str]]:
    """Return (first millisecond, last, speaker, text) of each text on the screen, by start.

    A cue is one text or, if words are highlighted, one text for each word and pause. Texts of
    channels that speak at once alternate.
    """
    shown: list[tuple[int, int, str | None, str]] = []
    for cue in rendering.cues(named):
        shown += (
            (start, end, cue.speaker, _cue_text(cue, spoken, escape))
            for start, end, spoken in _moments(cue, rendering.layout.highlight_words)
        )
    return sorted(shown, key=lambda text: text[0])


def _moments(cue: Cue, by_word: bool) -> Iterator[tuple[int, int, int | None]]:
    """Yield (first ms, last ms, index) of the words of a cue; the index of a pause is None. The cue
    is one pause unless `by_word`.
    """
    first, last = milliseconds(cue.start), milliseconds(cue.end)
    now = first
    words = [word for line in cue.words for word in line] if by_word else []
    for index, word in enumerate(words):
        start = min(max(now, milliseconds(word.start)), last)
        end = min(max(start, milliseconds(word.end)), last)
        if start == end:
            continue
        if start > now:
            yield now, start, None
        yield start, end, index
        now = end
    if now < last or now == first:
        yield now, last, None


def _cue_text(cue: Cue, spoken: int | None, escape: Callable[[str], str]) -> str:
    """Return the lines of a cue, with the word at index `spoken` underlined."""
    lines: list[str] = []
    index = 0
    for line in cue.words:
        text = ""
        for word in line:
            escaped = escape(word.text)
            bare = escaped.strip()
            text += escaped.replace(bare, f"<u>{bare}</u>", 1) if index == spoken else escaped
            index += 1
        lines.append(escape(name_prefix(line[0], cue.named and not lines)) + on_one_line(text))
    return "\n".join(lines)


def _clock(time: int, separator: str) -> str:
    """Format milliseconds as 00:01:02,345 with this `separator`."""
    rest, milliseconds = divmod(time, 1000)
    minutes, seconds_left = divmod(rest, 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds_left:02d}{separator}{milliseconds:03d}"


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
