"""The smaller model that drafts for the main one: which kind a checkpoint is, and whether it fits.

Two kinds exist. Distil-Whisper's checkpoints keep the main model's encoder and a few of its decoder
layers: only their decoder is loaded, and it reads the main model's encoder output (Gandhi et al.
2023, "Distil-Whisper", section 3.3). Any other Whisper with the same vocabulary, whisper-tiny for
one, listens with an encoder of its own.

The one decision: an encoder is shared only where it is the same one. Equal shapes say little (every
fine-tuned model has them), so the weights are compared with the main model's, tensor by tensor, in
float16, the precision in which Whisper is published; a second copy of it never reaches the device.
"""

from __future__ import annotations

import copy
import dataclasses

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSpeechSeq2Seq,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
)

from asr.checkpoint.languages import ENGLISH
from asr.checkpoint.loading import (
    Assistant,
    Checkpoint,
    WhisperModels,
    load_weights,
    on_device,
    require_whisper,
)
from asr.checkpoint.special_tokens import SpecialTokens, read_special_tokens
from errors import StartError

ENCODER_SHAPE = (
    "d_model",
    "encoder_layers",
    "encoder_attention_heads",
    "encoder_ffn_dim",
    "num_mel_bins",
    "max_source_positions",
)


def with_assistant(models: WhisperModels, checkpoint: Checkpoint) -> WhisperModels:
    """The same models with an assistant beside them, on the main model's device and in its dtype.

    StartError naming both models where they do not fit; what transformers raises passes through.
    """
    config = AutoConfig.from_pretrained(**checkpoint.source)
    require_whisper(checkpoint, config)
    _require_same_input(models, checkpoint, config)
    model = _load(models, checkpoint, config)
    tokenizer = AutoTokenizer.from_pretrained(**checkpoint.source)
    vocabulary = read_special_tokens(checkpoint.name, config, model.generation_config, tokenizer)
    _require_same_tokens(models, checkpoint, vocabulary)
    only_language = _only_language(model, vocabulary)
    assistant = Assistant(
        checkpoint.name, model, not model.config.is_encoder_decoder, only_language
    )
    return dataclasses.replace(models, assistant=assistant)


def _load(
    models: WhisperModels, checkpoint: Checkpoint, config: PretrainedConfig
) -> PreTrainedModel:
    """The assistant's decoder where it can read the main model's encoder output, else all of it."""
    same_shape = all(
        getattr(models.model.config, fact) == getattr(config, fact) for fact in ENCODER_SHAPE
    )
    if config.architectures == ["WhisperForCausalLM"]:
        if not same_shape:
            raise _misfit(
                models, checkpoint, "it has no encoder, and was made for one of another shape"
            )
        return load_weights(AutoModelForCausalLM, checkpoint, models.device, models.model.dtype)
    whole = load_weights(
        AutoModelForSpeechSeq2Seq, checkpoint, torch.device("cpu"), models.model.dtype
    )
    shares = same_shape and _equal_encoders(models.model, whole)
    return on_device(decoder_alone(whole) if shares else whole, models.device)


def decoder_alone(whole: PreTrainedModel) -> PreTrainedModel:
    """The model without its encoder, as Distil-Whisper's assistants are used; the weights are not
    copied.
    """
    configuration = copy.deepcopy(whole.config)
    decoder: PreTrainedModel = AutoModelForCausalLM.from_config(
        configuration, dtype=whole.dtype, attn_implementation="sdpa"
    )
    decoder.model.decoder = whole.get_decoder()
    decoder.set_output_embeddings(whole.get_output_embeddings())
    decoder.generation_config = whole.generation_config
    return decoder


def _equal_encoders(main: PreTrainedModel, other: PreTrainedModel) -> bool:
    mine = main.get_encoder().state_dict()
    return all(
        torch.equal(weight.half(), mine[name].to("cpu").half())
        for name, weight in other.get_encoder().state_dict().items()
    )


def _require_same_input(
    models: WhisperModels, checkpoint: Checkpoint, config: PretrainedConfig
) -> None:
    for fact in ("vocab_size", "num_mel_bins", "max_source_positions", "max_target_positions"):
        ours, theirs = getattr(models.model.config, fact), getattr(config, fact)
        if ours != theirs:
            raise _misfit(models, checkpoint, f"{fact} is {theirs} here and {ours} there")


def _require_same_tokens(
    models: WhisperModels, checkpoint: Checkpoint, vocabulary: SpecialTokens
) -> None:
    ours, theirs = models.special_tokens, vocabulary
    if (ours.end_of_text, ours.start_of_transcript, ours.no_timestamps) != (
        theirs.end_of_text,
        theirs.start_of_transcript,
        theirs.no_timestamps,
    ):
        raise _misfit(models, checkpoint, "their special tokens have different numbers")


def _misfit(models: WhisperModels, checkpoint: Checkpoint, reason: str) -> StartError:
    return StartError(
        f"the assistant {checkpoint.name} does not fit the model {models.name}: {reason}"
    )


def _only_language(model: PreTrainedModel, vocabulary: SpecialTokens) -> str | None:
    """English for assistants that know nothing else: Distil-Whisper's pin it in their generation
    configuration.
    """
    pinned = str(getattr(model.generation_config, "language", None) or "").strip("<|>").lower()
    return ENGLISH if pinned in (ENGLISH, "english") or not vocabulary.multilingual else None
