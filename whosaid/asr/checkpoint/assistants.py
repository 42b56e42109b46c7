"""Loads an assistant, Medusa heads or an encoder's conditioning, and checks that they fit the main
model.

Distil-Whisper checkpoints keep the main model's encoder and a few of its decoder layers: only their
decoder is kept, and reads the main model's encoder output (Gandhi et al. 2023, "Distil-Whisper",
section 3.3). Any other Whisper with the same vocabulary, for example whisper-tiny, uses an encoder
of its own. An encoder is shared only if its weights equal the main model's in float16, because
fine-tuned models have encoders of equal shapes too.
"""

import dataclasses

import torch
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from whosaid.asr.checkpoint.conditioning import FILE, read_conditioning
from whosaid.asr.checkpoint.loading import (
    Assistant,
    Checkpoint,
    WhisperModels,
    load_model,
    read_tokenizer,
)
from whosaid.asr.checkpoint.medusa import HEADS_MODEL_TYPE, base_digest, file_digest, read_heads
from whosaid.asr.checkpoint.opening import Opened, open_checkpoint, read_config
from whosaid.asr.checkpoint.special_tokens import SpecialTokens, read_special_tokens
from whosaid.asr.checkpoint.weights import Whisper, WhisperModel, below, find_file
from whosaid.errors import StartError
from whosaid.payload.languages import ENGLISH

ENCODER_SHAPE = (
    *("d_model", "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim"),
    *("num_mel_bins", "max_source_positions"),
)
# Tokens whose ids depend on the texts and languages of a vocabulary.
TOKENS = ("end_of_text", "start_of_transcript", "no_timestamps")


def with_assistant(models: WhisperModels, checkpoint: Checkpoint) -> WhisperModels:
    """Return `models` with an assistant or heads, on the main model's device and in its dtype.

    Raises StartError naming both models if they do not fit, or if the main model has heads of its
    own. Also raises errors of transformers.
    """
    if models.medusa is not None:
        raise _misfit(models, checkpoint, "that model already drafts with its own Medusa heads")
    opened = open_checkpoint(checkpoint.source)
    if opened.entries.get("model_type") == HEADS_MODEL_TYPE:
        medusa = read_heads(opened.tensors, opened.entries, models.model)
        if opened.entries["base_digest"] != main_digest(models):
            raise _misfit(models, checkpoint, "its heads were trained for another model")
        return dataclasses.replace(models, medusa=medusa)
    config = read_config(opened)
    _require_same_input(models, checkpoint, config)
    tokenizer = read_tokenizer(opened, config)
    model, shares_encoder = _load(models, checkpoint, opened, config, tokenizer)
    special = read_special_tokens(checkpoint.name, config, model.generation_config, tokenizer)
    if any(getattr(models.special_tokens, name) != getattr(special, name) for name in TOKENS):
        raise _misfit(models, checkpoint, "their special tokens have different numbers")
    language = _only_language(model, special)
    assistant = Assistant(checkpoint.name, model, shares_encoder, only_language=language)
    return dataclasses.replace(models, assistant=assistant)


def with_conditioning(models: WhisperModels, checkpoint: Checkpoint | None = None) -> WhisperModels:
    """Return `models` with the conditioning of `checkpoint`, a folder or repository.

    Without a `checkpoint`, the file beside the main model is read, if there is one. Raises
    StartError if the conditioning does not fit, or if the main model is conditioned already.
    """
    chosen = checkpoint or models.checkpoint
    path = None if chosen is None else find_file(chosen.source, FILE)
    if path is None:
        if checkpoint is not None:
            raise StartError(f"{checkpoint.name} has no {FILE}, or the hub cannot be reached")
        return models
    if models.conditioning is not None:
        raise StartError(f"{models.name} is conditioned already, without {path}")
    conditioning = read_conditioning(path, models.model, main_digest(models))
    return dataclasses.replace(models, conditioning=conditioning)


def main_digest(models: WhisperModels) -> str:
    """Return the digest by which heads identify the main model, of its files if loaded weights are
    rounded. Raises StartError if the files lack a tensor.
    """
    if models.checkpoint is None or models.model.dtype in (torch.float32, torch.float64):
        return base_digest(models.model)
    return file_digest(open_checkpoint(models.checkpoint.source).tensors)


def _load(
    models: WhisperModels,
    checkpoint: Checkpoint,
    opened: Opened,
    config: PretrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[Whisper, bool]:
    """Return the assistant's model, and whether it is a decoder that shares the main encoder."""
    main_config, dtype = models.model.config, models.model.dtype
    same_shape = all(getattr(main_config, name) == getattr(config, name) for name in ENCODER_SHAPE)
    if config.architectures == ["WhisperForCausalLM"]:
        if not same_shape:
            reason = "it has no encoder, and was made for one of another shape"
            raise _misfit(models, checkpoint, reason)
        return load_model(opened, config, tokenizer, models.device, dtype, encoder=False), True
    whole = load_model(opened, config, tokenizer, torch.device("cpu"), dtype)
    shares = same_shape and _equal_encoders(models.model, whole)
    return (whole.without_encoder() if shares else whole).to(models.device), shares


def _equal_encoders(main: WhisperModel, other: WhisperModel) -> bool:
    """Return whether both encoders are equal in float16; `other` must be on the CPU."""
    ours, theirs = (
        below(dict(each.named_parameters()), "model.encoder.") for each in (main, other)
    )
    return all(
        torch.equal(weight.half(), ours[name].to("cpu").half()) for name, weight in theirs.items()
    )


def _require_same_input(
    models: WhisperModels, checkpoint: Checkpoint, config: PretrainedConfig
) -> None:
    for name in ("vocab_size", "num_mel_bins", "max_source_positions", "max_target_positions"):
        ours, theirs = getattr(models.model.config, name), getattr(config, name)
        if ours != theirs:
            raise _misfit(models, checkpoint, f"{name} is {theirs} here and {ours} there")


def _misfit(models: WhisperModels, checkpoint: Checkpoint, reason: str) -> StartError:
    return StartError(
        f"the assistant {checkpoint.name} does not fit the model {models.name}: {reason}"
    )


def _only_language(model: WhisperModel, special_tokens: SpecialTokens) -> str | None:
    """Return ENGLISH if the generation configuration pins it, like Distil-Whisper's, else None."""
    pinned = str(getattr(model.generation_config, "language", None) or "").strip("<|>").lower()
    is_english_only = not special_tokens.multilingual or pinned in (ENGLISH, "english")
    return ENGLISH if is_english_only else None
