"""Main models with their assistants for benchmarks: the demo's, and pairs of sizes for which no
trained weights are at hand.

In a made pair the main model is its assistant with layers inserted. The residual branches of those
layers are scaled down to nothing or nearly so: the deep model costs what its depth costs and still
writes what the shallow one writes, with real lengths and endings. Noise on the assistant's weights
then decides how often it is right, while the main model's tokens, and with them the work of greedy
decoding, stay the same at every acceptance."""

import copy
import dataclasses
from typing import Any

import torch
from transformers import PreTrainedModel, WhisperConfig, WhisperForConditionalGeneration
from transformers.models.whisper.modeling_whisper import WhisperDecoderLayer

from config import DEMO_MODELS
from tests.support.tiny_whispers import (
    PUBLISHED,
    VOCABULARY_SIZES,
    feature_extractor_of,
    generation_config_of,
    tokenizer_of,
)
from tests.support.transformers_models import decoder_alone, in_transformers
from whosaid.asr.checkpoint.assistants import with_assistant
from whosaid.asr.checkpoint.loading import Assistant, Checkpoint, WhisperModels, load_whisper
from whosaid.asr.checkpoint.special_tokens import read_special_tokens

DEEP_LAYERS = 32
SEED = 7


@dataclasses.dataclass(frozen=True)
class Size:
    """The shape of a Whisper without trained weights, with the vocabulary of a published one."""

    name: str
    vocabulary: str
    d_model: int
    heads: int
    layers: int
    assistant_layers: int = 2


# whisper-tiny and whisper-base have the same vocabulary.
BASE = Size("base size", "tiny", d_model=512, heads=8, layers=6)
LARGE = Size("large-v3 size", "large-v3", d_model=1280, heads=20, layers=32)


def demo_pair(device: torch.device, dtype: torch.dtype) -> WhisperModels:
    """The recogniser and the assistant that ship with the repository."""
    main = load_whisper(Checkpoint(str(DEMO_MODELS / "asr")), device, dtype)
    return with_assistant(main, Checkpoint(str(DEMO_MODELS / "assistant")))


def deep_pair(noise: float, device: torch.device, dtype: torch.dtype) -> WhisperModels:
    """The demo's assistant, and as main model the same with 32 decoder layers; see `add_noise`."""
    shallow = load_whisper(Checkpoint(str(DEMO_MODELS / "assistant")), device, dtype)
    return _pair(f"deep, noise {noise}", shallow, DEEP_LAYERS, noise)


def random_pair(
    size: Size, noise: float, device: torch.device, dtype: torch.dtype
) -> WhisperModels:
    """Random weights of a published size. Their texts never end: requests need `max_tokens`."""
    shape = PUBLISHED[size.vocabulary]
    tokenizer, model = tokenizer_of(shape), _random_model(size, device, dtype)
    special = read_special_tokens(size.name, model.config, model.generation_config, tokenizer)
    shallow = WhisperModels(size.name, model, tokenizer, feature_extractor_of(shape), special)
    return _pair(size.name, shallow, size.layers, noise)


def insert_layers(model: PreTrainedModel, layers: int, epsilon: float) -> PreTrainedModel:
    """The model with random decoder layers inserted, up to `layers`.

    Each adds `epsilon` times what it would; with 0 nothing at all. The model's own layers keep
    their order and are spread evenly."""
    config = copy.deepcopy(model.config)
    config.decoder_layers = layers
    deep = _initialise(config, model.device, model.dtype)
    own = model.model.decoder.layers
    places = {index * layers // len(own): layer for index, layer in enumerate(own)}
    for index, layer in enumerate(deep.model.decoder.layers):
        if index in places:
            layer.load_state_dict(places[index].state_dict())
        else:
            _scale_branches(layer, epsilon)
    deep.model.encoder, deep.proj_out = model.model.encoder, model.proj_out
    for name in ("embed_tokens", "embed_positions", "layer_norm"):
        setattr(deep.model.decoder, name, getattr(model.model.decoder, name))
    deep.generation_config = copy.deepcopy(model.generation_config)
    return deep


def add_noise(model: PreTrainedModel, noise: float) -> PreTrainedModel:
    """A copy with Gaussian noise on its decoder layers, `noise` times each weight's deviation."""
    noisy = copy.deepcopy(model)
    generator = torch.Generator(model.device).manual_seed(SEED)
    with torch.no_grad():
        for weight in noisy.model.decoder.layers.parameters():
            drawn = torch.randn(
                weight.shape, generator=generator, device=weight.device, dtype=weight.dtype
            )
            weight.add_(noise * weight.std() * drawn)
    return noisy


def _pair(name: str, shallow: WhisperModels, layers: int, noise: float) -> WhisperModels:
    own = in_transformers(shallow.model)
    decoder = decoder_alone(add_noise(own, noise))
    assistant = Assistant(f"{name}, shallow", decoder, shares_encoder=True, only_language=None)
    deep = insert_layers(own, layers, epsilon=0.0)
    return dataclasses.replace(shallow, name=name, model=deep, assistant=assistant)


def _random_model(size: Size, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """A model as deep as the assistant.

    Positions and audio have larger weights than a fresh model gives them, or it would repeat one
    token for ever. The embedding of the end of text, which as padding starts at zero, never wins.
    """
    generation = generation_config_of(PUBLISHED[size.vocabulary])
    end = generation.eos_token_id
    config = WhisperConfig(
        vocab_size=VOCABULARY_SIZES[size.vocabulary],
        num_mel_bins=PUBLISHED[size.vocabulary].mel_bins, encoder_layers=size.layers,
        decoder_layers=size.assistant_layers, encoder_attention_heads=size.heads,
        decoder_attention_heads=size.heads, d_model=size.d_model, encoder_ffn_dim=4 * size.d_model,
        decoder_ffn_dim=4 * size.d_model, bos_token_id=end, eos_token_id=end, pad_token_id=end,
        decoder_start_token_id=generation.decoder_start_token_id,
    )  # fmt: skip
    model = _initialise(config, device, dtype)
    with torch.no_grad():
        model.model.decoder.embed_positions.weight.mul_(10)
        for layer in model.model.decoder.layers:
            layer.encoder_attn.q_proj.weight.mul_(10)
    model.generation_config = generation
    return model


def _initialise(config: Any, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    torch.manual_seed(SEED)
    with device:
        model: Any = WhisperForConditionalGeneration(config)
    initialised: PreTrainedModel = model.to(dtype).eval()
    return initialised


def _scale_branches(layer: WhisperDecoderLayer, factor: float) -> None:
    """Scale what each of a decoder layer's three residual branches adds."""
    with torch.no_grad():
        for branch in (layer.self_attn.out_proj, layer.encoder_attn.out_proj, layer.fc2):
            branch.weight.mul_(factor)
            branch.bias.mul_(factor)
