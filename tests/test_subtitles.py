"""Transcripts as files, parsed back with libraries that others read such files with."""

from __future__ import annotations

import csv
import io
from itertools import pairwise

import pysubs2
import pytest
import webvtt
from hypothesis import given
from hypothesis import strategies as some
from pyannote.database.util import load_rttm

from subtitles import FORMS, LEAST_SECONDS, LINE_WIDTH, LINES, MOST_SECONDS, Rendering, cues, render, width
from transcript import Chunk, SpeakerSegment, SpeakerTurn, Word

LETTERS = some.sampled_from("abcdefgh<&>-.?{}語界é")
SPEAKERS = some.sampled_from([None, "SPEAKER_00", "SPEAKER_01"])


@some.composite
def spoken(draw, letters=LETTERS, longest=50):
    """Words in order of time, hundredths of a second apart; some instantaneous, some long, some after pauses."""
    entries = draw(
        some.lists(
            some.tuples(
                some.text(letters, min_size=1, max_size=longest),
                some.booleans(),
                some.integers(0, 300),
                some.integers(0, 900),
                SPEAKERS,
            ),
            max_size=30,
        )
    )
    words, clock = [], 0
    for text, spaced, pause, length, speaker in entries:
        start = clock + pause
        clock = start + length
        words.append(Word(" " * spaced + text, start / 100, clock / 100, speaker))
    return words


def rendering_of(words: list[Word]) -> Rendering:
    """A chunk and a segment for every three words of one speaker."""
    chunks, segments = [], []
    groups: list[list[Word]] = []
    for word in words:
        if groups and groups[-1][-1].speaker == word.speaker and len(groups[-1]) < 3:
            groups[-1].append(word)
        else:
            groups.append([word])
    for group in groups:
        text, start, end = "".join(word.text for word in group), group[0].start, group[-1].end
        chunks.append(Chunk(text, start, end, words=tuple(group)))
        segments.append(SpeakerSegment(group[0].speaker, text, start, end, tuple(group)))
    return Rendering(chunks, segments)


def squeezed(text: str) -> str:
    """Letters alone; hyphens aside, because an arrow loses one."""
    return "".join(text.replace("-", "").split())


@given(spoken(), some.booleans())
def test_subtitles_hold_every_word_within_the_limits(words, named):
    found = cues(words, named)
    shown = ""
    for cue in found:
        name = f"{cue.speaker}: " if named and cue.speaker else ""
        assert cue.lines[0].startswith(name)
        assert 1 <= len(cue.lines) <= LINES
        assert all(width(line) <= LINE_WIDTH for line in cue.lines)
        assert 0 < cue.end - cue.start <= MOST_SECONDS + 1e-6
        shown += "".join(cue.lines)[len(name) :]
    assert squeezed(shown) == squeezed("".join(word.text for word in words))


@given(spoken(), some.booleans())
def test_subtitles_never_overlap_and_are_short_only_where_the_next_one_comes(words, named):
    found = cues(words, named)
    for cue, later in pairwise(found):
        assert cue.end <= later.start + 1e-9 or later.start == pytest.approx(cue.end)
        assert cue.end - cue.start >= LEAST_SECONDS - 1e-6 or cue.end == pytest.approx(later.start, abs=0.0011)


@given(spoken(some.sampled_from("abc.?é語"), 12))
def test_srt_is_read_back(words):
    events = pysubs2.SSAFile.from_string(render("srt", rendering_of(words)), format_="srt").events
    expected = cues(words, named=True)
    assert [(event.start, event.end) for event in events] == [
        (round(cue.start * 1000), round(cue.end * 1000)) for cue in expected
    ]
    assert [event.plaintext for event in events] == ["\n".join(cue.lines) for cue in expected]


@given(spoken())
def test_vtt_is_read_back_with_its_voices(words):
    captions = webvtt.from_string(render("vtt", rendering_of(words))).captions
    expected = cues(words, named=False)
    assert [caption.voice for caption in captions] == [cue.speaker for cue in expected]
    assert [(caption.start_in_seconds, caption.end_in_seconds) for caption in captions] == [
        (int(cue.start + 0.0005), int(cue.end + 0.0005)) for cue in expected
    ]
    shown = [caption.text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") for caption in captions]
    assert shown == ["\n".join(cue.lines) for cue in expected]


@given(spoken())
def test_tsv_has_a_row_a_segment(words):
    rendering = rendering_of(words)
    rows = list(
        csv.DictReader(io.StringIO(render("tsv", rendering), newline=""), delimiter="\t", quoting=csv.QUOTE_NONE)
    )
    assert [(int(row["start"]), int(row["end"]), row["speaker"] or None) for row in rows] == [
        (round(segment.start * 1000), round(segment.end * 1000), segment.speaker) for segment in rendering.segments
    ]
    assert squeezed("".join(row["text"] for row in rows)) == squeezed("".join(word.text for word in words))


def test_rttm_is_read_back_by_pyannote(tmp_path):
    turns = [SpeakerTurn("SPEAKER_00", 0.25, 2.5), SpeakerTurn("SPEAKER_01", 2.0, 3.125)]
    file = tmp_path / "audio.rttm"
    file.write_text(render("rttm", Rendering((), (), turns)))
    read = load_rttm(str(file))["audio"]
    assert [(label, part.start, part.end) for part, _, label in read.itertracks(yield_label=True)] == [
        (turn.speaker, turn.start, turn.end) for turn in turns
    ]


def test_text_names_the_speakers_where_they_are_known():
    words = [Word(" yes", 0, 0.4, "SPEAKER_00"), Word(" no", 0.5, 0.9, "SPEAKER_01"), Word(" so", 1, 1.3)]
    assert render("txt", rendering_of(words)) == "SPEAKER_00: yes\nSPEAKER_01: no\nso\n"


def test_without_speakers_the_chunks_are_shown():
    chunks = [Chunk(" Good morning.", 0.0, 1.0), Chunk(" Yes.", 1.5, 2.0)]
    assert render("txt", Rendering(chunks)) == "Good morning.\nYes.\n"
    assert [cue.lines for cue in cues(Rendering(chunks).words, named=True)] == [("Good morning.",), ("Yes.",)]


@pytest.mark.parametrize("form", FORMS)
def test_nothing_said_is_an_empty_file_of_its_kind(form):
    assert render(form, Rendering(())) == {"vtt": "WEBVTT\n", "tsv": "start\tend\ttext\tspeaker\n"}.get(form, "")


def test_a_sentence_begins_a_subtitle_of_its_own():
    words = [Word(" Yes.", 0, 0.4), Word(" I", 0.5, 0.6), Word(" do.", 0.7, 0.9)]
    assert [cue.lines for cue in cues(words, named=False)] == [("Yes.",), ("I do.",)]


def test_two_lines_are_about_as_wide():
    words = [Word(f" {'x' * 7}", at, at + 0.2) for at in range(6)]
    (cue,) = cues(words, named=False)
    assert cue.lines == ("xxxxxxx xxxxxxx xxxxxxx", "xxxxxxx xxxxxxx xxxxxxx")
