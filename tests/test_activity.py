"""Probabilities that speakers speak: as pyannote and Nemotron compute them, and in parts."""

from itertools import pairwise, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyannote.audio.pipelines import SpeakerDiarization
from pyannote.core import SlidingWindow, SlidingWindowFeature

from tests.support.audio_files import conversation
from whosaid.diarization.activity import SpeakerActivity, joined
from whosaid.diarization.diarizer import Diarization, SpeakerHints
from whosaid.diarization.nemotron import Durations, TurnsSoFar
from whosaid.diarization.probabilities import _activity
from whosaid.transcript import SpeakerTurn

bounds = st.lists(st.integers(0, 100), min_size=2, max_size=2, unique=True).map(sorted)
drawn_turns = st.tuples(st.sampled_from("AB"), bounds).map(
    lambda drawn: SpeakerTurn(drawn[0], drawn[1][0] / 50, drawn[1][1] / 50)
)
turns_of = st.lists(drawn_turns, min_size=1, max_size=6)


@given(turns_of)
def test_turns_are_certain_activity(turns):
    found = SpeakerActivity.decided(turns)
    for frame, several in enumerate(found.several):
        moment = (frame + 0.5) / 50
        speaking = {turn.speaker for turn in turns if turn.start < moment < turn.end}
        assert {label for label, each in found.speaking.items() if each[frame]} == speaking
        assert several == (len(speaking) > 1)


@given(turns_of, st.lists(st.integers(0, 100), max_size=4), bounds)
def test_activity_that_came_in_parts_is_the_whole(turns, cuts, wanted):
    whole = SpeakerActivity.decided([*turns, SpeakerTurn("A", 1.98, 2.0)])
    edges = sorted({0, 100, *cuts})
    parts = [whole.within(a / 50, b / 50) for a, b in pairwise(edges)]
    start, stop = (each / 50 for each in wanted)
    found, expected = joined(parts, start, stop), whole.within(start, stop)
    np.testing.assert_array_equal(found.several, expected.several)
    for label, each in expected.speaking.items():
        np.testing.assert_array_equal(found.speaking[label], each)


def test_activity_beyond_what_is_known_is_silence():
    one = SpeakerActivity({"A": np.ones(2, np.float32)}, np.ones(2, np.float32), 1.0)
    found = one.within(0.98, 1.08)
    assert found.speaking["A"].tolist() == found.several.tolist() == [0, 1, 1, 0, 0]
    assert joined([one], 3.0, 3.02).several.tolist() == [0]


def test_pyannotes_decisions_keep_their_probabilities():
    powerset = pytest.importorskip("pyannote.audio.utils.powerset").Powerset(3, 2)
    from whosaid.diarization.probabilities import SoftDecisions

    output = torch.randn(2, 5, powerset.num_powerset_classes).log_softmax(dim=-1)
    found = SoftDecisions(powerset)(output)
    torch.testing.assert_close(found[..., :3], powerset(output))
    torch.testing.assert_close(found[..., 3:6], powerset.to_multilabel(output, soft=True))
    two = [False] * 4 + [True] * 3  # nobody, one of three, two of three
    torch.testing.assert_close(found[..., 6], output.exp()[..., two].sum(dim=-1))


def test_a_pipelines_activity_has_the_speakers_of_its_turns(demo_endpoint):
    samples = conversation()[: 20 * 16_000].astype(np.float32)
    found = demo_endpoint.diarizer.diarize(samples, SpeakerHints())
    assert {*found.activity.speaking} == {turn.speaker for turn in found.turns}
    decided = SpeakerActivity.decided(found.turns)
    for label, each in decided.speaking.items():
        probable = found.activity.within(0.0, len(each) / 50).speaking[label] > 0.5
        assert (probable == (each > 0.5)).mean() > 0.95


def test_activity_has_the_labels_of_many_turns():
    """12 windows of a second, each with a speaker of its own: pyannote sorts them as texts."""
    window, decided = SlidingWindow(duration=1.0, step=1.0), np.eye(12).repeat(50, axis=0)
    of_windows = {"data": np.ones((12, 50, 1)), "soft": np.ones((12, 50, 2)) * [1, 0]}
    segmentations = SimpleNamespace(**of_windows, labels=None, sliding_window=window)
    found = _activity(segmentations, np.arange(12)[:, None], decided)
    window = SlidingWindow(duration=0.02, step=0.02)
    turns = SpeakerDiarization.to_annotation(SlidingWindowFeature(decided, window))
    names = dict(zip(turns.labels(), SpeakerDiarization.classes(None), strict=False))
    for turn, _, label in turns.rename_labels(mapping=names).itertracks(yield_label=True):
        within = found.within(turn.start + 0.1, turn.end - 0.1).speaking
        assert [each for each in within if within[each].mean() > 0.5] == [label]


@pytest.mark.parametrize("cuts", [[], [6, 20], [2, 4, 4]])
def test_nemotrons_speakers_are_independent(cuts):
    probabilities = np.random.default_rng(3).random((40, 3)).astype(np.float32)
    probabilities = probabilities.repeat(2, axis=0)  # so that 50 frames a second lose nothing
    so_far = TurnsSoFar(Durations(), 100.0, 3)
    pieces = np.split(probabilities, cuts)
    parts = [so_far.push([each], last=False) for each in pieces]
    assert all(isinstance(each, Diarization) for each in parts)
    found = joined([each.activity for each in parts], 0.0, 0.8)
    expected = np.zeros(40)
    for speaks in product([False, True], repeat=3):
        chance = np.where(speaks, probabilities[::2], 1 - probabilities[::2]).prod(axis=1)
        expected += chance * (sum(speaks) > 1)
    np.testing.assert_allclose(found.several, expected, atol=1e-5)
    np.testing.assert_allclose(found.speaking["SPEAKER_01"], probabilities[::2, 1], atol=1e-5)
