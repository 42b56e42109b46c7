"""The diarizer that is NVIDIA's Nemotron-3-Diarization, a streaming Sortformer (Medennikov et al.,
"Streaming Sortformer", Interspeech 2025).

One network says every 10 ms how probable it is that each of its few speakers talks; they are
numbered as they arrive. It hears a recording in chunks, by transformers' defaults 27 s each, and
keeps what it needs of earlier ones in a cache. transformers goes through them within one call,
which nobody could stop; here every chunk is a call with the same cache, and gives the same
(`tests/test_nemotron_diarizer.py`). So memory does not grow with the recording either. Audio that
is still coming is heard in the same way, in the shorter chunks of the checkpoint's streaming mode:
1.04 s at first and 0.72 s more each time, for which all that the cache holds, some 42 s, is encoded
again. Only GPUs do that fast enough.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForAudioFrameClassification
from transformers.feature_extraction_utils import FeatureExtractionMixin
from transformers.utils.hub import cached_file

from diarization.computation import computing, create_stream, pause, warm_up
from diarization.diarizer import Capabilities, Diarization, Span, SpeakerHints, Vector
from diarization.nemotron_features import MelFeatures
from errors import StartError
from runtime.versions import dtype_argument, nemotron_speaker_cache
from timebase import SAMPLE_RATE, runs
from transcript import SpeakerTurn

# Of a checkpoint that names none: (chunk, right context), encoder frames, by transformers' default.
STREAMING_MODE = (9, 4)
THRESHOLD = 0.5  # the probability above which somebody speaks, as transformers' processor has it

Activity = NDArray[np.bool_]  # (frames, speakers)


@dataclass(frozen=True, slots=True)
class Chunking:
    """How audio is cut into chunks of `length`, heard with `left` and `right` around them, and how
    many of those heard are queued before `popped` at once go to the cache; in encoder frames.
    """

    length: int
    left: int
    right: int
    queued: int
    popped: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """One call of the model, in encoder frames: `start` to `end` are scored, and heard between
    `first` and `last`.
    """

    first: int
    start: int
    end: int
    last: int


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds, as in pyannote's pipelines: pauses of a speaker shorter than `off` are filled, then
    turns shorter than `on` are dropped.

    They are read from `min_duration_on` and `min_duration_off` of the checkpoint's config.json, of
    which transformers knows nothing; without them each frame counts as it is.
    """

    on: float = 0.0
    off: float = 0.0


class NemotronDiarizer:
    """A loaded Nemotron3DiarizationForAudioFrameClassification; any number of calls at a time.

    `new_cache` makes its speaker cache, `streaming_mode` is (chunk, right context) of audio that is
    still coming, in encoder frames. `stream` is where it computes on CUDA, so that it does not wait
    for other threads' kernels.
    """

    def __init__(
        self,
        model: Any,  # noqa: ANN401
        features: MelFeatures,
        new_cache: Callable[..., object],
        streaming_mode: tuple[int, int] = STREAMING_MODE,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        self._model, self._features, self._new_cache = model, features, new_cache
        self._stream = stream
        self.capabilities = Capabilities(hints=False, voices=False, streams=stream is not None)
        config = model.config
        length, right = streaming_mode
        streaming = config.streaming_config
        self._live = Chunking(
            length, 0, right, streaming.fifo_length, streaming.speaker_cache_update_period
        )
        self._whole = Chunking(
            config.chunk_length,
            config.chunk_left_context,
            config.chunk_right_context,
            config.fifo_length,
            config.speaker_cache_update_period,
        )
        self._stack: int = config.audio_config.subsampling_factor
        self._durations = Durations(
            float(getattr(config, "min_duration_on", 0.0)),
            float(getattr(config, "min_duration_off", 0.0)),
        )

    def diarize(
        self,
        samples: NDArray[np.float32],
        hints: SpeakerHints,
        cancelled: threading.Event | None = None,
        between: Callable[[], None] | None = None,
    ) -> Diarization:
        """See `Diarizer.diarize`. `hints` change nothing. Cancelled, it computes at most one more
        chunk.
        """
        with computing(self._stream):
            parts = []
            pause(cancelled, between)
            for part in self._probabilities(torch.from_numpy(samples)):
                parts.append(_on_host(part))
                pause(cancelled, between)
        most = self._model.config.head_config.num_speakers
        probabilities = np.concatenate([np.zeros((0, most), np.float32), *parts])
        rate = SAMPLE_RATE / self._features.hop_length
        active = smooth(probabilities > THRESHOLD, self._durations, rate)
        return Diarization(
            turns_of(active, rate),
            turns_of(likeliest(active, probabilities), rate),
            hints,
            most_speakers=most,
        )

    def embed(self, samples: NDArray[np.float32], spans: Sequence[Span]) -> Vector:
        """Not to be had: the model has no embeddings of speakers."""
        raise NotImplementedError("the diarization model embeds no voices")

    def stream(self) -> NemotronStream:
        """See `Diarizer.stream`."""
        return NemotronStream(self, self._live)

    def _probabilities(self, samples: torch.Tensor) -> Iterator[torch.Tensor]:
        """Those of every chunk's frames, (frames, speakers), where the model computes: what its own
        forward over the whole recording says.
        """
        cache = self._cache(self._whole)
        for chunk in chunks(self._features.count(samples), self._stack, self._whole):
            yield self._score(samples, chunk, cache)

    def _cache(self, chunking: Chunking) -> object:
        return self._new_cache(
            self._model.config.streaming_config,
            fifo_length=chunking.queued,
            speaker_cache_update_period=chunking.popped,
        )

    @torch.inference_mode()
    def _score(self, samples: torch.Tensor, chunk: Chunk, cache: object) -> torch.Tensor:
        """The probabilities of a chunk's frames, (frames, speakers)."""
        frames, mask = self._hear(samples, chunk)
        output = self._model(
            frames,
            attention_mask=mask,
            speaker_cache=cache,
            num_lookahead_frames=chunk.last - chunk.end,
            num_lookback_frames=chunk.start - chunk.first,
        )
        left = self._features.count(samples) - chunk.start * self._stack
        probabilities: torch.Tensor = output.logits[0, :left].sigmoid()
        return probabilities

    def _hear(
        self, samples: torch.Tensor, chunk: Chunk
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What the model is given of a chunk, (1, frames, mel bins), and which frames of it may be
        attended to, (1, frames); None for all.

        transformers has one more frame at the recording's end, zero and masked, and the upsampler's
        convolution reaches into it.
        """
        count, last = self._features.count(samples), chunk.last * self._stack
        frames = self._features.frames(samples, chunk.first * self._stack, min(last, count))[None]
        mask = None
        if last > count:
            frames = torch.nn.functional.pad(frames, (0, 0, 0, 1))
            mask = torch.ones(frames.shape[:2], dtype=torch.bool)
            mask[:, -1] = False
            mask = mask.to(self._model.device)
        return frames.to(self._model.device, self._model.dtype), mask


class NemotronStream:
    """See `DiarizationStream`. Says what `diarize` would of the whole, cut as `chunking` says."""

    def __init__(self, diarizer: NemotronDiarizer, chunking: Chunking) -> None:
        self._diarizer, self._chunking = diarizer, chunking
        self._features, self._stack = diarizer._features, diarizer._stack
        self._hop = self._features.hop_length
        self._cache = diarizer._cache(chunking)
        self._audio = torch.zeros(0)
        self._dropped = self._start = 0  # encoder frames: before `_audio`, and before what is next
        speakers = diarizer._model.config.head_config.num_speakers
        self._found = TurnsSoFar(diarizer._durations, SAMPLE_RATE / self._hop, speakers)

    @property
    def clock(self) -> float:
        """See `DiarizationStream.clock`."""
        return self._found.clock

    @property
    def missing(self) -> int:
        """See `DiarizationStream.missing`."""
        frames = (self._start + self._chunking.length + self._chunking.right) * self._stack
        return (frames - 1) * self._hop + self._features.reach - self._heard

    @property
    def _heard(self) -> int:
        """How many samples have come."""
        return self._dropped * self._stack * self._hop + len(self._audio)

    def push(
        self,
        samples: NDArray[np.float32],
        last: bool = False,
        cancelled: threading.Event | None = None,
    ) -> Diarization:
        """See `DiarizationStream.push`. Cancelled, it computes at most one more chunk."""
        self._audio = torch.cat([self._audio, torch.from_numpy(samples)])
        parts = []
        with computing(self._diarizer._stream):
            pause(cancelled, None)
            for chunk in self._chunks(last):
                parts.append(_on_host(self._diarizer._score(self._audio, chunk, self._cache)))
                self._move_on(chunk)
                pause(cancelled, None)
        self._audio = self._audio.clone()  # of what a slice leaves out nothing is freed
        return self._found.push(parts, last)

    def _chunks(self, last: bool) -> Iterator[Chunk]:
        """Those that are complete, in encoder frames of `_audio` as it is when each comes."""
        while last or self.missing <= 0:
            count = self._features.count(self._audio)
            start = self._start - self._dropped
            if start * self._stack >= count:
                return
            yield chunk_at(start, count // self._stack + 1, self._chunking)

    def _move_on(self, chunk: Chunk) -> None:
        """Drop what no other chunk hears: its first frame has samples of the one before."""
        self._start += chunk.end - chunk.start
        unneeded = max(0, self._start - self._chunking.left - 1) - self._dropped
        self._dropped += unneeded
        self._audio = self._audio[unneeded * self._stack * self._hop :]


class TurnsSoFar:
    """Turns in probabilities that come in parts, as they are in the whole.

    A frame's turns depend on as many frames around it as the `durations` last together, which are
    kept and waited for. `rate` is frames a second.
    """

    def __init__(self, durations: Durations, rate: float, speakers: int) -> None:
        self._durations, self._rate = durations, rate
        self._margin = ceil((durations.on + durations.off) * rate)
        self._kept = np.zeros((0, speakers), np.float32)  # probabilities from frame `_first` on
        self._first = self._told = 0
        self._over = False

    @property
    def clock(self) -> float:
        """Up to this second turns were told."""
        return inf if self._over else self._told / self._rate

    def push(self, parts: Sequence[NDArray[np.float32]], last: bool) -> Diarization:
        """The turns that become certain with more frames, each part (frames, speakers)."""
        kept = np.concatenate([self._kept, *parts])
        active = smooth(kept > THRESHOLD, self._durations, self._rate)
        alone = likeliest(active, kept)
        until = self._first + len(kept) - (0 if last else self._margin)
        until = max(self._told, until)
        new = slice(self._told - self._first, until - self._first)
        found = Diarization(
            turns_of(active[new], self._rate, self._told),
            turns_of(alone[new], self._rate, self._told),
        )
        first = max(0, until - self._margin)
        self._kept = kept[first - self._first :].copy()
        self._first, self._told, self._over = first, until, last
        return found


def _on_host(probabilities: torch.Tensor) -> NDArray[np.float32]:
    """Raises ValueError where they are not finite, as in float16 beyond its range."""
    values: NDArray[np.float32] = probabilities.float().cpu().numpy()
    if not np.isfinite(values).all():
        raise ValueError("probabilities are not finite")
    return values


def chunks(count: int, stack: int, chunking: Chunking) -> Iterator[Chunk]:
    """Those of a recording of `count` frames, as the model's forward splits it; `stack` of them are
    one of the encoder's.

    The frame that it has beyond them is scored in no chunk of its own.
    """
    for start in range(0, -(-count // stack), chunking.length):
        yield chunk_at(start, count // stack + 1, chunking)


def chunk_at(start: int, all_frames: int, chunking: Chunking) -> Chunk:
    """The chunk that begins at `start`, of `all_frames` encoder frames."""
    end = min(start + chunking.length, all_frames)
    first, last = max(start - chunking.left, 0), min(end + chunking.right, all_frames)
    return Chunk(first, start, end, last)


def smooth(active: Activity, durations: Durations, rate: float) -> Activity:
    """Without short pauses, then without short turns; `rate` is frames a second."""
    active = active.copy()
    for speaker in active.T:  # views
        for start, end in runs(~speaker):
            if start > 0 and end < len(speaker) and end - start < durations.off * rate:
                speaker[start:end] = True
        for start, end in runs(speaker):
            if end - start < durations.on * rate:
                speaker[start:end] = False
    return active


def likeliest(active: Activity, probabilities: NDArray[np.float32]) -> Activity:
    """Of those active at once only the one with the highest probability."""
    best = np.where(active, probabilities, -1).argmax(axis=1)
    alone: Activity = np.arange(active.shape[1]) == best[:, None]
    return active & alone


def turns_of(active: Activity, rate: float, first: int = 0) -> tuple[SpeakerTurn, ...]:
    """The turns in order of time; `rate` is frames a second, and the `first` frame has a number."""
    found = sorted(
        (start, speaker, end)
        for speaker, column in enumerate(active.T)
        for start, end in runs(column).tolist()
    )
    return tuple(
        SpeakerTurn(f"SPEAKER_{speaker:02d}", (first + start) / rate, (first + end) / rate)
        for start, speaker, end in found
    )


def load_nemotron(
    name: str, revision: str | None, token: str | None, device: torch.device
) -> NemotronDiarizer:
    """Load the model `name`, a hub id or a local folder, onto `device`: float16 on CUDA, else
    float32. Its weights come from safetensors files only.

    Raises StartError where transformers is too old, or weights are missing. Other exceptions of
    transformers pass through.
    """
    new_cache = nemotron_speaker_cache(name)
    source: dict[str, Any] = {"revision": revision, "token": token}
    features, _ = FeatureExtractionMixin.get_feature_extractor_dict(name, **source)
    stated = cached_file(
        name, "processor_config.json", **source, _raise_exceptions_for_missing_entries=False
    )
    processor = json.loads(Path(stated).read_text(encoding="utf-8")) if stated else {}
    loaded: Any = AutoModelForAudioFrameClassification.from_pretrained(
        name,
        **source,
        **dtype_argument(torch.float16 if device.type == "cuda" else torch.float32),
        attn_implementation="sdpa",
        use_safetensors=True,
        output_loading_info=True,
    )
    model, said = loaded
    if said["missing_keys"]:  # transformers would draw random numbers for them
        raise StartError(f"{name} lacks {min(said['missing_keys'])}")
    diarizer = NemotronDiarizer(
        model.to(device).eval(),
        MelFeatures.read(name, features),
        new_cache,
        streaming_mode(processor),
        create_stream(device),
    )
    # On every device: only a run tells that features and weights belong together.
    warm_up(diarizer)
    return diarizer


def streaming_mode(processor: Mapping[str, Any]) -> tuple[int, int]:
    """(chunk, right context) of audio that is still coming, by a checkpoint's processor."""
    modes = processor.get("streaming_modes") or {}
    length, right = modes.get(processor.get("streaming_mode"), STREAMING_MODE)
    return int(length), int(right)
