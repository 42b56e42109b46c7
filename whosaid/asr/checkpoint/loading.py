"""Loads a Whisper checkpoint: weights, tokenizer, feature extractor, special tokens.

A checkpoint's generation configuration (forced tokens, beams, languages, thresholds) has no effect,
except for the few entries that `SpecialTokens` holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedTokenizerBase,
    WhisperFeatureExtractor,
)

from whosaid.asr.checkpoint.conditioning import Conditioning, read_config, read_dicow
from whosaid.asr.checkpoint.medusa import WHISPER_KEYS, MedusaHeads, is_medusa, read_heads
from whosaid.asr.checkpoint.special_tokens import SpecialTokens, read_special_tokens
from whosaid.asr.checkpoint.weights import (
    PROJECTION,
    TensorFiles,
    Whisper,
    WhisperModel,
    whisper_shapes,
)
from whosaid.errors import StartError
from whosaid.runtime.versions import load_feature_extractor, tokenizer_arguments

# Precisions of a CPU's large products; the weights stay float32.
PRODUCT_DTYPES = (torch.bfloat16, torch.int8)
FRAMES_PER_POSITION = 2  # the encoder's second convolution halves the mel frames


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The source of a model: an absolute path, or a Hub id and a revision (None is the newest)."""

    name: str
    revision: str | None = None
    token: str | None = field(default=None, repr=False)

    @property
    def source(self) -> dict[str, Any]:
        """Return the arguments that every `from_pretrained` needs."""
        return {
            "pretrained_model_name_or_path": self.name,
            "revision": self.revision,
            "token": self.token,
        }


@dataclass(frozen=True, slots=True)
class Assistant:
    """A draft model.

    If `shares_encoder`, the model is a decoder alone and reads the main model's encoder output.
    `only_language` is the model's single language, None if it is multilingual.
    """

    name: str
    model: WhisperModel
    shares_encoder: bool
    only_language: str | None


@dataclass(frozen=True, slots=True)
class WhisperModels:
    """A main model and its drafter, if any: an assistant or Medusa heads. Shared by threads.

    `product_dtype` is the precision of a CPU's large products, bfloat16 or int8; None stands for
    the precision of the weights. `checkpoint` is the source of the main model, if it was loaded.
    With `conditioning`, the encoder can follow one speaker.
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
    conditioning: Conditioning | None = None

    @property
    def device(self) -> torch.device:
        return torch.device(self.model.device)

    @property
    def window_seconds(self) -> float:
        """Return the length of a window: 30 seconds in every published checkpoint."""
        return float(self.feature_extractor.chunk_length)

    @property
    def timestamps(self) -> range:
        """Return the ids of the timestamp tokens, the last of the vocabulary."""
        return range(self.special_tokens.timestamp_begin, self.model.config.vocab_size)

    def text_of(self, tokens: Iterable[int]) -> str:
        return str(self.tokenizer.decode(list(tokens)))


def load_whisper(checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> WhisperModels:
    """Load the main model in `dtype`; on a CPU, bfloat16 or int8 applies to large products alone.

    Raises StartError if the checkpoint is not a usable Whisper, and errors of transformers.
    """
    config = read_config(checkpoint.source)
    require_whisper(checkpoint, config)
    feature_extractor = load_feature_extractor(checkpoint.source)
    _require_matching_features(checkpoint, config, feature_extractor)
    # Whisper's tokenizer does no clean-up, and warns if a checkpoint asks for clean-up. Without the
    # `config`, a DiCoW's own would be read, which asks to run its code.
    tokenizer = AutoTokenizer.from_pretrained(
        **checkpoint.source,
        **tokenizer_arguments(),
        clean_up_tokenization_spaces=False,
        config=config,
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
        conditioning=read_dicow(checkpoint.source, model),
    )


def load_model(
    checkpoint: Checkpoint,
    config: PretrainedConfig,
    device: torch.device,
    dtype: torch.dtype,
    encoder: bool = True,
    prefix: str = "",
) -> Whisper:
    """Load a checkpoint's weights, the decoder's alone if not `encoder`.

    Names in the files begin with `prefix`, after which "model." may be missing. Raises StartError
    if a weight is missing or has another shape, or if an unknown name begins with a given `prefix`.
    Raises OSError if there are no safetensors files.
    """
    files, expected = TensorFiles(checkpoint.source), whisper_shapes(config, encoder)
    names = _names_by_key(expected, files, prefix)
    shapes = {key: expected[name] for key, name in names.items()}
    weights = {
        names[key]: weight.to(device, dtype, copy=True) for key, weight in files.read(shapes)
    }
    return Whisper(config, _generation_config(checkpoint, config), weights)


def _names_by_key(expected: Iterable[str], files: TensorFiles, prefix: str) -> dict[str, str]:
    """Return a model's weight names by their keys in the files, or raise StartError."""
    names = {}
    for name in expected:
        keys = prefix + name, prefix + name.removeprefix("model.")
        found = next((key for key in keys if key in files.files), None)
        if found is None:
            raise StartError(f"{files.name} lacks {keys[0]}")
        names[found] = name
    for key in sorted(files.files.keys() - names.keys() - {prefix + PROJECTION}):
        if prefix and key.startswith(prefix):
            raise StartError(f"{files.name} holds an unknown {key}")
    return names


def _generation_config(checkpoint: Checkpoint, config: PretrainedConfig) -> GenerationConfig:
    """Read generation_config.json, or derive it from config.json if there is none."""
    options: dict[str, Any] = {"revision": checkpoint.revision, "token": checkpoint.token}
    try:
        return GenerationConfig.from_pretrained(checkpoint.name, **options)
    except OSError:
        return GenerationConfig.from_model_config(config)


def require_whisper(checkpoint: Checkpoint, config: PretrainedConfig) -> None:
    """Raise StartError unless the configuration is a Whisper's, with GELU activations."""
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
