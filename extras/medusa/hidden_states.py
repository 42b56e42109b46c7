"""The model's own texts, and the hidden states that chose their tokens, made once and kept on disk.

Heads are trained to say what the model itself says (self-distillation): its greedy tokens after the
rules for timestamps and suppressed tokens. The model is frozen, so its hidden states never change.
Each window is decoded by the engine in every style of prompt that requests use, then read once more
over prompt and text in a single pass.

A shard of some recordings is a file that appears when it is complete. The name of the folder is a
digest of all that its content depends on, so a run that was broken off goes on where it was, and
none goes on with another model's states.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from rich.progress import track
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.real.manifest import Recording
from extras.medusa.recordings import SpokenWindow, spoken_windows
from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.fallback import find_repetition
from whosaid.asr.engine.request import DecodeOptions, Request
from whosaid.asr.frontend.vad import DetectSpeech, SpeechDetector
from whosaid.asr.model.decoder import Decoder
from whosaid.asr.model.encoder import AudioWindow

RECORDINGS_A_SHARD, WINDOWS_A_BATCH = 8, 16
FORMAT = "3"  # of a shard; another one is cached elsewhere


@dataclass(frozen=True, slots=True)
class Text:
    """A model's text of a window: `prompt`, then `tokens`, with the end of text if the model ended
    it. Texts with equal `window` are of the same audio.
    """

    window: int
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class HiddenStates:
    """Texts one behind the other: `hidden` (positions, d_model), float16, chose `tokens`
    (positions,). `lengths` and `windows` have an entry for each text.
    """

    hidden: Tensor
    tokens: Tensor
    lengths: Tensor
    windows: Tensor

    def where(self, kept: Tensor) -> HiddenStates:
        """Return the texts of which `kept` (texts,) is true."""
        positions = kept.repeat_interleave(self.lengths)
        return HiddenStates(
            self.hidden[positions],
            self.tokens[positions],
            self.lengths[kept],
            self.windows[kept],
        )

    @classmethod
    def joined(cls, parts: Sequence[HiddenStates]) -> HiddenStates:
        """Several as one; the windows of each are numbered on from those before."""
        windows, first = [], 0
        for part in parts:
            windows.append(part.windows + first)
            first += int(part.windows.max()) + 1 if len(part.windows) else 0
        return cls(
            torch.cat([part.hidden for part in parts]),
            torch.cat([part.tokens for part in parts]),
            torch.cat([part.lengths for part in parts]),
            torch.cat(windows),
        )


class Teacher:
    """The main model: it decodes windows, and is then read over its own texts."""

    def __init__(self, models: WhisperModels, detect_speech: DetectSpeech | None = None) -> None:
        self.models, self.special = models, models.special_tokens
        self.engine = DecodeEngine(models)
        self.detect_speech = detect_speech or SpeechDetector()

    def read(self, recordings: Sequence[Recording]) -> HiddenStates:
        """Return the texts of some recordings in every style of prompt, and their hidden states."""
        windows = list(self.windows(recordings))
        texts: list[Text] = []
        hidden: list[Tensor] = []
        with self.engine.computing():
            for first in range(0, len(windows), WINDOWS_A_BATCH):
                batch = windows[first : first + WINDOWS_A_BATCH]
                audio = [AudioWindow(each.samples) for each in batch]
                encoded = self.engine.context.encoder.encode(audio, drafted=False).main
                styles = [*self.styles(batch, encoded)]
                # The engine is idle: its rows leave their memory to the caches of reading.
                self.engine.memory.release()
                for style in styles:
                    kept = [each for each in style if not self.loops(each)]
                    rows = encoded[[each.window for each in kept]]
                    if kept:
                        hidden += teacher_forced(self.engine.main, rows, kept)
                    texts += [Text(first + each.window, each.prompt, each.tokens) for each in kept]
            return _packed(texts, hidden, len(self.engine.main.norm.weight))

    def windows(self, recordings: Sequence[Recording]) -> Iterator[SpokenWindow]:
        """Yield the speech of some recordings, cut into windows as for a request."""
        return spoken_windows(
            recordings,
            self.special,
            self.detect_speech,
            lambda samples: self.engine.detect_language(samples).language,
            self.models.window_seconds,
        )

    def styles(self, windows: Sequence[SpokenWindow], encoded: Tensor) -> Iterator[list[Text]]:
        """Yield texts with timestamps, without them, and with timestamps after the text before."""
        none: list[tuple[int, ...]] = [()] * len(windows)
        timed = self._decode(windows, encoded, True, none)
        yield timed
        yield self._decode(windows, encoded, False, none)
        if self.special.start_of_previous is None:
            return
        longest, end = self.special.longest_previous, self.special.end_of_text
        before = [
            () if one.language != other.language else tuple(t for t in text.tokens if t < end)
            for text, (one, other) in zip(timed, pairwise(windows), strict=False)
        ]
        previous = [(), *(each[-longest:] for each in before)]
        yield [
            text
            for text, said in zip(
                self._decode(windows, encoded, True, previous), previous, strict=True
            )
            if said
        ]

    def _decode(
        self,
        windows: Sequence[SpokenWindow],
        encoded: Tensor,
        timestamps: bool,
        previous: Sequence[tuple[int, ...]],
    ) -> list[Text]:
        """Return the greedy texts of windows, in order; `previous` is the text each has in its
        prompt.
        """
        requests = [
            Request(
                number,
                window.samples,
                self.special.prompt(window.language, "transcribe", timestamps, previous[number]),
                encoded=encoded[number : number + 1],
            )
            for number, window in enumerate(windows)
        ]
        texts: list[Text] = []
        options = DecodeOptions(timestamps=timestamps, batch_size=len(windows))
        with self.engine.session(options) as session:
            session.add(requests)
            while not session.done:
                for request, result in session.step():
                    tokens = (*result.tokens, *[self.special.end_of_text] * result.ended)
                    texts.append(Text(request.key, request.prompt, tokens))
        return sorted(texts, key=lambda text: text.window)

    def loops(self, text: Text) -> bool:
        """Return True if a text repeats itself; the fallback would reject it."""
        words = [token for token in text.tokens if token < self.special.end_of_text]
        return find_repetition(words) is not None


@torch.inference_mode()
def teacher_forced(decoder: Decoder, encoded: Tensor, texts: Sequence[Text]) -> list[Tensor]:
    """For each text the hidden states (tokens, d_model) that chose its tokens, from one pass over
    prompts and texts; `encoded` (texts, frames, d_model).
    """
    longest = max(len(text.prompt) + len(text.tokens) for text in texts) - 1
    tokens = torch.zeros(len(texts), longest, dtype=torch.long)
    for row, text in zip(tokens, texts, strict=True):
        read = torch.tensor([*text.prompt, *text.tokens[:-1]])
        row[: len(read)] = read
    tokens = tokens.to(encoded.device)
    cache = decoder.allocate(len(texts), longest)
    decoder.fill_cross_kv(encoded, cache)
    positions = torch.arange(longest, device=tokens.device).expand(tokens.shape)
    hidden = decoder.forward(tokens, positions, cache, longest)
    return [
        row[len(text.prompt) - 1 :][: len(text.tokens)]
        for row, text in zip(hidden, texts, strict=True)
    ]


def cached_hidden_states(
    teacher: Teacher, recordings: Sequence[Recording], folder: Path
) -> HiddenStates:
    """Return the hidden states of recordings, from `folder` if they are there already."""
    folder.mkdir(parents=True, exist_ok=True)
    firsts, parts = range(0, len(recordings), RECORDINGS_A_SHARD), []
    for number, first in enumerate(track(firsts, "decoding recordings")):
        path = folder / f"{number:05d}.safetensors"
        if not path.is_file():
            made = teacher.read(recordings[first : first + RECORDINGS_A_SHARD])
            partial = path.with_suffix(".partial")
            save_file({name: getattr(made, name).contiguous() for name in TENSORS}, partial)
            partial.replace(path)
        parts.append(HiddenStates(**load_file(path)))
    return HiddenStates.joined(parts)


TENSORS = ("hidden", "tokens", "lengths", "windows")


def cache_name(models: WhisperModels, recordings: Sequence[Recording]) -> str:
    """Return a name for the hidden states of a model's texts of recordings: a digest of its
    weights, and of the recordings' names, sizes and languages.
    """
    digest = hashlib.sha256(FORMAT.encode())
    for name, weight in sorted(models.model.named_parameters()):
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    for each in recordings:
        digest.update(f"{each.name} {each.audio.stat().st_size} {each.language}\n".encode())
    return digest.hexdigest()[:16]


def _packed(texts: Sequence[Text], hidden: Sequence[Tensor], d_model: int) -> HiddenStates:
    tokens = [token for text in texts for token in text.tokens]
    return HiddenStates(
        torch.cat([torch.zeros(0, d_model).half(), *(each.half().cpu() for each in hidden)]),
        torch.tensor(tokens, dtype=torch.int32),
        torch.tensor([len(text.tokens) for text in texts], dtype=torch.long),
        torch.tensor([text.window for text in texts], dtype=torch.long),
    )
