"""Subtitles within limits that somebody asks for, beside those of openai/whisper."""

from dataclasses import replace
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config import InferenceConfig
from whosaid.answer.formats import FORMATS
from whosaid.answer.rendering import Rendering
from whosaid.transcript import Chunk, SpeakerSegment, Word

SPEAKERS = st.sampled_from([None, "SPEAKER_00", "Ada"])
LIMITS = st.one_of(st.none(), st.integers(1, 6))
LAYOUTS = st.builds(
    InferenceConfig,
    max_line_width=st.one_of(st.none(), st.integers(1, 60)),
    max_line_count=LIMITS,
    max_words_per_line=LIMITS,
    highlight_words=st.booleans(),
    subtitle_speakers=st.booleans(),
).filter(lambda layout: layout.max_line_width or layout.max_line_count or layout.max_words_per_line)

Segments = list[list[Word]]

TEXTS = st.sampled_from([" a", " of", "é", " word", " 語", "語語", " another", " abcdefghabcd"])
GAPS = st.sampled_from([0, 0, 10, 290, 301, 400])


@st.composite
def segments(draw, speakers=SPEAKERS) -> Segments:
    """Whisper's segments of words in order of time, some after long pauses."""
    word = st.tuples(TEXTS, GAPS, st.integers(2, 90), st.one_of(st.none(), speakers))
    found: Segments = []
    now, speaker = 0, draw(speakers)
    for said in draw(st.lists(st.lists(word, min_size=1, max_size=12), max_size=5)):
        found.append([])
        for text, gap, length, other in said:
            start, now, speaker = now + gap, now + gap + length, other or speaker
            found[-1].append(Word(text, start / 100, now / 100, speaker))
    return found


def text_of(words: list[Word]) -> str:
    return "".join(word.text for word in words)


def rendering_of(found: Segments, layout: InferenceConfig, spare: float = 10.0) -> Rendering:
    """Return an answer's rendering: a chunk a segment, and a speaker's consecutive words joined."""
    words = [word for segment in found for word in segment]
    chunks = [Chunk(text_of(one), one[0].start, one[-1].end, words=tuple(one)) for one in found]
    turns = [(who, list(said)) for who, said in groupby(words, key=lambda word: word.speaker)]
    spans = [(text_of(said), said[0].start, said[-1].end, tuple(said)) for _, said in turns]
    blocks = [SpeakerSegment(who, *span) for (who, _), span in zip(turns, spans, strict=True)]
    named = any(word.speaker for word in words)
    duration = (words[-1].end if words else 0.0) + spare
    return Rendering(duration, chunks, blocks if named else (), (), layout)


def shown(srt: str) -> list[tuple[str, str, str]]:
    entries = []
    for block in srt.rstrip("\n").split("\n\n") if srt else ():
        _, times, text = block.split("\n", 2)
        start, end = times.split(" --> ")
        entries.append((start, end, text))
    return entries


def by_whisper(found: Segments, layout: InferenceConfig) -> list[tuple[str, str, str]]:
    """Return the entries that openai/whisper writes."""
    writer = pytest.importorskip("whisper.utils").WriteSRT("")
    said = [[{"word": w.text, "start": w.start, "end": w.end} for w in words] for words in found]
    told = [{"start": words[0]["start"], "words": words} for words in said]
    names = ("max_line_width", "max_line_count", "max_words_per_line", "highlight_words")
    options = {name: getattr(layout, name) for name in names}
    return list(writer.iterate_result({"segments": told}, **options))


def runs(found: Segments) -> list[Segments]:
    """Return each speaker's consecutive text, in segments."""
    made: list[Segments] = []
    for segment in found:
        for who, said in groupby(segment, key=lambda word: word.speaker):
            if not made or made[-1][-1][-1].speaker != who:
                made.append([])
            made[-1].append(list(said))
    return made


@settings(max_examples=40)
@given(segments(st.none()), LAYOUTS)
def test_cues_are_those_of_openai_whisper(found, layout):
    assert shown(FORMATS["srt"](rendering_of(found, layout))) == by_whisper(found, layout)


@settings(max_examples=40)
@given(segments(), LAYOUTS)
def test_each_speaker_gets_the_cues_of_openai_whisper(found, layout):
    layout = layout.model_copy(update={"subtitle_speakers": False})
    expected = [entry for run in runs(found) for entry in by_whisper(run, layout)]
    assert shown(FORMATS["srt"](rendering_of(found, layout))) == expected


def underlined(text: str) -> str:
    return text.replace("<u>", "").replace("</u>", "")


@settings(max_examples=40)
@given(segments(), LAYOUTS)
def test_named_lines_are_wider_only_for_a_longer_word(found, layout):
    layout = layout.model_copy(update={"subtitle_speakers": True, "highlight_words": False})
    for cue in rendering_of(found, layout).cues(named=True):
        assert cue.lines[0].startswith(f"{cue.speaker}: " if cue.speaker else "")
        assert {word.speaker for line in cue.words for word in line} == {cue.speaker}
        for line, words in zip(cue.lines, cue.words, strict=True):
            assert len(words) == 1 or len(line) <= (layout.max_line_width or len(line))
        if layout.max_line_width:
            assert len(cue.lines) <= (layout.max_line_count or len(cue.lines))


@settings(max_examples=40)
@given(
    segments(), st.one_of(LAYOUTS, st.just(InferenceConfig())), st.sampled_from([10.0, 0.0, -2.0])
)
def test_highlighted_cues_show_what_plain_ones_do_without_a_gap(found, layout, spare):
    whole = rendering_of(found, layout)
    end = max(0.0, whole.duration - 10.0 + spare)
    clipped = [
        [replace(word, start=min(word.start, end), end=min(word.end, end)) for word in words]
        for words in found
    ]
    rendering = replace(rendering_of(clipped, layout), duration=end)
    others = [layout.model_copy(update={"highlight_words": each}) for each in (False, True)]
    plain, lit = (shown(FORMATS["srt"](replace(rendering, layout=each))) for each in others)
    rest = iter(lit)
    for start, stop, text in plain:
        now = start
        while now != stop or start == stop:
            begins, ends, marked = next(rest)
            assert (begins, underlined(marked)) == (now, text)
            assert marked.count("<u>") == marked.count("</u>") <= 1
            now = ends
            if start == stop:
                break
    assert not [*rest]


def test_words_are_underlined_inside_voices_and_escapes():
    words = [Word(" a<b", 0.0, 0.5, "Ada"), Word(" &", 0.7, 1.0, "Ada")]
    layout = InferenceConfig(highlight_words=True)
    chunk = Chunk(" a<b &", 0.0, 1.0, words=tuple(words))
    block = SpeakerSegment("Ada", chunk.text, 0.0, 1.0, chunk.words)
    vtt = FORMATS["vtt"](Rendering(1.0, [chunk], [block], (), layout))
    voiced = [text for text in vtt.split("\n") if text.startswith("<v")]
    one, two = "<v Ada><u>a&lt;b</u> &amp;", "<v Ada>a&lt;b <u>&amp;</u>"
    assert voiced == [one, "<v Ada>a&lt;b &amp;", two]
    hidden = layout.model_copy(update={"subtitle_speakers": False})
    srt = FORMATS["srt"](Rendering(1.0, [chunk], [block], (), hidden))
    assert shown(srt)[0][2] == "<u>a\u2039b</u> &"


def test_block_without_word_times_is_laid_out_by_words():
    chunks = [Chunk(" one two three four", 0.0, 4.0), Chunk(" five", 5.0, 6.0)]
    srt = FORMATS["srt"](Rendering(7.0, chunks, (), (), InferenceConfig(max_words_per_line=3)))
    assert [text for _, _, text in shown(srt)] == ["one two three", "four", "five"]


def apart(rendering: Rendering, **told: int | str) -> Rendering:
    chunks = [replace(each, **told) for each in rendering.chunks]
    blocks = [replace(each, **told) for each in rendering.segments]
    return replace(rendering, chunks=chunks, segments=blocks)


@settings(max_examples=40)
@given(segments(st.just("Ada")), segments(st.just("Bo")), LAYOUTS, st.booleans())
def test_simultaneous_cues_are_ordered_by_time(one, other, layout, on_channels):
    """Words underlined or not, each channel or voice shows what it would alone."""
    spoken = [rendering_of(found, layout) for found in (one, other)]
    duration = max(each.duration for each in spoken)
    told = [{"channel": 0}, {"channel": 1}] if on_channels else [{"voice": "Ada"}, {"voice": "Bo"}]
    pairs = zip(told, spoken, strict=True)
    alone = [apart(replace(each, duration=duration), **place) for place, each in pairs]
    chunks = [chunk for each in alone for chunk in each.chunks]
    blocks = sorted((it for each in alone for it in each.segments), key=lambda each: each.start)
    together = Rendering(duration, chunks, blocks, (), layout)
    srt = FORMATS["srt"](together)
    entries = shown(srt)
    assert [start for start, _, _ in entries] == sorted(start for start, _, _ in entries)
    assert sorted(entries) == sorted(it for each in alone for it in shown(FORMATS["srt"](each)))
    numbers = [block.split("\n")[0] for block in srt.split("\n\n") if block]
    assert numbers == [str(place) for place in range(1, len(entries) + 1)]
    lines = FORMATS["vtt"](together).split("\n")
    starts = [line.split(" --> ")[0] for line in lines if "-->" in line]
    assert starts == sorted(starts)
