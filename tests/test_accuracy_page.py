"""What the page about accuracy says: of answers whose figures are counted by hand, and of results
at both sides of every target.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.accuracy.__main__ import judge
from benchmarks.accuracy.answers import (
    OURS,
    RULES,
    Answer,
)
from benchmarks.accuracy.scenes import SceneKey
from tests.support.dialogue import Scene
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import Chunk, SpeakerTurn, Word

TEXTS = (("A", "good morning to you"), ("B", "hello is there a hotel"))


def spoken():
    """Two turns of a word every half second, a second between them, 8 s in all."""
    words, turns, time = [], [], 0.5
    for speaker, text in TEXTS:
        started = time
        for word in text.split():
            words.append(Word(f" {word}", time, time + 0.5, speaker))
            time += 0.5
        turns.append(SpeakerTurn(speaker, started, time))
        time += 1.0
    return Scene(np.zeros(8 * SAMPLE_RATE, np.float32), tuple(words), tuple(turns))


def answer_of(words, turns):
    """One chunk for each speaker of `words`."""
    chunks = [
        Chunk("".join(each.text for each in some), some[0].start, some[-1].end, -0.1, 0.0, some)
        for some in (tuple(each for each in words if each.speaker == name) for name in ("S0", "S1"))
        if some
    ]
    return Answer(tuple(chunks), turns)


def heard(scene):
    """All of it, right, with the endpoint's names."""
    names = {"A": "S0", "B": "S1"}
    return (
        [replace(word, speaker=names[word.speaker]) for word in scene.words],
        tuple(replace(turn, speaker=names[turn.speaker]) for turn in scene.turns),
    )


KEY = SceneKey("reserved", "clean", 0, 60.0)


def test_a_right_answer_has_no_error():
    scene = spoken()
    judged = judge(KEY, scene, answer_of(*heard(scene)))
    assert judged["words"] == {"errors": 0, "total": 9}
    assert judged["diarization"]["errors"] == 0
    assert judged["speakers"] == [2, 2]
    assert judged["boundary errors"] == [[0.0, 0.0]] * 9
    assert judged["incidents"] == []
    assert judged["words in silence"] == judged["overlapped words"] == 0
    for turns in ("found turns", "true turns"):
        assert judged[turns][OURS] == {
            "speakers": {"errors": 0, "total": 9},
            "cp": {"errors": 0, "total": 9},
        }
        assert judged[turns].keys() == set(RULES)


def test_every_error_is_counted_where_it_belongs():
    """One word is missing, one other is written, one is late and has the other voice's name, one is
    invented half a second after the end, and the second turn begins half a second early.
    """
    scene = spoken()
    words, turns = heard(scene)
    words[1] = replace(words[1], text=" evening")
    words[3] = replace(words[3], start=2.1, end=2.7, speaker="S1")
    del words[6]
    words.append(Word(" yes", 7.2, 7.6, "S1"))
    turns = (turns[0], replace(turns[1], start=turns[1].start - 0.5))
    judged = judge(KEY, scene, answer_of(words, turns))
    assert judged["words"] == {"errors": 3, "total": 9}
    assert judged["found turns"][OURS]["speakers"] == {"errors": 1, "total": 7}
    # A: evening for morning, "you" missing; B: "you" extra, "there" missing, "yes" extra.
    assert judged["found turns"][OURS]["cp"] == {"errors": 5, "total": 9}
    assert judged["words in silence"] == 1
    late = [errors for errors in judged["boundary errors"] if errors != [0.0, 0.0]]
    assert late == [pytest.approx([0.1, 0.2])]
    # Of half a second too early the collar's half forgives an eighth; true ends lose one each.
    assert judged["diarization"] == {
        "errors": pytest.approx(0.5 - 0.125),
        "total": pytest.approx(4.5 - 4 * 0.125),
    }
    assert sum(incident["errors"] for incident in judged["incidents"]) == 4


def incident(cause, errors, expected):
    return {
        "cause": cause,
        "errors": errors,
        "start": 1.0,
        "end": 2.0,
        "expected": expected,
        "found": "",
        "overlap": False,
        "turn_distance": 0.5,
        "window_distance": 3.0,
        "wrong_turns": 0.0,
    }
