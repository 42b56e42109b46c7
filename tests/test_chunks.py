"""The kept segments of a decoded window, and the sample up to which the window is decoded."""

import dataclasses
import itertools
import zlib

import numpy as np
import pytest

from tests.support.tiny_whispers import SMALL, loaded
from whosaid.asr.engine.fallback import DEFAULT_FALLBACK, Fallback
from whosaid.asr.engine.result import DecodeResult
from whosaid.asr.frontend.windows import Window
from whosaid.asr.output.chunks import (
    ANNOTATION_LOGPROB,
    ANNOTATION_THRESHOLD,
    SURE_LOGPROB,
    SURE_NO_SPEECH,
    SURE_RATE,
    SURE_TOKENS,
    ChunkReader,
    ReadWindow,
)
from whosaid.asr.output.segments import Segment
from whosaid.timebase import SAMPLE_RATE

MODELS = loaded(SMALL, seed=2)
SILENT = DEFAULT_FALLBACK.no_speech_threshold
SILENCE = DEFAULT_FALLBACK.silence_logprob_threshold
BEGIN = MODELS.special_tokens.timestamp_begin
START = 5  # seconds at which the window begins
WINDOW = Window(START * SAMPLE_RATE, (START + 3) * SAMPLE_RATE, (START + 9) * SAMPLE_RATE)
GOOD, MORNING, YES, FULL_STOP = 301, 302, 303, 13
READER = ChunkReader(MODELS, "en", timestamps=True)
UNTIMED = ChunkReader(MODELS, "en", timestamps=False)


def at(seconds: float) -> int:
    return BEGIN + round(seconds / 0.02)


def result_of(*tokens: int, logprob: float = -0.1, no_speech_prob: float = 0.0) -> DecodeResult:
    """A text that ended, whose tokens are all equally likely, with random attention."""
    attention = np.random.default_rng(1).normal(size=(len(tokens), 150)).astype(np.float32)
    return DecodeResult(tokens, no_speech_prob, (logprob,) * (len(tokens) + 1), 0.0, attention)


def samples_of(window: Window) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 0.1, window.stop - window.start).astype(np.float32)


def chunks_of(reader: ChunkReader, result: DecodeResult, decoded_again: bool = False):
    """The chunks of `WINDOW`, where its unfinished segment will be decoded again or will not."""
    kept = reader.read(WINDOW, result, samples_of(WINDOW)).kept(decoded_again)
    return reader.chunks(WINDOW, kept, samples_of(WINDOW), result)


def spans(chunks):
    return [(chunk.text, pytest.approx(chunk.start), pytest.approx(chunk.end)) for chunk in chunks]


def text(*tokens: int) -> str:
    return MODELS.tokenizer.decode(list(tokens))


def test_segments_become_chunks_in_the_time_of_the_audio():
    tokens = (at(0.1), GOOD, MORNING, at(1.0), at(1.5), YES, at(2.0))
    result = result_of(*tokens, no_speech_prob=0.25)
    read = READER.read(WINDOW, result, samples_of(WINDOW))
    assert (read.unfinished, read.seek) == ((), WINDOW.start + 2 * SAMPLE_RATE)
    chunks = chunks_of(READER, result)
    first, second = (START + 0.1, START + 1.0), (START + 1.5, START + 2.0)
    assert spans(chunks) == [(text(GOOD, MORNING), *first), (text(YES), *second)]
    assert {chunk.no_speech_prob for chunk in chunks} == {0.25}
    assert [chunk.avg_logprob for chunk in chunks] == pytest.approx([-0.1, -0.1])


@pytest.mark.parametrize(
    ("no_speech_prob", "annotation_prob", "logprob", "kept"),
    [
        (SILENT + 0.1, 0.0, SILENCE - 0.1, 0),
        (SILENT + 0.1, 0.0, SILENCE + 0.1, 1),
        (SILENT - 0.1, 0.0, SILENCE - 0.1, 1),
        (0.0, ANNOTATION_THRESHOLD + 0.1, ANNOTATION_LOGPROB - 0.1, 0),
        (0.0, ANNOTATION_THRESHOLD + 0.1, ANNOTATION_LOGPROB + 0.1, 1),
        (0.0, ANNOTATION_THRESHOLD - 0.1, ANNOTATION_LOGPROB - 0.1, 1),
    ],
)
def test_silent_unlikely_window_is_dropped(no_speech_prob, annotation_prob, logprob, kept):
    result = result_of(at(0), YES, at(1), no_speech_prob=no_speech_prob, logprob=logprob)
    result = dataclasses.replace(result, annotation_prob=annotation_prob)
    assert len(chunks_of(READER, result)) == kept
    assert (READER.read(WINDOW, result, samples_of(WINDOW)) == ReadWindow()) == (kept == 0)


@pytest.mark.parametrize(
    ("fallback", "kept"),
    [
        (Fallback(no_speech_threshold=0.9), 1),
        (Fallback(silence_logprob_threshold=-2.0), 1),
        (Fallback(no_speech_threshold=0.2, silence_logprob_threshold=-0.5), 0),
    ],
)
def test_the_thresholds_of_silence_are_those_asked_for(fallback, kept):
    reader = dataclasses.replace(READER, fallback=fallback)
    logprob = -0.55 if fallback.no_speech_threshold < 0.5 else -1.5
    result = result_of(at(0), YES, at(1), no_speech_prob=0.7, logprob=logprob)
    assert len(chunks_of(reader, result)) == kept
    assert len(chunks_of(READER, result)) == 1 - kept


def test_an_unfinished_segment_is_kept_unless_it_is_decoded_again():
    result = result_of(at(0), GOOD, at(1.0), at(1.2), YES)
    assert READER.read(WINDOW, result, samples_of(WINDOW)).seek == WINDOW.start + SAMPLE_RATE
    assert [chunk.text for chunk in chunks_of(READER, result, decoded_again=True)] == [text(GOOD)]
    chunks = chunks_of(READER, result, decoded_again=False)
    first, second = (START, START + 1.0), (START + 1.0, START + 3.0)
    assert spans(chunks) == [(text(GOOD), *first), (text(YES), *second)]


def test_a_chunk_says_how_it_was_decoded():
    tokens = (at(0.0), GOOD, at(1.0), at(1.0), at(1.0), at(1.2), MORNING, YES, at(2.0))
    likely = tuple(-0.1 * place for place in range(len(tokens)))
    result = dataclasses.replace(result_of(*tokens), log_probs=(*likely, -9.0), temperature=0.5)
    first, second = chunks_of(READER, result)
    assert (first.tokens, second.tokens) == ((GOOD,), (MORNING, YES))
    assert (first.log_probs, second.log_probs) == (likely[1:2], likely[6:8])
    for chunk in (first, second):
        said = text(GOOD, MORNING, YES).encode()
        assert chunk.compression_ratio == len(said) / len(zlib.compress(said))
        assert (chunk.temperature, chunk.window_start) == (0.5, START)


def test_segments_without_duration_or_text_are_left_out():
    result = result_of(at(0), GOOD, at(0), at(0.5), 220, at(0.8), at(1), YES, at(2))
    assert spans(chunks_of(READER, result)) == [(text(YES), START + 1, START + 2)]


def stopped(*tokens: int, spoken: float, timestamps: bool) -> DecodeResult:
    """A text that met its limit, and was spoken evenly until then."""
    attention = np.zeros((len(tokens), 150), np.float32)
    edges = np.linspace(0, spoken * 50, len(tokens) + 1).astype(int)
    for row, (first, stop) in zip(attention, itertools.pairwise(edges), strict=True):
        row[first:stop] = 3.0
    likely = (-0.1,) * len(tokens)
    return DecodeResult(tokens, 0.0, likely, 0.0, attention, timestamps=timestamps)


@pytest.mark.parametrize("reader", [READER, UNTIMED], ids=["timed", "untimed"])
def test_audio_after_a_text_at_its_limit_is_decoded(reader):
    """Only attention tells how far a text got that has beams or no timestamps."""
    result = stopped(*[GOOD, MORNING, YES] * 4, spoken=1.6, timestamps=False)
    read = reader.read(WINDOW, result, samples_of(WINDOW))
    assert read.seek is not None
    assert read.unfinished
    assert 1.2 < (read.seek - WINDOW.start) / SAMPLE_RATE < 2.2
    assert "".join(chunk.text for chunk in chunks_of(reader, result)) == text(*result.tokens)


@pytest.mark.parametrize(
    ("whole", "last", "heard_again"),
    [((GOOD, MORNING) * 4, (YES, MORNING), True), ((GOOD,), (YES, MORNING) * 7, False)],
)
def test_short_last_sentence_at_the_limit_is_decoded_again(whole, last, heard_again):
    """A long last sentence is kept: without a full stop, decoding it again gives nothing new."""
    result = stopped(*whole, FULL_STOP, *last, spoken=1.6, timestamps=False)
    read = UNTIMED.read(WINDOW, result, samples_of(WINDOW))
    kept = [token for each in read.kept(True) for token in each.tokens]
    assert kept == [*whole, FULL_STOP, *(() if heard_again else last)]
    assert read.unfinished[0].tokens == (last if heard_again else ())
    assert ((read.seek - WINDOW.start) / SAMPLE_RATE < 1.45) == heard_again


def test_timed_text_without_end_resumes_at_its_last_word():
    result = stopped(at(0.0), *[GOOD, MORNING, YES] * 4, spoken=1.6, timestamps=True)
    read = READER.read(WINDOW, result, samples_of(WINDOW))
    assert 1.2 < (read.seek - WINDOW.start) / SAMPLE_RATE < 2.2
    closed = stopped(at(0.0), GOOD, at(1.0), at(1.0), YES, spoken=1.6, timestamps=True)
    assert READER.read(WINDOW, closed, samples_of(WINDOW)).seek == WINDOW.start + SAMPLE_RATE


def test_untimed_window_is_one_chunk_to_its_end():
    result = result_of(GOOD, YES)
    expected = ReadWindow((Segment((GOOD, YES), 0.0, 3.0),))
    assert UNTIMED.read(WINDOW, result, samples_of(WINDOW)) == expected
    assert spans(chunks_of(UNTIMED, result)) == [(text(GOOD, YES), START, START + 3)]


def test_text_lacking_timestamps_is_split_into_timed_sentences():
    full_stop = MODELS.tokenizer.encode(".", add_special_tokens=False)[0]
    result = result_of(GOOD, MORNING, full_stop, YES, full_stop)
    untimed = dataclasses.replace(result, timestamps=False)
    read = READER.read(WINDOW, untimed, samples_of(WINDOW))
    closed = [(GOOD, MORNING, full_stop), (YES, full_stop)]
    assert [segment.tokens for segment in read.closed] == closed
    end = WINDOW.start + round(read.closed[-1].end * SAMPLE_RATE)
    assert (read.seek, read.unfinished, read.looped) == (end, (), False)
    for before, after in itertools.pairwise([0, *read.closed, 3]):
        assert getattr(before, "end", before) <= getattr(after, "start", after)
    assert all(segment.end > segment.start for segment in read.closed)


@pytest.mark.parametrize("repetitive", [True, False], ids=["stuck", "heard"])
@pytest.mark.parametrize("reader", [READER, UNTIMED])
def test_text_cut_in_a_loop_ends_with_its_last_word(reader, repetitive):
    tokens = (at(0), GOOD, at(1.0), at(1.0), MORNING) if reader is READER else (GOOD, MORNING)
    cut = {"cut": True, "repetitive": repetitive, "timestamps": reader is READER}
    result = dataclasses.replace(result_of(*tokens), **cut)
    read = reader.read(WINDOW, result, samples_of(WINDOW))
    assert read.looped is repetitive
    assert bool(read.unfinished) is not repetitive
    assert read.seek == WINDOW.start + round(read.closed[-1].end * SAMPLE_RATE)
    assert read.closed[-1].end <= WINDOW.seconds
    said = [token for segment in read.closed for token in segment.tokens]
    assert [token for token in said if token < BEGIN] == [GOOD, MORNING]


def test_words_have_recording_times_and_form_their_chunk():
    result = result_of(at(0.1), GOOD, MORNING, at(1.0), at(1.5), YES, at(2.0))
    chunks = chunks_of(READER, result)
    assert [len(chunk.words) for chunk in chunks] == [2, 1]
    for chunk in chunks:
        assert "".join(word.text for word in chunk.words) == chunk.text
        assert all(START <= word.start <= word.end <= START + 3 for word in chunk.words)
        expected = [np.exp(-0.1)] * len(chunk.words)
        assert [word.probability for word in chunk.words] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("last", "cut", "kept"),
    [
        ((9.0, 9.9), True, 1),  # closed by the cut
        ((9.0, 9.2), True, 2),  # closed before it
        ((8.0, 9.9), True, 2),  # too long to be decoded twice
        ((9.0, 9.9), False, 2),  # the region ends there itself
    ],
)
def test_short_sentence_closed_by_the_cut_is_decoded_again(last, cut, kept):
    stop = WINDOW.start + 10 * SAMPLE_RATE
    window = Window(WINDOW.start, stop, stop + (10 * SAMPLE_RATE if cut else 0))
    result = result_of(at(0), GOOD, at(5.0), at(last[0]), YES, at(last[1]))
    read = READER.read(window, result, samples_of(window))
    assert len(read.kept(decoded_again=bool(read.unfinished))) == kept
    assert bool(read.unfinished) == (kept == 1)
    seek = 5.0 if kept == 1 else last[1]
    assert read.seek == window.start + round(seek * SAMPLE_RATE)
    assert len(read.kept(decoded_again=False)) == 2


@pytest.mark.parametrize(
    ("changed", "kept"),
    [
        ({}, True),
        ({"text_logprob": SURE_LOGPROB - 0.01}, False),
        ({"no_speech_prob": SURE_NO_SPEECH + 0.01}, False),
        ({"repetitive": True}, False),
        ({"start_logprob": -5.0}, False),
        ({"tokens": (at(0), *[YES] * (SURE_TOKENS - 1), at(2))}, False),
    ],
)
def test_tentative_window_needs_a_whole_certain_sentence(changed, kept):
    result = dataclasses.replace(result_of(at(0), *[YES] * SURE_TOKENS, at(2)), **changed)
    read = READER.read(dataclasses.replace(WINDOW, tentative=True), result, samples_of(WINDOW))
    assert (read != ReadWindow()) is kept
    assert READER.read(WINDOW, result, samples_of(WINDOW)) != ReadWindow()


def test_a_short_phrase_over_a_long_sound_is_not_believed():
    sure = result_of(at(0), *[YES] * SURE_TOKENS, at(2))
    seconds = SURE_TOKENS / SURE_RATE
    for length, kept in ((seconds, True), (seconds + 0.1, False)):
        stop = WINDOW.start + round(length * SAMPLE_RATE)
        window = Window(WINDOW.start, stop, stop, tentative=True)
        assert (READER.read(window, sure, samples_of(window)) != ReadWindow()) is kept


def test_part_of_a_japanese_chunk_has_its_tokens():
    letters = [MODELS.tokenizer.convert_tokens_to_ids(letter) for letter in "wxyz"]
    japanese = dataclasses.replace(READER, language="ja")
    (chunk,) = chunks_of(japanese, result_of(at(0.1), *letters, at(2.0)))
    assert [word.text for word in chunk.words] == [*"wxyz"]  # one word in English
    (part,) = READER.part(chunk, 1, 3)
    assert (part.text, part.tokens) == ("xy", tuple(letters[1:3]))
    assert part.log_probs == chunk.log_probs[1:3]


def test_since_keeps_words_by_their_middle():
    (chunk,) = chunks_of(READER, result_of(at(0.1), GOOD, MORNING, YES, at(2.0)))
    middle = (chunk.words[1].start + chunk.words[1].end) / 2
    for begin, first in ((0.0, 0), (middle, 1), (middle + 1e-6, 2)):
        (part,) = READER.since(chunk, begin)
        assert (part.words, part.end) == (chunk.words[first:], chunk.end)
    assert READER.since(chunk, chunk.end + 1) == []
