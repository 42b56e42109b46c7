"""Batches of training windows: features, tokens, and the time at which each token is spoken.

All windows of a batch have the same length, so only tokens are padded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import WhisperForConditionalGeneration, WhisperTokenizer

from extras.demo_models.corpus import SpokenMel
from extras.demo_models.whisper import SPACE
from extras.demo_models.windows import Spoken, Window, draw_window
from tests.support.speech import vocabulary
from whosaid.asr.checkpoint.special_tokens import SpecialTokens, read_special_tokens
from whosaid.payload.languages import ENGLISH

IGNORED = -100
SILENCE = 0
TIMED_SHARE, TRANSLATE_SHARE, OTHER_LANGUAGE_SHARE = 0.7, 0.1, 0.04
BATCH_SIZES = {4: 20, 10: 8, 30: 3}
LAST_SHARES_FROM = 0.5

# A token, and when it is spoken, in seconds.
Timed = tuple[int, tuple[float, float]]
# Proportions of windows of 4, 10 and 30 s.
Shares = tuple[float, float, float]


@dataclass(frozen=True)
class Batch:
    """Model inputs and training targets of B windows.

    `features` (B, 80, T); `tokens` and `targets` (B, L), where `IGNORED` targets have no loss;
    `spans` (B, L, 2), start and end of each target in seconds, NaN if it has no time; `labels`
    (B, T / 2), the word id + 1 of each encoder frame, SILENCE if none is spoken.
    """

    features: Tensor
    tokens: Tensor
    targets: Tensor
    spans: Tensor
    labels: Tensor


class Targets:
    """Turns windows into tokens of a model's vocabulary."""

    def __init__(self, model: WhisperForConditionalGeneration, tokenizer: WhisperTokenizer) -> None:
        self.special: SpecialTokens = read_special_tokens(
            "demo", model.config, model.generation_config, tokenizer
        )
        ids = tokenizer.get_vocab()
        self._words = [ids[SPACE + word] for word in vocabulary()]

    def draw(
        self,
        corpus: Sequence[SpokenMel],
        progress: float,
        shares: tuple[Shares, Shares],
        generator: np.random.Generator,
    ) -> Batch:
        """Draw a batch of windows of 4, 10 or 30 s, in the first of `shares` at `progress` 0, and
        in the last from LAST_SHARES_FROM on.

        Words are learnt on short windows, at a fraction of the cost. Timestamps are learnt on long
        windows, which therefore get most of the time.
        """
        first, last = map(np.array, shares)
        odds = first + (last - first) * min(1.0, progress / LAST_SHARES_FROM)
        seconds = int(generator.choice(list(BATCH_SIZES), p=odds))
        windows = [draw_window(corpus, seconds, generator) for _ in range(BATCH_SIZES[seconds])]
        return self.collate(windows, generator)

    def collate(self, windows: Sequence[Window], generator: np.random.Generator) -> Batch:
        """Stack windows and their drawn target tokens.

        The target after <|startoftranscript|> is English, or <|nospeech|> if nothing is spoken,
        whatever language the prompt names. Language detection is learnt from it.
        """
        sequences = [self.sequence(window, generator) for window in windows]
        ids = [torch.tensor([token for token, _ in sequence]) for sequence in sequences]
        spans = [torch.tensor([span for _, span in sequence[1:]]) for sequence in sequences]
        targets = pad_sequence([each[1:] for each in ids], True, IGNORED)
        english, silence = self.special.languages[ENGLISH], self.special.no_speech
        targets[:, 0] = torch.tensor([english if each.segments else silence for each in windows])
        targets[:, 1] = IGNORED
        return Batch(
            torch.from_numpy(np.stack([window.features for window in windows])),
            pad_sequence([each[:-1] for each in ids], True, self.special.end_of_text),
            targets,
            pad_sequence(spans, True, math.nan),
            torch.stack([_frame_labels(window) for window in windows]),
        )

    def sequence(self, window: Window, generator: np.random.Generator) -> list[Timed]:
        """Return <|startoftranscript|> to <|endoftext|>, with token times."""
        special = self.special
        task = "translate" if generator.random() < TRANSLATE_SHARE else "transcribe"
        other = generator.random() < OTHER_LANGUAGE_SHARE
        language = str(generator.choice(list(special.languages))) if other else ENGLISH
        whole = all(segment.complete for segment in window.segments)
        timed = generator.random() < TIMED_SHARE or not whole
        body = self._timed_body(window) if timed else self._spoken(window.segments)
        prompt = special.prompt(language, task, timed)
        return [*map(_untimed, prompt), *body, _untimed(special.end_of_text)]

    def _timed_body(self, window: Window) -> list[Timed]:
        """Return <|start|> words <|end|> for every segment, times non-decreasing, of a segment that
        the window cuts only the start; <|0.00|> for silence.
        """
        body, latest = [], 0.0
        for segment in window.segments:
            start = max(latest, float(segment.spans[0, 0]))
            latest = max(latest, float(segment.spans[-1, 1]))
            body.append((self.timestamp(start), (start, start)))
            if not segment.complete:
                break
            body += [*self._spoken([segment]), (self.timestamp(latest), (latest, latest))]
        return body or [_untimed(self.timestamp(0.0))]

    def timestamp(self, seconds: float) -> int:
        """Return the timestamp token nearest to `seconds`."""
        return self.special.timestamp_begin + round(min(seconds, 30.0) * 50)

    def _spoken(self, segments: Iterable[Spoken]) -> list[Timed]:
        return [
            (self._words[word], (start, end))
            for each in segments
            for word, (start, end) in zip(each.words.tolist(), each.spans.tolist(), strict=True)
        ]


def _frame_labels(window: Window) -> Tensor:
    """Return the word id + 1 of each encoder frame (20 ms), SILENCE if none is spoken."""
    labels = torch.full((window.features.shape[1] // 2,), SILENCE)
    for segment in window.segments:
        for word, (start, end) in zip(segment.words.tolist(), segment.spans, strict=True):
            labels[round(start * 50) : round(end * 50)] = word + 1
    return labels


def _untimed(token: int) -> Timed:
    return token, (math.nan, math.nan)
