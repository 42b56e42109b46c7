"""Assistants that share the main model's encoder, and assistants that do not fit it."""

from dataclasses import replace

import pytest
import torch
from transformers import WhisperForCausalLM

from tests.support.tiny_whispers import (
    LARGE_V3,
    PUBLISHED,
    SMALL,
    hears_sound,
    loaded,
    model_of,
    noise,
    save,
    without_layers,
)
from whosaid.asr.checkpoint.assistants import with_assistant
from whosaid.asr.checkpoint.loading import Checkpoint, WhisperModels
from whosaid.asr.decoding_plan import TranscriptionOptions
from whosaid.asr.transcriber import Transcriber
from whosaid.errors import StartError

ENGLISH_SIZED = replace(SMALL, multilingual=False)


def load_assistant(folder, main: WhisperModels) -> WhisperModels:
    return with_assistant(main, Checkpoint(str(folder)))


@pytest.fixture
def main() -> WhisperModels:
    return loaded(SMALL, seed=1, dtype=torch.float32)


def test_assistant_with_an_equal_encoder_shares_it(tmp_path, main):
    distilled = without_layers(main.model, (1,))
    distilled.generation_config = model_of(SMALL).generation_config
    assistant = load_assistant(save(tmp_path, SMALL, distilled), main).assistant
    assert assistant.shares_encoder
    weights = dict(assistant.model.named_parameters())
    assert {name.rpartition("layers")[0] for name in weights} == {"", "model.decoder."}
    assert not any("layers.1." in name for name in weights)
    expected = main.model.model.decoder.layers[1].fc1.weight.detach()
    torch.testing.assert_close(weights["model.decoder.layers.0.fc1.weight"], expected)


def test_an_encoder_published_in_half_precision_is_still_the_same(tmp_path, main):
    distilled = without_layers(main.model, (0,)).half()
    distilled.generation_config = model_of(SMALL).generation_config
    assert load_assistant(save(tmp_path, SMALL, distilled), main).assistant.shares_encoder


def test_an_encoder_with_one_other_weight_is_not_shared(tmp_path, main):
    tuned = without_layers(main.model, (0,))
    tuned.generation_config = model_of(SMALL).generation_config
    with torch.no_grad():
        tuned.model.encoder.layers[1].fc2.bias[3] += 0.01
    assistant = load_assistant(save(tmp_path, SMALL, tuned), main).assistant
    assert not assistant.shares_encoder
    bias = dict(assistant.model.named_parameters())["model.encoder.layers.1.fc2.bias"]
    assert bias[3] == tuned.get_encoder().layers[1].fc2.bias[3]


def test_a_smaller_whisper_uses_its_own_encoder(tmp_path, main):
    assistant = load_assistant(save(tmp_path, SMALL, model_of(SMALL, width=16)), main).assistant
    assert not assistant.shares_encoder


def test_a_decoder_without_an_encoder_reads_the_main_models(tmp_path, main):
    config = model_of(SMALL).config
    config.architectures = ["WhisperForCausalLM"]
    decoder = WhisperForCausalLM(config)
    decoder.generation_config = model_of(SMALL).generation_config
    assert load_assistant(save(tmp_path, SMALL, decoder), main).assistant.shares_encoder


def test_a_decoder_made_for_another_encoder_is_refused(tmp_path, main):
    decoder = WhisperForCausalLM(model_of(SMALL, width=16).config)
    decoder.generation_config = model_of(SMALL).generation_config
    with pytest.raises(StartError, match="has no encoder"):
        load_assistant(save(tmp_path, SMALL, decoder), main)


def test_large_v2_does_not_draft_for_large_v3(tmp_path):
    """Large-v3 knows one language more, so every later token has another id."""
    main = loaded(LARGE_V3, dtype=torch.float32)
    with pytest.raises(StartError) as refusal:
        load_assistant(save(tmp_path, PUBLISHED["tiny"]), main)
    assert str(tmp_path.name) in str(refusal.value)
    assert "tiny" in str(refusal.value)
    assert "vocab_size is 51865 here and 51866 there" in str(refusal.value)


def test_an_equal_size_with_other_special_tokens_does_not_fit(tmp_path, main):
    shifted = replace(SMALL, text_entries=401, languages=3)
    with pytest.raises(StartError, match="special tokens have different numbers"):
        load_assistant(save(tmp_path, shifted), main)


@pytest.mark.parametrize("shape", [SMALL, LARGE_V3], ids=["small", "large-v3"])
def test_a_pinned_language_is_the_only_one(tmp_path, shape):
    main = loaded(shape, dtype=torch.float32)
    distilled = model_of(shape)
    distilled.generation_config.language = "<|en|>"
    assert load_assistant(save(tmp_path, shape, distilled), main).assistant.only_language == "en"


def test_a_multilingual_assistant_has_no_only_language(tmp_path, main):
    assert load_assistant(save(tmp_path, SMALL), main).assistant.only_language is None


def test_an_english_only_pair(tmp_path):
    main = loaded(ENGLISH_SIZED, dtype=torch.float32)
    models = load_assistant(save(tmp_path, ENGLISH_SIZED), main)
    assert models.assistant.only_language == "en"
    transcriber = Transcriber(models, fallback=None, detect_speech=hears_sound)
    options = transcriber.validate(TranscriptionOptions())
    plain = transcriber.transcribe(noise(2.0), options)
    drafted = replace(options, decode=replace(options.decode, assisted=True))
    assisted = transcriber.transcribe(noise(2.0), drafted)
    assert [chunk.text for chunk in assisted.chunks] == [chunk.text for chunk in plain.chunks] != []
