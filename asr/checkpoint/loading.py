"""Loads a Whisper checkpoint, ready to decode: model, tokenizer, feature extractor and the facts
that steer it.

The one decision: what a checkpoint ships as its generation configuration (forced tokens, beams,
languages, thresholds) steers nothing by itself. The facts in it that matter are read once into
`SpecialTokens`, typed, and decoding asks no more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoFeatureExtractor,
    AutoModelForSpeechSeq2Seq,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    WhisperFeatureExtractor,
)
from transformers.models.auto.auto_factory import _BaseAutoModelClass

from asr.checkpoint.special_tokens import SpecialTokens, read_special_tokens
from errors import StartError

FRAMES_PER_POSITION = 2  # the encoder's second convolution halves the mel frames


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a model comes from: a hub id (with a revision, or the newest) or an absolute folder."""

    name: str
    revision: str | None = None
    token: str | None = field(default=None, repr=False)

    @property
    def source(self) -> dict[str, Any]:
        """The arguments that every `from_pretrained` takes."""
        return {
            "pretrained_model_name_or_path": self.name,
            "revision": self.revision,
            "token": self.token,
        }


@dataclass(frozen=True, slots=True)
class Assistant:
    """A drafting model; `shares_encoder` where it is a decoder that reads the main model's encoder
    output.
    """

    name: str
    model: PreTrainedModel
    shares_encoder: bool
    only_language: str | None


@dataclass(frozen=True, slots=True)
class WhisperModels:
    """One Whisper, complete, with an assistant where one was loaded; never changed after
    loading.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    feature_extractor: WhisperFeatureExtractor
    special_tokens: SpecialTokens
    assistant: Assistant | None = None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return torch.device(self.model.device)

    @property
    def window_seconds(self) -> float:
        """The longest stretch of audio that one encoder pass covers; 30 for every published
        checkpoint.
        """
        return float(self.feature_extractor.chunk_length)


def load_whisper(checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> WhisperModels:
    """Load the main model. StartError where it is not a usable Whisper; what transformers raises
    passes through.
    """
    config = AutoConfig.from_pretrained(**checkpoint.source)
    require_whisper(checkpoint, config)
    feature_extractor = AutoFeatureExtractor.from_pretrained(**checkpoint.source)
    _require_matching_features(checkpoint, config, feature_extractor)
    tokenizer = AutoTokenizer.from_pretrained(**checkpoint.source)
    model = load_weights(AutoModelForSpeechSeq2Seq, checkpoint, device, dtype)
    vocabulary = read_special_tokens(checkpoint.name, config, model.generation_config, tokenizer)
    return WhisperModels(checkpoint.name, model, tokenizer, feature_extractor, vocabulary)


def load_weights(
    auto_class: type[_BaseAutoModelClass],
    checkpoint: Checkpoint,
    device: torch.device,
    dtype: torch.dtype,
) -> PreTrainedModel:
    """Weights from safetensors alone (a pickle can run code), in evaluation mode, attention through
    SDPA.
    """
    model: PreTrainedModel = auto_class.from_pretrained(
        **checkpoint.source, dtype=dtype, attn_implementation="sdpa", use_safetensors=True
    )
    return on_device(model, device)


def on_device(model: PreTrainedModel, device: torch.device) -> PreTrainedModel:
    """The model moved there, in evaluation mode."""
    model.to(device)  # type: ignore[arg-type]  # transformers wraps torch's `to`, which hides its signature
    model.eval()
    return model


def require_whisper(checkpoint: Checkpoint, config: PretrainedConfig) -> None:
    """StartError unless the configuration is a Whisper's."""
    if config.model_type != "whisper":
        raise StartError(f"{checkpoint.name} is a {config.model_type} model, not a Whisper")


def _require_matching_features(
    checkpoint: Checkpoint, config: PretrainedConfig, feature_extractor: WhisperFeatureExtractor
) -> None:
    offered = (feature_extractor.feature_size, feature_extractor.nb_max_frames)
    wanted = (config.num_mel_bins, config.max_source_positions * FRAMES_PER_POSITION)
    if offered != wanted:
        raise StartError(
            f"{checkpoint.name}: its feature extractor makes {offered[0]} mel bins by {offered[1]} frames, "
            f"its encoder reads {wanted[0]} by {wanted[1]}"
        )
