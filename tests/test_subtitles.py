"""Transcripts as files, read back with the libraries that people read such files with."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from readers import read_rttm, read_srt, read_tsv, read_vtt

from config import InferenceConfig, OutputFormat
from whosaid.answer import cues
from whosaid.answer.cues import (
    MAX_COLUMNS,
    MAX_LINES,
    MAX_SECONDS,
    MIN_SECONDS,
    Cue,
    display_width,
)
from whosaid.answer.subtitles import FORMATS, Rendering
from whosaid.transcript import Chunk, SpeakerSegment, SpeakerTurn, Word

LETTERS = st.one_of(st.sampled_from('abcdefgh<&>-.?{}語界é019"\\/\n\t'), st.sampled_from("-->"))
SPEAKERS = st.sampled_from([None, "SPEAKER_00", "SPEAKER_01"])


def make_cues(words: list[Word], named: bool, duration: float) -> list[Cue]:
    return cues.make_cues(words, named, duration, InferenceConfig(), ())


@st.composite
def spoken(draw, letters=LETTERS, longest=50):
    """Words in order of time, in hundredths of a second; some instantaneous, some after pauses."""
    entries = draw(
        st.lists(
            st.tuples(
                st.text(letters, min_size=1, max_size=longest),
                st.booleans(),
                st.integers(0, 300),
                st.integers(0, 900),
                SPEAKERS,
            ),
            max_size=15,
        )
    )
    words, clock = [], 0
    for text, spaced, pause, length, speaker in entries:
        start = clock + pause
        clock = start + length
        words.append(Word(" " * spaced + text, start / 100, clock / 100, speaker))
    return words


@st.composite
def recorded(draw, letters=LETTERS, longest=50):
    """Words and the audio's duration; words after its end are moved to its end."""
    words = draw(spoken(letters, longest))
    spoken_until = round(words[-1].end * 100) if words else 0
    hundredths = draw(st.integers(max(0, spoken_until - 1000), spoken_until + 200))
    duration = hundredths / 100
    return [
        replace(word, start=min(word.start, duration), end=min(word.end, duration))
        for word in words
    ], duration


def rendering_of(words: list[Word], duration: float = 100.0) -> Rendering:
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
    return Rendering(duration, chunks, segments)


def without_spaces(text: str) -> str:
    return "".join(text.split())


@given(recorded(), st.booleans())
def test_cues_contain_every_word_within_the_limits_and_never_overlap(recording, named):
    """A cue is short only before the next one, and lasts a millisecond if the audio does."""
    words, duration = recording
    found = make_cues(words, named, duration)
    shown = ""
    for cue in found:
        name = f"{cue.speaker}: " if named and cue.speaker else ""
        assert cue.lines[0].startswith(name)
        assert 1 <= len(cue.lines) <= MAX_LINES
        assert all(line[len(name) * (not place) :].strip() for place, line in enumerate(cue.lines))
        alone = len(cue.words[0]) == 1  # a name may leave less than a word needs
        wide = [display_width(line) > MAX_COLUMNS for line in cue.lines]
        assert not any(wide[bool(name) and alone :])
        assert cue.end - cue.start <= MAX_SECONDS + 1e-3
        shown += "".join(cue.lines)[len(name) :]
    assert without_spaces(shown) == without_spaces("".join(word.text for word in words))
    for cue, later in pairwise(found):
        assert cue.end <= later.start
        assert cue.end - cue.start >= MIN_SECONDS - 1e-3 or later.start <= cue.end + 0.0011
    for before, last in pairwise([None, *found][-2:]):
        begin = before.end if before else 0.0
        assert last.end - last.start >= MIN_SECONDS - 1e-3 or last.start <= begin + 0.0011
    for cue in found:
        assert 0 <= cue.start <= cue.end <= duration
        if duration >= len(found) / 1000:
            assert round(cue.end * 1000) > round(cue.start * 1000)


def test_cues_at_the_very_end_share_the_time_left():
    words = [Word(" So.", 7, 9), *(Word(" Bye.", 10, 10) for _ in range(4))]
    found = make_cues(words, False, 10.0)
    assert [(cue.start, cue.end) for cue in found] == [
        (7, 9),
        (9, 9.25),
        (9.25, 9.5),
        (9.5, 9.75),
        (9.75, 10),
    ]


def test_a_cue_at_the_end_appears_in_time_to_be_read():
    assert [(cue.start, cue.end) for cue in make_cues([Word(" Yes.", 0.11, 0.5)], False, 0.7)] == [
        (0, 0.7)
    ]
    assert [(cue.start, cue.end) for cue in make_cues([Word(" Yes.", 4.5, 4.9)], False, 5.0)] == [
        (4.167, 5)
    ]


@given(spoken(st.sampled_from("abc-.?語\n"), 42), st.booleans())
def test_words_that_fit_a_line_are_not_split(words, named):
    words = [
        replace(word, text=f" {word.text}")
        for word in words
        if display_width(word.text) <= MAX_COLUMNS
    ]
    shown = []
    for cue in make_cues(words, named, 1000.0):
        name = f"{cue.speaker}: " if named and cue.speaker else ""
        shown += " ".join(cue.lines)[len(name) :].split()
    assert shown == "".join(word.text for word in words).split()


@pytest.mark.parametrize("length", [22, 34, 42])
def test_a_long_word_stays_in_one_piece(length):
    words = [Word(" Die", 0, 0.2), Word(f" {'d' * length}", 0.2, 1), Word(" fährt", 1, 1.4)]
    lines = [line for cue in make_cues(words, False, 5.0) for line in cue.lines]
    assert "d" * length in " ".join(lines).split()


def test_a_long_name_cuts_no_word():
    name = "Rechtsanwältin Dr. Katharina von Wedel"
    said = ["Verantwortung", "übernehmen", "wir"]
    words = [Word(f" {each}", at, at + 0.5, name) for at, each in enumerate(said)]
    (cue,) = make_cues(words, True, 9.0)
    assert cue.lines == (f"{name}: Verantwortung", "übernehmen wir")


@pytest.mark.parametrize(
    "letter",
    ["\N{KHMER LETTER KA}\N{KHMER VOWEL SIGN AA}", "a\N{COMBINING ACUTE ACCENT}"],
)
def test_no_part_of_a_phrase_without_spaces_begins_with_a_mark(letter):
    found = make_cues([Word(letter * 60, 0, 6)], False, 9.0)
    parts = [word.text for cue in found for line in cue.words for word in line]
    assert "".join(parts) == letter * 60
    assert len(parts) > 5
    assert all(part.startswith(letter[0]) for part in parts)


def test_a_block_without_word_times_is_split_between_its_words():
    text = (
        " The words of this passage were not timed, "
        "so that they share the time of the whole by their letters."
    )
    found = make_cues([Word(text, 0, 10)], False, 10.0)
    assert " ".join(line for cue in found for line in cue.lines).split() == text.split()
    assert found[-1].end == 10


@given(recorded())
def test_srt_is_read_back(recording):
    words, duration = recording
    events = read_srt(FORMATS["srt"](rendering_of(words, duration)))
    expected = make_cues(words, True, duration)
    assert [(event.start, event.end) for event in events] == [
        (round(cue.start * 1000), round(cue.end * 1000)) for cue in expected
    ]
    alike = str.maketrans("\u2039\u203a()\u2216", "<>{}\\")
    assert [event.plaintext.translate(alike) for event in events] == [
        "\n".join(cue.lines) for cue in expected
    ]


@pytest.mark.parametrize(
    "said", ["---->", "-->", "<i>b</i>", r"{\an8}hi", r"C:\new", "<font color=red>", "a < b > c"]
)
def test_srt_contains_nothing_that_players_interpret(said):
    text = FORMATS["srt"](rendering_of([Word(f" {said}", 0, 1)]))
    (event,) = read_srt(text)
    assert len(event.plaintext) == display_width(event.plaintext) == len(said)
    _, _, shown = text.split("\n", 2)
    assert not set("<>{}\\") & set(shown)


@given(recorded())
def test_vtt_is_read_back_with_its_voices(recording):
    words, duration = recording
    captions = read_vtt(FORMATS["vtt"](rendering_of(words, duration)))
    expected = make_cues(words, False, duration)
    assert [caption.voice for caption in captions] == [cue.speaker for cue in expected]
    assert [(caption.start_in_seconds, caption.end_in_seconds) for caption in captions] == [
        (int(cue.start + 0.0005), int(cue.end + 0.0005)) for cue in expected
    ]
    shown = [
        caption.text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        for caption in captions
    ]
    assert shown == ["\n".join(cue.lines) for cue in expected]


@given(spoken())
def test_tsv_has_a_row_for_each_segment(words):
    rendering = rendering_of(words)
    rows = read_tsv(FORMATS["tsv"](rendering))
    assert [(int(row["start"]), int(row["end"]), row["speaker"] or None) for row in rows] == [
        (round(segment.start * 1000), round(segment.end * 1000), segment.speaker)
        for segment in rendering.segments
    ]
    assert [row["text"].removeprefix("'") for row in rows] == [
        " ".join(segment.text.split()).removeprefix("'") for segment in rendering.segments
    ]


@pytest.mark.parametrize("beginning", list("=+-@\t\r\uff1d\uff0b\uff0d\uff20"))
def test_no_cell_of_tsv_is_a_formula(beginning):
    text, name = f'{beginning}=HYPERLINK("http://example.com")', f"{beginning}-1+1"
    table = FORMATS["tsv"](Rendering(4.0, (), [SpeakerSegment(name, text, 0.5, 1.0, ())]))
    _, row = csv.reader(io.StringIO(table, newline=""), delimiter="\t")
    assert row == ["500", "1000", f"'{text.lstrip()}", f"'{name.lstrip()}"]
    plain = Rendering(4.0, (), [SpeakerSegment("Anna", " 5 - 3 = 2", 0.0, 1.0, ())])
    assert FORMATS["tsv"](plain).splitlines()[1] == "0\t1000\t5 - 3 = 2\tAnna"


def test_rttm_is_read_back_by_pyannote():
    """Spaces in names end a field, and are underscores."""
    turns = [SpeakerTurn("SPEAKER_00", 0.25, 2.5), SpeakerTurn("Anna  Maria B.", 2.0, 3.125)]
    assert read_rttm(FORMATS["rttm"](Rendering(4.0, (), (), turns))) == [
        ("SPEAKER_00", 0.25, 2.5),
        ("Anna_Maria_B.", 2.0, 3.125),
    ]


def test_without_speakers_the_chunks_are_shown():
    chunks = [Chunk(" Good morning.", 0.0, 1.0), Chunk(" Yes.", 1.5, 2.0)]
    named = SpeakerSegment("SPEAKER_00", " no", 0.5, 0.9, ())
    assert FORMATS["txt"](Rendering(2.5, chunks)) == "Good morning.\nYes.\n"
    assert FORMATS["txt"](Rendering(2.5, chunks, [named])) == "SPEAKER_00: no\n"
    assert [cue.lines for cue in make_cues(Rendering(2.5, chunks).words, True, 2.5)] == [
        ("Good morning.",),
        ("Yes.",),
    ]


@pytest.mark.parametrize("form", get_args(OutputFormat))
def test_no_speech_is_an_empty_file_of_its_format(form):
    assert FORMATS[form](Rendering(1.0, ())) == {
        "vtt": "WEBVTT\n",
        "tsv": "start\tend\ttext\tspeaker\n",
    }.get(form, "")


def test_two_lines_are_of_similar_width():
    words = [Word(f" {'x' * 7}", at, at + 0.2) for at in range(6)]
    (cue,) = make_cues(words, False, 10.0)
    assert cue.lines == ("xxxxxxx xxxxxxx xxxxxxx", "xxxxxxx xxxxxxx xxxxxxx")


def said_evenly(text: str, gap: float) -> list[Word]:
    """The words of a text, each 0.3 s long and `gap` seconds behind the one before."""
    words = enumerate(text.split())
    return [Word(f" {word}", n * (0.3 + gap), n * (0.3 + gap) + 0.3) for n, word in words]


# Two sentences are divided by a bar.
ABBREVIATED = (
    "Yes, Mr. Smith met Dr. Jones.",
    "Mrs. Hall came.|She left.",
    "George R. R. Martin wrote.",
    "At 9 p.m. Eastern it ended.",
    "The U.S. Army came at 5 a.m. on foot.",
    "See No. 5 (approx. 3 m), p. 12.",
    "No.|He said no.|We left.",
    "Tea, milk etc. and sugar, min. one.",
    "Am 3. Oktober, z. B. in St. Pölten.",
    "Das war 1995.|Danach u.a. Berlin bzw. Wien.",
    "La Sra. Ruiz y el Dr. Paz.|Sí.",
    "Это г. Москва и ул. Мира.|Это я.|Он тут.",  # noqa: RUF001
    '"I saw St. Paul."|It rained...|And he left?|Yes!',
    "네.|그래요.",
)


@pytest.mark.parametrize("text", ABBREVIATED)
def test_an_abbreviation_ends_no_sentence_before_a_small_gap(text):
    words = said_evenly(text.replace("|", " "), 0.1)
    made = make_cues(words, False, 100.0)
    assert [" ".join(cue.lines) for cue in made] == text.split("|")


@pytest.mark.parametrize("text", ["p.m.|We left.", "3.|Then four.", "J.|Smith.", "etc.|in"])
def test_before_a_pause_an_abbreviation_ends_a_sentence(text):
    words = said_evenly(text.replace("|", " "), 0.6)
    made = make_cues(words, False, 100.0)
    assert [" ".join(cue.lines) for cue in made] == text.split("|")
