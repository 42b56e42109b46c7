"""What is kept of a decoded window, window by window: nothing heard is lost, nothing made up is
kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from asr.engine.fallback import OPENAI
from asr.engine.scheduler import DecodeResult
from asr.frontend.schedule import Window
from asr.output.chunks import ChunkReader
from testing.tiny_whispers import SMALL, loaded
from timebase import SAMPLE_RATE

MODELS = loaded(SMALL, seed=2)
BEGIN = MODELS.special_tokens.timestamp_begin
START = 5  # seconds at which the window begins
WINDOW = Window(START * SAMPLE_RATE, (START + 3) * SAMPLE_RATE, (START + 9) * SAMPLE_RATE)
GOOD, MORNING, YES = 301, 302, 303


@dataclass
class Heard:
    """Stands in for the schedule: remembers how far the window was understood, and says if a rest
    is heard again.
    """

    again: bool = False
    window: Window = WINDOW
    finished: list[tuple[int | None, bool]] = field(default_factory=list)

    def finish(
        self, window: Window, understood: int | None = None, unfinished: bool = False
    ) -> bool:
        assert window == self.window
        self.finished.append((understood, unfinished))
        return unfinished and self.again

    def hear(self, window: Window) -> NDArray[np.float32]:
        return (
            np.random.default_rng(0).normal(0, 0.1, window.stop - window.start).astype(np.float32)
        )


def at(seconds: float) -> int:
    return BEGIN + round(seconds / 0.02)


def read(
    *tokens: int,
    heard: Heard | None = None,
    sure: float = -0.1,
    no_speech: float = 0.0,
    timestamps=True,
    words=False,
):
    attention = (
        np.random.default_rng(1).normal(size=(len(tokens), 150)).astype(np.float32)
        if words
        else None
    )
    answer = DecodeResult(tokens, no_speech, (sure,) * len(tokens), 0.0, attention)
    return ChunkReader(MODELS, heard or Heard(), "en", timestamps, words).read(WINDOW, answer)


def spans(chunks):
    return [(chunk.text, pytest.approx(chunk.start), pytest.approx(chunk.end)) for chunk in chunks]


def text(*tokens: int) -> str:
    return MODELS.tokenizer.decode(list(tokens))


def test_segments_are_chunks_on_the_clock_of_the_audio():
    heard = Heard()
    chunks = read(
        at(0.1), GOOD, MORNING, at(1.0), at(1.5), YES, at(2.0), heard=heard, no_speech=0.25
    )
    assert spans(chunks) == [
        (text(GOOD, MORNING), START + 0.1, START + 1.0),
        (text(YES), START + 1.5, START + 2.0),
    ]
    assert {chunk.no_speech_prob for chunk in chunks} == {0.25}
    assert [chunk.avg_logprob for chunk in chunks] == pytest.approx([-0.1, -0.1])
    assert heard.finished == [(WINDOW.start + 2 * SAMPLE_RATE, False)]


@pytest.mark.parametrize(
    ("no_speech", "sure", "kept"),
    [
        (OPENAI.no_speech + 0.1, OPENAI.least_log_probability - 0.1, 0),
        (OPENAI.no_speech + 0.1, OPENAI.least_log_probability + 0.1, 1),
        (OPENAI.no_speech - 0.1, OPENAI.least_log_probability - 0.1, 1),
    ],
)
def test_a_window_is_dropped_whole_if_it_probably_holds_no_speech_and_was_guessed(
    no_speech, sure, kept
):
    heard = Heard()
    assert len(read(at(0), YES, at(1), no_speech=no_speech, sure=sure, heard=heard)) == kept
    assert len(heard.finished) == 1


def test_an_unfinished_end_is_left_to_the_next_window_where_there_is_one():
    tokens = (at(0), GOOD, at(1.0), at(1.2), YES)
    assert [chunk.text for chunk in read(*tokens, heard=Heard(again=True))] == [text(GOOD)]
    assert spans(read(*tokens, heard=Heard(again=False))) == [
        (text(GOOD), START, START + 1.0),
        (text(YES), START + 1.0, START + 3.0),
    ]


def test_a_segment_that_takes_no_time_or_holds_no_letters_was_not_heard():
    assert spans(read(at(0), GOOD, at(0), at(0.5), 220, at(0.8), at(1), YES, at(2))) == [
        (text(YES), START + 1, START + 2)
    ]


def test_without_timestamps_a_window_is_one_chunk_and_is_done():
    heard = Heard()
    assert spans(read(GOOD, YES, timestamps=False, heard=heard)) == [
        (text(GOOD, YES), START, START + 3)
    ]
    assert heard.finished == [(None, False)]


def test_words_are_on_the_clock_of_the_audio_too_and_make_up_their_chunks():
    chunks = read(at(0.1), GOOD, MORNING, at(1.0), at(1.5), YES, at(2.0), words=True)
    assert [len(chunk.words) for chunk in chunks] == [2, 1]
    for chunk in chunks:
        assert "".join(word.text for word in chunk.words) == chunk.text
        assert all(START <= word.start <= word.end <= START + 3 for word in chunk.words)
        assert [word.probability for word in chunk.words] == pytest.approx(
            [np.exp(-0.1)] * len(chunk.words)
        )


def test_no_words_are_timed_where_nobody_asked():
    assert [chunk.words for chunk in read(at(0), GOOD, at(1.0))] == [()]


@pytest.mark.parametrize(
    ("last", "cut", "kept"),
    [
        ((9.0, 9.9), True, 1),  # closed by the cut
        ((9.0, 9.2), True, 2),  # closed before it
        ((8.0, 9.9), True, 2),  # too long to be heard twice
        ((9.0, 9.9), False, 2),  # the speech ends there itself
    ],
)
def test_a_sentence_that_the_cut_closed_is_heard_again_whole(last, cut, kept):
    window = Window(
        WINDOW.start,
        WINDOW.start + 10 * SAMPLE_RATE,
        WINDOW.start + (20 if cut else 10) * SAMPLE_RATE,
    )
    heard = Heard(again=True, window=window)
    tokens = (at(0), GOOD, at(5.0), at(last[0]), YES, at(last[1]))
    answer = DecodeResult(tokens, 0.0, (-0.1,) * len(tokens), 0.0)
    chunks = ChunkReader(MODELS, heard, "en", True, False).read(window, answer)
    assert len(chunks) == kept
    understood = 5.0 if kept == 1 else last[1]
    assert heard.finished == [(window.start + round(understood * SAMPLE_RATE), kept == 1)]
