"""Checkpoints that load and ones that are refused."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

from tests.helpers.nightly import some
from tests.support.tiny_whispers import (
    PUBLISHED,
    SMALL,
    feature_extractor_of,
    hears_sound,
    model_of,
    noise,
    save,
    tokenizer_of,
)
from whosaid.asr.checkpoint.loading import Checkpoint, WhisperModels, load_whisper
from whosaid.asr.decoding_plan import TranscriptionOptions
from whosaid.asr.engine.request import DecodeOptions
from whosaid.asr.transcriber import Transcriber
from whosaid.errors import StartError

CPU = torch.device("cpu")


def load(folder) -> WhisperModels:
    return load_whisper(Checkpoint(str(folder)), CPU, torch.float32)


@pytest.mark.parametrize("name", some(2, ["large-v3", "distil-medium.en", "tiny"]))
def test_published_configurations_load_and_answer(name, tmp_path):
    shape = PUBLISHED[name]
    models = load(save(tmp_path, shape, model_of(shape, seed=3)))
    transcriber = Transcriber(models, fallback=None, detect_speech=hears_sound)
    transcript = transcriber.transcribe(noise(2.0), transcriber.validate(TranscriptionOptions()))
    known = models.special_tokens.languages if shape.multilingual else {"en"}
    assert transcript.language in known
    assert all(0 <= chunk.start <= chunk.end <= 2.0 for chunk in transcript.chunks)
    options = TranscriptionOptions(language="English", decode=DecodeOptions(timestamps=False))
    assert len(transcriber.transcribe(noise(2.0), transcriber.validate(options)).chunks) <= 1


def test_the_sampling_options_of_a_checkpoint_have_no_effect(tmp_path):
    transcripts = []
    sampling = {"num_beams": 5, "temperature": 0.7, "do_sample": True}
    for name, options in (("plain", {}), ("sampling", sampling)):
        model = model_of(SMALL, seed=3)
        model.generation_config.update(**options)
        models = load(save(tmp_path / name, SMALL, model))
        transcriber = Transcriber(models, fallback=None, detect_speech=hears_sound)
        options = TranscriptionOptions(decode=DecodeOptions(timestamps=False))
        transcripts.append(transcriber.transcribe(noise(2.0), options))
    assert transcripts[0].text
    assert transcripts[0] == transcripts[1]


def test_dtype_and_mode(tmp_path):
    model = load_whisper(Checkpoint(str(save(tmp_path, SMALL))), CPU, torch.float16).model
    assert model.dtype == torch.float16
    assert not any(weight.requires_grad for _, weight in model.named_parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_in_a_lower_precision_a_cpu_multiplies_and_stores_float32(tmp_path, dtype):
    models = load_whisper(Checkpoint(str(save(tmp_path, SMALL))), CPU, dtype)
    assert (models.model.dtype, models.product_dtype) == (torch.float32, dtype)
    assert load(tmp_path).product_dtype is None


def test_another_architecture_is_refused(tmp_path):
    BertConfig().save_pretrained(tmp_path)
    with pytest.raises(StartError, match="is a bert model, not a Whisper"):
        load(tmp_path)


def test_a_feature_extractor_of_another_checkpoint_is_refused(tmp_path):
    save(tmp_path, SMALL)
    WhisperFeatureExtractor(feature_size=128, chunk_length=3).save_pretrained(tmp_path)
    with pytest.raises(StartError, match="128 mel bins by 300 frames, its encoder reads 80 by 300"):
        load(tmp_path)


def test_pickled_weights_are_not_read(tmp_path):
    save(tmp_path, SMALL)
    torch.save(model_of(SMALL).state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(StartError, match="no safetensors weights, and pickled files"):
        load(tmp_path)


@pytest.fixture
def written(tmp_path):
    """Writes a checkpoint after `change` had its weights, and returns its folder."""

    def write(change, model=None):
        save(tmp_path, SMALL, model)
        weights = load_file(tmp_path / "model.safetensors")
        change(weights)
        save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
        return tmp_path

    return write


def assert_equal_weights(ours, theirs) -> None:
    found = dict(ours.named_parameters())
    expected = {name: weight.detach() for name, weight in theirs.named_parameters()}
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("sharded", [False, True])
def test_weights_are_those_that_transformers_loads(tmp_path, sharded):
    options = {"max_shard_size": "100KB"} if sharded else {}
    model_of(SMALL, seed=3).save_pretrained(save(tmp_path, SMALL), **options)
    if sharded:
        (tmp_path / "model.safetensors").unlink()
    theirs = WhisperForConditionalGeneration.from_pretrained(tmp_path)
    ours = load(tmp_path).model
    assert_equal_weights(ours, theirs)
    assert ours.generation_config.to_dict() == theirs.generation_config.to_dict()


def test_a_projection_of_its_own_is_kept(written):
    model = model_of(SMALL)
    model.config.tie_word_embeddings = False
    other = torch.randn_like(model.proj_out.weight)
    folder = written(lambda weights: weights.update({"proj_out.weight": other}), model)
    assert torch.equal(load(folder).model.weights["proj_out.weight"], other)


def test_names_may_lack_the_models(written):
    """transformers saves a WhisperModel so."""

    def shorten(weights):
        for name in [*weights]:
            weights[name.removeprefix("model.")] = weights.pop(name)

    assert_equal_weights(load(written(shorten)).model, model_of(SMALL))


NAME = "model.decoder.layers.0.fc1.weight"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda weights: weights.pop(NAME), f"lacks {NAME}"),
        (
            lambda weights: weights.update({NAME: torch.ones(3, 2)}),
            rf"{NAME} is \(3, 2\), not \(64, 32\)",
        ),
    ],
)
def test_missing_or_misshapen_weight_is_named(written, change, said):
    """transformers would draw random numbers instead."""
    with pytest.raises(StartError, match=said):
        load(written(change))


def test_without_a_generation_configuration_the_models_own_counts(tmp_path):
    (save(tmp_path, SMALL) / "generation_config.json").unlink()
    model = load(tmp_path).model
    assert model.generation_config.decoder_start_token_id == SMALL.text_entries + 1
    assert not hasattr(model.generation_config, "alignment_heads")


def test_another_activation_is_refused(tmp_path):
    model = model_of(SMALL)
    model.config.activation_function = "relu"
    with pytest.raises(StartError, match="activates by relu, not gelu"):
        load(save(tmp_path, SMALL, model))


def test_a_token_is_not_printed():
    assert "hf_secret" not in repr(Checkpoint("owner/name", token="hf_secret"))


def test_tokenizer_and_features_come_with_the_model(tmp_path):
    models = load(save(tmp_path, SMALL))
    assert len(models.tokenizer) == len(tokenizer_of(SMALL)) == models.special_tokens.size
    assert models.window_seconds == feature_extractor_of(SMALL).chunk_length
