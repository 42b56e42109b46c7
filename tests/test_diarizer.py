"""Diarizers return turns within detected speech, and turns that touch it."""

from collections import Counter
from itertools import accumulate

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from whosaid.diarization.diarizer import MARGIN, Diarization, SpeakerHints, add_labels
from whosaid.transcript import SpeakerTurn

speech_spans = st.lists(st.tuples(st.integers(1, 300), st.integers(0, 300)), max_size=8).map(
    lambda steps: [
        (end - length, end)
        for (length, _), end in zip(steps, accumulate(sum(step) for step in steps), strict=True)
    ]
)
NUMBERS = st.tuples(st.integers(0, 2), st.integers(0, 2000), st.integers(1, 500))
spoken_turns = st.lists(NUMBERS.map(lambda n: (f"S{n[0]}", n[1], n[1] + n[2])), max_size=8)


@given(spoken_turns, speech_spans)
def test_turns_are_cut_to_speech_and_its_margin(turns, speech):
    """Compares sets of hundredths of a second."""
    margin = round(100 * MARGIN)
    in_order = sorted(turns, key=lambda turn: turn[1])
    found = tuple(SpeakerTurn(who, start / 100, end / 100) for who, start, end in in_order)
    hundredths = [(start / 100, end / 100) for start, end in speech]
    spans = Diarization((), found).exclusive_spans(hundredths)
    allowed = {at for start, end in speech for at in range(start - margin, end + margin)}
    expected = Counter((one.speaker, at) for one in found for at in moments(one) if at in allowed)
    cut = [SpeakerTurn(label, *span) for label, own in spans.items() for span in own]
    assert Counter((turn.speaker, at) for turn in cut for at in moments(turn)) == expected
    assert all(spans.values())
    speakers = len({turn.speaker for turn in found})
    told = () if speakers == 2 else (f"speaker hints could not be met: {speakers} found",)
    assert Diarization(found, (), SpeakerHints(2)).warnings == told


def moments(turn: SpeakerTurn) -> range:
    return range(round(100 * turn.start), round(100 * turn.end))


@given(spoken_turns, st.integers(0, 8))
def test_labels_follow_the_order_of_first_speech(turns, split):
    """Turns come at once, and in parts as in a live session; voices stay with their turns."""
    turns = sorted(turns, key=lambda turn: turn[1])
    found = tuple(SpeakerTurn(*turn) for turn in turns)
    voices = {f"S{place}": np.full(1, place) for place in range(3)}
    names: dict[str, str] = {}
    add_labels(names, [turn.speaker for turn in found])
    whole = Diarization(found, found[1:], voices=voices).renamed(names)
    order = list(dict.fromkeys(turn.speaker for turn in found))
    expected = {label: f"SPEAKER_{place:02d}" for place, label in enumerate(order)}
    assert [turn.speaker for turn in whole.turns] == [expected[turn.speaker] for turn in found]
    speakers = [expected[turn.speaker] for turn in found[1:]]
    assert [turn.speaker for turn in whole.exclusive] == speakers
    assert whole.voices == {expected[label]: voices[label] for label in order}
    labels: dict[str, str] = {}
    for part in (found[:split], found[split:]):
        add_labels(labels, [None, *(turn.speaker for turn in part)])
    assert labels == expected


@given(spoken_turns, speech_spans)
def test_turns_that_touch_speech_or_its_margin_stay_whole(turns, speech):
    margin = round(100 * MARGIN)
    # A little shorter, so that no end stands where a margin ends, but for rounding.
    spans = [(who, start / 100 + 1e-6, end / 100 - 1e-6) for who, start, end in turns]
    found = tuple(SpeakerTurn(*span) for span in spans)
    hundredths = [(start / 100, end / 100) for start, end in speech]
    kept = Diarization(found, found[::2]).touching(hundredths)
    heard = {at for start, end in speech for at in range(start - margin, end + margin)}
    for before, after in ((found, kept.turns), (found[::2], kept.exclusive)):
        assert after == tuple(turn for turn in before if heard.intersection(moments(turn)))
