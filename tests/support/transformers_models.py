"""Models as transformers' own modules, which generate, are trained and are saved."""

import copy
from typing import Any

import torch
from transformers import PreTrainedModel, WhisperForCausalLM, WhisperForConditionalGeneration

from whosaid.asr.checkpoint.weights import WhisperModel


def in_transformers(model: WhisperModel) -> PreTrainedModel:
    """A model with the same weights: a WhisperForConditionalGeneration."""
    return _holding(WhisperForConditionalGeneration, model)


def decoder_alone(model: WhisperModel) -> PreTrainedModel:
    """A WhisperForCausalLM with the same decoder, the form in which Distil-Whisper drafts."""
    return _holding(WhisperForCausalLM, model)


def _holding(kind: type[PreTrainedModel], model: WhisperModel) -> PreTrainedModel:
    with torch.device("meta"):
        made: Any = kind(copy.deepcopy(model.config))
    weights = dict(model.named_parameters())
    own = {name: weights[name] for name, _ in made.named_parameters()}
    made.load_state_dict(own, strict=False, assign=True)
    made.tie_weights()
    made.generation_config = model.generation_config
    held: PreTrainedModel = made.eval().requires_grad_(False)
    return held
