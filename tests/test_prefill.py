"""Rows as they are initialised, and what their first pass says."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.helpers import oracle
from tests.helpers.oracle import TINY, models_of
from whosaid.asr.engine.prefill import PrefillBatch, language_posterior, prefill
from whosaid.asr.engine.rows import PaddedSizes
from whosaid.asr.engine.state import DecodeState
from whosaid.asr.model.decoder import Decoder, alignment_heads
from whosaid.asr.model.encoder import AudioWindow, Encoder, EncoderOutput
from whosaid.asr.model.logit_filters import LogitFilter


def sequence_of(prompt, max_tokens=None, timestamps=True, draftable=False, temperature=0.0):
    """Return a sequence with the attributes that a prefill reads."""
    return SimpleNamespace(
        prompt=prompt, guess=(), timestamps=timestamps, draftable=draftable, drafted=draftable,
        options=SimpleNamespace(temperature=temperature),
        request=SimpleNamespace(samples=np.ones(9, np.float32), max_tokens=max_tokens, prefix=()),
    )  # fmt: skip


def batch_of(sequences, encoded, max_len, longest=448):
    cache, decoder = SimpleNamespace(max_len=max_len), SimpleNamespace(max_positions=longest)
    state = SimpleNamespace(cache=cache, decoder=decoder)
    return PrefillBatch.of(sequences, EncoderOutput(encoded), state, PaddedSizes())


@torch.inference_mode()
def test_first_tokens_and_no_speech_are_those_of_transformers():
    models, windows = models_of(TINY), oracle.noise_windows(4)
    encoded = Encoder(models).encode([*map(AudioWindow, windows)], drafted=False).main
    state = DecodeState.allocate(Decoder(models.model), None, 4)
    special = replace(models.special_tokens, annotations=(3, 5, 8))
    timed = [True, True, False, False]
    pairs = zip(oracle.prompts_of(special, True, 4), timed, strict=True)
    prompts = [special.with_timestamps(prompt, each) for prompt, each in pairs]
    inputs = [sequence_of(each, None, t) for each, t in zip(prompts, timed, strict=True)]
    batch = batch_of(inputs, encoded, 464)
    filters = LogitFilter.of(special, state.decoder.token_embeddings)
    products, output = [], state.decoder.output
    state.decoder.output = lambda *given: products.append(given) or output(*given)
    starts = prefill(state, batch, filters)
    assert len(products) == 1  # over the vocabulary
    for row, prompt in enumerate(prompts):
        logits = models.model(
            encoder_outputs=(encoded[row, None],), decoder_input_ids=torch.tensor([prompt])
        ).logits[0]
        start = prompt.index(models.special_tokens.start_of_transcript)
        languages = list(models.special_tokens.languages.values())
        among = logits[start, languages].softmax(-1)
        no_speech = logits[start].softmax(-1)[models.special_tokens.no_speech]
        expected = [no_speech, languages[int(among.argmax())], among.max()]
        assert starts[row, :3].tolist() == pytest.approx([float(each) for each in expected])
        shares = logits[-1].softmax(-1)[list(special.annotations)]
        annotated = 0.0 if row < 2 else float(shares.sum())
        assert float(starts[row, 3]) == pytest.approx(annotated)
        rules = oracle.rules_of(models, timed[row], len(prompt))
        scores = rules(torch.tensor([prompt]), logits[-1:])
        assert state.rows.tokens[row, len(prompt)] == scores.argmax()
    assert state.rows.length.tolist() == [len(prompt) + 1 for prompt in prompts]
    posterior = language_posterior(state.decoder, encoded[:1], models.special_tokens)
    among = list(models.special_tokens.languages.values())
    start = torch.tensor([[models.special_tokens.start_of_transcript]])
    logits = models.model(encoder_outputs=(encoded[:1],), decoder_input_ids=start).logits[0, 0]
    shares = logits[among].softmax(-1)
    assert list(posterior.probabilities) == list(models.special_tokens.languages)
    assert list(posterior.probabilities.values()) == pytest.approx(shares.tolist())
    assert posterior.language == list(models.special_tokens.languages)[int(shares.argmax())]
    assert posterior.probability == pytest.approx(float(shares.max()))
    assert posterior.no_speech_prob == pytest.approx(float(starts[0, 0]))


@torch.inference_mode()
def test_frames_that_are_repeated_change_no_language():
    models = models_of(TINY)
    window = AudioWindow(oracle.noise_windows(1)[0])
    (encoded,) = Encoder(models).encode([window], drafted=False).main
    decoder, part = Decoder(models.model), encoded[None, :500]
    heard = language_posterior(decoder, part, models.special_tokens)
    again = language_posterior(decoder, part.repeat(1, 3, 1), models.special_tokens)
    assert heard.probabilities == pytest.approx(again.probabilities)


def numbered_prompts(special, count, drafted):
    """Inputs of prompts of different lengths, with timestamps and without."""
    timed = [bool(number % 2) for number in range(count)]
    prompts = oracle.prompts_of(special, True, count)
    pairs = [(special.with_timestamps(*pair), pair[1]) for pair in zip(prompts, timed, strict=True)]
    return [sequence_of(prompt, 30, each, draftable=drafted) for prompt, each in pairs]


@pytest.mark.parametrize("num_beams", [1, 3])
@torch.inference_mode()
def test_rows_in_any_places_with_longer_padding_start_alike(num_beams):
    models = models_of(TINY)
    main = Decoder(models.model, alignment_heads(models.model))
    drafter = main if num_beams == 1 else None
    windows = [*map(AudioWindow, oracle.noise_windows(3))]
    encoded = EncoderOutput(*[Encoder(models).encode(windows, False).main] * 2)
    filters = LogitFilter.of(models.special_tokens, main.token_embeddings)
    inputs = numbered_prompts(models.special_tokens, 3, drafter is not None)
    longest = max(len(each.prompt) for each in inputs)

    def start(state, prompt_len):
        batch = PrefillBatch.of(inputs, encoded, state, PaddedSizes(prompt=(prompt_len,)))
        batch = batch._replace(forgotten=state.cache.max_len)
        return prefill(state, batch, filters)

    plain = DecodeState.allocate(main, drafter, 3, num_beams)
    expected = start(plain, longest)
    scattered = DecodeState.allocate(main, drafter, 5, num_beams)
    for each in tensors_of(scattered):
        each.fill_(1)
    places = torch.tensor([4, 0, 2])
    taken = scattered.take(places)
    torch.testing.assert_close(start(taken, longest + 9), expected)
    scattered.put(places, taken)
    for row, place in enumerate(places.tolist()):
        found, own = (state.view(at, at + 1) for state, at in ((scattered, place), (plain, row)))
        length = len(inputs[row].prompt) + 1
        torch.testing.assert_close(found.rows.length, own.rows.length)
        torch.testing.assert_close(found.rows.tokens[:, :length], own.rows.tokens[:, :length])
        ours, theirs = found.cache, own.cache
        for one, other in (
            (ours.text, theirs.text),
            (ours.first_beams().alignment_queries, theirs.first_beams().alignment_queries),
        ):  # behind the prompt they differ
            torch.testing.assert_close(one[..., : length - 1, :], other[..., : length - 1, :])
        torch.testing.assert_close(ours.cross_keys, theirs.cross_keys)
        torch.testing.assert_close(ours.cross_values, theirs.cross_values)
    for untouched in (1, 3):
        others = scattered.view(untouched, untouched + 1)
        assert all(bool((each == 1).all()) for each in tensors_of(others))


def tensors_of(state):
    caches = [state.cache] + ([state.drafter.cache] if state.drafter else [])
    rows = [*state.rows.tensors, *(state.beams.tensors if state.beams else [])]
    return [*(each for cache in caches for each in cache.tensors), *rows]
