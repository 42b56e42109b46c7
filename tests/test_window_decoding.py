"""The plan of a recording's windows, and the requests that are made of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracle import rules_of
from stand_ins import asking

from tests.support.tiny_whispers import SMALL, loaded
from whosaid.asr.decoding_plan import Planner
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.frontend.schedule import Schedule
from whosaid.asr.frontend.windows import MARGIN, Span
from whosaid.asr.given_text import Recognised, force_text
from whosaid.asr.language_timeline import LanguageTimeline
from whosaid.asr.transcription import NO_PRIOR, Guess, Prior, WindowDecoding
from whosaid.runtime.steps import Steps
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import Chunk, Unspoken, Word

MODELS = loaded(SMALL)
TWO_LANGUAGES = LanguageTimeline((0, 4 * SAMPLE_RATE - MARGIN), ("en", "de"), "en", 0.9)


class Rows:
    """A session with free rows, which remembers what it is asked."""

    def __init__(self, free_rows: int) -> None:
        self.free_rows, self.asked = free_rows, []

    def add(self, requests):
        self.asked += requests


def schedule_of(windows: int, cuts=()) -> Schedule:
    """Two seconds of sound in every four, silence between."""
    sound = np.tile(np.repeat(np.float32([0.5, 0.0]), 2 * SAMPLE_RATE), windows)
    speech = [Span(n * 4 * SAMPLE_RATE, (4 * n + 2) * SAMPLE_RATE) for n in range(windows)]
    return Schedule(sound, speech, 3 * SAMPLE_RATE).cut_at(cuts)


def asked(prior: Prior = NO_PRIOR, rows: int = 9, encodings=None, **options):
    """The requests of two windows, of which one is German."""
    session, schedule = Rows(rows), schedule_of(2, TWO_LANGUAGES.cuts)
    plan = Planner(MODELS, asking(**options)).plan(TWO_LANGUAGES)
    encodings = {} if encodings is None else encodings
    WindowDecoding(session, schedule, plan, prior, encodings).add_ready()
    return session.asked


def forced(text: str, recognised: list[Recognised]) -> tuple[list[Chunk], tuple[Unspoken, ...]]:
    """Force a client's text into two windows in which other text was recognised."""
    engine = DecodeEngine(MODELS)
    plan = Planner(MODELS, asking()).plan(LanguageTimeline.single("en"))
    steps = Steps(force_text(engine, schedule_of(2), plan, text, recognised))
    while not steps.done:
        if steps.advance() is not None:
            engine.step()
    assert (engine.scheduler.running, engine.scheduler.waiting) == (0, 0)
    return steps.result


def test_each_window_is_prompted_in_the_language_that_is_spoken_there():
    english, german = asked(multilingual=True)
    prompt = MODELS.special_tokens.prompt
    assert english.prompt == prompt("en", "transcribe", True, ())
    assert german.prompt == prompt("de", "transcribe", True, ())


def test_what_is_translated_is_read_as_english():
    plan = Planner(MODELS, asking(task="translate")).plan(TWO_LANGUAGES)
    assert {plan.at(at).reader.language for at in (0, 5 * SAMPLE_RATE)} == {"en"}
    spoken = Planner(MODELS, asking()).plan(TWO_LANGUAGES)
    assert [spoken.at(at).reader.language for at in (0, 5 * SAMPLE_RATE)] == ["en", "de"]


def test_no_more_windows_are_asked_for_than_there_are_rows():
    assert len(asked(rows=1)) == 1


def test_an_encoding_is_used_once_and_let_go():
    windows = schedule_of(2, TWO_LANGUAGES.cuts).planned()
    encodings = {windows[1]: torch.ones(1, 1, 1)}
    first, second = asked(encodings=encodings)
    assert first.encoded is None
    assert second.encoded is not None
    assert encodings == {}


def test_what_was_heard_before_drafts_the_first_window_alone():
    begin = MODELS.timestamps[0]
    before = Prior((Guess(0.5, (begin, 7, begin + 20)), Guess(1.0, (8,))))
    first, second = asked(before)
    moved = round((0.5 - first.key.start / SAMPLE_RATE) * 50)
    assert first.draft == (begin + moved, 7, begin + 20 + moved, 8)
    assert second.draft == ()


def test_of_a_given_text_as_much_is_spoken_as_a_text_may_hold():
    """Of many scripts a token is a part of a letter, as it is here."""
    said = [f" word{300 + number}" for number in range(11)]
    assert MODELS.special_tokens.max_length // 2 < len("".join(said))
    words = tuple(Word(each, n / 6, (n + 1) / 6) for n, each in enumerate(said))
    window, _ = schedule_of(2).planned()
    chunks, unspoken = forced(
        "".join(said), [Recognised(window, [Chunk("", 0, 2, words=words)], True)]
    )
    assert "".join(chunk.text for chunk in chunks) == "".join(said)
    assert unspoken == ()


def test_where_nothing_was_heard_a_given_text_is_spoken_nowhere():
    chunks, unspoken = forced("word300 word301", [])
    assert chunks == []
    assert unspoken == (Unspoken((" word300", " word301"), 0),)


def test_a_word_given_where_no_timestamps_were_heard_is_weighed_against_other_words():
    """As transformers weighs it, and itself where it is suppressed, behind a prompt without
    timestamps; beside a window that has some.
    """
    schedule, words = schedule_of(2), (" word300", " word301")
    windows, recognised = schedule.planned(), []
    for window, word, start in zip(windows, words, (0.5, 4.5), strict=True):
        chunk = Chunk(word, start, start + 1.0, words=(Word(word, start, start + 1.0),))
        recognised.append(Recognised(window, [chunk], timestamps=word == words[0]))
    chunks, unspoken = forced("word300 word301", recognised)
    of_word = {each.text: each for each in chunks}
    assert (sorted(of_word), unspoken) == ([*words], ())
    first, *_ = of_word[words[1]].tokens
    prompt = MODELS.special_tokens.prompt("en", "transcribe", False, ())
    features = MODELS.feature_extractor(
        schedule.samples(windows[1]), sampling_rate=SAMPLE_RATE, return_tensors="pt"
    ).input_features.to(MODELS.model.dtype)
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        scores = MODELS.model(features, decoder_input_ids=ids).logits[:, -1]
    allowed = rules_of(MODELS, False, len(prompt))(ids, scores)
    allowed[0, first] = scores[0, first]
    expected = float(allowed.log_softmax(dim=1)[0, first])
    assert of_word[words[1]].log_probs[0] == pytest.approx(expected, abs=1e-6)
