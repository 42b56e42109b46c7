"""The model's own texts, and the hidden states that chose their tokens, computed once and kept on
disk.

Heads are trained to predict the model's own output (self-distillation): its greedy tokens after the
rules for timestamps and suppressed tokens. Each window is decoded by the engine in every style of
prompt that requests use, then read once more over prompt and text in a single pass.

A shard of some recordings is a file that appears when it is complete, in a folder named by a digest
of all that its content depends on, so an interrupted run continues.
"""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from benchmarks.real.manifest import Recording
from tests.support.decoding import decode
from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.fallback import find_repetition
from whosaid.asr.engine.request import DecodeOptions, Request
from whosaid.asr.frontend.schedule import Schedule
from whosaid.asr.frontend.vad import DetectSpeech, SpeechDetector
from whosaid.asr.model.decoder import Decoder
from whosaid.asr.model.encoder import AudioWindow
from whosaid.payload.languages import ENGLISH, language_code
from whosaid.timebase import SAMPLE_RATE

RECORDINGS_A_SHARD, WINDOWS_A_BATCH = 8, 16
FORMAT = "4"  # of a shard; part of the cache's name

Tokens = tuple[int, ...]


class SpokenWindow(NamedTuple):
    """At most 30 s of a recording: samples (n,), mono at 16 kHz, and the language's code."""

    samples: NDArray[np.float32]
    language: str


class Decoded(NamedTuple):
    """The model's text of a window: the prompt, and the tokens after it."""

    window: int
    prompt: Tokens
    tokens: Tokens


class Text(NamedTuple):
    """A text's tokens (n,), with the end of text if the model ended it, and the hidden states
    (n, d_model), float16, that chose them. Texts with equal `window` are of the same audio.
    """

    window: int
    tokens: Tensor
    hidden: Tensor


class Teacher:
    """The main model: decodes windows, then reads its own texts."""

    def __init__(self, models: WhisperModels, detect_speech: DetectSpeech | None = None) -> None:
        self.models, self.special = models, models.special_tokens
        self.engine = DecodeEngine(models)
        self.detect_speech = detect_speech or SpeechDetector()

    def read(self, recordings: Sequence[Recording]) -> list[Text]:
        """Return the texts of some recordings in every style of prompt; windows count from 0."""
        windows = list(self.windows(recordings))
        texts: list[Text] = []
        with self.engine.computing():
            for first in range(0, len(windows), WINDOWS_A_BATCH):
                batch = windows[first : first + WINDOWS_A_BATCH]
                audio = [AudioWindow(each.samples) for each in batch]
                encoded = self.engine.context.encoder.encode(audio, drafted=False).main
                styles = [*self.styles(batch, encoded)]
                # The engine is idle, so its rows' memory is freed for the caches of the reading
                # pass.
                self.engine.memory.release()
                for style in styles:
                    kept = [each for each in style if not self.loops(each.tokens)]
                    rows = encoded[[each.window for each in kept]]
                    states = teacher_forced(self.engine.main, rows, kept) if kept else []
                    texts += [
                        Text(first + each.window, torch.tensor(each.tokens), hidden.half().cpu())
                        for each, hidden in zip(kept, states, strict=True)
                    ]
        return texts

    def windows(self, recordings: Sequence[Recording]) -> Iterator[SpokenWindow]:
        """Yield the speech of recordings, cut as for a request, with its language."""
        for recording in recordings:
            samples = recording.samples()
            longest = int(self.models.window_seconds * SAMPLE_RATE)
            schedule = Schedule(samples, self.detect_speech(samples), longest)
            parts = [schedule.samples(window) for window in schedule.planned()]
            language = language_code(recording.language) if recording.language else None
            if not self.special.multilingual:
                language = ENGLISH
            elif language is None and parts:
                language = self.engine.detect_language(parts[0]).language
            yield from (SpokenWindow(part, language or ENGLISH) for part in parts)

    def styles(self, windows: Sequence[SpokenWindow], encoded: Tensor) -> Iterator[list[Decoded]]:
        """Yield texts with timestamps, without them, and with timestamps after the text before."""
        none: list[Tokens] = [()] * len(windows)
        timed = self._decode(windows, encoded, True, none)
        yield timed
        yield self._decode(windows, encoded, False, none)
        if self.special.start_of_previous is None:
            return
        longest, end = self.special.longest_previous, self.special.end_of_text
        before = [
            tuple(token for token in text.tokens if token < end)[-longest:]
            if one.language == other.language
            else ()
            for text, (one, other) in zip(timed, pairwise(windows), strict=False)
        ]
        previous = [(), *before]
        after = self._decode(windows, encoded, True, previous)
        yield [text for text, said in zip(after, previous, strict=True) if said]

    def _decode(
        self,
        windows: Sequence[SpokenWindow],
        encoded: Tensor,
        timestamps: bool,
        previous: Sequence[Tokens],
    ) -> list[Decoded]:
        """Return windows' greedy texts, in order; `previous` are the texts in their prompts."""
        requests = [
            Request(
                number,
                window.samples,
                self.special.prompt(window.language, "transcribe", timestamps, previous[number]),
                encoded=encoded[number : number + 1],
            )
            for number, window in enumerate(windows)
        ]
        options = DecodeOptions(timestamps=timestamps, batch_size=len(windows))
        results, _ = decode(self.engine, requests, options)
        texts = []
        for number, request in enumerate(requests):
            tokens = (*results[number].tokens, *[self.special.end_of_text] * results[number].ended)
            texts.append(Decoded(number, request.prompt, tokens))
        return texts

    def loops(self, tokens: Tokens) -> bool:
        """Return True if a text repeats itself; the fallback would reject it."""
        end = self.special.end_of_text
        return find_repetition([token for token in tokens if token < end]) is not None


@torch.inference_mode()
def teacher_forced(decoder: Decoder, encoded: Tensor, texts: Sequence[Decoded]) -> list[Tensor]:
    """Return for each text the hidden states (tokens, d_model) that chose its tokens, from one pass
    over prompts and texts; `encoded` is (texts, frames, d_model).
    """
    read = [torch.tensor([*text.prompt, *text.tokens[:-1]]) for text in texts]
    tokens = pad_sequence(read, batch_first=True).to(encoded.device)
    longest = tokens.shape[1]
    cache = decoder.allocate(len(texts), longest)
    decoder.fill_cross_kv(encoded, cache)
    positions = torch.arange(longest, device=tokens.device).expand(tokens.shape)
    hidden = decoder.forward(tokens, positions, cache, longest)
    return [
        row[len(text.prompt) - 1 :][: len(text.tokens)]
        for row, text in zip(hidden, texts, strict=True)
    ]


def cached_texts(teacher: Teacher, recordings: Sequence[Recording], folder: Path) -> list[Text]:
    """Return the texts of recordings, from the cache in `folder` if possible."""
    folder.mkdir(parents=True, exist_ok=True)
    firsts = range(0, len(recordings), RECORDINGS_A_SHARD)
    texts: list[Text] = []
    before = 0
    for number, first in enumerate(track(firsts, "decoding recordings")):
        path = folder / f"{number:05d}.pt"
        if not path.is_file():
            made = teacher.read(recordings[first : first + RECORDINGS_A_SHARD])
            save_whole([tuple(text) for text in made], path)
        shard = [Text(*text) for text in torch.load(path, weights_only=True)]
        texts += [text._replace(window=before + text.window) for text in shard]
        before += 1 + max((text.window for text in shard), default=-1)
    return texts


def save_whole(value: Any, path: Path) -> None:  # noqa: ANN401
    """Save a file for `torch.load` atomically."""
    partial = path.with_suffix(".partial")
    torch.save(value, partial)
    partial.replace(path)


def cache_name(models: WhisperModels, recordings: Sequence[Recording]) -> str:
    """Return a digest of a model's weights and of the recordings' names, sizes and languages."""
    digest = hashlib.sha256(FORMAT.encode())
    for name, weight in sorted(models.model.named_parameters()):
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    for each in recordings:
        digest.update(f"{each.name} {each.audio.stat().st_size} {each.language}\n".encode())
    return digest.hexdigest()[:16]
