"""The HTML of what a recording has become: status, player, transcript, timeline.

The one decision: HTML is made here, on the server, and every text in it is escaped; `page.js` only
plays what is clicked. Words carry their times in `data-at` (seconds). The classes `s0` to `s7` are
the speakers' colours, which `page.css` defines for light and dark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from urllib.parse import quote

from asr.checkpoint.languages import language_name
from response import Answer, clamp_times
from server.page.speaker_names import MAX_NAME_COLUMNS, speakers_of
from transcript import Chunk, SpeakerSegment, SpeakerTurn

COLOURS = 8
# Seconds between the marks of the timeline's axis: the first that gives at most MOST_MARKS.
MARKS, MOST_MARKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600), 8
NOTHING = ""


def clock(seconds: float) -> str:
    """`75.5` as `1:15`, `3675` as `1:01:15`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _safe(text: str) -> str:
    """Text as HTML. Gradio's page fills templates in, so what could be one is escaped as well."""
    escaped = escape(text)
    for character in "${}`\\":
        escaped = escaped.replace(character, f"&#{ord(character)};")
    return escaped


def waiting(text: str) -> str:
    """What is going on while nothing can be counted."""
    return f'<div class="status" role="status"><p>{_safe(text)}</p><progress></progress></div>'


def progress(done: float, total: float) -> str:
    """How far transcription is, in seconds of speech."""
    if done >= total:
        return waiting("All is transcribed. Telling the speakers apart")
    return (
        f'<div class="status" role="status"><p>Transcribing: {clock(done)} of {clock(total)}</p>'
        f'<progress max="{total:.2f}" value="{done:.2f}"></progress></div>'
    )


def notice(text: str) -> str:
    """What happened, where nothing failed."""
    return f'<div class="status" role="status"><p>{_safe(text)}</p></div>'


def failure(message: str) -> str:
    """Why there is no answer, on one line."""
    return f'<div class="status failed" role="alert"><p>{_safe(message)}</p></div>'


def summary(answer: Answer, wall: float) -> str:
    """What was found, in how many seconds, and every warning."""
    language = answer.transcript.language
    found = [f"{clock(answer.duration)} of audio"]
    if language:
        found.append(language_name(language))
    if speakers := len(speakers_of(answer)):
        found.append("1 speaker" if speakers == 1 else f"{speakers} speakers")
    found.append(f"{wall:.1f} s")
    warnings = "".join(f"<li>{_safe(warning)}</li>" for warning in answer.warnings)
    warnings = f"<ul>{warnings}</ul>" if warnings else ""
    text = " · ".join(map(_safe, found))
    return f'<div class="status done" role="status"><p>{text}</p>{warnings}</div>'


def player(path: str) -> str:
    """The recording as the browser plays it; `path` is that of the uploaded file."""
    return (
        '<audio id="player" controls preload="metadata" aria-label="The recording"'
        f' src="gradio_api/file={_safe(quote(path))}"></audio>'
    )


def heard(chunks: Sequence[Chunk]) -> str:
    """Chunks as they come, before their words have speakers; a further one only adds to the end."""
    return "".join(
        f'<p class="turn-text" dir="auto">{_time(chunk.start)}{_text(chunk)}</p>'
        for chunk in chunks
    )


def transcript(answer: Answer, names: Mapping[str, str]) -> str:
    """Every turn with its speaker and its words, which know when they were spoken."""
    chunks = clamp_times(answer.transcript.chunks, answer.duration)
    if not chunks:
        return '<p class="quiet">No speech was found.</p>'
    blocks: Sequence[Chunk | SpeakerSegment] = chunks
    if answer.segments:
        blocks = clamp_times(answer.segments, answer.duration)
    colours = _colours(answer)
    return "".join(_block(block, colours, names) for block in blocks)


def timeline(answer: Answer, names: Mapping[str, str]) -> str:
    """Who spoke when: a lane for each speaker, with its name to be changed; empty without any."""
    if not answer.turns:
        return NOTHING
    colours = _colours(answer)
    lanes = "".join(_lane(each, colours[each], answer, names) for each in speakers_of(answer))
    marks = "".join(
        f'<span style="left:{100 * at / answer.duration:.3f}%">{clock(at)}</span>'
        for at in _marks(answer.duration)
    )
    return (
        f'<div class="timeline" data-duration="{answer.duration:.2f}">{lanes}'
        f'<div class="lane axis" aria-hidden="true"><span></span><div class="track">{marks}'
        "</div><span></span></div></div>"
    )


def _colours(answer: Answer) -> dict[str, str]:
    return {speaker: f"s{i % COLOURS}" for i, speaker in enumerate(speakers_of(answer))}


def _marks(duration: float) -> Iterator[int]:
    step = next((each for each in MARKS if duration / each <= MOST_MARKS), MARKS[-1])
    # The last mark keeps clear of the end, where its label would be cut.
    yield from range(0, int(duration - step / 3) + 1, step)


def _lane(speaker: str, colour: str, answer: Answer, names: Mapping[str, str]) -> str:
    spans = [_clip(turn, answer.duration) for turn in answer.turns or () if turn.speaker == speaker]
    seconds = sum(end - start for start, end in spans)
    bars = "".join(
        f'<i data-at="{start:.2f}" data-to="{end:.2f}" title="{clock(start)} to {clock(end)}"'
        f' style="left:{100 * start / answer.duration:.3f}%;'
        f'width:{100 * (end - start) / answer.duration:.3f}%"></i>'
        for start, end in spans
    )
    name = _safe(names.get(speaker, speaker))
    return (
        f'<div class="lane {colour}"><input type="text" value="{name}" spellcheck="false"'
        f' maxlength="{MAX_NAME_COLUMNS}" data-speaker="{_safe(speaker)}" autocomplete="off"'
        f' aria-label="Name of {_safe(speaker)}" title="Click to rename">'
        f'<div class="track" aria-hidden="true">{bars}</div><span class="share">{clock(seconds)}'
        "</span></div>"
    )


def _clip(turn: SpeakerTurn, duration: float) -> tuple[float, float]:
    start = min(max(turn.start, 0.0), duration)
    return start, min(max(turn.end, start), duration)


def _block(
    block: Chunk | SpeakerSegment, colours: Mapping[str, str], names: Mapping[str, str]
) -> str:
    speaker = block.speaker if isinstance(block, SpeakerSegment) else None
    name = ""
    if speaker is not None:
        name = f'<b class="name">{_safe(names.get(speaker, speaker))}</b>'
    colour = colours.get(speaker or "", "")
    return f'<p class="turn-text {colour}" dir="auto">{_time(block.start)}{name}{_text(block)}</p>'


def _time(start: float) -> str:
    return f'<button type="button" class="time" data-at="{start:.2f}">{clock(start)}</button> '


def _text(block: Chunk | SpeakerSegment) -> str:
    """The words one by one, or, where their times are unknown, the text as one that can be played.

    Spaces stay outside of the words, so that a line may break there.
    """
    if not block.words:
        return _word(block.text, block.start, block.end)
    return "".join(_word(each.text, each.start, each.end, each.overlap) for each in block.words)


def _word(text: str, start: float, end: float, overlap: bool = False) -> str:
    stripped = text.strip()
    if not stripped:
        return " "
    before = " " if text[0].isspace() else ""
    after = " " if text[-1].isspace() else ""
    over = ' class="overlap" title="over another voice"' if overlap else ""
    times = f'data-at="{start:.2f}" data-to="{end:.2f}"'
    return f'{before}<span {times}{over} tabindex="-1">{_safe(stripped)}</span>{after}'
