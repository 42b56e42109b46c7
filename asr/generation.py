"""Decodes batches of windows with transformers' `generate`: greedy, optionally drafted by an assistant.

What a window's tokens may be is said here in full: the prompt and one fixed set of token rules. So `generate` is called
as every model has it, not as Whisper overrides it. The override adds rules of its own whose start an assistant with an
encoder moves at every draft round, and drops `begin_suppress_tokens` when an assistant is given: assisted tokens could
differ from plain ones. It also seeks through audio, which `schedule` has done already.

The one decision: one call at a time. Batches were sized for a device that one of them fills, and the first pass of each
is listened to (for the probability of no speech) through a hook on a model that all requests share.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import (
    GenerationMixin,
    LogitsProcessor,
    LogitsProcessorList,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from asr.loading import WhisperModels
from asr.windows import SAMPLE_RATE

# Every draft round would otherwise be advised against arguments that `generate` itself passes to the assistant.
logging.getLogger("transformers.generation").setLevel(logging.ERROR)


@dataclass(frozen=True, slots=True)
class Steering:
    """How every window of a request is decoded: from which prompt, with timestamps or without, drafted or not."""

    prompt: tuple[int, ...]
    timestamps: bool
    assisted: bool


@dataclass(frozen=True, slots=True)
class Decoded:
    """A window's tokens after the prompt and before the end of text, and how sure the model was of them.

    `no_speech` is the probability of the no-speech token where the transcript starts; `mean_log_probability` is over
    the tokens and the end of text, after the rules, as openai/whisper counts it.
    """

    tokens: tuple[int, ...]
    no_speech: float
    mean_log_probability: float


class TokenRules(LogitsProcessor):
    """Whisper's rules for the next token, in transformers' order, fixed to the prompt's length.

    One processor around all of them, because `generate` of a seq2seq assistant moves the start of every processor
    that lets it (`set_begin_index`), and these are the main model's too.
    """

    def __init__(self, models: WhisperModels, steering: Steering) -> None:
        vocabulary, begin = models.vocabulary, len(steering.prompt)
        self.rules: list[LogitsProcessor] = []
        if vocabulary.begin_suppress:
            self.rules.append(
                SuppressTokensAtBeginLogitsProcessor(vocabulary.begin_suppress, begin, str(models.device))
            )
        if vocabulary.suppress:
            self.rules.append(SuppressTokensLogitsProcessor(vocabulary.suppress, str(models.device)))
        if steering.timestamps:
            self.rules.append(WhisperTimeStampLogitsProcessor(models.model.generation_config, begin))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (rows, vocabulary) with what may not follow `input_ids` (rows, length) at minus infinity."""
        for rule in self.rules:
            scores = rule(input_ids, scores)
        return scores


class Confidence(LogitsProcessor):
    """Remembers the log-probability of the greedy choice at each length; the scores pass unchanged.

    An assistant's drafts come through here as well. They are overwritten: the main model verifies each length later.
    """

    def __init__(self) -> None:
        self.at_length: dict[int, Tensor] = {}

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Note the best of `scores` (rows, vocabulary) for the token that follows `input_ids` (rows, length)."""
        self.at_length[input_ids.shape[1]] = scores.max(dim=-1).values.float() - scores.float().logsumexp(dim=-1)
        return scores

    def sums(self, begin: int, lengths: Tensor) -> Tensor:
        """Per row, the sum over its first `lengths` (rows) choices after a prompt of `begin` tokens."""
        steps = torch.stack([self.at_length[begin + step] for step in range(int(lengths.max()))], dim=1)
        counted = torch.arange(steps.shape[1], device=steps.device) < lengths[:, None]
        return torch.where(counted, steps, 0.0).sum(dim=1)


class WindowDecoder:
    """Greedy decoding of windows by one set of models; safe to call from several threads."""

    def __init__(self, models: WhisperModels) -> None:
        self.models = models
        self._one_at_a_time = Lock()

    @torch.inference_mode()
    def detect_language(self, window: NDArray[np.float32]) -> tuple[str, float]:
        """The likeliest language of a window of samples, and the probability that it holds no speech."""
        vocabulary = self.models.vocabulary
        start = torch.tensor([[vocabulary.start_of_transcript]], device=self.models.device)
        with self._one_at_a_time:
            logits = self.models.model(self._features([window]), decoder_input_ids=start).logits[0, 0].float()
        codes = list(vocabulary.languages)
        likeliest = int(logits[list(vocabulary.languages.values())].argmax())
        return codes[likeliest], float(logits.softmax(dim=-1)[vocabulary.no_speech])

    @torch.inference_mode()
    def decode(self, windows: Sequence[NDArray[np.float32]], steering: Steering) -> list[Decoded]:
        """Decode windows of samples, in one batch; with an assistant one by one, since transformers can no more."""
        with self._one_at_a_time:
            if steering.assisted:
                return [self._generate([window], steering)[0] for window in windows]
            return self._generate(windows, steering)

    def _generate(self, windows: Sequence[NDArray[np.float32]], steering: Steering) -> list[Decoded]:
        """One call of `generate`. Without an attention mask: given one, though Whisper never reads it, an assistant
        with its own encoder feeds its cache the whole text again at every draft round (transformers 5.22).
        """
        models, begin, confidence = self.models, len(steering.prompt), Confidence()
        features = self._features(windows)
        with self._first_position() as heard:
            sequences = GenerationMixin.generate(  # (rows, prompt + tokens + end of text + padding)
                models.model,  # type: ignore[arg-type]
                features,
                decoder_input_ids=torch.tensor([steering.prompt] * len(windows), device=models.device),
                logits_processor=LogitsProcessorList([TokenRules(models, steering), confidence]),
                assistant_model=models.assistant.model if steering.assisted and models.assistant else None,
            )
        answers = sequences[:, begin:]
        ends = answers == models.vocabulary.end_of_text
        lengths = torch.where(ends.any(dim=1), ends.int().argmax(dim=1), answers.shape[1])
        counted = (lengths + 1).clamp(max=answers.shape[1])
        means = confidence.sums(begin, counted) / counted
        no_speech = heard[0].softmax(dim=-1)[:, models.vocabulary.no_speech]
        return [
            Decoded(tuple(row[:length]), *sureness)
            for row, length, sureness in zip(
                answers.tolist(), lengths.tolist(), zip(no_speech.tolist(), means.tolist(), strict=True), strict=True
            )
        ]

    @contextmanager
    def _first_position(self) -> Iterator[list[Tensor]]:
        """Collect the logits (rows, vocabulary) at the start of transcript from the first pass of the block."""
        heard: list[Tensor] = []

        def listen(_module: object, _inputs: object, logits: Tensor) -> None:
            if not heard:
                heard.append(logits[:, 0].float())

        hook = self.models.model.get_output_embeddings().register_forward_hook(listen)
        try:
            yield heard
        finally:
            hook.remove()

    def _features(self, windows: Sequence[NDArray[np.float32]]) -> Tensor:
        """Log-mel features (rows, mel bins, frames) of windows of samples, padded to the encoder's length."""
        features = self.models.feature_extractor(
            list(windows), sampling_rate=SAMPLE_RATE, return_tensors="pt", device=str(self.models.device)
        )
        return features.input_features.to(self.models.device, self.models.model.dtype)  # type: ignore[no-any-return]
