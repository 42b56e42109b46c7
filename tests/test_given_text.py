"""A client's own text: its words in order with times of the audio, what nobody says marked."""

import json
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein

from config import DEMO_MODELS
from tests.helpers.oracle import features_of, rules_of
from tests.helpers.stand_ins import asking
from tests.support.tiny_whispers import SMALL, hears_sound, loaded, noise
from whosaid.asr.checkpoint.loading import Checkpoint, load_whisper
from whosaid.asr.decoding_plan import Planner
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.frontend.schedule import Schedule
from whosaid.asr.frontend.windows import SampleSpan, Window
from whosaid.asr.given_text import (
    NONE,
    GivenWord,
    Recognised,
    force_text,
    pair_items,
    place_text,
    split_text,
)
from whosaid.asr.language_timeline import LanguageTimeline
from whosaid.asr.transcriber import Transcriber
from whosaid.audio.decode import AudioLimits, decode_audio
from whosaid.scheduling.steps import run_steps
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcribe.__main__ import CONVERSATION
from whosaid.transcript import Chunk, Transcript, Unspoken, Word

SECONDS = 26.4  # of the conversation are heard, up to a pause
SAID = json.loads(CONVERSATION.with_suffix(".json").read_text())["words"]
TRUTH = [word for word in SAID if word["end"] < SECONDS]
MODELS = loaded(SMALL)
EXTRA = "the hotel opens on monday and costs four hundred dollars"
MOSTLY = 0.97  # of the conversation's words; in some places two people speak at once
ITEMS = st.text("abcd", max_size=40)
WORD = st.sampled_from(["aa", "bb", "cc", "dd", "ee", "ff", "gg"])
WORDS = st.lists(WORD, min_size=1, max_size=40)


@given(ITEMS, ITEMS)
def test_items_are_paired_by_the_fewest_edits(left, right):
    partners = pair_items(left, right).tolist()
    pairs = [(here, there) for here, there in enumerate(partners) if there != NONE]
    assert pairs == sorted(pairs)
    assert len({there for _, there in pairs}) == len(pairs)
    changed = sum(left[here] != right[there] for here, there in pairs)
    assert changed + len(left) + len(right) - 2 * len(pairs) == Levenshtein.distance(left, right)


def windows_of(*texts: str) -> list[Recognised]:
    """Windows of a second each, in which these words were recognised."""
    found = []
    for number, text in enumerate(texts):
        words = tuple(Word(f" {word}", number, number + 0.5) for word in text.split())
        window = Window(number * SAMPLE_RATE, (number + 1) * SAMPLE_RATE, 10**9)
        found.append(Recognised(window, [Chunk(text, number, number + 0.5, words=words)], True))
    return found


def placed(script: str, *texts: str) -> tuple[list[str], str]:
    """Return the words of a script in each window, and the words that were recognised."""
    words = [GivenWord(f" {each}", (1,), each) for each in script.split()]
    text, windows = run_steps(place_text(words, windows_of(*texts)))
    by_window = ["" for _ in texts]
    for each in windows:
        spoken = " ".join(script.split()[word] for word in each.words)
        by_window[each.window.start // SAMPLE_RATE] = spoken
    return by_window, " ".join(script.split()[word] for word in sorted(text.recognised))


def test_words_are_placed_beside_similar_recognised_words():
    script = "as you know i have given you proof of my admiration"
    windows, sure = placed(script, "as you no i", "have given your proof", "of my add miration")
    assert windows == ["as you know i", "have given you proof", "of my admiration"]
    assert sure == script


def test_unrecognised_words_are_uncertain_and_move_no_others():
    script = "one two seven eight nine three four"
    first, second = "one two seven eight nine", "three four"
    assert placed(script, "one two", second) == ([first, second], "one two three four")
    assert placed("three", "one two", "three four", "five") == (["", "three", ""], "three")
    assert placed("one two") == ([], "")


@given(WORDS, WORDS, WORDS)
def test_every_word_stands_once_and_in_order(script, first, second):
    windows, _ = placed(" ".join(script), " ".join(first), " ".join(second))
    assert " ".join(windows).split() == script


@given(st.text(min_size=1, max_size=200), st.sampled_from(["en", "ja", None]))
def test_the_words_joined_are_the_text(text, language):
    words = run_steps(split_text(text, MODELS, language))
    spaced, plainly = " " + " ".join(text.split()), {"add_special_tokens": False}
    tokens = MODELS.tokenizer.encode(spaced, split_special_tokens=True, **plainly)
    plain = MODELS.tokenizer.decode(tokens)
    assert "".join(each.text for each in words).split() == plain.split()
    assert all(each.tokens for each in words)


def in_order(transcript: Transcript) -> list[str]:
    """Return all words of the client's text, spoken and unspoken."""
    spoken = [word.text for chunk in transcript.chunks for word in chunk.words]
    found, done = [], 0
    for each in transcript.unspoken:
        found += [*spoken[done : each.before], *each.words]
        done = each.before
    return [word.strip() for word in [*found, *spoken[done:]]]


@pytest.mark.parametrize(
    "options",
    [
        {"language": "en", "timestamps": False},
        {"language": "de", "num_beams": 2, "chunk_length_s": 2},
        {"multilingual": True},
    ],
    ids=repr,
)
def test_every_given_word_is_answered_in_order(options):
    """Random weights recognise anything; audio without speech has nothing to recognise."""
    script = " ".join(f"word{number % 90}" for number in range(150))
    transcriber = Transcriber(MODELS, fallback=None, detect_speech=hears_sound)
    for samples in (noise(5.0, 1), np.concatenate([noise(3.0, 2), noise(2.0, 3) * 0])):
        options = {**options, "text": script}
        found = transcriber.transcribe(samples, transcriber.validate(asking(**options)))
        assert "".join(in_order(found)) == script.replace(" ", "")
        times = [time for each in words_of(found) for time in (each.start, each.end)]
        assert times == sorted(times)
    silent = transcriber.transcribe(samples * 0, transcriber.validate(asking(**options)))
    assert silent.chunks == ()
    assert "".join(in_order(silent)) == script.replace(" ", "")


def schedule_of(windows: int) -> Schedule:
    """Two seconds of sound in every four, silence between."""
    sound = np.tile(np.repeat(np.float32([0.5, 0.0]), 2 * SAMPLE_RATE), windows)
    speech = [SampleSpan(n * 4 * SAMPLE_RATE, (4 * n + 2) * SAMPLE_RATE) for n in range(windows)]
    return Schedule(sound, speech, 3 * SAMPLE_RATE)


def forced(text: str, recognised: list[Recognised]) -> tuple[list[Chunk], tuple[Unspoken, ...]]:
    """Force a client's text into two windows in which other text was recognised."""
    engine = DecodeEngine(MODELS)
    plan = Planner(MODELS, asking()).plan(LanguageTimeline.single("en"))
    steps = force_text(engine, schedule_of(2), plan, text, recognised)
    try:
        while True:
            if steps.send(None) is not None:
                engine.step()
    except StopIteration as end:
        assert (engine.scheduler.running, engine.scheduler.waiting) == (0, 0)
        return end.value


def test_given_text_may_fill_the_longest_text():
    """In many scripts a token is a part of a letter, as here."""
    said = [f" word{300 + number}" for number in range(11)]
    assert MODELS.special_tokens.max_length // 2 < len("".join(said))
    words = tuple(Word(each, n / 6, (n + 1) / 6) for n, each in enumerate(said))
    window, _ = schedule_of(2).planned()
    recognised = Recognised(window, [Chunk("", 0, 2, words=words)], True)
    chunks, unspoken = forced("".join(said), [recognised])
    assert "".join(chunk.text for chunk in chunks) == "".join(said)
    assert unspoken == ()


def test_given_text_is_unspoken_if_nothing_was_recognised():
    chunks, unspoken = forced("word300 word301", [])
    assert chunks == []
    assert unspoken == (Unspoken((" word300", " word301"), 0),)


def test_untimed_window_weighs_given_words_as_transformers_does():
    """The prompt has no timestamps, and a suppressed word counts. Another window has timestamps."""
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
    features = features_of(MODELS, schedule.samples(windows[1]))
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        scores = MODELS.model(features, decoder_input_ids=ids).logits[:, -1]
    allowed = rules_of(MODELS, False, len(prompt))(ids, scores)
    allowed[0, first] = scores[0, first]
    expected = float(allowed.log_softmax(dim=1)[0, first])
    assert of_word[words[1]].log_probs[0] == pytest.approx(expected, abs=1e-6)


@pytest.fixture(scope="module")
def transcriber() -> Transcriber:
    checkpoint = Checkpoint(str(DEMO_MODELS / "asr"))
    return Transcriber(load_whisper(checkpoint, torch.device("cpu"), torch.float32))


@pytest.fixture(scope="module")
def samples() -> np.ndarray:
    limits = AudioLimits(300, 2**24)
    spoken = decode_audio(CONVERSATION.read_bytes(), SAMPLE_RATE, limits).samples
    return spoken[: round(SECONDS * SAMPLE_RATE)]


@pytest.fixture(scope="module")
def recognised(transcriber, samples) -> Transcript:
    return transcriber.transcribe(samples, asking(language="en"))


def aligned(transcriber: Transcriber, samples: np.ndarray, text: str) -> Transcript:
    found = transcriber.transcribe(samples, asking(language="en", text=text))
    assert in_order(found) == text.split()
    return found


def errors(words: Sequence[Word], numbers: Sequence[int]) -> np.ndarray:
    """Seconds between true and found starts and ends of these words of the conversation."""
    pairs = [(word, TRUTH[number]) for word, number in zip(words, numbers, strict=True)]
    assert [word.text.strip() for word, _ in pairs] == [true["text"] for _, true in pairs]
    return np.abs([(word.start - true["start"], word.end - true["end"]) for word, true in pairs])


def words_of(transcript: Transcript) -> list[Word]:
    return [word for chunk in transcript.chunks for word in chunk.words]


def test_recognised_text_given_back_keeps_its_times(transcriber, samples, recognised):
    """Equal tokens have equal attention, so equal times, but for a few near the end."""
    found = aligned(transcriber, samples, recognised.text)
    pairs = list(zip(words_of(found), words_of(recognised), strict=True))
    moved = [here for here, there in pairs if (here.start, here.end) != (there.start, there.end)]
    assert len(moved) <= 0.05 * len(pairs)
    assert found.unspoken == ()


def test_true_text_is_timed_as_exactly_as_recognition(transcriber, samples, recognised):
    script = [each["text"] for each in TRUTH]
    found = aligned(transcriber, samples, " ".join(script))
    assert len(words_of(found)) >= MOSTLY * len(script)
    own = words_of(recognised)
    partners = pair_items([each.text.strip() for each in own], script)
    pairs = [pair for pair in zip(own, partners.tolist(), strict=True) if pair[1] != NONE]
    right = [(word, partner) for word, partner in pairs if word.text.strip() == script[partner]]
    ours = errors(words_of(found), spoken_numbers(found))
    theirs = errors(*zip(*right, strict=True))
    assert np.median(ours) <= np.median(theirs) + 0.005
    assert np.percentile(ours, 90) <= 1.25 * np.percentile(theirs, 90) + 0.01


def spoken_numbers(found: Transcript) -> list[int]:
    """Return the numbers of the given words that were spoken."""
    numbers, given_words, spoken = [], 0, 0
    for each in (*found.unspoken, None):
        count = len(words_of(found)) if each is None else each.before
        numbers += range(given_words, given_words + count - spoken)
        given_words += count - spoken + (len(each.words) if each else 0)
        spoken = count
    return numbers


def test_timestamps_in_a_text_are_no_words(transcriber, samples):
    text = "<|0.00|> good morning how can i help you <|2.40|>"
    found = transcriber.transcribe(samples[: 3 * SAMPLE_RATE], asking(language="en", text=text))
    assert [chunk.text for chunk in found.chunks] == [" good morning how can i help you"]


def test_given_text_beside_a_long_prompt_is_divided(transcriber, samples):
    text = " ".join(["twelve"] * 300)
    options = asking(language="en", text=text, prompt="good morning " * 300)
    found = transcriber.transcribe(samples[: 3 * SAMPLE_RATE], transcriber.validate(options))
    assert in_order(found) == text.split()


def test_unspoken_sentences_are_marked_and_omitted_ones_do_no_harm(transcriber, samples):
    script = [each["text"] for each in TRUTH]
    extra = EXTRA.split()
    kept = [*range(30), *range(40, len(script))]  # 10 words that are said are not in the text
    text = [script[number] for number in kept]
    text[15:15], text[55:55] = extra, extra
    found = aligned(transcriber, samples, " ".join(text))
    unspoken = set(range(len(text))) - set(spoken_numbers(found))
    inserted = {*range(15, 15 + len(extra)), *range(55, 55 + len(extra))}
    assert len(unspoken & inserted) >= 0.8 * len(inserted)
    assert len(unspoken - inserted) <= (1 - MOSTLY) * len(script)
