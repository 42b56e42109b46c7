"""What the page about accuracy says: of answers whose figures are counted by hand, and of results
at both sides of every target.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.accuracy import __main__ as command
from benchmarks.accuracy.__main__ import judge
from benchmarks.accuracy.answers import (
    INSANELY_FAST,
    INSANELY_FAST_ON_WORDS,
    OURS,
    RULES,
    WHISPERX,
    Answer,
)
from benchmarks.accuracy.figures import chart, targets
from benchmarks.accuracy.scenes import DIALOGUES, GAPS, SceneKey
from tests.benchmark_pages import render, rows_of
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


def count(errors, total=100):
    return {"errors": errors, "total": total}


def scene_of(condition="clean", number=0, words=4, cp=5, der=5.0, off=0.05, wrong=None, silent=0):
    """One scene as it is kept; `wrong` are words with a wrong speaker, by rule."""
    wrong = wrong or {}
    rules = {rule: {"speakers": count(wrong.get(rule, 1)), "cp": count(cp)} for rule in RULES}
    return {
        "condition": condition,
        "seconds": 60.0,
        "name": f"{condition}-{number}",
        "duration": 60.0,
        "words": count(words),
        "overlapped words": 25,
        "words in silence": silent,
        "diarization": count(der),
        "speakers": [2, 2 + number % 2],
        "boundary errors": [[off, -off], [-off, off]],
        "found turns": rules,
        "true turns": rules,
        "incidents": [],
        "seconds to answer": 30.0,
    }


def verdicts(*scenes):
    return {name: met for name, _, met in targets(scenes)}


@pytest.mark.parametrize(
    ("changes", "met"),
    [
        ({"words": 5, "cp": 6, "der": 10.0, "off": 0.060}, [True] * 4),
        ({"words": 6, "cp": 7}, [False, True, True, True]),
        ({"words": 4, "cp": 7}, [True, False, True, True]),
        ({"der": 10.1}, [True, True, False, True]),
        ({"off": 0.061}, [True, True, True, False]),
    ],
)
def test_targets_of_clean_dialogues_are_held_to_their_limits(changes, met):
    assert list(verdicts(scene_of(**changes)).values()) == met


def test_rates_are_of_all_dialogues_together():
    """3 of 100 and 3 of 20 words are 5% and not 9%."""
    short = scene_of(words=3) | {"words": count(3, 20)}
    assert verdicts(scene_of(words=3), short)["clean: WER at most 5%"]
    assert not verdicts(scene_of(words=3), short | {"words": count(4, 20)})["clean: WER at most 5%"]


def test_other_rules_are_beaten_by_the_share_that_is_asked():
    overlap = DIALOGUES[1]
    wrong = {OURS: 2, WHISPERX: 4, INSANELY_FAST: 7, INSANELY_FAST_ON_WORDS: 5}
    found = verdicts(*(scene_of(overlap, place, wrong=wrong) for place in range(3)))
    assert found[f"{overlap}: at most 0.50 of {WHISPERX}"]
    assert found[f"{overlap}: at most 0.33 of {INSANELY_FAST}"]
    assert not found[f"{overlap}: at most 0.33 of {INSANELY_FAST_ON_WORDS}"]
    assert found[f"{overlap}: never worse than {WHISPERX}"]
    worse = verdicts(*(scene_of(overlap, n, wrong={OURS: 5, WHISPERX: 3}) for n in range(3)))
    assert not worse[f"{overlap}: never worse than {WHISPERX}"]
    # What is wrong in one word of a hundred or less is not worth a share.
    assert not any(name.endswith(f"of {INSANELY_FAST}") for name in worse)


def test_a_word_where_nobody_speaks_misses_its_target():
    (gap, *_) = GAPS
    assert verdicts(scene_of(gap)) == {f"{gap}: no words": True}
    assert verdicts(scene_of(gap), scene_of(gap, silent=1)) == {f"{gap}: no words": False}


def test_the_page_and_its_picture_have_the_figures(tmp_path, monkeypatch):
    wrong = {OURS: 2, WHISPERX: 4, INSANELY_FAST: 6}
    scenes = [scene_of(number=number, wrong=wrong) for number in range(2)]
    scenes[1]["diarization"] = count(9.0, 300)
    scenes[1]["incidents"] = [
        incident("overlap", errors=3, expected="0: hello"),
        incident("window", errors=1, expected=""),
    ]
    results = {"scenes": scenes, "split": "reserved", "settings": {"cores": 2}}
    text = render(command, "accuracy", results, tmp_path, monkeypatch)
    rows = rows_of(text)
    off = "50 ms / 50 ms"
    figures = ["25%", "4.0%", "5.0%", "2.0%", "3.5%", off, off, "1/2"]
    assert ["clean, 60 s (2)", *figures] in rows
    shares = ["4.0%", "5.0%"] * 2
    assert ["clean", WHISPERX, *shares, "-2.0 (-2.0 to -2.0): better"] in rows
    assert ["clean", OURS, "2.0%", "5.0%", "2.0%", "5.0%", ""] in rows
    assert ["overlap", "3", "75%"] in rows
    assert "- audio: 2 minutes in 2 scenes\n- answered in: 1.0 minutes\n" in text
    assert text.index("- spoken: 0: hello") < text.index("- spoken: (nothing)")
    drawn = chart(scenes)
    assert [bars[0] for bars in drawn.bars.values()] == pytest.approx([2, 4, 6])
    assert drawn.groups == ("clean",)


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
