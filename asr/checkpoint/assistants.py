"""Loads what drafts tokens for the main model, and checks that it fits: an assistant or heads.

An assistant is a smaller model, of which there are two kinds. Distil-Whisper checkpoints keep the
main model's encoder and a few of its decoder layers: only their decoder is loaded, and it reads the
main model's encoder output (Gandhi et al. 2023, "Distil-Whisper", section 3.3). Any other Whisper
with the same vocabulary, for example whisper-tiny, uses an encoder of its own. Heads alone are read
by `asr.checkpoint.medusa`.

An encoder is shared only if its weights are equal. Equal shapes prove nothing, since fine-tuned
models have them too, so the weights are compared tensor by tensor in float16, the precision in
which Whisper is published. The comparison is made on the CPU; a second copy of the encoder never
reaches the device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig

from asr.checkpoint.loading import (
    Assistant,
    Checkpoint,
    WhisperModels,
    load_model,
    require_whisper,
)
from asr.checkpoint.medusa import base_digest, file_digest, heads_alone, read_heads
from asr.checkpoint.special_tokens import SpecialTokens, read_special_tokens
from asr.checkpoint.whisper import Whisper, WhisperModel
from errors import StartError
from payload.languages import ENGLISH
from runtime.versions import tokenizer_arguments

ENCODER_SHAPE = (
    "d_model",
    "encoder_layers",
    "encoder_attention_heads",
    "encoder_ffn_dim",
    "num_mel_bins",
    "max_source_positions",
)


def with_assistant(models: WhisperModels, checkpoint: Checkpoint) -> WhisperModels:
    """The same models with an assistant or with heads, on the main model's device and in its dtype.

    Raises StartError naming both models if they do not fit, or if the main one has heads of its
    own; errors of transformers are passed on.
    """
    if models.medusa is not None:
        raise _misfit(models, checkpoint, "that model has Medusa heads of its own, which draft")
    heads = heads_alone(checkpoint.source)
    if heads is not None:
        return _with_heads(models, checkpoint, heads)
    config = AutoConfig.from_pretrained(**checkpoint.source)
    require_whisper(checkpoint, config)
    _require_same_input(models, checkpoint, config)
    model, shares_encoder = _load(models, checkpoint, config)
    tokenizer = AutoTokenizer.from_pretrained(**checkpoint.source, **tokenizer_arguments())
    special = read_special_tokens(checkpoint.name, config, model.generation_config, tokenizer)
    _require_same_tokens(models, checkpoint, special)
    assistant = Assistant(
        checkpoint.name,
        model,
        shares_encoder,
        only_language=_only_language(model, special),
    )
    return dataclasses.replace(models, assistant=assistant)


def _with_heads(
    models: WhisperModels, checkpoint: Checkpoint, config: Mapping[str, Any]
) -> WhisperModels:
    """The models with heads that were made for the main one."""
    medusa = read_heads(checkpoint.source, config, models.model)
    if config["base_digest"] != main_digest(models):
        raise _misfit(models, checkpoint, "its heads were made for another model")
    return dataclasses.replace(models, medusa=medusa)


def main_digest(models: WhisperModels) -> str:
    """The main model's `base_digest`, by which heads name it; of its files where the loaded weights
    are rounded. Raises StartError where these lack a tensor.
    """
    if models.checkpoint is None or models.model.dtype in (torch.float32, torch.float64):
        return base_digest(models.model)
    return file_digest(models.checkpoint.source)


def _load(
    models: WhisperModels, checkpoint: Checkpoint, config: PretrainedConfig
) -> tuple[Whisper, bool]:
    """The assistant's decoder and True if it can read the main model's encoder output, else all of
    it and False.
    """
    main_config, dtype = models.model.config, models.model.dtype
    same_shape = all(getattr(main_config, name) == getattr(config, name) for name in ENCODER_SHAPE)
    if config.architectures == ["WhisperForCausalLM"]:
        if not same_shape:
            reason = "it has no encoder, and was made for one of another shape"
            raise _misfit(models, checkpoint, reason)
        return load_model(checkpoint, config, models.device, dtype, encoder=False), True
    whole = load_model(checkpoint, config, torch.device("cpu"), dtype)
    shares = same_shape and _equal_encoders(models.model, whole)
    return (whole.without_encoder() if shares else whole).to(models.device), shares


def _equal_encoders(main: WhisperModel, other: WhisperModel) -> bool:
    """Whether all weights of the encoders are equal in float16; `other` is on the CPU."""
    expected = main.get_encoder().state_dict()
    for name, weight in other.get_encoder().state_dict().items():
        if not torch.equal(weight.half(), expected[name].to("cpu").half()):
            return False
    return True


def _require_same_input(
    models: WhisperModels, checkpoint: Checkpoint, config: PretrainedConfig
) -> None:
    for name in ("vocab_size", "num_mel_bins", "max_source_positions", "max_target_positions"):
        ours, theirs = getattr(models.model.config, name), getattr(config, name)
        if ours != theirs:
            raise _misfit(models, checkpoint, f"{name} is {theirs} here and {ours} there")


def _require_same_tokens(
    models: WhisperModels, checkpoint: Checkpoint, special_tokens: SpecialTokens
) -> None:
    if _numbers(models.special_tokens) != _numbers(special_tokens):
        raise _misfit(models, checkpoint, "their special tokens have different numbers")


def _numbers(special_tokens: SpecialTokens) -> tuple[int, int, int]:
    """The ids that move if a vocabulary differs in its text or in its languages."""
    return (
        special_tokens.end_of_text,
        special_tokens.start_of_transcript,
        special_tokens.no_timestamps,
    )


def _misfit(models: WhisperModels, checkpoint: Checkpoint, reason: str) -> StartError:
    return StartError(
        f"the assistant {checkpoint.name} does not fit the model {models.name}: {reason}"
    )


def _only_language(model: WhisperModel, special_tokens: SpecialTokens) -> str | None:
    """English for assistants that know only English. Distil-Whisper's pin it in the generation
    configuration of a multilingual vocabulary.
    """
    pinned = str(getattr(model.generation_config, "language", None) or "").strip("<|>").lower()
    is_english_only = not special_tokens.multilingual or pinned in (ENGLISH, "english")
    return ENGLISH if is_english_only else None
