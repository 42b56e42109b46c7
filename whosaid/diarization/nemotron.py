"""Diarizes with NVIDIA's Nemotron-3-Diarization, a streaming Sortformer (Medennikov et al.,
"Streaming Sortformer", Interspeech 2025).

The network predicts every 10 ms the probability that each of its few speakers talks, in the order
in which they first speak. It reads a recording in chunks, by transformers' defaults 27 s each, and
keeps a cache of earlier chunks. transformers reads all chunks in one call that cannot be stopped.
Here every chunk is a call with the same cache: results are equal, a request can be cancelled
between two chunks, and memory does not grow with the recording.

Live audio is read in the shorter chunks of the checkpoint's streaming mode: 1.04 s at first, then
0.72 s each. Every chunk encodes the whole cache again, about 42 s, which only GPUs do fast enough.

Log-mel frames are computed here for a chunk at a time, without transformers' librosa.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForAudioFrameClassification
from transformers.audio_utils import mel_filter_bank
from transformers.feature_extraction_utils import FeatureExtractionMixin
from transformers.utils.hub import cached_file

from whosaid.diarization.activity import SpeakerActivity
from whosaid.diarization.diarizer import Capabilities, Diarization, Diarizer, Pause, SpeakerHints
from whosaid.diarization.thread import computing, diarization_stream, warm_up
from whosaid.errors import StartError
from whosaid.runtime.versions import dtype_argument, nemotron_speaker_cache
from whosaid.timebase import SAMPLE_RATE, runs
from whosaid.transcript import SpeakerTurn

# (chunk, right context) in encoder frames, transformers' default for checkpoints without a mode.
STREAMING_MODE = (9, 4)
THRESHOLD = 0.5  # a speaker is active above this probability, as in transformers' processor

# The supported feature extractor, and its default configuration.
EXTRACTOR = "NemotronAsrStreamingFeatureExtractor"
DEFAULTS = {
    "feature_extractor_type": EXTRACTOR,
    "feature_size": 80,
    "sampling_rate": SAMPLE_RATE,
    "hop_length": 160,
    "n_fft": 512,
    "win_length": 400,
    "preemphasis": 0.97,
    "mel_filters_dtype": "float32",
}
LOG_OFFSET = 2**-24

Activity = NDArray[np.bool_]  # (frames, speakers)


@dataclass(frozen=True, slots=True)
class Chunking:
    """Sizes of the chunks of audio, in encoder frames.

    A chunk of `length` is read with `left` and `right` frames of context. A queue holds `queued`
    frames of earlier chunks, and passes `popped` frames at once to the speaker cache.
    """

    length: int
    left: int
    right: int
    queued: int
    popped: int


@dataclass(frozen=True, slots=True)
class Durations:
    """Smoothing in seconds, as in pyannote's pipelines: a speaker's pauses shorter than `off` are
    filled, then turns shorter than `on` are dropped. The checkpoint's config.json has the values as
    `min_duration_off` and `min_duration_on`; without them frames are not smoothed.
    """

    on: float = 0.0
    off: float = 0.0


class NemotronDiarizer(Diarizer):
    """A loaded Nemotron3DiarizationForAudioFrameClassification; thread-safe.

    `new_cache` makes a speaker cache. `streaming_mode` is (chunk, right context) for live audio, in
    encoder frames. On CUDA the model runs on `stream`, so as not to wait for other threads'
    kernels.
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
        self._speakers: int = config.head_config.num_speakers
        self._durations = Durations(
            float(getattr(config, "min_duration_on", 0.0)),
            float(getattr(config, "min_duration_off", 0.0)),
        )

    def diarize(
        self, samples: NDArray[np.float32], hints: SpeakerHints, pause: Pause = lambda *_: None
    ) -> Diarization:
        """Diarize as specified by `Diarizer.diarize`. `hints` do not affect the turns.
        `pause` is called before the first chunk and after each.
        """
        found = NemotronStream(self, self._whole).push(samples, last=True, pause=pause)
        return replace(found, hints=hints, most_speakers=self._speakers)

    def stream(self) -> NemotronStream:
        return NemotronStream(self, self._live)

    @torch.inference_mode()
    def _score(
        self, samples: torch.Tensor, cache: object, first: int, start: int, end: int, last: int
    ) -> torch.Tensor:
        """Return the probabilities of the encoder frames `start` to `end`, (frames, speakers), of
        which the model reads `first` to `last`, and as in transformers a masked frame of zeros at
        the recording's end, into which the upsampler's convolution reaches.
        """
        device = self._model.device
        count, stop = self._features.count(samples), last * self._stack
        frames = self._features.frames(samples, first * self._stack, min(stop, count))[None]
        mask = None
        if stop > count:
            frames = torch.nn.functional.pad(frames, (0, 0, 0, 1))
            mask = torch.ones(frames.shape[:2], dtype=torch.bool, device=device)
            mask[:, -1] = False
        output = self._model(
            frames.to(device, self._model.dtype),
            attention_mask=mask,
            speaker_cache=cache,
            num_lookahead_frames=last - end,
            num_lookback_frames=start - first,
        )
        left = count - start * self._stack
        probabilities: torch.Tensor = output.logits[0, :left].sigmoid()
        return probabilities


class NemotronStream:
    """A `DiarizationStream`. Its turns equal those of the whole audio in chunks of `chunking`."""

    def __init__(self, diarizer: NemotronDiarizer, chunking: Chunking) -> None:
        self._diarizer, self._chunking = diarizer, chunking
        self._features, self._stack = diarizer._features, diarizer._stack
        self._hop = self._features.hop_length
        self._cache = diarizer._new_cache(
            diarizer._model.config.streaming_config,
            fifo_length=chunking.queued,
            speaker_cache_update_period=chunking.popped,
        )
        self._audio = torch.zeros(0)
        # Encoder frames before `_audio`, and before the next chunk.
        self._dropped = self._start = 0
        self._turns = TurnsSoFar(diarizer._durations, SAMPLE_RATE / self._hop, diarizer._speakers)

    @property
    def clock(self) -> float:
        return self._turns.clock

    @property
    def missing(self) -> int:
        frames = (self._start + self._chunking.length + self._chunking.right) * self._stack
        received = self._dropped * self._stack * self._hop + len(self._audio)
        return (frames - 1) * self._hop + self._features.reach - received

    def push(
        self, samples: NDArray[np.float32], last: bool = False, pause: Pause = lambda *_: None
    ) -> Diarization:
        new = torch.from_numpy(samples)
        self._audio = torch.cat([self._audio, new]) if len(self._audio) else new
        parts = []
        with computing(self._diarizer._stream):
            pause()
            for part in self._probabilities(last):
                parts.append(_on_host(part))
                pause()
        self._audio = self._audio.clone()  # a slice would keep all earlier samples in memory
        return self._turns.push(parts, last)

    def _probabilities(self, last: bool) -> Iterator[torch.Tensor]:
        """Yield the probabilities (frames, speakers) of each complete chunk, computed one at a
        time. For a whole recording they equal the output of the model's own forward.
        """
        chunking = self._chunking
        while last or self.missing <= 0:
            # Feature frames of `_audio`, and its encoder frame where the next chunk starts.
            count, start = self._features.count(self._audio), self._start - self._dropped
            if start * self._stack >= count:
                return
            stop = count // self._stack + 1  # behind its end the model reads a masked frame
            end = min(start + chunking.length, stop)
            first, beyond = max(start - chunking.left, 0), min(end + chunking.right, stop)
            yield self._diarizer._score(self._audio, self._cache, first, start, end, beyond)
            self._start += end - start
            # Later chunks read no earlier samples. A chunk also reads the frame before it.
            unneeded = max(0, self._start - chunking.left - 1) - self._dropped
            self._dropped += unneeded
            self._audio = self._audio[unneeded * self._stack * self._hop :]


class TurnsSoFar:
    """Finds turns in probabilities that come in parts. The turns equal those of the whole.

    A frame's turns depend on the frames within both `durations` together around it. So the last
    frames are kept until that much has followed. `rate` is frames a second. `clock` is the second
    up to which turns were returned, infinite after the last part.
    """

    def __init__(self, durations: Durations, rate: float, speakers: int) -> None:
        self._durations, self._rate = durations, rate
        self._margin = ceil((durations.on + durations.off) * rate)
        self._kept = np.zeros((0, speakers), np.float32)  # probabilities from frame `_first` on
        self._first = self._certain = 0
        self.clock = 0.0

    def push(self, parts: Sequence[NDArray[np.float32]], last: bool) -> Diarization:
        """Add frames, each part (frames, speakers), and return the turns that become certain."""
        kept = np.concatenate([self._kept, *parts])
        active = smooth(kept > THRESHOLD, self._durations, self._rate)
        alone = likeliest(active, kept)
        until = self._first + len(kept) - (0 if last else self._margin)
        until = max(self._certain, until)
        new = slice(self._certain - self._first, until - self._first)
        found = Diarization(
            turns_of(active[new], self._rate, self._certain),
            turns_of(alone[new], self._rate, self._certain),
            activity=_activity(kept[new], self._rate, self._certain),
        )
        first = max(0, until - self._margin)
        self._kept = kept[first - self._first :].copy()
        self._first, self._certain = first, until
        self.clock = inf if last else until / self._rate
        return found


def _activity(probabilities: NDArray[np.float32], rate: float, first: int) -> SpeakerActivity:
    """Return the activity of frames (n, speakers) from `first` on, speakers independent."""
    silent = 1 - probabilities
    nobody = silent.prod(axis=1)
    alone = sum(
        (probabilities[:, each] * np.delete(silent, each, axis=1).prod(axis=1))
        for each in range(probabilities.shape[1])
    )
    several = np.maximum(0, 1 - nobody - alone)
    labels = [label_of(each) for each in range(probabilities.shape[1])]
    found = SpeakerActivity.averaged(np.column_stack((probabilities, several)), rate, labels)
    return replace(found, start=first / rate)


def _on_host(probabilities: torch.Tensor) -> NDArray[np.float32]:
    """Copy to the CPU. Raises ValueError if a value is not finite, as after float16 overflow."""
    values: NDArray[np.float32] = probabilities.float().cpu().numpy()
    if not np.isfinite(values).all():
        raise ValueError("probabilities are not finite")
    return values


def smooth(active: Activity, durations: Durations, rate: float) -> Activity:
    """Fill short pauses, then drop short turns; `rate` is frames a second."""
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
    """Return `active` with only the likeliest active speaker of each frame."""
    best = np.where(active, probabilities, -1).argmax(axis=1)
    alone: Activity = np.arange(active.shape[1]) == best[:, None]
    return active & alone


def turns_of(active: Activity, rate: float, first: int = 0) -> tuple[SpeakerTurn, ...]:
    """Return the turns in order of time, at `rate` frames a second from frame number `first` on."""
    found = sorted(
        (start, speaker, end)
        for speaker, column in enumerate(active.T)
        for start, end in runs(column).tolist()
    )
    return tuple(
        SpeakerTurn(label_of(speaker), (first + start) / rate, (first + end) / rate)
        for start, speaker, end in found
    )


def label_of(speaker: int) -> str:
    return f"SPEAKER_{speaker:02d}"


@dataclass(frozen=True, slots=True)
class MelFeatures:
    """Computes log-mel frames of any stretch of a recording.

    Frame n covers `n_fft` samples around sample n * `hop_length`. `filters` are (mel bins,
    frequencies), `window` (win_length,), both float32. `preemphasis` None turns it off.
    """

    filters: torch.Tensor
    window: torch.Tensor
    n_fft: int
    hop_length: int
    preemphasis: float | None

    @classmethod
    def read(cls, name: str, config: Mapping[str, Any]) -> Self:
        """Read a checkpoint's feature extractor configuration. Raises StartError for another
        extractor class or sampling rate.
        """
        given = {key: config.get(key, default) for key, default in DEFAULTS.items()}
        if (given["feature_extractor_type"], given["sampling_rate"]) != (EXTRACTOR, SAMPLE_RATE):
            raise StartError(
                f"{name} needs {given['feature_extractor_type']} at {given['sampling_rate']} Hz;"
                f" only {EXTRACTOR} at {SAMPLE_RATE} Hz is supported"
            )
        filters = mel_filter_bank(
            num_frequency_bins=given["n_fft"] // 2 + 1,
            num_mel_filters=given["feature_size"],
            min_frequency=0.0,
            max_frequency=SAMPLE_RATE / 2,
            sampling_rate=SAMPLE_RATE,
            norm="slaney",
            mel_scale="slaney",
        )
        # Some checkpoints were trained with filters and window rounded to a lower precision.
        dtype: torch.dtype = getattr(torch, given["mel_filters_dtype"])
        return cls(
            torch.from_numpy(filters).T.float().to(dtype).float(),
            torch.hann_window(given["win_length"], periodic=False).to(dtype).float(),
            given["n_fft"],
            given["hop_length"],
            given["preemphasis"],
        )

    @property
    def reach(self) -> int:
        """Number of samples that a frame covers on either side of its centre."""
        return self.n_fft // 2

    def count(self, samples: torch.Tensor) -> int:
        return len(samples) // self.hop_length

    def frames(self, samples: torch.Tensor, first: int, last: int) -> torch.Tensor:
        """Return frames `first` to `last` - 1 of `samples` (n,), float32: (frames, mel bins)."""
        start = first * self.hop_length - self.reach
        end = (last - 1) * self.hop_length + self.reach
        spectrum = torch.stft(
            self._stretch(samples, start, end),
            self.n_fft,
            self.hop_length,
            len(self.window),
            self.window,
            center=False,
            return_complex=True,
        )
        return torch.log(self.filters @ spectrum.abs().square() + LOG_OFFSET).T

    def _stretch(self, samples: torch.Tensor, start: int, end: int) -> torch.Tensor:
        """Return samples `start` to `end` with preemphasis, padded with zeros beyond the ends."""
        begins, ends = max(start, 0), min(end, len(samples))
        stretch = samples[begins:ends].clone()
        if self.preemphasis is not None:
            before = samples[max(begins - 1, 0) : ends - 1]
            stretch[len(stretch) - len(before) :] -= self.preemphasis * before
        return torch.nn.functional.pad(stretch, (begins - start, end - ends))


def load_nemotron(
    name: str, revision: str | None, token: str | None, device: torch.device
) -> NemotronDiarizer:
    """Load `name` (hub id or local folder) onto `device` from safetensors, in float16 on CUDA, else
    float32. Raises StartError for an old transformers, missing weights or an unsupported feature
    extractor, and exceptions of transformers.
    """
    new_cache = nemotron_speaker_cache(name)
    source: dict[str, Any] = {"revision": revision, "token": token}
    features, _ = FeatureExtractionMixin.get_feature_extractor_dict(name, **source)
    file = cached_file(
        name, "processor_config.json", **source, _raise_exceptions_for_missing_entries=False
    )
    processor = json.loads(Path(file).read_text(encoding="utf-8")) if file else {}
    loaded: Any = AutoModelForAudioFrameClassification.from_pretrained(
        name,
        **source,
        **dtype_argument(torch.float16 if device.type == "cuda" else torch.float32),
        attn_implementation="sdpa",
        use_safetensors=True,
        output_loading_info=True,
    )
    model, report = loaded
    if report["missing_keys"]:  # transformers would draw random numbers for them
        raise StartError(f"{name} lacks the weights {min(report['missing_keys'])}")
    diarizer = NemotronDiarizer(
        model.to(device).eval(),
        MelFeatures.read(name, features),
        new_cache,
        streaming_mode(processor),
        diarization_stream(device),
    )
    # On every device: only a run shows whether features and weights fit together.
    warm_up(diarizer)
    return diarizer


def streaming_mode(processor: Mapping[str, Any]) -> tuple[int, int]:
    """Return (chunk, right context) for live audio from a checkpoint's processor_config.json."""
    modes = processor.get("streaming_modes") or {}
    length, right = modes.get(processor.get("streaming_mode"), STREAMING_MODE)
    return int(length), int(right)
