"""The attempts of one sequence."""

import numpy as np
import pytest

from whosaid.asr.engine.fallback import Fallback
from whosaid.asr.engine.request import DecodeOptions, Request
from whosaid.asr.engine.result import DecodeResult
from whosaid.asr.engine.sequence import LONG_WINDOWS, DecodeSequence, work_class
from whosaid.asr.engine.session import Session
from whosaid.scheduling.fair_shares import WorkClass

REJECTED = DecodeResult((), 0.0, (), 0.0)


def sequence_of(request, **options):
    return DecodeSequence(Session(None, DecodeOptions(**options)), request)


@pytest.mark.parametrize(
    ("options", "once"),
    [({"num_beams": 2}, True), ({"temperature": 0.5}, True), ({"fallback": Fallback()}, False)],
)
def test_a_prefix_is_refused_if_an_attempt_lacks_it(options, once):
    request = Request("key", np.zeros(1, np.float32), (1,), once=once, prefix=(5,))
    with pytest.raises(ValueError, match="a prefix is for"):
        sequence_of(request, **options)


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
    sequence = sequence_of(request, **options)
    sequence.rejected = REJECTED if retried else None
    assert sequence.guess == guess
    assert sequence.prefilled_length == 4 + len(guess)


@pytest.mark.parametrize("timestamps", [True, False])
@pytest.mark.parametrize(("asked", "beams"), [(1, 3), (2, 3), (5, 5)])
def test_a_retry_has_its_own_grammar_and_beams(timestamps, asked, beams):
    request = Request("key", np.zeros(1, np.float32), (7, 8, 9))
    fallback = Fallback(3, False)
    sequence = sequence_of(request, timestamps=timestamps, num_beams=asked, fallback=fallback)
    assert (sequence.num_beams, sequence.timestamps) == (asked, timestamps)
    sequence.rejected, sequence.prompt = REJECTED, (7, 8, 9, 10)
    assert (sequence.num_beams, sequence.timestamps) == (beams, False)
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
def test_a_window_is_retried_once_if_the_retry_differs(options, once, may):
    sequence = sequence_of(Request("key", np.zeros(1, np.float32), (1,), once=once), **options)
    assert sequence.may_retry is may
    sequence.rejected = REJECTED
    assert not sequence.may_retry


@pytest.mark.parametrize(
    ("left", "live", "work"),
    [
        (0, False, WorkClass.SHORT),
        (LONG_WINDOWS, False, WorkClass.SHORT),
        (LONG_WINDOWS + 1, False, WorkClass.LONG),
        (LONG_WINDOWS + 1, True, WorkClass.LIVE),
    ],
)
def test_a_recording_is_long_by_its_windows_left(left, live, work):
    request = Request("key", np.zeros(1, np.float32), (1,), windows_left=left)
    assert sequence_of(request, live=live).work is work is work_class(live, left)
