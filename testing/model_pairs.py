"""The models that are timed: the demo's, and pairs of sizes for which no trained weights are at
hand.

The one decision: in a made pair the main model is the assistant deepened. Layers are put in whose
residual branches are scaled down to nearly nothing, so the deep model costs what its depth costs
and still says what the shallow one says: real lengths, real endings. How often the assistant is
right is then set by disturbing the assistant's own weights, and the tokens of the main model, hence
the work of greedy decoding, stay the same at every acceptance.
"""

from __future__ import annotations

import copy
import dataclasses

import torch
from transformers import (
    PretrainedConfig,
    PreTrainedModel,
    WhisperConfig,
    WhisperForConditionalGeneration,
)
from transformers.models.whisper.modeling_whisper import WhisperDecoderLayer

from asr.checkpoint.assistants import decoder_alone, with_assistant
from asr.checkpoint.loading import Assistant, Checkpoint, WhisperModels, load_whisper
from asr.checkpoint.special_tokens import read_special_tokens
from config import DEMO_MODELS
from testing.tiny_whispers import (  # found through the line above
    PUBLISHED,
    VOCABULARY_SIZES,
    feature_extractor_of,
    generation_config_of,
    tokenizer_of,
)

DEEP_LAYERS = 32
SEED = 7


@dataclasses.dataclass(frozen=True)
class Size:
    """The shape of a Whisper without trained weights; with the vocabulary of a published one."""

    name: str
    vocabulary: str
    width: int
    heads: int
    layers: int
    drafting_layers: int = 2


BASE = Size(
    "base size", "tiny", width=512, heads=8, layers=6
)  # whisper-tiny and whisper-base share their vocabulary
LARGE = Size("large-v3 size", "large-v3", width=1280, heads=20, layers=32)


def demo_pair(device: torch.device, dtype: torch.dtype) -> WhisperModels:
    """The recogniser and the assistant that ship with the repository."""
    main = load_whisper(Checkpoint(str(DEMO_MODELS / "asr")), device, dtype)
    return with_assistant(main, Checkpoint(str(DEMO_MODELS / "assistant")))


def deep_pair(
    noise: float, device: torch.device, dtype: torch.dtype, epsilon: float = 0.0
) -> WhisperModels:
    """The demo's assistant against itself with 32 decoder layers; `noise` disturbs the assistant,
    see `disturbed`.
    """
    shallow = load_whisper(Checkpoint(str(DEMO_MODELS / "assistant")), device, dtype)
    return _paired(f"deep, noise {noise}", shallow, DEEP_LAYERS, noise, epsilon)


def random_pair(
    size: Size, noise: float, device: torch.device, dtype: torch.dtype
) -> WhisperModels:
    """Random weights of a published size, whose texts never end: whoever decodes them says when."""
    shape = PUBLISHED[size.vocabulary]
    tokenizer, model = tokenizer_of(shape), _random(size, device, dtype)
    vocabulary = read_special_tokens(size.name, model.config, model.generation_config, tokenizer)
    shallow = WhisperModels(size.name, model, tokenizer, feature_extractor_of(shape), vocabulary)
    return _paired(size.name, shallow, size.layers, noise, 0.0)


def deepened(model: PreTrainedModel, layers: int, epsilon: float) -> PreTrainedModel:
    """The model with random decoder layers put in, up to `layers`, each adding `epsilon` times what
    it would.

    Its own layers keep their order and are spread evenly. With `epsilon` 0 the new ones add nothing
    at all.
    """
    config = copy.deepcopy(model.config)
    config.decoder_layers = layers
    deep = _initialised(config, model.device, model.dtype)
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


def disturbed(model: PreTrainedModel, noise: float) -> PreTrainedModel:
    """A copy whose decoder layers' weights are off by `noise` times their standard deviation."""
    other = copy.deepcopy(model)
    random = torch.Generator(model.device).manual_seed(SEED)
    with torch.no_grad():
        for weight in other.model.decoder.layers.parameters():
            chance = torch.randn(
                weight.shape, generator=random, device=weight.device, dtype=weight.dtype
            )
            weight.add_(noise * weight.std() * chance)
    return other


def _paired(
    name: str, shallow: WhisperModels, layers: int, noise: float, epsilon: float
) -> WhisperModels:
    drafter = decoder_alone(disturbed(shallow.model, noise))
    assistant = Assistant(f"{name}, shallow", drafter, shares_encoder=True, only_language=None)
    deep = deepened(shallow.model, layers, epsilon)
    return dataclasses.replace(shallow, name=name, model=deep, assistant=assistant)


def _random(size: Size, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """As deep as the assistant; the end of text, which as padding starts at zero, never wins.

    Positions and audio weigh more than a fresh model's, or it would say one token for ever.
    """
    generation = generation_config_of(PUBLISHED[size.vocabulary])
    end = generation.eos_token_id
    config = WhisperConfig(
        vocab_size=VOCABULARY_SIZES[size.vocabulary],
        num_mel_bins=PUBLISHED[size.vocabulary].mel_bins,
        encoder_layers=size.layers,
        decoder_layers=size.drafting_layers,
        encoder_attention_heads=size.heads,
        decoder_attention_heads=size.heads,
        d_model=size.width,
        encoder_ffn_dim=4 * size.width,
        decoder_ffn_dim=4 * size.width,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        decoder_start_token_id=generation.decoder_start_token_id,
    )
    model = _initialised(config, device, dtype)
    with torch.no_grad():
        model.model.decoder.embed_positions.weight.mul_(10)
        for layer in model.model.decoder.layers:
            layer.encoder_attn.q_proj.weight.mul_(10)
    model.generation_config = generation
    return model


def _initialised(
    config: PretrainedConfig, device: torch.device, dtype: torch.dtype
) -> PreTrainedModel:
    torch.manual_seed(SEED)
    with device:
        model: PreTrainedModel = WhisperForConditionalGeneration(config).to(dtype).eval()  # type: ignore[arg-type]
    return model


def _scale_branches(layer: WhisperDecoderLayer, factor: float) -> None:
    """Scale what each of a decoder layer's three residual branches adds."""
    with torch.no_grad():
        for branch in (layer.self_attn.out_proj, layer.encoder_attn.out_proj, layer.fc2):
            branch.weight.mul_(factor)
            branch.bias.mul_(factor)
