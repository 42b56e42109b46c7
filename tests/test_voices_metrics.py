"""The benchmarks' measures against other implementations and against cases counted by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.counts import Count, Interval, difference, points
from benchmarks.voices.answers import whisperx_rule
from benchmarks.voices.scoring import speaker_errors
from whosaid.transcript import SpeakerTurn, Word


def judged(said: str, heard: str) -> Count:
    return speaker_errors([(a, None if b == "-" else b) for a, b in zip(said, heard, strict=True)])


def test_words_given_to_the_wrong_speaker_are_counted():
    mistakes = {"XXXYYY": 0, "YYYXXX": 0, "XXYYYY": 1, "XXXXXX": 3, "XXX-YY": 1, "XZXYYY": 1}
    for given_to, wrong in (*mistakes.items(), ("------", 6)):
        assert judged("AAABBB", given_to) == Count(wrong, 6), given_to


@given(st.permutations("ABCD"), st.text("ABCD", min_size=1, max_size=20), st.data())
def test_labels_of_speakers_do_not_matter(order, speakers, data):
    heard = "".join(data.draw(st.sampled_from("ABCD")) for _ in speakers)
    renamed = heard.translate(str.maketrans("ABCD", "".join(order)))
    assert judged(speakers, heard) == judged(speakers, renamed)


def test_the_interval_of_a_constant_difference_is_a_point():
    found = difference([Count(1, 100)] * 8, [Count(3, 100)] * 8)
    assert (found.value, found.low, found.high) == pytest.approx((-0.02, -0.02, -0.02))
    assert points(Interval(-0.02, -0.03, -0.01)) == "-2.0 (-3.0 to -1.0): better"
    assert points(Interval(-0.02, -0.03, 0.01)).endswith("no difference shown")


def test_the_interval_is_that_of_the_mean():
    """Recordings of equal length: the rate is their mean, whose bootstrap interval is near the
    normal one.
    """
    rng = np.random.default_rng(5)
    ours, theirs = rng.poisson(20, 60), rng.poisson(26, 60)
    found = difference([Count(n, 100) for n in ours], [Count(n, 100) for n in theirs])
    mean, error = (ours - theirs).mean() / 100, (ours - theirs).std() / 100 / np.sqrt(60)
    assert found.value == pytest.approx(mean)
    normal = (mean - 1.96 * error, mean + 1.96 * error)
    assert (found.low, found.high) == pytest.approx(normal, abs=0.1 * error)


def test_pairs_of_recordings_stay_together():
    """Recordings differ much, the systems hardly: an interval of unpaired draws would hold zero."""
    hard = range(0, 40, 4)
    found = difference([Count(n, 50) for n in hard], [Count(n + 1, 50) for n in hard])
    assert found.high == pytest.approx(-0.02)


def test_whisperxs_rule_is_right_on_true_turns():
    """Six words last half a second, with a tenth between them."""
    words = tuple(
        Word(f" {text}", 0.6 * place, 0.6 * place + 0.5, speaker)
        for place, (text, speaker) in enumerate(zip("abcdef", "XXXYYY", strict=True))
    )
    assert whisperx_rule(words, (SpeakerTurn("X", 0, 1.7), SpeakerTurn("Y", 1.8, 3.5))) == words
    for turns in ((SpeakerTurn("A", 0, 1.7),), ()):
        assert [word.text for word in whisperx_rule(words, turns)] == [word.text for word in words]
