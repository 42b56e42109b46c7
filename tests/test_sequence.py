"""The attempts of one sequence, and what its row starts from."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from whosaid.asr.engine.fallback import Fallback
from whosaid.asr.engine.prefill import PrefillBatch
from whosaid.asr.engine.request import (
    LONG_WINDOWS,
    DecodeOptions,
    DecodeResult,
    Request,
    Sequence,
    Session,
    work_class,
)
from whosaid.asr.engine.runner import StepRunner
from whosaid.asr.model.encoder import EncoderOutput
from whosaid.runtime.turns import Work

REJECTED = DecodeResult((), 0.0, (), 0.0)


def sequence_of(max_tokens=None, request=None, **options):
    samples = np.random.default_rng(0).normal(size=100).astype(np.float32)
    request = request or Request("key", samples, (7, 8, 9), max_tokens)
    return Sequence(Session(None, DecodeOptions(**options)), request)


def begun(sequence, longest):
    """Return the initial state of a sequence's row, in a model with texts of `longest` tokens."""
    state = SimpleNamespace(
        cache=SimpleNamespace(max_len=longest + 16), decoder=SimpleNamespace(max_positions=longest)
    )
    batch = PrefillBatch.of(
        [sequence], EncoderOutput(torch.zeros(1, 1, 1)), state, StepRunner(None)
    )
    read = tuple(batch.numbers[0, : batch.prompt_len].int().tolist())
    length, _, most, draftable, timestamps, temperature, guessed, forced = batch.numbers[
        0, batch.prompt_len :
    ].tolist()
    return SimpleNamespace(
        read=read,
        prompt=read[: int(length)],
        guess=read[int(length) : int(length + guessed)],
        forced=forced,
        max_length=most,
        draftable=bool(draftable),
        timestamps=bool(timestamps),
        temperature=temperature,
        uniform=batch.uniform[0],
    )


@pytest.mark.parametrize(
    ("options", "once"),
    [
        ({"num_beams": 2}, True),
        ({"temperature": 0.5}, True),
        ({"fallback": Fallback()}, False),
    ],
)
def test_a_prefix_is_refused_where_not_every_attempt_would_begin_with_it(options, once):
    request = Request("key", np.zeros(1, np.float32), (1,), once=once, prefix=(5,))
    with pytest.raises(ValueError, match="a prefix is for"):
        sequence_of(request=request, **options)


@pytest.mark.parametrize(
    ("options", "retried", "guess"),
    [
        ({}, False, (5, 6)),
        ({"fallback": Fallback()}, True, ()),
        ({"num_beams": 2}, False, ()),
        ({"temperature": 0.5}, False, ()),
    ],
)
def test_a_draft_is_for_the_first_greedy_attempt(options, retried, guess):
    request = Request("key", np.zeros(1, np.float32), (1, 2, 3), draft=(5, 6))
    sequence = sequence_of(request=request, **options)
    sequence.rejected = REJECTED if retried else None
    assert begun(sequence, 448).guess == guess
    assert sequence.prefilled_length == 4 + len(guess)


@pytest.mark.parametrize(("most", "read"), [(9, (1, 5, 6, 7, 8)), (3, (1, 5, 6, 7)), (1, (1, 5))])
def test_a_guess_is_cut_where_its_text_would_be(most, read):
    samples = np.zeros(1, np.float32)
    request = Request("key", samples, (1,), most, once=True, prefix=(5, 6), draft=(7, 8))
    first = begun(sequence_of(request=request), 448)
    assert (first.read, first.forced) == (read, min(2, most))


@pytest.mark.parametrize("timestamps", [True, False])
@pytest.mark.parametrize(("asked", "beams"), [(1, 3), (2, 3), (5, 5)])
def test_a_retry_has_its_own_grammar_and_at_least_as_many_beams(timestamps, asked, beams):
    sequence = sequence_of(timestamps=timestamps, num_beams=asked, fallback=Fallback(3, False))
    assert (sequence.num_beams, sequence.timestamps) == (asked, timestamps)
    assert begun(sequence, 448).timestamps is timestamps
    sequence.rejected, sequence.prompt = REJECTED, (7, 8, 9, 10)
    assert (sequence.num_beams, sequence.timestamps) == (beams, False)
    again = begun(sequence, 448)
    assert (again.prompt, again.timestamps) == ((7, 8, 9, 10), False)
    assert sequence.prefilled_length == 5


@pytest.mark.parametrize(
    ("options", "once", "may"),
    [
        ({"fallback": Fallback()}, False, True),
        ({"fallback": Fallback()}, True, False),
        ({"fallback": None}, False, False),
        ({"fallback": Fallback(None)}, False, False),
        ({"fallback": Fallback(), "num_beams": 5, "timestamps": False}, False, False),
        ({"fallback": Fallback(), "num_beams": 5}, False, True),
    ],
)
def test_a_window_is_retried_once_where_that_would_be_something_else(options, once, may):
    request = Request("key", np.zeros(1, np.float32), (1,), once=once)
    sequence = sequence_of(request=request, **options)
    assert sequence.may_retry is may
    sequence.rejected = REJECTED
    assert not sequence.may_retry


@pytest.mark.parametrize(
    ("left", "live", "work"),
    [
        (0, False, Work.SHORT),
        (LONG_WINDOWS, False, Work.SHORT),
        (LONG_WINDOWS + 1, False, Work.LONG),
        (LONG_WINDOWS + 1, True, Work.LIVE),
    ],
)
def test_a_recording_is_long_if_much_of_it_is_left_and_it_is_not_live(left, live, work):
    request = Request("key", np.zeros(1, np.float32), (1,), windows_left=left)
    assert sequence_of(request=request, live=live).work is work is work_class(live, left)
