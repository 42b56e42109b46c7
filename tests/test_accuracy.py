"""The measures of accuracy against other implementations and against cases counted by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import jiwer
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.accuracy import answers, intervals, metrics, scenes
from benchmarks.accuracy.diagnosis import Diagnosis, Incident
from benchmarks.accuracy.metrics import Count
from tests.support.dialogue import Scene
from whosaid.transcript import Chunk, SpeakerTurn, Word


def spoken(text: str, speakers: str = "", start: float = 0.0) -> list[Word]:
    """Words of half a second each, a tenth apart; a letter of `speakers` for each, or nobody."""
    words = text.split()
    names = speakers or "-" * len(words)
    return [
        Word(
            f" {word}",
            start + 0.6 * place,
            start + 0.6 * place + 0.5,
            None if name == "-" else name,
        )
        for place, (word, name) in enumerate(zip(words, names, strict=True))
    ]


few_words = st.lists(st.sampled_from("abc"), max_size=12).map(" ".join)


@given(few_words.filter(bool), few_words)
def test_the_alignments_edits_are_jiwers(said, heard):
    steps = metrics.align(spoken(said), spoken(heard))
    edits = len(steps) - len(metrics.correct_words(spoken(said), spoken(heard), steps))
    assert edits == metrics.word_errors(spoken(said), spoken(heard)).errors
    assert edits == round(jiwer.wer(said, heard) * len(said.split()))


@given(few_words, few_words)
def test_an_alignment_tells_every_word_once_and_in_order(said, heard):
    steps = metrics.align(spoken(said), spoken(heard))
    assert [here for here, _ in steps if here is not None] == list(range(len(said.split())))
    assert [there for _, there in steps if there is not None] == list(range(len(heard.split())))


def test_of_equal_alignments_the_one_nearest_in_time_counts():
    said = spoken("yes yes yes")
    for place in range(3):
        steps = metrics.align(said, [said[place]])
        assert metrics.correct_words(said, [said[place]], steps) == [(place, 0)]


def test_words_are_compared_without_case_and_punctuation():
    assert metrics.word_errors(spoken("it's nine thirty"), spoken("It's, Nine THIRTY!")).errors == 0


def cp_by_definition(said: list[Word], heard: list[Word]) -> int:
    """Every assignment of speakers tried; edits counted by jiwer, silent partners filled with
    nothing.
    """
    texts = [
        [" ".join(word.text.strip() for word in words if word.speaker == name) for name in "ABCD"]
        for words in (said, heard)
    ]
    return min(
        sum(edits(*pair) for pair in zip(texts[0], order, strict=True))
        for order in permutations(texts[1])
    )


def edits(said: str, heard: str) -> int:
    if not said:
        return len(heard.split())
    found = jiwer.process_words(said, heard)
    return found.substitutions + found.deletions + found.insertions


names = st.lists(st.sampled_from("ABCD"), min_size=1, max_size=8).map("".join)


@given(st.data())
def test_cp_errors_are_those_of_the_definition(data):
    said, heard = (
        spoken(" ".join(data.draw(st.sampled_from("abc")) for _ in speakers), speakers)
        for speakers in (data.draw(names), data.draw(names))
    )
    assert metrics.cp_word_errors(said, heard) == Count(cp_by_definition(said, heard), len(said))


def test_a_word_given_to_nobody_is_one_cp_error():
    assert (
        metrics.cp_word_errors(
            spoken("one two three", "AAB"), spoken("one two three", "XX-")
        ).errors
        == 1
    )
    assert metrics.cp_word_errors(spoken("one two", "AB"), spoken("one two", "--")) == Count(2, 2)
    assert metrics.cp_word_errors([], spoken("one two", "X-")) == Count(1, 0)


@given(st.data())
def test_without_speakers_the_best_of_all_orders_counts(data):
    """Tried one by one: orders of the speakers, of whom each says their own words in order."""
    names = data.draw(st.lists(st.sampled_from("ABC"), min_size=1, max_size=6))
    said = spoken(" ".join(data.draw(st.sampled_from("abc")) for _ in names), "".join(names))
    heard = spoken(data.draw(few_words))
    orders = []
    for order in set(permutations(names)):
        words = {name: iter([word for word in said if word.speaker == name]) for name in names}
        orders.append([next(words[name]) for name in order])
    expected = min((metrics.word_errors(order, heard) for order in orders), key=lambda it: it.rate)
    assert metrics.fewest_word_errors(said, heard) == expected


def test_too_many_orders_are_not_tried(monkeypatch):
    said = spoken("one two three", "AAB")
    assert metrics.fewest_word_errors(said, spoken("one three two")) == Count(0, 3)
    monkeypatch.setattr(metrics, "MAX_STATES", 5)  # there are three times two
    assert metrics.fewest_word_errors(said, said) is None


def judged(said: list[Word], heard: list[Word]) -> Count:
    steps = metrics.align(said, heard)
    return metrics.speaker_errors(said, heard, metrics.correct_words(said, heard, steps))


@pytest.mark.parametrize(
    ("given_to", "wrong"),
    [
        ("XXXYYY", 0),
        ("YYYXXX", 0),
        ("XXYYYY", 1),
        ("XXXXXX", 3),
        ("XXX-YY", 1),
        ("XZXYYY", 1),
        ("------", 6),
    ],
)
def test_words_given_to_the_wrong_speaker_are_counted(given_to, wrong):
    assert judged(spoken("a b c d e f", "AAABBB"), spoken("a b c d e f", given_to)) == Count(
        wrong, 6
    )


def test_only_recognised_words_are_asked_for_their_speaker():
    assert judged(spoken("a b c d", "AABB"), spoken("a x c d", "XYYY")) == Count(0, 3)


@given(st.permutations("ABCD"), st.text("ABCD", min_size=1, max_size=20), st.data())
def test_what_speakers_are_called_does_not_matter(order, speakers, data):
    text = " ".join(data.draw(st.sampled_from("abc")) for _ in speakers)
    heard = spoken(text, "".join(data.draw(st.sampled_from("ABCD")) for _ in speakers))
    renamed = [
        replace(word, speaker=dict(zip("ABCD", order, strict=True))[word.speaker]) for word in heard
    ]
    assert judged(spoken(text, speakers), heard) == judged(spoken(text, speakers), renamed)


def test_boundaries_are_measured_at_both_ends():
    said = spoken("a b")
    heard = [replace(said[0], start=0.1, end=0.45), replace(said[1], start=0.6, end=1.3)]
    late = metrics.boundary_errors(said, heard, [(0, 0), (1, 1)])
    np.testing.assert_allclose(late, [[0.1, -0.05], [0.0, 0.2]], atol=1e-9)


def test_diarization_errors_are_seconds():
    truth = [SpeakerTurn("A", 0, 10), SpeakerTurn("B", 10, 20)]
    found = [SpeakerTurn("Y", 0, 10), SpeakerTurn("X", 10, 16)]
    # Of 20 s of speech half a collar is not scored at 0 and at 20, and a whole one at 10.
    assert metrics.diarization_errors(truth, truth, 30).errors == 0
    wrong = metrics.diarization_errors(truth, found, 30)
    assert wrong.errors == pytest.approx(4 - metrics.COLLAR / 2)
    assert wrong.total == pytest.approx(20 - 2 * metrics.COLLAR)


def test_overlapped_speech_counts_for_each_voice():
    truth = [SpeakerTurn("A", 0, 10), SpeakerTurn("B", 4, 8)]
    missed = metrics.diarization_errors(truth, [SpeakerTurn("X", 0, 10)], 10)
    assert missed.errors == pytest.approx(4 - metrics.COLLAR)


def test_words_in_silence_are_those_far_from_speech():
    said = spoken("a b")
    heard = [*said, Word(" c", 1.5, 1.8), Word(" d", 1.7, 2.0), Word(" ,", 5.0, 5.1)]
    assert metrics.count_words_in_silence(said, heard) == 1
    assert metrics.count_words_in_silence([], heard) == 4


def test_the_interval_of_a_constant_difference_is_a_point():
    ours, theirs = [Count(1, 100)] * 8, [Count(3, 100)] * 8
    found = intervals.difference(ours, theirs)
    assert (found.value, found.low, found.high) == pytest.approx((-0.02, -0.02, -0.02))


def test_the_interval_is_that_of_the_mean():
    """Dialogues of equal length: the rate is their mean, whose bootstrap interval is near the
    normal one.
    """
    rng = np.random.default_rng(5)
    ours, theirs = rng.poisson(20, 60), rng.poisson(26, 60)
    found = intervals.difference([Count(n, 100) for n in ours], [Count(n, 100) for n in theirs])
    mean, error = (ours - theirs).mean() / 100, (ours - theirs).std() / 100 / np.sqrt(60)
    assert found.value == pytest.approx(mean)
    assert (found.low, found.high) == pytest.approx(
        (mean - 1.96 * error, mean + 1.96 * error), abs=0.1 * error
    )


def test_pairs_of_dialogues_stay_together():
    """Dialogues differ much, the rules hardly: an interval of unpaired draws would hold zero."""
    hard = range(0, 40, 4)
    found = intervals.difference([Count(n, 50) for n in hard], [Count(n + 1, 50) for n in hard])
    assert found.high == pytest.approx(-0.02)


def test_every_rule_answers_every_word_in_order():
    words = tuple(spoken("a b c d e f", "XXXYYY"))
    chunks = (Chunk(" a b c d", 0, 2.3, words=words[:4]), Chunk(" e f", 2.4, 3.5, words=words[4:]))
    heard = answers.Answer(chunks, (SpeakerTurn("X", 0, 1.7), SpeakerTurn("Y", 1.8, 3.5)))
    for turns in (None, (SpeakerTurn("A", 0, 1.7),), ()):
        for system, given_to in answers.attribute_by_rules(heard, turns).items():
            assert [word.text for word in given_to] == [word.text for word in words], system
    assert answers.attribute_by_rules(heard)[answers.OURS] == words


def test_perfect_turns_give_perfect_speakers_where_nobody_overlaps():
    words = tuple(spoken("a b c d e f", "AAABBB"))
    turns = (SpeakerTurn("A", 0, 1.7), SpeakerTurn("B", 1.8, 3.5))
    heard = answers.Answer((Chunk(" a b c d e f", 0, 3.5, words=words),), ())
    errors = {
        system: judged(list(words), list(given))
        for system, given in answers.attribute_by_rules(heard, turns).items()
    }
    assert {system for system, count in errors.items() if count.errors} == {answers.INSANELY_FAST}


def test_exclusive_turns_hold_one_speaker_and_all_speech():
    turns = [
        SpeakerTurn("A", 0, 5),
        SpeakerTurn("B", 4, 8),
        SpeakerTurn("A", 5, 6),
        SpeakerTurn("C", 9, 10),
    ]
    expected = [SpeakerTurn("A", 0, 5), SpeakerTurn("B", 5, 8), SpeakerTurn("C", 9, 10)]
    assert answers.make_exclusive(turns) == expected


def scene_of(words: list[Word], turns: list[SpeakerTurn]) -> Scene:
    return Scene(np.zeros(16_000, np.float32), tuple(words), tuple(turns))


def diagnose(scene: Scene, words: list[Word], boundaries: list[float] = ()) -> list[Incident]:
    steps = metrics.align(scene.words, words)
    return Diagnosis(scene, words, steps, scene.turns, boundaries).incidents()


@pytest.mark.parametrize(
    ("heard", "given_to", "boundaries", "turns", "cause"),
    [
        ("a b c d e f", "AAABBB", [], [("A", 0, 1.7), ("B", 1.8, 3.5)], None),
        ("a b c d e f", "AAAABB", [], [("A", 0, 1.7), ("B", 1.8, 3.5)], "boundary"),
        ("a b c d e f", "AAABBA", [], [("A", 0, 1.7), ("B", 1.8, 5.0)], "diarization"),
        ("a x c d e f", "AAABBB", [], [("A", 0, 1.7), ("B", 1.8, 3.5)], "recognition"),
        ("a x y d e f", "AAAABB", [], [("A", 0, 1.7), ("B", 1.8, 3.5)], "recognition"),
        ("a x c d e f", "AAABBB", [1.2], [("A", 0, 1.7), ("B", 1.8, 3.5)], "window"),
        ("a b x d e f", "AAABBB", [1.2], [("A", 0, 1.7), ("B", 1.5, 3.5)], "overlap"),
    ],
)
def test_an_incident_gets_the_cause_that_the_truth_tells(heard, given_to, boundaries, turns, cause):
    scene = scene_of(spoken("a b c d e f", "AAABBB"), [SpeakerTurn(*turn) for turn in turns])
    answer = spoken(heard, given_to)
    found = diagnose(scene, answer, boundaries)
    assert [each.cause for each in found] == ([cause] if cause else [])


def test_what_is_heard_where_nothing_is_said_is_told_apart():
    scene = scene_of(spoken("a b", "AA"), [SpeakerTurn("A", 0, 1.1)])
    answer = [*scene.words, *spoken("at at at", "BBB", start=8)]
    found = diagnose(scene, answer)
    assert [(each.cause, each.errors, each.expected) for each in found] == [("silence", 3, "")]


def test_errors_far_apart_are_two_incidents():
    said = [*spoken("a b", "AA"), *spoken("c d", "AA", start=10)]
    scene = scene_of(said, [SpeakerTurn("A", 0, 11.1)])
    heard = [*spoken("a", "A"), *spoken("x y", "AA", start=10)]
    found = diagnose(scene, heard)
    assert [(each.errors, each.expected, each.found) for each in found] == [
        (1, "A: a b", "A: a"),
        (2, "A: c d", "A: x y"),
    ]


def test_a_scene_is_a_function_of_its_seed():
    """Music and noise are drawn; what espeak-ng speaks repeats only in a process of its own."""
    for condition in ("only noise", "only music"):
        one, two, other = (
            scenes.draw_scene(scenes.SceneKey("development", condition, number, 5.0))
            for number in (0, 0, 1)
        )
        np.testing.assert_array_equal(one.samples, two.samples)
        assert not np.array_equal(one.samples, other.samples)


def test_the_two_evaluations_share_no_voice_and_no_scene():
    reserved, development = (scenes.scene_keys(split) for split in ("reserved", "development"))
    assert (
        len(reserved)
        == len(development)
        == len({take.name for take in (*reserved, *development)}) / 2
    )
    assert not set(scenes.speakers_of("reserved")) & set(scenes.speakers_of("development"))


def test_a_scene_is_kept_with_its_truth(tmp_path):
    take = scenes.SceneKey("development", "gaps of music", 0, scenes.SPOKEN)
    path = tmp_path / "scene.wav"
    scenes.make(take, path)
    scene = scenes.load(path)
    assert scene.words == tuple(sorted(scene.words, key=lambda word: word.start))
    assert scene.words[-1].end < scene.duration
    loudness = [
        np.abs(scene.samples[round(word.start * 16_000) : round(word.end * 16_000)]).max()
        for word in scene.words
    ]
    assert min(loudness) > 0.01
