"""What diarizers give: turns within detected speech, and turns that touch it."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from diarization.diarizer import MARGIN, Diarization, SpeakerHints
from transcript import SpeakerTurn

speech_spans = st.lists(st.tuples(st.integers(1, 300), st.integers(0, 300)), max_size=8).map(
    lambda steps: [
        (end - length, end)
        for (length, _), end in zip(steps, accumulate(sum(step) for step in steps), strict=True)
    ]
)
spoken_turns = st.lists(
    st.builds(
        lambda who, start, length: (f"S{who}", start, start + length),
        st.integers(0, 2),
        st.integers(0, 2000),
        st.integers(1, 500),
    ),
    max_size=8,
)


@given(spoken_turns, speech_spans)
def test_turns_lie_in_speech_and_its_margin_and_lose_nothing_there(turns, speech):
    """Compares sets of hundredths of a second."""
    margin = round(100 * MARGIN)
    found = tuple(
        SpeakerTurn(who, start / 100, end / 100)
        for who, start, end in sorted(turns, key=lambda turn: turn[1])
    )
    cut = Diarization(found, found[::2], SpeakerHints(2)).within(
        [(start / 100, end / 100) for start, end in speech]
    )
    allowed = {at for start, end in speech for at in range(start - margin, end + margin)}
    for before, after in ((found, cut.turns), (found[::2], cut.exclusive)):
        expected = Counter(
            (turn.speaker, at) for turn in before for at in moments(turn) if at in allowed
        )
        assert Counter((turn.speaker, at) for turn in after for at in moments(turn)) == expected
        assert [turn.start for turn in after] == sorted(turn.start for turn in after)
    speakers = len({turn.speaker for turn in cut.turns})
    assert cut.warnings == (
        () if speakers == 2 else (f"speaker hints could not be met: {speakers} found",)
    )


def moments(turn: SpeakerTurn) -> range:
    return range(round(100 * turn.start), round(100 * turn.end))


@given(spoken_turns, speech_spans)
def test_turns_that_touch_speech_or_its_margin_stay_whole(turns, speech):
    margin = round(100 * MARGIN)
    # A little shorter, so that no end stands where a margin ends, but for rounding.
    found = tuple(
        SpeakerTurn(who, start / 100 + 1e-6, end / 100 - 1e-6) for who, start, end in turns
    )
    kept = Diarization(found, found[::2]).touching(
        [(start / 100, end / 100) for start, end in speech]
    )
    heard = {at for start, end in speech for at in range(start - margin, end + margin)}
    for before, after in ((found, kept.turns), (found[::2], kept.exclusive)):
        assert after == tuple(turn for turn in before if heard.intersection(moments(turn)))
