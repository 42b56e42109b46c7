"""Word errors of each speaker where held-out voices talk at once, beside the model's own ways.

The reference is the model's own text of a voice alone. `plain` is the text of the mixture, in the
better order of the voices. `by turns` is the text of the mixture for each speaker, in which the time
of the other voice alone is silence. `conditioned` decodes the conditioned encoder's output. Turns
are those of the clean voices.
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
from extras.conditioning.encoder import OTHER, ConditionedEncoder, classes_of
from extras.conditioning.mixtures import FRAME, Piece, Samples, filled
from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.request import DecodeOptions, Request
from whosaid.timebase import SAMPLE_RATE

DEGREES = (0.0, 0.25, 0.5, 1.0)  # of the shorter voice
ALONE = "single voices"
PLAIN, BY_TURNS, CONDITIONED = SYSTEMS = ("text alone", "by turns", "conditioned")
MARGIN, GAP = 10, 5  # frames before the first voice, and between voices that do not overlap
LEVEL_DB = 3.0
SHORT_PAUSE = 25  # frames that do not end a turn
WINDOWS_AT_ONCE = 16

Errors = dict[tuple[str, str], list[Count]]


def pairs(pieces: Sequence[Piece], count: int) -> Iterator[tuple[Piece, Piece]]:
    """Yield as many pairs of pieces of different speakers; each piece is in one at most."""
    order = np.random.default_rng(11).permutation(len(pieces)).tolist()
    for _ in range(count):
        first = order.pop()
        other = next((n for n in order if pieces[n].speaker != pieces[first].speaker), None)
        if other is None:
            return
        order.remove(other)
        yield pieces[first], pieces[other]


def overlapped(
    voices: Sequence[Piece], degree: float, generator: np.random.Generator
) -> tuple[Samples, list[Tensor]]:
    """Return a mixture of two voices, the shorter overlapped by `degree`, and the mask of each."""
    first, other = (len(each.active) for each in voices)
    shared = min(first, other)
    start = first + GAP if degree == 0 else first - round(degree * shared)
    if degree == 1:  # a shorter one lies anywhere within
        start = int(generator.integers(min(0, first - other), max(0, first - other) + 1))
    starts = [MARGIN + max(0, -start), MARGIN + max(0, start)]
    frames = max(starts[0] + first, starts[1] + other) + MARGIN
    samples, speaks = np.zeros(frames * FRAME, np.float32), np.zeros((2, frames), bool)
    for place, each, active in zip(starts, voices, speaks, strict=True):
        level = 0.05 / each.level * 10 ** (generator.uniform(-LEVEL_DB, LEVEL_DB) / 20)
        samples[place * FRAME :][: len(each.samples)] += level * each.samples
        active[place : place + len(each.active)] = filled(each.active, SHORT_PAUSE)
    return samples, [torch.from_numpy(classes_of(*each)) for each in (speaks, speaks[::-1])]


class Evaluation:
    """Decodes by the endpoint's own engine, with the frozen and with the conditioned encoder."""

    def __init__(self, models: WhisperModels, encoder: ConditionedEncoder, language: str) -> None:
        self.models, self.encoder, self.language = models, encoder, language
        self.engine = DecodeEngine(models)
        self.prompt = models.special_tokens.prompt(language, "transcribe", timestamps=False)

    def run(self, chosen: Sequence[tuple[Piece, Piece]]) -> Iterator[Errors]:
        """Yield the errors of each pair by degree of overlap and system."""
        for number, voices in enumerate(chosen):
            errors: Errors = defaultdict(list)
            clean = [np.pad(each.samples, MARGIN * FRAME) for each in voices]
            masks = [
                torch.from_numpy(classes_of(active, np.zeros_like(active)))
                for active in (np.pad(filled(v.active, SHORT_PAUSE), MARGIN) for v in voices)
            ]
            texts = self.decode(clean)
            for text, found in zip(texts, self.decode(clean, masks), strict=True):
                errors[ALONE, CONDITIONED].append(self.errors(text, found))
            for degree in DEGREES:
                generator = np.random.default_rng([13, number])
                samples, masks = overlapped(voices, degree, generator)
                (plain,) = self.decode([samples])
                orders = [" ".join(texts), " ".join(reversed(texts))]
                name = f"{degree:.0%} overlap"
                best = min((self.errors(each, plain) for each in orders), key=lambda c: c.errors)
                errors[name, PLAIN].append(best)
                turns = [samples * (mask[:, OTHER] == 0).numpy().repeat(FRAME) for mask in masks]
                for system, found in (
                    (BY_TURNS, self.decode(turns)),
                    (CONDITIONED, self.decode([samples, samples], masks)),
                ):
                    errors[name, system] += map(self.errors, texts, found)
            yield errors

    @torch.inference_mode()
    def decode(self, windows: Sequence[Samples], masks: Sequence[Tensor] = ()) -> list[str]:
        """Return the texts of windows, with masks (frames, classes) of conditioned ones."""
        frames = self.engine.context.encoder.part_of_window(len(windows[0]) / SAMPLE_RATE)
        encoded: list[Tensor | None] = [None] * len(windows)
        if masks:
            features = self.engine.context.encoder.log_mel(windows)
            features = features if frames is None else features[..., : 2 * frames]
            silent = torch.eye(4)[0].expand(len(masks), features.shape[-1] // 2, 4).clone()
            for row, mask in zip(silent, masks, strict=True):
                row[: len(mask)] = mask[: len(row)]
            encoded = [*self.encoder(features, silent.to(features.device)).split(1)]
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
    """Return word errors by degree of overlap as a Markdown table."""
    names = [ALONE, *(f"{degree:.0%} overlap" for degree in DEGREES)]
    counts = {
        (name, system): pooled([count for each in errors for count in each.get((name, system), [])])
        for name in names
        for system in SYSTEMS
    }

    def cell(name: str, system: str) -> str:
        count = counts[name, system]
        return f"{count.rate:.1%} ({count.errors:.0f}/{count.total:.0f})" if count.total else "-"

    return table(
        ["", *names], [[system, *(cell(name, system) for name in names)] for system in SYSTEMS]
    )
