"""One decoding of a buffer: its words and their ends, with any prefix and draft."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch

from tests.helpers.calls import calls_of
from tests.helpers.stand_ins import asking
from tests.support.tiny_whispers import SMALL, hears_sound, loaded, noise
from whosaid.asr import Guess, Prior, Recogniser
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.request import DecodeOptions, Request
from whosaid.asr.live_pass import (
    FEWEST_NEW,
    MOST_TOKENS_A_SECOND,
    SPARE_TOKENS,
    Hypothesis,
    LivePass,
)
from whosaid.asr.model.decoder import Decoder
from whosaid.asr.model.encoder import PARTS as PARTS_OF_WINDOW
from whosaid.asr.model.encoder import repeated
from whosaid.asr.output.alignment import aligned_words
from whosaid.asr.output.segments import Segment, read_segments
from whosaid.asr.transcriber import Transcriber
from whosaid.scheduling.steps import run_steps
from whosaid.timebase import SAMPLE_RATE

SECONDS = 2.0


@pytest.fixture(autouse=True)
def nothing_left(transcriber):
    yield
    assert not transcriber.engine.scheduler.busy


@pytest.fixture
def recogniser():
    made = Recogniser(lambda: Transcriber(loaded(SMALL), detect_speech=hears_sound), 1)
    yield made
    made.close()


def begun(transcriber: Transcriber, seed: int = 0, prefix=(), draft=(), **options) -> LivePass:
    options = transcriber.validate(asking(**({"language": "en"} | options)))
    return transcriber.live_pass(noise(SECONDS, seed), options, prefix, draft)


def run(transcriber: Transcriber, live: LivePass) -> Hypothesis:
    while live.result is None:
        if live.waiting:
            transcriber.engine.step()
        else:
            live.step()
    return live.result


@contextmanager
def endless_texts(engine: DecodeEngine) -> Iterator[None]:
    """Inside the block, every text runs to its length limit."""
    filters = engine.runner.filters
    biases = filters.bias, filters.first_bias
    before = [each[filters.eos].clone() for each in biases]
    with torch.inference_mode():
        for each in biases:
            each[filters.eos] = -math.inf
        yield
        for each, was in zip(biases, before, strict=True):
            each[filters.eos] = was


def rounded(hypothesis: Hypothesis) -> Hypothesis:
    """Drop digits that rounding changes if more or fewer positions are read at once."""
    words = []
    for each in hypothesis.words:
        log_probs = tuple(round(one, 6) for one in each.log_probs)
        words.append(replace(each, probability=round(each.probability, 6), log_probs=log_probs))
    return replace(hypothesis, words=tuple(words))


@pytest.mark.parametrize("timestamps", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_live_pass_equals_a_files_window(transcriber, seed, timestamps):
    """Prompt, options and words are equal; the end of each word is that of its tokens."""
    models, samples = transcriber.models, noise(SECONDS, seed)
    found = run(transcriber, begun(transcriber, seed, timestamps=timestamps, prompt="word300"))
    previous = tuple(models.tokenizer.encode(" word300", add_special_tokens=False))
    prompt = models.special_tokens.prompt("en", "transcribe", timestamps, previous)
    with transcriber.engine.session(DecodeOptions(timestamps)) as session:
        session.add([Request(0, samples, prompt, round(SECONDS * MOST_TOKENS_A_SECOND) + 16)])
        while not (finished := session.step()):
            pass
    ((_, result),) = finished
    assert found.tokens == result.tokens
    assert found.language == "en"
    every = [Segment(result.tokens, 0.0, SECONDS)]
    if timestamps:
        begin = models.special_tokens.timestamp_begin
        every = sum(read_segments(result.tokens, begin, SECONDS), ())
    aligned = aligned_words(result, every, samples, models, "en")
    expected = [each.word for words in aligned for each in words]
    heard, truth = ([(w.text, w.start, w.end) for w in each] for each in (found.words, expected))
    assert heard == truth
    decode, end_of_text = models.tokenizer.decode, models.special_tokens.end_of_text
    before, text = 0, ""
    for word, timed in zip(found.words, expected, strict=True):
        places = [at for at in range(before, word.stop) if result.tokens[at] < end_of_text]
        assert places[-1] == word.stop - 1
        assert word.log_probs == tuple(result.log_probs[at] for at in places)
        assert word.probability == timed.probability
        before, text = word.stop, text + word.text
        assert text == decode([each for each in found.tokens[:before] if each < end_of_text])
    assert found.words


def test_prefix_up_to_any_word_keeps_the_text(transcriber):
    """The prefix is the model's own text, so times stay too."""
    seed = 0
    expected = run(transcriber, begun(transcriber, seed))
    for count in range(len(expected.words)):
        stop = expected.words[count].stop
        prefix = expected.tokens[:stop]
        for draft in ((), expected.tokens[stop:], (5, 6, 7), expected.tokens[stop : stop + 2]):
            found = run(transcriber, begun(transcriber, seed, prefix, draft))
            assert rounded(found) == rounded(expected)


def test_missing_language_is_detected_with_one_encoding(transcriber, monkeypatch):
    passes = calls_of(monkeypatch, transcriber.engine.context.encoder, "run_pass")
    found = run(transcriber, begun(transcriber, language=None))
    assert len(passes) == 1
    assert found.language == transcriber.engine.detect_language(noise(SECONDS)).language
    assert run(transcriber, begun(transcriber, language=found.language)).tokens == found.tokens


def test_endless_text_is_bounded_by_its_seconds(transcriber):
    """Some tokens may follow any prefix, however long it is."""
    most = round(SECONDS * MOST_TOKENS_A_SECOND) + SPARE_TOKENS
    with endless_texts(transcriber.engine):
        found = run(transcriber, begun(transcriber))
        longer = run(transcriber, begun(transcriber, prefix=found.tokens))
    assert len(found.tokens) == most
    assert len(longer.tokens) == most + FEWEST_NEW
    assert longer.tokens[:most] == found.tokens


@pytest.mark.parametrize("count", [0, 3 * 16_000 + 1])
def test_samples_that_are_no_window_are_refused(transcriber, count):
    with pytest.raises(ValueError, match="one window"):
        transcriber.live_pass(np.zeros(count, np.float32), asking(language="en"))


@pytest.mark.parametrize("options", [{"num_beams": 2}, {"temperature": 0.5}])
def test_neither_beams_nor_chance_are_for_live_passes(transcriber, options):
    live = begun(transcriber, **options)
    with pytest.raises(ValueError, match="greedily"):
        live.step()


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_a_pass_that_is_closed_leaves_no_row(transcriber, steps):
    live = begun(transcriber, language=None)
    with endless_texts(transcriber.engine):
        for _ in range(steps):
            live.step()
            transcriber.engine.step()
    assert transcriber.engine.scheduler.busy == (steps > 1)
    live.close()
    assert not transcriber.engine.scheduler.busy
    assert live.result is None


def test_passes_beside_each_other_and_beside_a_file(recogniser):
    options = recogniser.transcriber.validate(asking(language="en"))
    hear = recogniser.transcriber.live_pass
    passes = [hear(noise(SECONDS, seed), options) for seed in range(3)]
    alone = [recogniser.submit(each).result.result(60) for each in passes]

    def submit_all():
        """Between two turns, so that all of them are decoded together."""
        file = run_steps(recogniser.transcriber.start(np.tile(noise(2.5, 9), 4), options))
        lives = [
            hear(noise(SECONDS, seed), options, each.tokens[:seed], each.tokens)
            for seed, each in enumerate(alone)
        ]
        return [recogniser.submit(each) for each in (file, *lives)]

    file, *jobs = recogniser.run(submit_all)
    assert [rounded(each.result.result(60)) for each in jobs] == list(map(rounded, alone))
    assert file.result.result(60).chunks
    assert recogniser.counts.windows >= 7


def test_the_draft_of_a_recording_helps_its_first_window(transcriber, monkeypatch):
    """The draft changes no text, in that window or in others."""
    pause = np.zeros(16_000, np.float32)
    samples = np.concatenate([pause, noise(2.5, 1), pause, pause, pause, noise(2.5, 2)])
    options = transcriber.validate(asking(language=None, batch_size=1))

    def transcribe(draft, start=0.0):
        begun = run_steps(transcriber.start(samples, options, prior=Prior((Guess(start, draft),))))
        with monkeypatch.context() as patch:
            read = calls_of(patch, Decoder, "forward")
            return begun.run(), len(read)

    expected, without = transcribe(())
    with monkeypatch.context() as patch:
        added = calls_of(patch, transcriber.engine, "add")
        transcribe((1, 2, 3))
    wanted = [each for _, new in added for each in new]
    assert [each.draft for each in wanted] == [(1, 2, 3), *[()] * (len(wanted) - 1)]
    first = min((each for each in wanted), key=lambda each: each.key.start)
    assert first.draft == (1, 2, 3)
    with transcriber.engine.session(DecodeOptions()) as session:
        session.add([replace(first, draft=())])
        while not (finished := session.step()):
            pass
    said = finished[0][1].tokens
    found, with_draft = transcribe(said, first.key.start / SAMPLE_RATE)
    assert with_draft <= without - len(said) + 1
    assert len(said) > 3
    texts = [(each.text, each.start, each.end, each.tokens) for each in found.chunks]
    assert texts == [(each.text, each.start, each.end, each.tokens) for each in expected.chunks]


def test_guesses_are_one_text_whose_timestamps_count_from_the_window():
    before = Prior((Guess(1.0, (100, 5, 6, 150)), Guess(4.5, (100, 7, 151))))
    assert before.draft(1.0, range(100, 1600)) == (100, 5, 6, 150, 275, 7, 326)
    assert before.draft(1.5, range(100, 200)) == (100, 5, 6, 125, 199, 7, 199)


def test_text_before_the_begin_is_left_out(transcriber):
    """Chunks, words and tokens are those of the whole from there on."""
    pause = np.zeros(6400, np.float32)
    samples = np.concatenate([np.append(noise(2.5, seed), pause) for seed in range(4)])
    options = transcriber.validate(asking(language="en"))
    whole = run_steps(transcriber.start(samples, options)).run()
    words = [word for chunk in whole.chunks for word in chunk.words]
    assert len(words) > 2
    decode = transcriber.models.tokenizer.decode
    for begin in (0.5, 6.0):
        found = run_steps(transcriber.start(samples, options, prior=Prior(begin=begin))).run()
        expected = [word for word in words if (word.start + word.end) / 2 >= begin]
        assert [word for chunk in found.chunks for word in chunk.words] == expected
        for chunk in found.chunks:
            assert decode(chunk.tokens) == chunk.text == "".join(word.text for word in chunk.words)
            assert len(chunk.log_probs) == len(chunk.tokens)
        assert all(begin <= start for start, _ in found.speech)


def test_parts_of_windows_are_repeated_to_one_length():
    """The length divides the window, so that all frames occur equally often in it."""
    lengths = [1500, *(1500 // part for part in PARTS_OF_WINDOW)]
    for pair in combinations_with_replacement(lengths, 2):
        outputs = [torch.randn(1, frames, 2) for frames in pair]
        same = repeated(outputs)
        assert same[0].shape == same[1].shape
        assert 1500 % same[0].shape[1] == 0
        for output, longer in zip(outputs, same, strict=True):
            assert all(torch.equal(output, part) for part in longer.split(output.shape[1], 1))
