from __future__ import annotations

import copy
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_whispers import ENDLESS, SMALL, SMALL_ENGLISH, Published, loaded, model_of, noise, without_layers

from asr.assistants import decoder_alone
from asr.generation import Steering, WindowDecoder
from asr.loading import Assistant, WhisperModels, drafting_configuration

WINDOWS = [noise(3.0, 1), noise(1.0, 2), noise(2.2, 3), noise(0.4, 4), noise(3.0, 5)]
SMALL_128 = replace(SMALL, mel_bins=128)


def steering_for(models: WhisperModels, timestamps: bool = True, assisted: bool = False) -> Steering:
    language = "zh" if models.vocabulary.multilingual else "en"
    return Steering(models.vocabulary.prompt(language, "transcribe", timestamps), timestamps, assisted)


def with_drafts_by(models: WhisperModels, shape: Published, kind: str) -> WhisperModels:
    """An assistant of either kind, or the main model's equal, whose drafts are all accepted."""
    if kind == "shared encoder":
        drafter = decoder_alone(without_layers(models.model, (1,)))
    elif kind == "own encoder":
        drafter = model_of(shape, seed=7, dtype=torch.float64)
    else:
        drafter = decoder_alone(copy.deepcopy(models.model))
    drafter.generation_config = drafting_configuration(models.vocabulary)
    return replace(models, assistant=Assistant(kind, drafter, not drafter.config.is_encoder_decoder, None))


def transformers_own(shape: Published, seed: int, windows: list[np.ndarray], timestamps: bool) -> list[list[int]]:
    """Greedy tokens as transformers' Whisper generates them from the published configuration."""
    models, model = loaded(shape, seed), model_of(shape, seed, dtype=torch.float64)
    model.generation_config.forced_decoder_ids = None
    steering = {"language": "zh", "task": "transcribe"} if shape.multilingual else {}
    features = models.feature_extractor(windows, sampling_rate=16_000, return_tensors="pt").input_features.double()
    sequences = model.generate(
        features,
        attention_mask=torch.ones_like(features[:, 0]),
        return_timestamps=timestamps,
        force_unique_generate_call=True,
        num_beams=1,
        do_sample=False,
        **steering,
    )
    prompt = len(steering_for(models, timestamps).prompt)
    end = models.vocabulary.end_of_text
    rows = [row[prompt:] for row in sequences.tolist()]
    return [row[: row.index(end)] if end in row else row for row in rows]


@pytest.mark.parametrize("timestamps", [True, False])
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "shape", [SMALL, SMALL_128, SMALL_ENGLISH, ENDLESS], ids=["80 mel", "128 mel", "english", "to the limit"]
)
def test_tokens_are_those_of_transformers(shape, seed, timestamps):
    models = loaded(shape, seed)
    decoded = WindowDecoder(models).decode(WINDOWS, steering_for(models, timestamps))
    assert [list(answer.tokens) for answer in decoded] == transformers_own(shape, seed, WINDOWS, timestamps)


@pytest.mark.parametrize("timestamps", [True, False])
@pytest.mark.parametrize("shape", [SMALL, ENDLESS], ids=["ending", "to the limit"])
@pytest.mark.parametrize("kind", ["shared encoder", "own encoder", "equal"])
def test_assisted_tokens_equal_plain_ones(kind, shape, timestamps):
    models = with_drafts_by(loaded(shape, 2), shape, kind)
    decoder = WindowDecoder(models)
    plain = decoder.decode(WINDOWS[:2], steering_for(models, timestamps))
    assisted = decoder.decode(WINDOWS[:2], steering_for(models, timestamps, assisted=True))
    assert [answer.tokens for answer in assisted] == [answer.tokens for answer in plain]
    for ours, theirs in zip(assisted, plain, strict=True):
        assert ours.no_speech == pytest.approx(theirs.no_speech, rel=1e-5)
        assert ours.mean_log_probability == pytest.approx(theirs.mean_log_probability, rel=1e-5)


def test_a_first_token_that_may_not_come_first_stays_away_when_assisted():
    """transformers drops `begin_suppress_tokens` when an assistant is given; these rules do not."""
    models = loaded(ENDLESS, 2)
    free = replace(models, vocabulary=replace(models.vocabulary, begin_suppress=()))
    steering = steering_for(models, timestamps=False)
    favourite = WindowDecoder(free).decode(WINDOWS[:1], steering)[0].tokens[0]
    models = replace(models, vocabulary=replace(models.vocabulary, begin_suppress=(favourite,)))
    models = with_drafts_by(models, ENDLESS, "own encoder")
    plain, assisted = (
        WindowDecoder(models).decode(WINDOWS[:1], replace(steering, assisted=assisted))[0] for assisted in (False, True)
    )
    assert plain.tokens[0] != favourite
    assert assisted.tokens == plain.tokens


def test_a_neighbour_changes_nothing():
    models = loaded(SMALL, 1)
    decoder, steering = WindowDecoder(models), steering_for(models)
    together = decoder.decode(WINDOWS, steering)
    alone = [decoder.decode([window], steering)[0] for window in WINDOWS]
    assert [answer.tokens for answer in together] == [answer.tokens for answer in alone]


def test_mean_log_probability_is_that_of_the_processed_scores():
    models = loaded(SMALL, 1)
    decoder, steering = WindowDecoder(models), steering_for(models)
    answer = decoder.decode(WINDOWS[:1], steering)[0]
    reference = model_of(SMALL, 1, dtype=torch.float64)
    features = models.feature_extractor(WINDOWS[:1], sampling_rate=16_000, return_tensors="pt").input_features.double()
    output = reference.generate(
        features,
        language="zh",
        task="transcribe",
        return_timestamps=True,
        force_unique_generate_call=True,
        return_dict_in_generate=True,
        output_scores=True,
        num_beams=1,
    )
    chosen = output.sequences[0, len(steering.prompt) :].tolist()
    logs = [float(step[0].log_softmax(-1)[token]) for step, token in zip(output.scores, chosen, strict=True)]
    assert answer.mean_log_probability == pytest.approx(sum(logs) / len(logs), rel=1e-4)


def test_language_and_no_speech_are_those_of_the_first_position():
    models = loaded(SMALL, 1)
    decoder = WindowDecoder(models)
    features = models.feature_extractor(WINDOWS, sampling_rate=16_000, return_tensors="pt").input_features.double()
    start = torch.full((len(WINDOWS), 1), models.vocabulary.start_of_transcript)
    with torch.no_grad():
        chance = models.model(features, decoder_input_ids=start).logits[:, 0].softmax(-1)
        theirs = model_of(SMALL, 1, dtype=torch.float64).detect_language(features).tolist()
    no_speech = chance[:, models.vocabulary.no_speech].tolist()
    detected = [decoder.detect_language(window) for window in WINDOWS]
    assert [models.vocabulary.languages[code] for code, _ in detected] == theirs
    assert [chance for _, chance in detected] == pytest.approx(no_speech, rel=1e-5)
    heard = decoder.decode(WINDOWS, steering_for(models))
    assert [answer.no_speech for answer in heard] == pytest.approx(no_speech, rel=1e-5)


def test_each_window_is_encoded_once():
    models = with_drafts_by(loaded(SMALL, 1), SMALL, "shared encoder")
    rows = []
    models.model.get_encoder().register_forward_hook(
        lambda _module, _inputs, output: rows.append(len(output.last_hidden_state))
    )
    decoder = WindowDecoder(models)
    decoder.decode(WINDOWS, steering_for(models))
    decoder.decode(WINDOWS[:2], steering_for(models, assisted=True))
    assert rows == [5, 1, 1]


def test_nothing_is_left_behind_in_the_models():
    models = with_drafts_by(loaded(SMALL, 1), SMALL, "own encoder")
    states = [models.model, models.assistant.model]
    before = [copy.deepcopy((model.generation_config.to_dict(), model.config.to_dict())) for model in states]
    decoder = WindowDecoder(models)
    decoder.detect_language(WINDOWS[0])
    for assisted in (True, False):
        decoder.decode(WINDOWS[:2], steering_for(models, assisted=assisted))
    assert [(model.generation_config.to_dict(), model.config.to_dict()) for model in states] == before
    assert not models.model.get_output_embeddings()._forward_hooks


def test_concurrent_calls_equal_serial_ones():
    models = with_drafts_by(loaded(SMALL, 2), SMALL, "shared encoder")
    decoder = WindowDecoder(models)
    calls = [
        (WINDOWS[index : index + 2], steering_for(models, timestamps=index % 2 == 0, assisted=index == 1))
        for index in range(4)
    ]
    serial = [decoder.decode(*call) for call in calls]
    concurrent: dict[int, object] = {}
    threads = [
        threading.Thread(target=lambda index=index, call=call: concurrent.update({index: decoder.decode(*call)}))
        for index, call in enumerate(calls)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [concurrent[index] for index in range(4)] == serial
