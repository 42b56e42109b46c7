"""Batches of training windows: features, tokens, and the time at which each token is spoken.

All windows of a batch have the same length, so only tokens are padded. A separate process draws the
batches while the model trains.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset
from transformers import WhisperTokenizer

from extras.demo_models.corpus import SpokenMel, load_corpus
from extras.demo_models.tokenizer import token_id
from extras.demo_models.windows import Spoken, Window, draw_window
from tests.support.speech import vocabulary
from tests.support.tiny_whispers import END_OF_TEXT

IGNORED = -100
TIMED_SHARE, TRANSLATE_SHARE, OTHER_LANGUAGE_SHARE = 0.7, 0.1, 0.04
BATCH_SIZES = {4: 20, 10: 8, 30: 3}


@dataclass(frozen=True)
class Batch:
    """Model inputs and training targets of B windows.

    `features` (B, 80, T); `tokens` and `targets` (B, L), where `IGNORED` targets have no loss;
    `spans` (B, L, 2), start and end of each target in seconds, NaN if it has no time; `labels`
    (B, T / 2), the word spoken in each encoder frame.
    """

    features: Tensor
    tokens: Tensor
    targets: Tensor
    spans: Tensor
    labels: Tensor


@dataclass(frozen=True)
class SpecialTokens:
    """Token ids that targets are built from; `words[i]` is that of word i of `vocabulary()`."""

    end: int
    start: int
    languages: tuple[int, ...]
    translate: int
    transcribe: int
    no_speech: int
    no_timestamps: int
    words: tuple[int, ...]

    @staticmethod
    def of(tokenizer: WhisperTokenizer) -> SpecialTokens:
        """Look the ids up. Raises ValueError if a word of the vocabulary is not one token."""
        start, translate = (
            token_id(tokenizer, "<|startoftranscript|>"),
            token_id(tokenizer, "<|translate|>"),
        )
        words = [tokenizer(f" {word}", add_special_tokens=False).input_ids for word in vocabulary()]
        if any(len(ids) != 1 for ids in words):
            raise ValueError("a word of the vocabulary is not one token")
        return SpecialTokens(
            end=token_id(tokenizer, END_OF_TEXT),
            start=start,
            languages=tuple(range(start + 1, translate)),
            translate=translate,
            transcribe=token_id(tokenizer, "<|transcribe|>"),
            no_speech=token_id(tokenizer, "<|nospeech|>"),
            no_timestamps=token_id(tokenizer, "<|notimestamps|>"),
            words=tuple(ids[0] for ids in words),
        )

    def timestamp(self, seconds: float) -> int:
        """Return the timestamp token nearest to `seconds`."""
        return self.no_timestamps + 1 + round(min(seconds, 30.0) * 50)


Timed = tuple[int, float, float]


class WindowBatches(IterableDataset[Batch]):
    """Endless batches; `shares` are the proportions of 4, 10 and 30 s windows."""

    def __init__(
        self, folder: Path, special: SpecialTokens, shares: Sequence[float], seed: int
    ) -> None:
        self.folder, self.special, self.shares, self.seed = folder, special, shares, seed

    def __iter__(self) -> Iterator[Batch]:
        """Draw batches from the clips that the corpus folder holds now."""
        torch.set_num_threads(1)
        generator = np.random.default_rng(self.seed)
        corpus = load_corpus(self.folder)
        lengths = list(BATCH_SIZES)
        while True:
            seconds = lengths[int(generator.choice(len(lengths), p=self.shares))]
            yield draw_batch(corpus, seconds, self.special, generator)


def draw_batch(
    corpus: Sequence[SpokenMel],
    seconds: int,
    special: SpecialTokens,
    generator: np.random.Generator,
) -> Batch:
    """Return one batch of windows of `seconds`."""
    windows = [draw_window(corpus, seconds, generator) for _ in range(BATCH_SIZES[seconds])]
    return collate(
        windows, [target_tokens(window, special, generator) for window in windows], special
    )


def target_tokens(
    window: Window, special: SpecialTokens, generator: np.random.Generator
) -> list[Timed]:
    """Whisper's target for a window, <|startoftranscript|> to <|endoftext|>, with token times."""
    task = special.translate if generator.random() < TRANSLATE_SHARE else special.transcribe
    other = generator.random() < OTHER_LANGUAGE_SHARE
    language = int(generator.choice(special.languages)) if other else special.languages[0]
    prompt = [_untimed(token) for token in (special.start, language, task)]
    timed = generator.random() < TIMED_SHARE or not all(
        segment.complete for segment in window.segments
    )
    body = (
        _timed_body(window, special)
        if timed
        else [_untimed(special.no_timestamps), *_words(window, special)]
    )
    return [*prompt, *body, _untimed(special.end)]


def collate(
    windows: Sequence[Window], sequences: Sequence[list[Timed]], special: SpecialTokens
) -> Batch:
    """Stack windows and their target tokens into a batch.

    The target after <|startoftranscript|> is English, or <|nospeech|> where nothing is spoken,
    whatever language the prompt names. Language detection is learnt from it.
    """
    longest = max(map(len, sequences)) - 1
    tokens = np.full((len(windows), longest), special.end)
    targets = np.full((len(windows), longest), IGNORED)
    spans = np.full((len(windows), longest, 2), np.nan, np.float32)
    for row, (window, sequence) in enumerate(zip(windows, sequences, strict=True)):
        ids = [token for token, _, _ in sequence]
        tokens[row, : len(ids) - 1] = ids[:-1]
        targets[row, : len(ids) - 1] = ids[1:]
        targets[row, 0] = special.languages[0] if window.segments else special.no_speech
        targets[row, 1] = IGNORED
        spans[row, : len(ids) - 1] = [(start, end) for _, start, end in sequence[1:]]
    features = torch.from_numpy(np.stack([window.features for window in windows]))
    labels = torch.from_numpy(np.stack([window.labels for window in windows]))
    return Batch(
        features,
        torch.from_numpy(tokens),
        torch.from_numpy(targets),
        torch.from_numpy(spans),
        labels,
    )


def _timed_body(window: Window, special: SpecialTokens) -> list[Timed]:
    """<|start|> words <|end|> for every segment, times non-decreasing; <|0.00|> for silence."""
    if not window.segments:
        return [_untimed(special.timestamp(0.0))]
    body: list[Timed] = []
    latest = 0.0
    for segment in window.segments:
        start, end = (
            max(latest, float(segment.spans[0, 0])),
            max(latest, float(segment.spans[-1, 1])),
        )
        body.append((special.timestamp(start), start, start))
        if not segment.complete:
            break
        body.extend(_segment_words(segment, special))
        body.append((special.timestamp(end), end, end))
        latest = end
    return body


def _words(window: Window, special: SpecialTokens) -> list[Timed]:
    return [timed for segment in window.segments for timed in _segment_words(segment, special)]


def _segment_words(segment: Spoken, special: SpecialTokens) -> list[Timed]:
    pairs = zip(segment.words.tolist(), segment.spans.tolist(), strict=True)
    return [(special.words[word], start, end) for word, (start, end) in pairs]


def _untimed(token: int) -> Timed:
    return token, float("nan"), float("nan")
