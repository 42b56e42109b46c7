"""Who speaks when: pyannote's speaker turns.

The one decision: pyannote stays behind this file. A waveform in memory and three hints go in,
frozen turns come out; what version of a pipeline answered, what it printed and which switches it
flipped for the whole process end here.
"""

from __future__ import annotations

import contextlib
import io
import threading
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from diarization.embeddings import share_frames
from errors import ModelError, OutOfMemory, StartError
from timebase import SAMPLE_RATE
from transcript import SpeakerTurn

MARGIN = 0.2  # seconds around detected speech in which a turn may begin and end
GPU_BATCH, CPU_BATCH = 32, 8


Stretch = tuple[float, float]  # start and end, in seconds


@dataclass(frozen=True, slots=True)
class SpeakerHints:
    """What the client knows about the number of speakers; None where it knows nothing."""

    num_speakers: int | None = None
    min_speakers: int | None = None
    max_speakers: int | None = None


@dataclass(frozen=True, slots=True)
class Diarization:
    """Speaker turns in order of time, in seconds.

    `turns` may overlap, as people do. `exclusive` holds one speaker at a time and decides who said
    a chunk; pipelines that do not compute it (before pyannote 4, or `legacy: true`) get `turns`
    there. `hints` are those it was asked for with.
    """

    turns: tuple[SpeakerTurn, ...]
    exclusive: tuple[SpeakerTurn, ...]
    hints: SpeakerHints = SpeakerHints()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Says that the hints are not met by these very turns: those cut away do not count."""
        found = len({turn.speaker for turn in self.turns})
        least = self.hints.num_speakers or self.hints.min_speakers or 0
        most = self.hints.num_speakers or self.hints.max_speakers or found
        return () if least <= found <= most else (f"speaker hints could not be met: {found} found",)

    def within(self, speech: Sequence[Stretch]) -> Diarization:
        """The same where there is `speech`, stretches in order; noise and music that were taken for
        voices are not.

        A turn may lie MARGIN seconds outside, and becomes several where speech stops for longer
        inside it.
        """
        heard = _joined(speech)
        return replace(self, turns=_cut(self.turns, heard), exclusive=_cut(self.exclusive, heard))


class _Pipeline(Protocol):
    """What is used of `pyannote.audio.Pipeline`."""

    segmentation_batch_size: int
    embedding_batch_size: int

    def __call__(self, file: dict[str, Any], **hints: int) -> object: ...


class Diarizer:
    """A loaded pyannote pipeline, answering one waveform at a time, beside whatever else the
    process computes.

    `stream` is where it computes on CUDA, so that it does not queue behind other threads' work.
    """

    def __init__(
        self, pipeline: _Pipeline, batch_size: int, stream: torch.cuda.Stream | None = None
    ) -> None:
        self._pipeline = pipeline
        self._batch_size = batch_size
        self._stream = stream
        # Batch sizes and TF32 are set for the length of a call: two calls at once would restore
        # each other's.
        self._lock = threading.Lock()

    def diarize(self, samples: NDArray[np.float32], hints: SpeakerHints) -> Diarization:
        """Find the speaker turns of `samples`, float32 (n,) at 16 kHz.

        Audio without speech has no turns. A hint that the audio cannot meet (three speakers in one
        second) is not an error: what is found comes with a warning. Raises ModelError, or
        OutOfMemory if a batch of one does not fit.
        """
        wanted = {name: count for name, count in asdict(hints).items() if count is not None}
        with self._lock, _full_precision(), torch.cuda.stream(self._stream):
            try:
                found = self._run_hinted(samples, wanted)
            except (torch.OutOfMemoryError, MemoryError) as error:
                raise OutOfMemory(
                    "speaker diarization does not fit, even one window at a time"
                ) from error
            except Exception as error:
                raise ModelError(f"speaker diarization failed ({type(error).__name__})") from error
        return replace(found, hints=hints)

    def _run_hinted(self, samples: NDArray[np.float32], wanted: dict[str, int]) -> Diarization:
        """Run with the hints, or without where they break the clustering.

        pyannote's VBx hands the wanted number to k-means, which refuses more speakers than there
        are voices to cluster.
        """
        if wanted:
            with contextlib.suppress(ValueError):
                return self._run(samples, wanted)
        return self._run(samples, {})

    def _run(self, samples: NDArray[np.float32], wanted: dict[str, int]) -> Diarization:
        file = {"waveform": torch.from_numpy(samples)[None], "sample_rate": SAMPLE_RATE}
        batch_size = self._batch_size
        while True:
            self._pipeline.segmentation_batch_size = self._pipeline.embedding_batch_size = (
                batch_size
            )
            try:
                # Under a second or so no voice is long enough to be clustered, and pyannote
                # averages none: 0 / 0.
                with np.errstate(invalid="ignore"):
                    return _read(self._pipeline(file, **wanted), len(samples) / SAMPLE_RATE)
            except (torch.OutOfMemoryError, MemoryError):
                if batch_size == 1:
                    raise
            batch_size //= 2


def load_diarizer(
    name: str, revision: str | None, token: str | None, device: torch.device
) -> Diarizer:
    """Load the pyannote pipeline `name`, a hub id or a local folder, onto `device`.

    StartError where no pipeline comes back, as older releases answer a refusal; what pyannote
    raises passes through.
    """
    # Filters belong to the whole process, so that a call must not change them beside other threads:
    # from here on, pyannote's own warnings, about speaker hints above all, are not shown, nor
    # numpy's where it averages no voices.
    warnings.filterwarnings("ignore", module="pyannote")
    warnings.filterwarnings("ignore", "Mean of empty slice", RuntimeWarning, "numpy")
    # While loading, it prints advice and has others warn about decoders that are not used here.
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pyannote.audio import Pipeline

        pipeline = Pipeline.from_pretrained(name, revision=revision, token=token)
        if pipeline is None:
            raise StartError(
                f"{name}: no pipeline came back; it may be private, or its licence not be accepted"
            )
        pipeline.to(device)
        share_frames(pipeline)
    return Diarizer(pipeline, CPU_BATCH if device.type == "cpu" else GPU_BATCH, _own_stream(device))


def _own_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A CUDA stream that begins after what was loaded on the default one; None on other devices."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _read(output: object, duration: float) -> Diarization:
    """Read pyannote 4's DiarizeOutput, or the bare Annotation of earlier and legacy pipelines."""
    turns = _turns(getattr(output, "speaker_diarization", output), duration)
    exclusive = getattr(output, "exclusive_speaker_diarization", None)
    return Diarization(turns, turns if exclusive is None else _turns(exclusive, duration))


def _turns(annotation: Any, duration: float) -> tuple[SpeakerTurn, ...]:  # noqa: ANN401
    """Turns of a `pyannote.core.Annotation`, within the audio: the padded last window may reach
    past its end.
    """
    turns = (
        SpeakerTurn(str(label), max(0.0, float(segment.start)), min(duration, float(segment.end)))
        for segment, _, label in annotation.itertracks(yield_label=True)
    )
    return tuple(turn for turn in turns if turn.end > turn.start)


def _joined(speech: Sequence[Stretch]) -> list[Stretch]:
    """Stretches with their margins, joined where these meet."""
    joined: list[Stretch] = []
    for start, end in ((start - MARGIN, end + MARGIN) for start, end in speech):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def _cut(turns: Sequence[SpeakerTurn], heard: Sequence[Stretch]) -> tuple[SpeakerTurn, ...]:
    """What of each turn lies in the stretches `heard`, which are in order and apart, in order of
    time.
    """
    ends = [end for _, end in heard]
    pieces = [
        piece for turn in turns for piece in _pieces(turn, heard, bisect_right(ends, turn.start))
    ]
    return tuple(sorted(pieces, key=lambda turn: turn.start))


def _pieces(turn: SpeakerTurn, heard: Sequence[Stretch], first: int) -> Iterator[SpeakerTurn]:
    for start, end in islice(heard, first, None):
        if start >= turn.end:
            return
        yield SpeakerTurn(turn.speaker, max(turn.start, start), min(turn.end, end))


@contextlib.contextmanager
def _full_precision() -> Iterator[None]:
    """Turn TF32 off, as pyannote would for good (and with a warning), and back to what it was.

    The switches are the process's: float32 products of other threads are more exact meanwhile, and
    speech recognition, which on CUDA computes in float16, does not notice.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
