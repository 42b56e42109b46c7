"""Word errors by speaker where held-out voices talk at once: three ways to read a mixture.

`text alone` decodes the mixture, scored in the better order of the voices. `by turns` decodes it
for each speaker, with silence while only the other voice speaks. `conditioned` decodes the output
of the conditioned encoder. The reference is the model's own text of each voice alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.counts import Count, pooled
from benchmarks.real.manifest import Recording
from benchmarks.real.scoring import score
from benchmarks.report import table
from extras.conditioning.encoder import CLASSES, OTHER, ConditionedEncoder, classes_of
from extras.conditioning.mixtures import FRAME, LOUDNESS, Piece, Samples, filled
from whosaid.asr import DecodeOptions, WhisperModels
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.request import Request
from whosaid.timebase import SAMPLE_RATE

DEGREES = (0.0, 0.25, 0.5, 1.0)  # of the shorter voice
SINGLE = "single voices"
COLUMNS = (SINGLE, *(f"{degree:.0%} overlap" for degree in DEGREES))
PLAIN, BY_TURNS, CONDITIONED = WAYS = ("text alone", "by turns", "conditioned")
MARGIN, GAP = 10, 5  # frames around a mixture, and between voices that do not overlap
LEVEL_DB = 3.0
PAUSE = 25  # frames that do not end a turn

# Counts by column and way.
Errors = dict[tuple[str, str], list[Count]]


def pairs(pieces: Sequence[Piece], count: int) -> Iterator[tuple[Piece, Piece]]:
    """Yield up to `count` pairs of pieces of different speakers, no piece twice."""
    order = [pieces[number] for number in np.random.default_rng(11).permutation(len(pieces))]
    for _ in range(count):
        first = order.pop(0)
        other = next((each for each in order if each.speaker != first.speaker), None)
        if other is None:
            return
        order.remove(other)
        yield first, other


def overlapped(
    voices: tuple[Piece, Piece], degree: float, generator: np.random.Generator
) -> tuple[Samples, list[Tensor]]:
    """Return two voices, of which the shorter is overlapped by `degree`, and the mask of each."""
    first, other = (len(each.active) for each in voices)
    start = first + GAP if degree == 0 else first - round(degree * min(first, other))
    if degree == 1:
        start = int(generator.integers(min(0, first - other), max(0, first - other) + 1))
    starts = [MARGIN + max(0, -start), MARGIN + max(0, start)]
    frames = max(starts[0] + first, starts[1] + other) + MARGIN
    samples, speaks = np.zeros(frames * FRAME, np.float32), np.zeros((2, frames), bool)
    for place, each, row in zip(starts, voices, speaks, strict=True):
        gain = np.mean(LOUDNESS) / each.level * 10 ** (generator.uniform(-1, 1) * LEVEL_DB / 20)
        samples[place * FRAME :][: len(each.samples)] += gain * each.samples
        row[place:][: len(each.active)] = filled(each.active, PAUSE)
    return samples, [torch.from_numpy(classes_of(*each)) for each in (speaks, speaks[::-1])]


class Evaluation:
    """Decodes by the endpoint's own engine, with the frozen and with the conditioned encoder."""

    def __init__(self, models: WhisperModels, encoder: ConditionedEncoder, language: str) -> None:
        self.models, self.encoder, self.language = models, encoder, language
        self.engine = DecodeEngine(models)
        self.prompt = models.special_tokens.prompt(language, "transcribe", timestamps=False)

    def run(self, chosen: Sequence[tuple[Piece, Piece]]) -> Iterator[Errors]:
        """Yield the errors of each pair."""
        for number, voices in enumerate(chosen):
            errors: Errors = defaultdict(list)
            texts = []
            for each in voices:
                window = np.pad(each.samples, MARGIN * FRAME)
                active = np.pad(filled(each.active, PAUSE), MARGIN)
                mask = torch.from_numpy(classes_of(active, np.zeros_like(active)))
                texts += self.decode([window])
                (conditioned,) = self.decode([window], [mask])
                errors[SINGLE, CONDITIONED].append(self.errors(texts[-1], conditioned))
            for column, degree in zip(COLUMNS[1:], DEGREES, strict=True):
                samples, masks = overlapped(voices, degree, np.random.default_rng([13, number]))
                (plain,) = self.decode([samples])
                orders = (" ".join(order) for order in (texts, texts[::-1]))
                in_order = [self.errors(order, plain) for order in orders]
                errors[column, PLAIN].append(min(in_order, key=lambda count: count.errors))
                turns = [samples * (mask[:, OTHER] == 0).numpy().repeat(FRAME) for mask in masks]
                found = {BY_TURNS: self.decode(turns)}
                found[CONDITIONED] = self.decode([samples] * len(masks), masks)
                for way, by_speaker in found.items():
                    errors[column, way] += map(self.errors, texts, by_speaker)
            yield errors

    @torch.inference_mode()
    def decode(self, windows: Sequence[Samples], masks: Sequence[Tensor] = ()) -> list[str]:
        """Return the texts of windows of one length; if masks (frames, classes) are given, those of
        the conditioned encoder's outputs.
        """
        reader = self.engine.context.encoder
        frames = reader.part_of_window(len(windows[0]) / SAMPLE_RATE) or len(reader.main.positions)
        encoded: Sequence[Tensor | None] = [None] * len(windows)
        if masks:
            whole = torch.eye(len(CLASSES))[0].repeat(len(masks), frames, 1)
            for row, mask in zip(whole, masks, strict=True):
                row[: len(mask)] = mask
            features = reader.log_mel(windows)[..., : 2 * frames]
            encoded = self.encoder(features, whole.to(features.device)).split(1)
        requests = [
            Request(number, samples, self.prompt, encoded=output, frames=frames)
            for number, (samples, output) in enumerate(zip(windows, encoded, strict=True))
        ]
        texts = {}
        with self.engine.session(DecodeOptions(timestamps=False)) as session:
            session.add(requests)
            while not session.done:
                for request, result in session.step():
                    texts[request.key] = self.models.text_of(result.tokens)
        return [texts[number] for number in range(len(windows))]

    def errors(self, expected: str, found: str) -> Count:
        return score(Recording(Path(), self.language, expected), found).count


def figures(errors: Sequence[Errors]) -> str:
    """Return the word errors of all pairs as a Markdown table."""

    def cell(column: str, way: str) -> str:
        count = pooled([count for each in errors for count in each.get((column, way), [])])
        return f"{count.rate:.1%} ({count.errors:.0f}/{count.total:.0f})" if count.total else ""

    rows = [[way, *(cell(column, way) for column in COLUMNS)] for way in WAYS]
    return table(["", *COLUMNS], rows)
