"""The diarizer that is a pyannote pipeline.

pyannote stays behind this module: what it prints and the process-wide switches it changes are dealt
with here, the differences between its releases in `runtime.versions`.
"""

from __future__ import annotations

import contextlib
import io
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from diarization.clustering import complete_voices
from diarization.computation import computing, create_stream, pause, warm_up
from diarization.diarizer import (
    Capabilities,
    Diarization,
    DiarizationStream,
    Span,
    SpeakerHints,
    Vector,
)
from diarization.embeddings import share_frames
from diarization.long_recordings import spare_memory
from diarization.networks import has_networks, load_network
from diarization.same_voice import same_voice
from errors import StartError
from runtime.errors import is_out_of_memory
from runtime.versions import build_pyannote_pipeline, load_pyannote_pipeline
from timebase import SAMPLE_RATE
from transcript import SpeakerTurn

GPU_BATCH, CPU_BATCH = 32, 8

MASK_RATE = 100  # frames a second of the mask under which a clip is embedded


class _Pipeline(Protocol):
    """What is used of `pyannote.audio.Pipeline`."""

    segmentation_batch_size: int
    embedding_batch_size: int
    _embedding: Callable[..., Vector]

    def __call__(self, file: dict[str, Any], **options: Any) -> object: ...  # noqa: ANN401


class PyannoteDiarizer:
    """A loaded pyannote pipeline; runs one waveform at a time, in any thread.

    `stream` is where it computes on CUDA, so that it does not wait for other threads' kernels.
    """

    def __init__(
        self, pipeline: _Pipeline, batch_size: int, stream: torch.cuda.Stream | None = None
    ) -> None:
        self._pipeline = pipeline
        self._batch_size = batch_size
        self._stream = stream
        model = getattr(getattr(pipeline, "_embedding", None), "model_", None)
        self.capabilities = Capabilities(hints=True, voices=True, same_voice=same_voice(model))
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
        """See `Diarizer.diarize`. Cancelled, it computes at most one more batch of windows;
        clustering, which follows the last batch, is not interrupted.
        """
        options = {name: count for name, count in asdict(hints).items() if count is not None}
        with self._computing():
            found = self._run(samples, options, self._hook(cancelled, between))
        return replace(found, hints=hints)

    def embed(self, samples: NDArray[np.float32], spans: Sequence[Span]) -> Vector:
        """See `Diarizer.embed`; `samples` are few enough to be one window."""
        mask = torch.zeros(1, max(1, round(len(samples) / SAMPLE_RATE * MASK_RATE)))
        for start, end in spans:
            mask[0, round(start * MASK_RATE) : round(end * MASK_RATE)] = 1
        with self._computing():
            waveform = torch.from_numpy(samples)[None, None]
            vector: Vector = self._pipeline._embedding(waveform, masks=mask)[0]
            return vector

    def stream(self) -> DiarizationStream:
        """Not to be had: the pipeline clusters the voices of a whole recording."""
        raise NotImplementedError("the diarization model hears whole recordings alone")

    def _hook(
        self, cancelled: threading.Event | None, between: Callable[[], None] | None
    ) -> Callable[..., None]:
        """A `hook` for pyannote, which calls it before the first batch, after each one and between
        stages.
        """

        def let_others() -> None:
            if between is not None:
                with self._waiting():
                    between()

        return lambda *_, **__: pause(cancelled, let_others)

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
        with self._lock, _full_precision(), computing(self._stream):
            yield

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


def load_pyannote(
    name: str, revision: str | None, token: str | None, device: torch.device
) -> PyannoteDiarizer:
    """Load the pyannote pipeline `name`, a hub id or a local folder, onto `device`.

    Raises StartError where pyannote returns None, as older releases do when access is
    refused. Other exceptions of pyannote pass through.
    """
    # Warning filters belong to the whole process and must not change during a request. So from here
    # on pyannote's own warnings (mostly about hints) and numpy's about empty means stay hidden.
    warnings.filterwarnings("ignore", module="pyannote")
    warnings.filterwarnings("ignore", "Mean of empty slice", RuntimeWarning, "numpy")
    # Importing it prints advice, and warns about audio decoders that are not used here.
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipeline = load_stock_pipeline(name, revision, token)
        if pipeline is None:
            raise StartError(
                f"{name}: no pipeline came back; it may be private, or its licence not be accepted"
            )
        pipeline.to(device)
        share_frames(pipeline)
        spare_memory(pipeline)
        complete_voices(pipeline)
    batch_size = CPU_BATCH if device.type == "cpu" else GPU_BATCH
    diarizer = PyannoteDiarizer(pipeline, batch_size, create_stream(device))
    if device.type == "cuda":
        warm_up(diarizer)
    return diarizer


def load_stock_pipeline(name: str, revision: str | None, token: str | None) -> Any:  # noqa: ANN401
    """The pipeline as pyannote has it, on the CPU; nothing of it is replaced.

    A folder whose networks are safetensors is read by `diarization.networks`, everything else by
    pyannote, which may return None.
    """
    folder = Path(name)
    if has_networks(folder):
        return build_pyannote_pipeline(folder, load_network)
    return load_pyannote_pipeline(name, revision, token)


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
