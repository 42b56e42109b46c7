"""The oracle of beam search: openai/whisper's decoder over transformers' model.

Only the passes of the model are ours. Filters, search, limit and ranking are the package's code,
and its main loop runs them. In float64, sums too, so that texts that score nearly alike stay in
their order."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from whisper import decoding

from tests.helpers.oracle import features_of
from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.asr.engine.request import Request


class Doubles(torch.Tensor):
    """Stays float64 when the package asks for float32."""

    def float(self) -> torch.Tensor:
        return self


class Passes:
    """Stands in for the package's own passes: no cache, every text read anew."""

    def __init__(self, models: WhisperModels) -> None:
        self.model = models.model

    def logits(self, tokens: torch.Tensor, encoded: torch.Tensor) -> torch.Tensor:
        answer = self.model(
            encoder_outputs=(encoded.expand(len(tokens), -1, -1),), decoder_input_ids=tokens
        )
        return answer.logits.as_subclass(Doubles)

    def rearrange_kv_cache(self, source_indices: Sequence[int]) -> None:
        """Nothing is kept."""

    def cleanup_caching(self) -> None:
        """Nothing is kept."""


class Task(decoding.DecodingTask):
    """The package's task for one window of a random Whisper, with that checkpoint's own rules."""

    def __init__(
        self,
        models: WhisperModels,
        window: Request,
        timestamps: bool,
        num_beams: int,
        length_penalty: float | None,
    ) -> None:
        special = models.special_tokens
        self.options = decoding.DecodingOptions(language="en", fp16=False)
        self.tokenizer = SimpleNamespace(
            eot=special.end_of_text,
            no_speech=special.no_speech,
            no_timestamps=special.no_timestamps,
            timestamp_begin=special.timestamp_begin,
            encode=lambda _: [each for each in special.begin_suppress if each != self.end],
            decode=str,
        )
        self.end, self.models = special.end_of_text, models
        self.n_group, self.n_ctx = num_beams, special.max_length - 1
        self.sample_len = window.max_tokens or special.max_length - len(window.prompt)
        self.initial_tokens = window.prompt
        self.sample_begin = len(window.prompt)
        self.sot_index = window.prompt.index(special.start_of_transcript)
        self.inference: Any = Passes(models)
        self.sequence_ranker = decoding.MaximumLikelihoodRanker(length_penalty)
        self.decoder = decoding.BeamSearchDecoder(num_beams, special.end_of_text, self.inference)
        blank = decoding.SuppressBlank(self.tokenizer, self.sample_begin)
        self.logit_filters = [blank, decoding.SuppressTokens(special.suppress)]
        if timestamps:
            initial = special.max_initial_timestamp_index
            self.logit_filters.append(
                decoding.ApplyTimestampRules(self.tokenizer, self.sample_begin, initial)
            )

    def _get_audio_features(self, mel: torch.Tensor) -> torch.Tensor:
        return self.models.model.get_encoder()(mel.double()).last_hidden_state


def beam_search(
    models: WhisperModels,
    windows: Sequence[Request],
    timestamps: bool,
    num_beams: int,
    length_penalty: float | None = None,
) -> dict[object, decoding.DecodingResult]:
    """Return the package's answers by key."""
    answers = {}
    for window in windows:
        features = features_of(models, window.samples)
        with _in_doubles():
            task = Task(models, window, timestamps, num_beams, length_penalty)
            (answers[window.key],) = task.run(features)
    return answers


@contextmanager
def _in_doubles() -> Iterator[None]:
    """Make the package's sums in float64; it hands tensors to numpy in a deprecated way."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        torch.set_default_dtype(before)
