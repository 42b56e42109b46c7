"""The diarizer that is NVIDIA's Nemotron-3-Diarization, a streaming Sortformer (Medennikov et al.,
"Streaming Sortformer", Interspeech 2025).

One network says every 10 ms how probable it is that each of its few speakers talks; they are
numbered as they arrive. It hears a recording in chunks, by transformers' defaults 27 s each, and
keeps what it needs of earlier ones in a cache. transformers goes through them within one call,
which nobody could stop; here every chunk is a call with the same cache, and gives the same
(`tests/test_nemotron_diarizer.py`). So memory does not grow with the recording either.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForAudioFrameClassification
from transformers.feature_extraction_utils import FeatureExtractionMixin

from diarization.computation import computing, create_stream, pause, warm_up
from diarization.diarizer import Capabilities, Diarization, Span, SpeakerHints, Vector
from diarization.nemotron_features import MelFeatures
from errors import StartError
from runtime.versions import dtype_argument, nemotron_speaker_cache
from timebase import SAMPLE_RATE
from transcript import SpeakerTurn

MODEL_TYPE = "nemotron3_diarization"  # in config.json
THRESHOLD = 0.5  # the probability above which somebody speaks, as transformers' processor has it

Activity = NDArray[np.bool_]  # (frames, speakers)


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

    `new_cache` makes its speaker cache. `stream` is where it computes on CUDA, so that it does not
    wait for other threads' kernels.
    """

    capabilities = Capabilities(hints=False, voices=False)

    def __init__(
        self,
        model: Any,  # noqa: ANN401
        features: MelFeatures,
        new_cache: Callable[..., object],
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        self._model, self._features, self._new_cache = model, features, new_cache
        self._stream = stream
        config = model.config
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

    def _probabilities(self, samples: torch.Tensor) -> Iterator[torch.Tensor]:
        """Those of every chunk's frames, (frames, speakers), where the model computes: what its own
        forward over the whole recording says.
        """
        config = self._model.config
        cache = self._new_cache(
            config.streaming_config,
            fifo_length=config.fifo_length,
            speaker_cache_update_period=config.speaker_cache_update_period,
        )
        for chunk in chunks(self._features.count(samples), config):
            yield self._score(samples, chunk, cache)

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


def _on_host(probabilities: torch.Tensor) -> NDArray[np.float32]:
    """Raises ValueError where they are not finite, as in float16 beyond its range."""
    values: NDArray[np.float32] = probabilities.float().cpu().numpy()
    if not np.isfinite(values).all():
        raise ValueError("probabilities are not finite")
    return values


def chunks(count: int, config: Any) -> Iterator[Chunk]:  # noqa: ANN401
    """Those of a recording of `count` frames, as the model's forward splits it.

    The frame that it has beyond them is scored in no chunk of its own.
    """
    stack = config.audio_config.subsampling_factor
    all_frames = count // stack + 1
    for start in range(0, -(-count // stack), config.chunk_length):
        end = min(start + config.chunk_length, all_frames)
        yield Chunk(
            first=max(start - config.chunk_left_context, 0),
            start=start,
            end=end,
            last=min(end + config.chunk_right_context, all_frames),
        )


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


def turns_of(active: Activity, rate: float) -> tuple[SpeakerTurn, ...]:
    """The turns in order of time; `rate` is frames a second."""
    found = sorted(
        (start, speaker, end)
        for speaker, column in enumerate(active.T)
        for start, end in runs(column)
    )
    return tuple(
        SpeakerTurn(f"SPEAKER_{speaker:02d}", start / rate, end / rate)
        for start, speaker, end in found
    )


def runs(active: Activity) -> list[tuple[int, int]]:
    """Where `active`, (frames,), is true: starts, and ends after the last frame."""
    edges = np.flatnonzero(np.diff(active, prepend=False, append=False))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


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
        model.to(device).eval(), MelFeatures.read(name, features), new_cache, create_stream(device)
    )
    # On every device: only a run tells that features and weights belong together.
    warm_up(diarizer)
    return diarizer
