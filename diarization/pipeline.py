"""Speaker diarization: who speaks when, from pyannote's pipeline.

pyannote stays behind this module: a waveform and three hints go in, frozen turns come out. The
differences between pyannote's releases, what it prints and the process-wide switches it changes are
dealt with here.
"""

from __future__ import annotations

import contextlib
import io
import threading
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from diarization.embeddings import share_frames
from errors import ModelError, OutOfMemory, StartError
from runtime.device_errors import is_out_of_memory
from runtime.versions import load_pyannote_pipeline
from timebase import SAMPLE_RATE
from transcript import SpeakerTurn

MARGIN = 0.2  # seconds that a turn may extend beyond detected speech
GPU_BATCH, CPU_BATCH = 32, 8
WARM_UP_SECONDS = 10  # one window of the published pipelines

MASK_RATE = 100  # frames a second of the mask under which a clip is embedded

Span = tuple[float, float]  # start and end, seconds
Vector = NDArray[np.floating[Any]]  # (dimension,), of any length


class DiarizationCancelled(Exception):
    """`diarize` was stopped by its `cancelled` event; no client is ever told of it."""


@dataclass(frozen=True, slots=True)
class SpeakerHints:
    """What the client knows about the number of speakers; None where it knows nothing."""

    num_speakers: int | None = None
    min_speakers: int | None = None
    max_speakers: int | None = None


@dataclass(frozen=True, slots=True)
class Diarization:
    """Speaker turns in order of time, in seconds.

    `turns` may overlap. `exclusive` has one speaker at a time and decides who said a chunk;
    pipelines that do not compute it (before pyannote 4, or `legacy: true`) have `turns` there.
    `hints` are those of the request. `voices` has an embedding for each speaker that the pipeline
    found, in `turns` or cut out of them; some may be zero or NaN, and pipelines that tell none
    (`legacy: true`) leave it empty. It identifies people, so that it is neither printed nor kept.
    """

    turns: tuple[SpeakerTurn, ...]
    exclusive: tuple[SpeakerTurn, ...]
    hints: SpeakerHints = SpeakerHints()
    voices: Mapping[str, Vector] = field(default_factory=dict, repr=False, compare=False)

    @property
    def warnings(self) -> tuple[str, ...]:
        """A warning where the number of speakers in `turns` does not meet the hints."""
        found = len({turn.speaker for turn in self.turns})
        lowest = self.hints.num_speakers or self.hints.min_speakers or 0
        highest = self.hints.num_speakers or self.hints.max_speakers or found
        if lowest <= found <= highest:
            return ()
        return (f"speaker hints could not be met: {found} found",)

    def within(self, speech: Sequence[Span]) -> Diarization:
        """Keep what lies in detected `speech`, spans in order; noise taken for a speaker goes.

        A turn may extend MARGIN seconds beyond speech, and is split where speech pauses for longer
        than two margins.
        """
        spans = _merge_with_margin(speech)
        return replace(self, turns=_clip(self.turns, spans), exclusive=_clip(self.exclusive, spans))


class _Pipeline(Protocol):
    """What is used of `pyannote.audio.Pipeline`."""

    segmentation_batch_size: int
    embedding_batch_size: int
    _embedding: Callable[..., Vector]

    def __call__(self, file: dict[str, Any], **options: Any) -> object: ...  # noqa: ANN401


class Diarizer:
    """A loaded pyannote pipeline; runs one waveform at a time, in any thread.

    `stream` is where it computes on CUDA, so that it does not wait for other threads' kernels.
    """

    def __init__(
        self, pipeline: _Pipeline, batch_size: int, stream: torch.cuda.Stream | None = None
    ) -> None:
        self._pipeline = pipeline
        self._batch_size = batch_size
        self._stream = stream
        # A call sets the pipeline's batch sizes and the process's TF32 switches and restores them
        # at its end; two calls at once would restore each other's values.
        self._lock = threading.Lock()

    def diarize(
        self,
        samples: NDArray[np.float32],
        hints: SpeakerHints,
        cancelled: threading.Event | None = None,
        between: Callable[[], None] | None = None,
    ) -> Diarization:
        """Find the speaker turns of `samples`, float32 (n,) at 16 kHz.

        Audio without speech has no turns. Hints that the audio cannot meet (three speakers in one
        second) are not an error: the result has a warning. Once another thread sets `cancelled`,
        at most one more batch of windows is computed; clustering, which follows the last batch, is
        not interrupted. `between` is called between two batches, and may diarize something else
        meanwhile. Raises DiarizationCancelled, ModelError, or OutOfMemory if one window at a time
        does not fit.
        """
        options = {name: count for name, count in asdict(hints).items() if count is not None}
        with self._computing():
            found = self._run_hinted(samples, options, self._hook(cancelled, between))
        return replace(found, hints=hints)

    def embed(self, samples: NDArray[np.float32], spans: Sequence[Span]) -> Vector:
        """The voice heard in `spans` (seconds) of a clip, as the pipeline's model embeds speakers.

        `samples` are float32 (n,) at 16 kHz, few enough to be one window. Returns (dimension,),
        which may be NaN where the spans are too short. Raises ModelError or OutOfMemory.
        """
        mask = torch.zeros(1, max(1, round(len(samples) / SAMPLE_RATE * MASK_RATE)))
        for start, end in spans:
            mask[0, round(start * MASK_RATE) : round(end * MASK_RATE)] = 1
        with self._computing():
            waveform = torch.from_numpy(samples)[None, None]
            vector: Vector = self._pipeline._embedding(waveform, masks=mask)[0]
            return vector

    def _hook(
        self, cancelled: threading.Event | None, between: Callable[[], None] | None
    ) -> Callable[..., None]:
        """A `hook` for pyannote, which calls it before the first batch, after each one and between
        stages.
        """

        def hook(*_: object, **__: object) -> None:
            if cancelled is not None and cancelled.is_set():
                raise DiarizationCancelled
            if between is not None:
                with self._waiting():
                    between()

        return hook

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """Leave the pipeline to others; pyannote reads its batch size again for each batch."""
        pipeline = self._pipeline
        sizes = pipeline.segmentation_batch_size, pipeline.embedding_batch_size
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()
            pipeline.segmentation_batch_size, pipeline.embedding_batch_size = sizes

    @contextlib.contextmanager
    def _computing(self) -> Iterator[None]:
        """Alone with the pipeline; what it raises becomes ours."""
        with self._lock, _full_precision(), torch.cuda.stream(self._stream):
            try:
                yield
            except DiarizationCancelled:
                raise
            except Exception as error:
                if is_out_of_memory(error):
                    raise OutOfMemory(
                        "speaker diarization does not fit, even one window at a time"
                    ) from error
                raise ModelError(f"speaker diarization failed ({type(error).__name__})") from error

    def warm_up(self) -> None:
        """Run once on noise: no request waits for what CUDA sets up at first use.

        Raises what `diarize` raises, where the pipeline does not run at all.
        """
        noise = np.random.default_rng(0).normal(0, 0.1, WARM_UP_SECONDS * SAMPLE_RATE)
        self.diarize(noise.astype(np.float32), SpeakerHints())

    def _run_hinted(
        self, samples: NDArray[np.float32], options: dict[str, int], hook: Callable[..., None]
    ) -> Diarization:
        """Run with the hints, or without them where they break the clustering.

        pyannote's VBx clustering passes the number of speakers to k-means, which raises ValueError
        if there are fewer embeddings than that.
        """
        if options:
            with contextlib.suppress(ValueError):
                return self._run(samples, options, hook)
        return self._run(samples, {}, hook)

    def _run(
        self, samples: NDArray[np.float32], options: dict[str, int], hook: Callable[..., None]
    ) -> Diarization:
        """Run the pipeline, with half the batch size after each time that memory runs out."""
        file = {"waveform": torch.from_numpy(samples)[None], "sample_rate": SAMPLE_RATE}
        batch_size = self._batch_size
        while True:
            self._pipeline.segmentation_batch_size = batch_size
            self._pipeline.embedding_batch_size = batch_size
            try:
                # In less than about a second no embedding is long enough to be clustered, and
                # pyannote averages none of them: 0 / 0.
                with np.errstate(invalid="ignore"):
                    output = self._pipeline(file, hook=hook, **options)
                return _parse_output(output, len(samples) / SAMPLE_RATE)
            except Exception as error:
                if batch_size == 1 or not is_out_of_memory(error):
                    raise
            batch_size //= 2


def load_diarizer(
    name: str, revision: str | None, token: str | None, device: torch.device
) -> Diarizer:
    """Load the pyannote pipeline `name`, a hub id or a local folder, onto `device`.

    Raises StartError where pyannote returns None, as older releases do when access is refused.
    Other exceptions of pyannote pass through.
    """
    # Warning filters belong to the whole process and must not change during a request. So from here
    # on pyannote's own warnings (mostly about hints) and numpy's about empty means stay hidden.
    warnings.filterwarnings("ignore", module="pyannote")
    warnings.filterwarnings("ignore", "Mean of empty slice", RuntimeWarning, "numpy")
    # Importing it prints advice, and warns about audio decoders that are not used here.
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipeline = load_pyannote_pipeline(name, revision, token)
        if pipeline is None:
            raise StartError(
                f"{name}: no pipeline came back; it may be private, or its licence not be accepted"
            )
        pipeline.to(device)
        share_frames(pipeline)
    batch_size = CPU_BATCH if device.type == "cpu" else GPU_BATCH
    diarizer = Diarizer(pipeline, batch_size, _create_stream(device))
    if device.type == "cuda":
        diarizer.warm_up()
    return diarizer


def _create_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A CUDA stream, after all work queued on the default one is done; None on other devices."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _parse_output(output: object, duration: float) -> Diarization:
    """Parse pyannote 4's DiarizeOutput, or the bare Annotation of earlier and legacy pipelines."""
    annotation: Any = getattr(output, "speaker_diarization", output)
    turns = _parse_turns(annotation, duration)
    exclusive = getattr(output, "exclusive_speaker_diarization", None)
    rows = getattr(output, "speaker_embeddings", None)
    labels = () if rows is None else map(str, annotation.labels())
    return Diarization(
        turns,
        turns if exclusive is None else _parse_turns(exclusive, duration),
        voices=dict(zip(labels, () if rows is None else rows, strict=True)),
    )


def _parse_turns(annotation: Any, duration: float) -> tuple[SpeakerTurn, ...]:  # noqa: ANN401
    """The turns of a `pyannote.core.Annotation`, clipped to the audio.

    The last window is padded, so that turns may extend past the audio's end.
    """
    turns = (
        SpeakerTurn(str(label), max(0.0, float(segment.start)), min(duration, float(segment.end)))
        for segment, _, label in annotation.itertracks(yield_label=True)
    )
    return tuple(turn for turn in turns if turn.end > turn.start)


def _merge_with_margin(speech: Sequence[Span]) -> list[Span]:
    """Extend each span by MARGIN on both sides and merge those that then touch."""
    merged: list[Span] = []
    for speech_start, speech_end in speech:
        start, end = speech_start - MARGIN, speech_end + MARGIN
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _clip(turns: Sequence[SpeakerTurn], spans: Sequence[Span]) -> tuple[SpeakerTurn, ...]:
    """The parts of `turns` inside `spans` (sorted, disjoint), sorted by start."""
    span_ends = [end for _, end in spans]
    clipped: list[SpeakerTurn] = []
    for turn in turns:
        first = bisect_right(span_ends, turn.start)
        clipped += _clip_turn(turn, islice(spans, first, None))
    return tuple(sorted(clipped, key=lambda turn: turn.start))


def _clip_turn(turn: SpeakerTurn, spans: Iterator[Span]) -> Iterator[SpeakerTurn]:
    """The parts of one turn inside `spans`, which all end after it starts."""
    for start, end in spans:
        if start >= turn.end:
            return
        yield SpeakerTurn(turn.speaker, max(turn.start, start), min(turn.end, end))


@contextlib.contextmanager
def _full_precision() -> Iterator[None]:
    """Turn TF32 off and restore it; pyannote would turn it off for good, with a warning.

    The switches are process-wide. Other threads' float32 products are exact meanwhile; speech
    recognition computes in float16 on CUDA and is not affected.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
