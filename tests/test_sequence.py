"""Attempts of one sequence, and what its row starts from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from asr.engine.fallback import Attempt
from asr.engine.request import DecodeOptions, DecodeResult, Request
from asr.engine.sequence import Sequence
from transcript import DecodeStats


def sequence_of(max_tokens=None, timestamps=True):
    samples = np.random.default_rng(0).normal(size=100).astype(np.float32)
    request = Request("key", samples, (7, 8, 9), max_tokens)
    return Sequence(request, DecodeOptions(timestamps), "session", DecodeStats())


@pytest.mark.parametrize(("max_tokens", "max_length"), [(None, 448), (10, 13), (999, 448)])
def test_a_text_ends_at_its_own_limit_or_the_models(max_tokens, max_length):
    assert sequence_of(max_tokens).prefill_input(448).max_length == max_length


def test_a_first_attempt_is_greedy_and_later_ones_draw_other_numbers():
    sequence = sequence_of()
    sequence.drafted = True
    first = sequence.prefill_input(448)
    assert (first.temperature, first.uniform, first.draftable) == (0.0, None, True)
    sequence.retry(Attempt(0.2), (7, 8, 9))
    second = sequence.prefill_input(448)
    sequence.retry(Attempt(0.4), (7, 8, 9))
    third = sequence.prefill_input(448)
    assert (second.temperature, third.temperature) == (0.2, 0.4)
    assert not torch.equal(second.uniform, third.uniform)
    assert not third.draftable


def test_a_first_attempt_is_sampled_where_a_temperature_is_asked_for():
    request = Request("key", np.ones(100, np.float32), (7, 8, 9))
    options = DecodeOptions(num_beams=5, temperature=0.5)
    sequence = Sequence(request, options, "session", DecodeStats(), drafted=True)
    begun = sequence.prefill_input(448)
    assert (begun.temperature, begun.draftable, sequence.num_beams) == (0.5, False, 1)
    sequence.restart()
    assert torch.equal(sequence.prefill_input(448).uniform, begun.uniform)


def test_an_attempt_may_have_another_prompt_and_grammar():
    sequence = sequence_of(timestamps=True)
    sequence.retry(Attempt(without_timestamps=True), (7, 8, 9, 10))
    again = sequence.prefill_input(448)
    assert (again.prompt, again.timestamps, again.temperature) == ((7, 8, 9, 10), False, 0.0)
    assert sequence.prefilled_length == 5


def test_a_preempted_sequence_forgets_its_attempts():
    sequence = sequence_of()
    sequence.drafted, sequence.best = True, DecodeResult((), 0.0, (), 0.0)
    sequence.retry(Attempt(0.2, without_timestamps=True), (7, 8))
    sequence.restart()
    assert (sequence.drafted, sequence.attempts, sequence.best) == (False, 1, None)
    assert (sequence.temperature, sequence.prompt) == (0.0, (7, 8, 9))


@pytest.mark.parametrize("timestamps", [True, False])
def test_its_options_reach_the_row(timestamps):
    sequence = sequence_of(timestamps=timestamps)
    assert sequence.prefill_input(448).timestamps is timestamps
    assert sequence.prefilled_length == 4
