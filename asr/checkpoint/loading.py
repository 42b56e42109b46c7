"""Loads a Whisper checkpoint: model, tokenizer, feature extractor, special tokens.

The checkpoint's generation configuration (forced tokens, beams, languages, thresholds) has no
effect of its own. What decoding needs from it is read once into `SpecialTokens`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedTokenizerBase,
    WhisperFeatureExtractor,
)

from asr.checkpoint.medusa import WHISPER_KEYS, MedusaHeads, is_medusa, read_heads
from asr.checkpoint.special_tokens import SpecialTokens, read_special_tokens
from asr.checkpoint.tensors import Tensors
from asr.checkpoint.whisper import Whisper, WhisperModel
from errors import StartError
from runtime.versions import load_feature_extractor, tokenizer_arguments

# What a CPU multiplies in while the rest stays float32.
PRODUCT_DTYPES = (torch.bfloat16, torch.int8)
OUTPUT_WEIGHT = "proj_out.weight"
FRAMES_PER_POSITION = 2  # the encoder's second convolution halves the mel frames


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a model comes from: a hub id, with a revision or None for the newest, or an absolute
    path.
    """

    name: str
    revision: str | None = None
    token: str | None = field(default=None, repr=False)

    @property
    def source(self) -> dict[str, Any]:
        """The arguments common to every `from_pretrained`."""
        return {
            "pretrained_model_name_or_path": self.name,
            "revision": self.revision,
            "token": self.token,
        }


@dataclass(frozen=True, slots=True)
class Assistant:
    """A draft model. With `shares_encoder` it is only a decoder and reads the main model's encoder
    output; `only_language` is the one code it knows, None for a multilingual model.
    """

    name: str
    model: WhisperModel
    shares_encoder: bool
    only_language: str | None


@dataclass(frozen=True, slots=True)
class WhisperModels:
    """A main model with all that belongs to it, and what drafts for it if anything does: an
    assistant or Medusa heads. Immutable, so that threads can share it.

    `product_dtype` is the precision of a CPU's large products, bfloat16 or int8; None where it is
    that of the weights. `checkpoint` is where the main model was loaded from, if from anywhere.
    """

    name: str
    model: WhisperModel
    tokenizer: PreTrainedTokenizerBase
    feature_extractor: WhisperFeatureExtractor
    special_tokens: SpecialTokens
    assistant: Assistant | None = None
    product_dtype: torch.dtype | None = None
    medusa: MedusaHeads | None = None
    checkpoint: Checkpoint | None = None

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return torch.device(self.model.device)

    @property
    def window_seconds(self) -> float:
        """How much audio one encoder pass covers, in seconds; 30 for every published checkpoint."""
        return float(self.feature_extractor.chunk_length)

    @property
    def timestamps(self) -> range:
        """The tokens that tell a time: the last ones there are."""
        return range(self.special_tokens.timestamp_begin, self.model.config.vocab_size)

    def text_of(self, tokens: Iterable[int]) -> str:
        """What tokens say."""
        return str(self.tokenizer.decode(list(tokens)))


def load_whisper(checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> WhisperModels:
    """Load the main model in `dtype`, by which a CPU's float32 models multiply where it is lower.

    Raises StartError if it is not a usable Whisper; errors of transformers are passed on.
    """
    config = AutoConfig.from_pretrained(**checkpoint.source)
    require_whisper(checkpoint, config)
    feature_extractor = load_feature_extractor(checkpoint.source)
    _require_matching_features(checkpoint, config, feature_extractor)
    # Clean-up is not done for Whisper's tokenizer, which warns wherever a checkpoint asks for it.
    tokenizer = AutoTokenizer.from_pretrained(
        **checkpoint.source, **tokenizer_arguments(), clean_up_tokenization_spaces=False
    )
    product_dtype = dtype if device.type == "cpu" and dtype in PRODUCT_DTYPES else None
    stored = dtype if product_dtype is None else torch.float32
    with_heads = is_medusa(config)
    prefix = WHISPER_KEYS if with_heads else ""
    model = load_model(checkpoint, config, device, stored, prefix=prefix)
    medusa = read_heads(checkpoint.source, config.to_dict(), model) if with_heads else None
    special = read_special_tokens(checkpoint.name, config, model.generation_config, tokenizer)
    return WhisperModels(
        checkpoint.name,
        model,
        tokenizer,
        feature_extractor,
        special,
        product_dtype=product_dtype,
        medusa=medusa,
        checkpoint=checkpoint,
    )


def load_model(
    checkpoint: Checkpoint,
    config: PretrainedConfig,
    device: torch.device,
    dtype: torch.dtype,
    encoder: bool = True,
    prefix: str = "",
) -> Whisper:
    """The model of a checkpoint, in evaluation mode; without `encoder` its decoder alone.

    Its weights have names that begin with `prefix`, or lack "model.", as those of a WhisperModel
    do. Raises StartError where one is missing or has another shape, or where one behind a `prefix`
    is no Whisper's, and OSError where there are no safetensors files.
    """
    generation_config = _generation_config(checkpoint, config)
    with torch.device("meta"):
        model = Whisper(config, generation_config, encoder).eval().requires_grad_(False)
    expected, tensors = model.state_dict(), Tensors(checkpoint.source)
    if config.tie_word_embeddings:
        del expected[OUTPUT_WEIGHT]
    names = _names_by_key(expected, tensors, prefix)
    shapes = {key: tuple(expected[name].shape) for key, name in names.items()}
    weights = {
        names[key]: weight.to(device, dtype, copy=True) for key, weight in tensors.read(shapes)
    }
    model.load_state_dict(weights, strict=False, assign=True)
    if config.tie_word_embeddings:
        model.tie_weights()
    return model


def _names_by_key(expected: Iterable[str], tensors: Tensors, prefix: str) -> dict[str, str]:
    """The names of a model's weights by their keys in the files. Raises StartError as `load_model`
    does.
    """
    names = {}
    for name in expected:
        keys = prefix + name, prefix + name.removeprefix("model.")
        found = next((each for each in keys if each in tensors.files), None)
        if found is None:
            raise StartError(f"{tensors.name} lacks {keys[0]}")
        names[found] = name
    for key in sorted(tensors.files.keys() - names.keys() - {prefix + OUTPUT_WEIGHT}):
        if prefix and key.startswith(prefix):
            raise StartError(f"{tensors.name} holds an unknown {key}")
    return names


def _generation_config(checkpoint: Checkpoint, config: PretrainedConfig) -> GenerationConfig:
    """The checkpoint's, or where there is none what its configuration says."""
    options: dict[str, Any] = {"revision": checkpoint.revision, "token": checkpoint.token}
    try:
        return GenerationConfig.from_pretrained(checkpoint.name, **options)
    except OSError:
        return GenerationConfig.from_model_config(config)


def require_whisper(checkpoint: Checkpoint, config: PretrainedConfig) -> None:
    """Raise StartError unless the configuration is a Whisper's, which activates by GELU."""
    if config.model_type != "whisper":
        raise StartError(f"{checkpoint.name} is a {config.model_type} model, not a Whisper")
    if config.activation_function != "gelu":
        raise StartError(f"{checkpoint.name} activates by {config.activation_function}, not gelu")


def _require_matching_features(
    checkpoint: Checkpoint, config: PretrainedConfig, feature_extractor: WhisperFeatureExtractor
) -> None:
    bins, frames = feature_extractor.feature_size, feature_extractor.nb_max_frames
    expected_bins = config.num_mel_bins
    expected_frames = config.max_source_positions * FRAMES_PER_POSITION
    if (bins, frames) != (expected_bins, expected_frames):
        raise StartError(
            f"{checkpoint.name}: its feature extractor makes {bins} mel bins by {frames} frames, "
            f"its encoder reads {expected_bins} by {expected_frames}"
        )
