"""The engine against transformers' greedy decoding, token for token, in float64."""

import dataclasses
import functools
import itertools
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from tests.helpers import oracle
from tests.helpers.calls import calls_of
from tests.helpers.oracle import (
    TINY,
    TINY_128,
    TINY_ENGLISH,
    decode,
    decode_counted,
    interleaved,
    models_of,
    tokens_of,
    truth,
    windows_of,
    with_assistant,
)
from tests.helpers.refusals import refused
from tests.support.decoding import drained
from whosaid.asr.engine import fallback, result_reader
from whosaid.asr.engine.drafting import TIMED_ROWS, DraftPolicy
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.fallback import Fallback, find_repetition
from whosaid.asr.engine.request import DecodeOptions
from whosaid.asr.engine.rows import PaddedSizes
from whosaid.asr.model import decoder
from whosaid.asr.model.cpu_threads import CpuThreads
from whosaid.errors import ModelError

# Tokens whose place the end of text takes: rows end far apart.
RAGGED = {TINY: 142, TINY_ENGLISH: 142, TINY_128: 12}
SHORT = dataclasses.replace(TINY, positions=96)
COUNT, MOST = 12, 24  # windows of most tests, and their longest text


@pytest.fixture(autouse=True)
def memory_bounds_no_rows(monkeypatch):
    """A machine that is short of memory would decode fewer rows at once, in more steps."""
    monkeypatch.setattr("whosaid.asr.engine.memory.host_memory", lambda: None)


@functools.cache
def engine_of(shape=TINY, ending=None, noise=None, own_encoder=False):
    models = models_of(shape, ending)
    return DecodeEngine(models if noise is None else with_assistant(models, noise, own_encoder))


def asked_of(shape, timestamps, count=COUNT):
    """The first of those windows, and transformers' tokens."""
    windows = windows_of(timestamps, COUNT, MOST, shape)[:count]
    expected = truth(timestamps, COUNT, MOST, shape, RAGGED[shape])
    return windows, {each.key: expected[each.key] for each in windows}


def retrying(logprob_threshold=-3.6):
    """A text less likely than the threshold is decoded again, by beams and without timestamps."""
    return Fallback(3, logprob_threshold=logprob_threshold, no_speech_threshold=1.0)


# Every pair of shape, batch size and timestamps, of which the last alternates.
@pytest.mark.parametrize(
    ("shape", "batch_size", "timestamps"),
    [
        (shape, batch_size, bool((number + place) % 2))
        for number, shape in enumerate((TINY, TINY_ENGLISH, TINY_128))
        for place, batch_size in enumerate((1, 5, 32))
    ],
)
def test_greedy_equals_transformers_at_every_batch_size(shape, timestamps, batch_size):
    windows, expected = asked_of(shape, timestamps, 3 * batch_size)
    options = DecodeOptions(timestamps, batch_size=batch_size)
    assert tokens_of(decode(engine_of(shape, RAGGED[shape]), windows, options)) == expected


# Every pair of noise, number of drafts and timestamps, of which the last alternates.
@pytest.mark.parametrize(
    ("noise", "drafts", "batch_size", "timestamps"),
    [
        (noise, drafts, batch_size, bool((number + place) % 2))
        for number, noise in enumerate((0.0, 0.1, 1.0))
        for place, (drafts, batch_size) in enumerate([(1, 12), (4, 7), (4, 1), (10, 12)])
    ],
)
def test_assisted_equals_transformers_whatever_is_accepted(timestamps, noise, drafts, batch_size):
    windows, expected = asked_of(TINY, timestamps, 3 * batch_size)
    options = DecodeOptions(timestamps, True, batch_size, drafts=drafts)
    assert tokens_of(decode(engine_of(TINY, RAGGED[TINY], noise), windows, options)) == expected


@pytest.mark.parametrize("shape", [TINY_ENGLISH, TINY_128], ids=["english", "128 bins"])
@pytest.mark.parametrize("own_encoder", [False, True], ids=["decoder only", "own encoder"])
def test_assistants_of_both_kinds(shape, own_encoder):
    engine = engine_of(shape, RAGGED[shape], 0.1, own_encoder)
    for timestamps in (True, False):
        windows, expected = asked_of(shape, timestamps, 6)
        answers = decode(engine, windows, DecodeOptions(timestamps, True, 5, drafts=3))
        assert tokens_of(answers) == expected


@pytest.mark.parametrize("drafts", [0, 3])
def test_thirty_two_rows_of_which_some_end_at_once(drafts):
    said = Counter(tokens[1] for tokens in truth(False, 32, 12).values())
    commonest = said.most_common(1)[0][0]
    expected = truth(False, 32, 12, ending=commonest)
    options = DecodeOptions(False, True, 32, drafts=drafts)
    answers = decode(engine_of(TINY, commonest, 0.1), windows_of(False, 32, 12), options)
    assert tokens_of(answers) == expected
    assert Counter(map(len, expected.values()))[1] >= 4


def test_rows_that_never_end_stop_at_the_last_position():
    """Prompts differ in length."""
    windows = windows_of(True, 3, None, SHORT)
    options = DecodeOptions(assisted=True, drafts=6)
    answers = decode(engine_of(SHORT, None, 0.1), windows, options)
    assert tokens_of(answers) == truth(True, 3, None, SHORT)
    lengths = [len(answers[each.key].tokens) + len(each.prompt) for each in windows]
    assert lengths == [SHORT.positions] * 3


@pytest.mark.parametrize("batch_size", [1, 12])
def test_varying_draft_lengths_change_no_token(monkeypatch, batch_size):
    engine = DecodeEngine(with_assistant(models_of(TINY, RAGGED[TINY]), 0.1))
    lengths = itertools.cycle([0, 3, 0, 0, 0, 0, 10, 1, 0])
    monkeypatch.setattr(DraftPolicy, "prepares", lambda *_: True)
    drafting, counts = engine.context.drafting, []
    drafting.choose = lambda rows, draftable: next(lengths)
    drafting.observe = lambda accepted, drafted: counts.append(sum(drafted))
    windows, expected = asked_of(TINY, True, 4 * batch_size)
    answers = decode(engine, windows, DecodeOptions(assisted=True, batch_size=batch_size))
    assert tokens_of(answers) == expected
    assert sum(counts) > 2 * len(windows)


def test_statistics_are_those_of_transformers_scores():
    models, windows = models_of(TINY, RAGGED[TINY]), windows_of()
    options = DecodeOptions(assisted=True, drafts=3)
    answers = decode(engine_of(TINY, RAGGED[TINY], 0.1), windows, options)
    for window in windows:
        answer = answers[window.key]
        features = oracle.features_of(models, window.samples)
        said = [*answer.tokens, models.special_tokens.end_of_text][:MOST]
        read = torch.tensor([[*window.prompt, *said]])
        with torch.inference_mode():
            logits = models.model(features, decoder_input_ids=read[:, :-1]).logits[0]
        start = window.prompt.index(models.special_tokens.start_of_transcript)
        no_speech = logits[start].softmax(-1)[models.special_tokens.no_speech].item()
        assert answer.no_speech_prob == pytest.approx(no_speech)
        begin = len(window.prompt)
        rules, expected = oracle.rules_of(models, True, begin), []
        for place, token in enumerate(said, begin):
            scores = rules(read[:, :place], logits[None, place - 1])
            expected.append(scores.log_softmax(-1)[0, token].item())
        assert answer.log_probs == pytest.approx(expected)
        assert answer.avg_logprob == pytest.approx(sum(expected) / len(said))


@pytest.mark.parametrize(
    ("listed", "batch_size", "drafts", "temperature"),
    [(None, 5, 3, 0.0), (None, 5, 0, 0.4), ([[0, 1]], 5, 0, 0.0), ([[0, 1]], 1, 3, 0.0)],
)
def test_attention_is_that_of_transformers(monkeypatch, listed, batch_size, drafts, temperature):
    models, windows = models_of(TINY, RAGGED[TINY]), windows_of()
    monkeypatch.setattr(models.model.generation_config, "alignment_heads", listed, raising=False)
    monkeypatch.setattr(decoder, "normalize_attention", lambda attention: attention)
    engine = DecodeEngine(with_assistant(models, 0.1))
    options = DecodeOptions(True, drafts > 0, batch_size, None, drafts, temperature=temperature)
    answers = decode(engine, windows, options)
    assert {answer.temperature for answer in answers.values()} == {temperature}
    heads = [(1, 0), (1, 1)] if listed is None else [(0, 1)]
    for window in windows:
        answer = answers[window.key]
        said = [*answer.tokens, models.special_tokens.end_of_text][: len(answer.log_probs)]
        expected = oracle.sharpest(oracle.cross_attention(models, window, said, heads))
        # Spectrograms are float32 here and there: what is computed from them is float64.
        attention = torch.from_numpy(answer.attention)
        torch.testing.assert_close(attention, expected, atol=1e-6, rtol=1e-5)


def test_loops_are_looked_for_in_the_attention_of_all_heads(monkeypatch):
    seen, read = {}, result_reader.read_repetitions

    def watched(tokens, attend):
        if tokens:
            seen[tuple(tokens)] = attend(len(tokens))
        return read(tokens, attend)

    monkeypatch.setattr(result_reader, "read_repetitions", watched)
    models, windows = models_of(TINY, RAGGED[TINY]), windows_of(False)
    options = DecodeOptions(False, fallback=Fallback(None))
    answers = decode(DecodeEngine(models), windows, options)
    text_tokens = models.special_tokens.text_tokens
    found = [(window, answers[window.key].tokens) for window in windows]
    by_text = {tuple(text_tokens(tokens)): (window, tokens) for window, tokens in found}
    assert seen.keys() == by_text.keys() - {()}
    for text, attention in seen.items():
        window, tokens = by_text[text]
        places = [place for place, token in enumerate(tokens) if token in text_tokens([token])]
        heads = oracle.cross_attention(models, window, tokens[: places[-1] + 1], [(1, 0), (1, 1)])
        expected = decoder.normalize_attention(heads).numpy()[places]
        np.testing.assert_allclose(attention, expected, atol=1e-4)


def test_language_equals_transformers_with_one_encoding(monkeypatch):
    engine = engine_of(TINY)
    models = engine.models
    window = windows_of(True, 1, 5)[0]
    features = oracle.features_of(models, window.samples)
    models.model.generation_config.lang_to_id = models.special_tokens.languages
    expected = models.model.detect_language(features).item()
    del models.model.generation_config.lang_to_id
    passes = calls_of(monkeypatch, engine.context.encoder, "run_pass")
    heard = engine.detect_language(window.samples)
    window = dataclasses.replace(window, encoded=heard.encoded)
    answer = decode(engine, [window], DecodeOptions())[window.key]
    assert models.special_tokens.languages[heard.language] == expected
    assert heard.no_speech_prob == pytest.approx(answer.no_speech_prob)
    assert 1 / len(models.special_tokens.languages) <= heard.probability <= 1
    assert len(passes) == 1


def test_language_detection_projects_no_cross_attention(monkeypatch):
    """Keys and values of all frames would cost a ninth of encoding a window, or more."""
    engine = engine_of(TINY)
    monkeypatch.setattr(engine.main, "allocate", None)
    monkeypatch.setattr(engine.main, "fill_cross_kv", None)
    heard = engine.detect_language(oracle.noise_windows(1)[0])
    assert heard.language in engine.models.special_tokens.languages


@pytest.mark.parametrize("num_beams", [1, 3])
def test_annotations_are_as_likely_as_without_previous_text(num_beams):
    """By transformers: previous text with brackets, or without, says nothing about the audio."""
    models = models_of(TINY, RAGGED[TINY])
    special = dataclasses.replace(models.special_tokens, annotations=(3, 5, 8))
    engine = DecodeEngine(dataclasses.replace(models, special_tokens=special))
    windows = windows_of(False, 3)
    answers = decode(engine, windows, DecodeOptions(False, num_beams=num_beams))
    prompt = torch.tensor([special.prompt("en", "transcribe", False)])
    assert len(windows[1].prompt) > prompt.shape[1]
    for each in windows:
        encoded = engine.detect_language(each.samples).encoded
        with torch.inference_mode():
            given = {"encoder_outputs": (encoded,), "decoder_input_ids": prompt}
            likely = models.model(**given).logits[0, -1].softmax(-1)
        expected = float(likely[list(special.annotations)].sum())
        assert answers[each.key].annotation_prob == pytest.approx(expected)


def test_rejected_texts_alone_are_those_of_beams_beside_any_neighbours():
    """Rejected texts are those of beam search from the start, others transformers' greedy ones."""
    windows = windows_of(True, 8, 30)
    special = models_of(TINY).special_tokens
    prompts = [special.with_timestamps(each.prompt, False) for each in windows]
    pairs = zip(windows, prompts, strict=True)
    untimed = [dataclasses.replace(each, prompt=prompt) for each, prompt in pairs]
    engine, greedy = engine_of(TINY, RAGGED[TINY]), truth(True, 8, 30, ending=RAGGED[TINY])
    by_beams = decode(engine, untimed, DecodeOptions(False, num_beams=3))
    first = decode(engine, windows, DecodeOptions())
    rejected = {key for key, each in first.items() if retrying().rejects(each)}
    assert 0 < len(rejected) < len(windows)
    expected = greedy | {key: by_beams[key].tokens for key in rejected}
    for batch_size, drafts in ((1, 0), (3, 0), (8, 4)):
        options = DecodeOptions(True, True, batch_size, retrying(), drafts)
        beside = decode(engine_of(TINY, RAGGED[TINY], 0.0), windows, options)
        assert tokens_of(beside) == expected
        assert {key for key, each in beside.items() if not each.timestamps} == rejected
        for key in rejected:
            assert beside[key].log_probs == pytest.approx(by_beams[key].log_probs)


def test_a_sampled_first_attempt_is_the_same_beside_any_neighbours():
    windows = windows_of()

    def answers(batch_size, temperature, assisted=False):
        fallback = retrying(0.0) if temperature else None  # sampled texts are not decoded again
        options = DecodeOptions(True, assisted, batch_size, fallback, temperature=temperature)
        return decode(engine_of(noise=0.1), windows, options)

    sampled = answers(6, 0.8)
    assert tokens_of(answers(1, 0.8)) == tokens_of(sampled) == tokens_of(answers(4, 0.8, True))
    assert {(each.temperature, each.timestamps) for each in sampled.values()} == {(0.8, True)}
    assert tokens_of(answers(6, 1e-6)) == truth()
    assert tokens_of(sampled) != tokens_of(answers(6, 0.0))


def test_a_text_is_sampled_behind_its_first_token_too():
    windows, options = windows_of(False, COUNT), DecodeOptions(timestamps=False)
    likeliest = decode(engine_of(), windows, options)
    sampled = decode(engine_of(), windows, dataclasses.replace(options, temperature=0.2))
    alike = [key for key in likeliest if sampled[key].tokens[0] == likeliest[key].tokens[0]]
    assert alike
    assert all(sampled[key].tokens != likeliest[key].tokens for key in alike)


def test_session_closed_early_leaves_nothing_behind():
    engine = DecodeEngine(with_assistant(models_of(TINY, RAGGED[TINY]), 0.1))
    with engine.session(DecodeOptions(batch_size=12)) as session:
        session.add(windows_of(True, COUNT))
        while not session.step():
            pass
    assert session.done
    assert (engine.scheduler.running, engine.scheduler.waiting) == (0, 0)
    windows, expected = asked_of(TINY, True, 3)
    answers = decode(engine, windows, DecodeOptions(assisted=True, drafts=3))
    assert tokens_of(answers) == expected
    assert engine.memory.state.rows.finished.all()


@pytest.mark.parametrize(
    ("count", "batch_size", "fitting", "refused"),
    [(12, 12, 3, [12, 6]), (4, 24, 2, [4])],
    ids=["a full batch", "fewer windows than were asked for at once"],
)
def test_out_of_memory_halves_and_loses_nothing(monkeypatch, count, batch_size, fitting, refused):
    windows, expected = asked_of(TINY, True, count)
    engine, sizes = DecodeEngine(models_of(TINY, RAGGED[TINY])), []
    launch = engine.runner.launch

    def refuse_more_than_fits(state, shape):
        sizes.append(state.capacity)
        if state.capacity > fitting:
            raise torch.OutOfMemoryError
        return launch(state, shape)

    monkeypatch.setattr(engine.runner, "launch", refuse_more_than_fits)
    for _ in range(2):  # what failed is remembered
        answers = decode(engine, windows, DecodeOptions(batch_size=batch_size))
        assert tokens_of(answers) == expected
        assert [size for size in sizes if size > fitting] == refused


def test_language_detection_releases_idle_memory(monkeypatch):
    engine = DecodeEngine(models_of(TINY))
    decode(engine, windows_of(True, 4, 5), DecodeOptions())
    encoder = engine.context.encoder
    encode = encoder.encode

    def refuse_beside_a_batch(*positional, **named):
        if engine.memory.state is not None:
            raise torch.OutOfMemoryError
        return encode(*positional, **named)

    monkeypatch.setattr(encoder, "encode", refuse_beside_a_batch)
    languages = models_of(TINY).special_tokens.languages
    assert engine.detect_language(oracle.noise_windows(1)[0]).language in languages

    def refuse(*_, **__):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(encoder, "encode", refuse)
    with refused("OUT_OF_MEMORY"):
        engine.detect_language(oracle.noise_windows(1)[0])


def test_nothing_of_the_engine_stays_in_the_models():
    models = with_assistant(models_of(TINY), 0.1, own_encoder=True)
    before = [
        (each.state_dict(), settings_of(each), each.generation_config.to_dict())
        for each in both(models)
    ]
    weights = [{name: weight.clone() for name, weight in state.items()} for state, _, _ in before]
    decode(DecodeEngine(models), windows_of(True, 4, 10), DecodeOptions(assisted=True, drafts=2))
    for model, (_, config, generation), kept in zip(both(models), before, weights, strict=True):
        assert settings_of(model) == config
        assert model.generation_config.to_dict() == generation
        assert all(torch.equal(weight, kept[name]) for name, weight in model.state_dict().items())
        assert not any(module._forward_hooks for module in model.modules())


def settings_of(model):
    return model.config.to_dict() | {"attention": model.config._attn_implementation}


def both(models):
    return models.model, models.assistant.model


DIFFERENT = [
    DecodeOptions(timestamps=True, batch_size=3),
    DecodeOptions(timestamps=False, batch_size=2),
    DecodeOptions(timestamps=True, assisted=True, drafts=4, batch_size=4),
    DecodeOptions(timestamps=False, assisted=True, drafts=2, batch_size=5),
    DecodeOptions(timestamps=True, fallback=retrying()),
    DecodeOptions(timestamps=False, fallback=retrying(), assisted=True, batch_size=1, drafts=3),
    DecodeOptions(timestamps=True, temperature=0.4, batch_size=3),
]


def test_sessions_with_different_options_give_the_answers_they_give_alone():
    """Prompts differ too, within each session and between them."""
    engine = engine_of(TINY, RAGGED[TINY], 0.1)
    asked = [
        (options, windows_of(options.timestamps)[number % 3 :])
        for number, options in enumerate(DIFFERENT)
    ]
    alone = [decode(engine, requests, options) for options, requests in asked]
    together = interleaved(engine, asked)
    for ours, expected in zip(together, alone, strict=True):
        oracle.check_alike(ours, expected)


def test_an_engine_is_for_the_thread_that_made_it():
    engine, window = DecodeEngine(models_of(TINY, RAGGED[TINY])), windows_of(True, 1, 5)[0]
    session = engine.session(DecodeOptions())
    session.add([window])
    calls = [
        engine.step,
        session.step,
        session.close,
        lambda: engine.detect_language(window.samples),
        lambda: decode(engine, [window], DecodeOptions()),
        lambda: engine.computing().__enter__(),
    ]
    with ThreadPoolExecutor(1) as another:
        for call in calls:
            with pytest.raises(RuntimeError, match="for the thread that made it"):
                another.submit(call).result()
    assert not session.done
    assert tokens_of(drained(session)) == truth(True, 1, 5, ending=RAGGED[TINY])


def test_growing_under_live_rows_changes_no_token():
    engine = DecodeEngine(with_assistant(models_of(TINY, RAGGED[TINY]), 0.1))
    answers, (windows, expected) = {}, asked_of(TINY, True)
    with engine.session(DecodeOptions(assisted=True, drafts=2)) as session:
        for first in range(0, COUNT, 2):
            session.add(windows[first : first + 2])
            answers |= {request.key: result for request, result in session.step()}
        answers |= drained(session)
    assert engine.memory.capacity > 2
    assert tokens_of(answers) == expected


def test_statistics_count_what_was_decoded():
    engine = engine_of(TINY, RAGGED[TINY], 0.1)
    options = DecodeOptions(assisted=True, drafts=3, batch_size=4)
    answers, stats = decode_counted(engine, windows_of(True, COUNT), options)
    assert stats.tokens == sum(len(each.tokens) for each in answers.values())
    assert stats.steps == sum(stats.steps_by_drafts.values())
    assert set(stats.steps_by_drafts) == {3}
    assert 0 < stats.accepted < stats.drafted <= 3 * stats.drafted_rows
    # Prefill gives a row its first token; every row and step gives one and what was accepted.
    ended = sum(len(each.log_probs) for each in answers.values())
    assert ended <= COUNT + stats.drafted_rows + stats.accepted
    assert stats.decode_seconds > 0


@pytest.mark.parametrize(("timestamps", "drafts"), [(True, 0), (False, 4)])
def test_looping_rows_are_stopped_and_cut_when_certain(monkeypatch, timestamps, drafts):
    monkeypatch.setattr(fallback, "LEAST_TOKENS", 2)  # random models loop no longer than that
    monkeypatch.setattr(fallback, "LEAST_REPEATS", 2)
    monkeypatch.setattr(fallback, "LEAST_PROGRESS", 2)  # none of them follows any speech
    end_of_text, most = models_of(TINY).special_tokens.end_of_text, 100
    windows, whole, loops = windows_of(timestamps, 4, most), truth(timestamps, 4, most), {}
    for key, tokens in whole.items():
        loop = find_repetition([token for token in tokens if token < end_of_text])
        if loop is not None and loop.stop < most // 2:
            loops[key] = loop
    options = DecodeOptions(timestamps, bool(drafts), fallback=Fallback(None), drafts=drafts)
    looping = [windows[key] for key in loops]
    answers, stats = decode_counted(engine_of(TINY, None, 0.1), looping, options)
    for key, loop in loops.items():
        said = [token for token in answers[key].tokens if token < end_of_text]
        assert answers[key].cut
        assert answers[key].tokens == whole[key][: len(answers[key].tokens)]
        assert len(said) == loop.start + loop.period
        assert len(answers[key].log_probs) == len(answers[key].tokens)
    assert loops
    assert stats.steps < most


@pytest.mark.parametrize("num_beams", [1, 3])
def test_nan_scores_fail_their_own_window_alone(monkeypatch, num_beams):
    """A model's scores may exceed its precision; that must not give a text without words."""
    engine = DecodeEngine(models_of(TINY, 142))
    monkeypatch.setattr(engine.runner, "sizes", PaddedSizes(positions=(64,)))
    windows, options = windows_of(True, 3, 16), DecodeOptions(True, num_beams=num_beams)
    expected = tokens_of(decode(engine, windows, options))
    encoded = engine.detect_language(windows[0].samples).encoded
    poison = dataclasses.replace(windows[0], encoded=torch.full_like(encoded, torch.nan))
    with engine.session(options) as poisoned, engine.session(options) as session:
        poisoned.add([poison])
        session.add(windows)
        answers = {}
        while not (session.done and poisoned.ready):
            engine.step()
            answers |= {request.key: result for request, result in session.take()}
        with pytest.raises(ModelError, match="not numbers"):
            poisoned.take()
    assert tokens_of(answers) == expected
    assert tokens_of(decode(engine, windows, options)) == expected


def test_steps_are_timed_with_the_threads_that_others_leave(monkeypatch):
    """Beside a busy process two threads that wait for each other take many times as long."""
    counted = []
    monkeypatch.setattr(CpuThreads, "adjust", lambda threads: counted.append(threads.most))
    engine = DecodeEngine(with_assistant(models_of(TINY), 0.1))
    assert len(counted) > len(TIMED_ROWS) * len(engine.runner.timed_drafts)
