"""Loads a Whisper checkpoint: model, tokenizer, feature extractor, special tokens.

The checkpoint's generation configuration (forced tokens, beams, languages, thresholds) has no
effect of its own. What decoding needs from it is read once into `SpecialTokens`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForSpeechSeq2Seq,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)
from transformers.models.auto.auto_factory import _BaseAutoModelClass

from asr.checkpoint.medusa import (
    WHISPER_KEYS,
    MedusaHeads,
    is_medusa,
    read_heads,
    read_whisper,
)
from asr.checkpoint.special_tokens import SpecialTokens, read_special_tokens
from errors import StartError
from runtime.versions import dtype_argument, load_feature_extractor, tokenizer_arguments

# What a CPU multiplies in while the rest stays float32.
PRODUCT_DTYPES = (torch.bfloat16, torch.int8)
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
    model: PreTrainedModel
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
    model: PreTrainedModel
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
    medusa = None
    if is_medusa(config):
        model = _load_medusa_base(checkpoint, config, device, stored)
        medusa = read_heads(checkpoint.source, config.to_dict(), model)
    else:
        model = load_weights(AutoModelForSpeechSeq2Seq, checkpoint, device, stored)
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


def load_weights(
    auto_class: type[_BaseAutoModelClass],
    checkpoint: Checkpoint,
    device: torch.device,
    dtype: torch.dtype,
) -> PreTrainedModel:
    """A model in evaluation mode with SDPA attention, its weights from safetensors files only (a
    pickle can run code).
    """
    model: PreTrainedModel = auto_class.from_pretrained(
        **checkpoint.source, **_weight_arguments(dtype)
    )
    return on_device(model, device)


def _load_medusa_base(
    checkpoint: Checkpoint, config: PretrainedConfig, device: torch.device, dtype: torch.dtype
) -> PreTrainedModel:
    """The Whisper inside a Medusa checkpoint, where its keys have a prefix.

    Raises StartError where a weight is missing, for which transformers would draw random numbers,
    or one is no Whisper's.
    """
    loaded: Any = WhisperForConditionalGeneration.from_pretrained(
        None,
        config=config,
        state_dict=read_whisper(checkpoint.source),
        output_loading_info=True,
        **_weight_arguments(dtype),
    )
    model, said = loaded
    for keys, fault in (("missing_keys", "lacks"), ("unexpected_keys", "holds an unknown")):
        if said[keys]:
            raise StartError(f"{checkpoint.name} {fault} {WHISPER_KEYS}{min(said[keys])}")
    options: dict[str, Any] = {"revision": checkpoint.revision, "token": checkpoint.token}
    with suppress(OSError):  # where there is none, the model's own says what its configuration does
        model.generation_config = GenerationConfig.from_pretrained(checkpoint.name, **options)
    return on_device(model, device)


def _weight_arguments(dtype: torch.dtype) -> dict[str, Any]:
    return {**dtype_argument(dtype), "attn_implementation": "sdpa", "use_safetensors": True}


def on_device(model: PreTrainedModel, device: torch.device) -> PreTrainedModel:
    """The model itself, moved to the device and in evaluation mode."""
    # transformers wraps torch's `to` and hides its signature.
    model.to(device)  # type: ignore[arg-type]
    model.eval()
    return model


def require_whisper(checkpoint: Checkpoint, config: PretrainedConfig) -> None:
    """Raise StartError unless the configuration is a Whisper's."""
    if config.model_type != "whisper":
        raise StartError(f"{checkpoint.name} is a {config.model_type} model, not a Whisper")


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
