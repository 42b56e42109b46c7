"""Diarizes with a pyannote pipeline.

Three stages of a loaded `SpeakerDiarization` are replaced: embeddings (`diarization.embeddings`),
clustering (`diarization.clustering`), and the reconstruction of turns (`ClusteredWindows`). Other
pipelines run unchanged. Differences between pyannote's releases are in `runtime.versions`.

A pipeline's folder may hold its networks as safetensors, which cannot run code, unlike pyannote's
pickles. A network's folder then has `model.safetensors`, its `state_dict`, and `config.json` with
`architecture`, a name in `ARCHITECTURES`; `hyperparameters`, its arguments; and `specifications`,
the fields of pyannote's Specifications with its enumerations by name.
"""

from __future__ import annotations

import io
import json
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, replace
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from whosaid.diarization.activity import SpeakerActivity
from whosaid.diarization.clustering import complete_voices
from whosaid.diarization.diarizer import (
    Capabilities,
    Diarization,
    Diarizer,
    Pause,
    Span,
    SpeakerHints,
    Vector,
)
from whosaid.diarization.embeddings import WindowEmbeddings, doubled, share_frames
from whosaid.diarization.importing import import_pyannote
from whosaid.diarization.probabilities import keep_probabilities
from whosaid.diarization.thread import computing, diarization_stream
from whosaid.errors import StartError
from whosaid.runtime.errors import is_out_of_memory
from whosaid.runtime.versions import build_pyannote_pipeline, load_pyannote_pipeline
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import SpeakerTurn

# Windows together on a CPU, and on a GPU by its bytes; a GPU embeds at most EMBEDDED_ON_GPU.
CPU_BATCH, GPU_BATCHES = 8, ((38 << 30, 128), (20 << 30, 32), (0, 16))

# Shares of the work at the begin and the end of the stages that take long, about.
STAGES = {"segmentation": (0.0, 0.2), "embeddings": (0.2, 1.0)}

MASK_RATE = 100  # frames a second of the mask under which a clip is embedded

# Least cosine at which two embeddings count as one voice, by the embedding model's class and mel
# bands, because a loaded model reveals only its architecture. 80 bands: pyannote's published
# WeSpeaker, measured by scripts/bench voices on the same network before its last fine-tuning, which
# changed little. 32 bands: the demo's model, measured by a benchmark that no longer exists.
SAME_VOICE = {("WeSpeakerResNet34", 80): 0.45, ("WeSpeakerResNet34", 32): 0.78}

FINGERPRINT = 16  # hexadecimal digits

WEIGHTS, CONFIG = "model.safetensors", "config.json"
PLAIN = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# Networks of published pipelines, and the module that defines them in every supported release.
ARCHITECTURES = {
    "PyanNet": "pyannote.audio.models.segmentation",
    "WeSpeakerResNet34": "pyannote.audio.models.embedding",
}

Array = NDArray[Any]


class PyannoteDiarizer(Diarizer):
    """A loaded pyannote pipeline. Diarizes one waveform at a time, in any thread. On CUDA the
    pipeline runs on `stream`, so as not to wait for other threads' kernels.
    """

    def __init__(
        self,
        pipeline: Any,  # noqa: ANN401
        batch_size: int,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._batch_size = batch_size
        self._stream = stream
        self._prepared = stream is None
        embedding = getattr(pipeline, "_embedding", None)
        model = getattr(embedding, "model_", None)
        self.capabilities = Capabilities(
            hints=True,
            voices=True,
            same_voice=same_voice(model),
            voice_model=fingerprint(model),
            dimension=getattr(embedding, "dimension", 0),
            # On a CPU the windows would take processors from the decoding.
            early=stream is not None and can_start_early(pipeline),
        )
        # A call sets the pipeline's batch sizes and the process's TF32 switches, and restores them
        # at its end. Two calls at once would restore each other's values.
        self._lock = threading.Lock()

    def diarize(
        self, samples: NDArray[np.float32], hints: SpeakerHints, pause: Pause = lambda *_: None
    ) -> Diarization:
        """Diarize as `Diarizer.diarize` specifies. Clustering is not interrupted."""
        return self.diarize_known(samples, hints, pause, {})

    def diarize_known(
        self,
        samples: NDArray[np.float32],
        hints: SpeakerHints,
        pause: Pause,
        known: Mapping[str, object],
    ) -> Diarization:
        """Diarize a recording whose first windows are in the fields `known` of pyannote's file."""

        def hook(name: str, *_: object, total: int = 0, completed: int = 0, **__: object) -> None:
            """Pause around batches, with the share that is done, and between stages."""
            begin, stop = STAGES.get(name, (0.0, 0.0))
            part = completed / total if total else 0.0
            share = (float(begin * (1 - part) + stop * part),) if total and stop else ()
            with self._pipeline_released():
                pause(*share)

        options = {name: count for name, count in asdict(hints).items() if count is not None}
        with self._computing():
            found = self._run({**file_of(samples), **known}, options, hook)
        return replace(found, hints=hints)

    def start_early(self) -> EarlyWindows:
        return EarlyWindows(self)

    def embed(self, samples: NDArray[np.float32], spans: Sequence[Span]) -> Vector:
        """Embed as specified by `Diarizer.embed`, with `samples` as one window of the model."""
        mask = torch.zeros(1, max(1, round(len(samples) / SAMPLE_RATE * MASK_RATE)))
        for start, end in spans:
            mask[0, round(start * MASK_RATE) : round(end * MASK_RATE)] = 1
        with self._computing():
            waveform = torch.from_numpy(samples)[None, None]
            vector: Vector = self._pipeline._embedding(waveform, masks=mask)[0]
            return vector

    @contextmanager
    def _pipeline_released(self) -> Iterator[None]:
        """Let other calls use the pipeline. pyannote reads its batch size anew for each batch."""
        pipeline = self._pipeline
        sizes = pipeline.segmentation_batch_size, pipeline.embedding_batch_size
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()
            pipeline.segmentation_batch_size, pipeline.embedding_batch_size = sizes

    @contextmanager
    def _computing(self) -> Iterator[None]:
        with self._lock, _full_precision(), computing(self._stream):
            yield

    def _run(
        self, file: dict[str, Any], options: dict[str, int], hook: Callable[..., None]
    ) -> Diarization:
        """Run the pipeline; after running out of memory, run it again with half the batch size."""
        file["activity"] = activity = list[SpeakerActivity]()
        batch_size = self._batch_size
        while True:
            self._pipeline.segmentation_batch_size = batch_size
            self._pipeline.embedding_batch_size = batch_size
            try:
                embeddings = getattr(self._pipeline, "get_embeddings", None)
                if not self._prepared and isinstance(embeddings, WindowEmbeddings):
                    embeddings.prepare(batch_size)  # in this thread, for which cuDNN keeps plans
                self._prepared = True
                # Below about one second no embedding is long enough for clustering, and pyannote
                # takes the mean of no embeddings: 0 / 0.
                with np.errstate(invalid="ignore"):
                    output = self._pipeline(file, hook=hook, **options)
                found = _parse_output(output, file["waveform"].shape[1] / SAMPLE_RATE)
                return replace(found, activity=activity[0] if activity else None)
            except Exception as error:
                if batch_size == 1 or not is_out_of_memory(error):
                    raise
            batch_size //= 2
            file |= {"segmented": deque(), "embedded": deque()}  # results of larger batches


class EarlyWindows:
    """An `EarlyDiarization` of a pipeline that `can_start_early`.

    Segmentation and embeddings of a window need no samples outside it. They are computed in the
    batches of the whole recording, because the size of a batch changes the last bits of results.
    """

    def __init__(self, diarizer: PyannoteDiarizer) -> None:
        self._diarizer = diarizer
        self._segmented, self._embedded = deque[Array](), deque[Any]()  # results by batch
        self._count = 0  # windows that are segmented
        self._active: list[tuple[int, Array]] = []  # and, if they have speech, not embedded

    def hear(self, samples: NDArray[np.float32], pause: Pause = lambda *_: None) -> None:
        with self._diarizer._computing():
            for _ in self._batches(samples):
                with self._diarizer._pipeline_released():
                    pause()

    def _batches(self, samples: NDArray[np.float32]) -> Iterator[None]:
        """Compute every whole batch of windows in `samples`; yield after each."""
        together, pipeline = self._diarizer._batch_size, self._diarizer._pipeline
        inference, embeddings = pipeline._segmentation, pipeline.get_embeddings
        size = inference.model.audio.get_num_samples(inference.duration)
        step = round(inference.step * SAMPLE_RATE)
        embedded = embeddings.windows_together(together)
        pipeline.segmentation_batch_size = together
        # The sample behind a window is there too, because pyannote rounds the times of windows.
        while (stop := (self._count + together - 1) * step + size) < len(samples):
            found = inference(file_of(samples[self._count * step : stop]))
            self._segmented.append(found.data)
            activity = found.data[..., : found.data.shape[2] // 2]
            speech = np.flatnonzero((activity > 0).any(axis=(1, 2))).tolist()
            self._active += [(self._count + each, activity[each]) for each in speech]
            self._count += together
            yield
            while len(self._active) >= embedded:
                numbers, active = zip(*self._active[:embedded], strict=True)
                windows, exclude = found.sliding_window, pipeline.embedding_exclude_overlap
                self._embedded.append(
                    embeddings.embed_batch(
                        file_of(samples), windows, numbers, np.stack(active), exclude
                    )
                )
                del self._active[:embedded]
                yield

    def diarize(
        self, samples: NDArray[np.float32], hints: SpeakerHints, pause: Pause = lambda *_: None
    ) -> Diarization:
        known = {"segmented": self._segmented, "embedded": self._embedded}
        return self._diarizer.diarize_known(samples, hints, pause, known)


def can_start_early(pipeline: Any) -> bool:  # noqa: ANN401
    """Return whether both networks of a pipeline have the stages of `replace_stages`."""
    embeddings = getattr(pipeline, "get_embeddings", None)
    return isinstance(embeddings, WindowEmbeddings) and embeddings.separates


def file_of(samples: NDArray[np.float32]) -> dict[str, Any]:
    """Return samples (n,) at 16 kHz as an audio file of pyannote's."""
    return {"waveform": torch.from_numpy(samples)[None], "sample_rate": SAMPLE_RATE}


def same_voice(model: object) -> float | None:
    """Return the least cosine of one voice in `model`'s embeddings; None if never measured."""
    bands: int = getattr(getattr(model, "hparams", None), "num_mel_bins", 0)
    return SAME_VOICE.get((type(model).__name__, bands))


def fingerprint(model: object) -> str:
    """Return a network's class and a digest of its weights; "" if it is not one of torch."""
    if not isinstance(model, torch.nn.Module):
        return ""
    digest = sha256()
    for name, weights in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(weights.cpu().numpy().tobytes())
    return f"{type(model).__name__}-{digest.hexdigest()[:FINGERPRINT]}"


# Loading


@cache
def import_ahead() -> Future[None]:
    """Begin to import pyannote.audio in a thread. optuna keeps the tracebacks of failed imports,
    and so the frames of the importing thread, which must not hold the models.
    """
    pool = ThreadPoolExecutor(1, "import")
    importing = pool.submit(_import)
    pool.shutdown(wait=False)
    return importing


def _import() -> None:
    with _silence():
        import_pyannote(["pyannote.audio.pipelines", *ARCHITECTURES.values()])


@contextmanager
def _silence() -> Iterator[None]:
    """Drop pyannote's advice, and its warnings about audio decoders that are not used here."""
    with redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def load_pyannote(
    name: str, revision: str | None, token: str | None, device: torch.device
) -> PyannoteDiarizer:
    """Load a pipeline, a hub id or folder, onto `device`. Raises StartError, pyannote's errors."""
    # Warning filters belong to the whole process and must not change during a request. So
    # pyannote's own warnings (mostly about hints) and numpy's about empty means stay hidden from
    # here on.
    warnings.filterwarnings("ignore", module="pyannote")
    warnings.filterwarnings("ignore", "Mean of empty slice", RuntimeWarning, "numpy")
    import_ahead().result()
    with _silence():
        pipeline = load_stock_pipeline(name, revision, token)
        if pipeline is None:
            raise StartError(
                f"{name}: pyannote returned no pipeline; a private or gated model needs HF_TOKEN "
                "and an accepted licence"
            )
        pipeline.to(device)
        replace_stages(pipeline)
    return PyannoteDiarizer(pipeline, windows_together(device), diarization_stream(device))


def windows_together(device: torch.device) -> int:
    if device.type == "cpu":
        return CPU_BATCH
    total = torch.cuda.mem_get_info(device)[1]
    return next(windows for least, windows in GPU_BATCHES if total >= least)


def load_stock_pipeline(name: str, revision: str | None, token: str | None) -> Any:  # noqa: ANN401
    """Load a pipeline on the CPU with pyannote's own stages, or None if pyannote returns None. In a
    folder with safetensors, `load_network` reads these, and no pickle beside them.
    """
    folder = Path(name)
    if any(folder.glob(f"*/{WEIGHTS}")):
        return build_pyannote_pipeline(folder, load_network)
    return load_pyannote_pipeline(name, revision, token)


def replace_stages(pipeline: Any) -> None:  # noqa: ANN401
    """Replace the slow or weak stages of a SpeakerDiarization that is already on its device."""
    from pyannote.audio.pipelines import SpeakerDiarization

    if isinstance(pipeline, SpeakerDiarization):
        share_frames(pipeline)
        segment_doubled(pipeline)
        spare_memory(pipeline)
        keep_probabilities(pipeline)
        complete_voices(pipeline)


def segment_doubled(pipeline: Any) -> None:  # noqa: ANN401
    """Pad the segmentation's batches of a SpeakerDiarization by `doubled`."""
    inference = pipeline._segmentation
    infer = inference.infer
    inference.infer = lambda chunks: infer(doubled(chunks, inference.device))[: len(chunks)]


def load_network(folder: Path) -> torch.nn.Module:
    """Load a network's folder as a `pyannote.audio.Model` on the CPU, in evaluation mode. Raises
    ValueError for an unknown architecture, and for weights that are quantised or not finite, and
    exceptions of safetensors and torch.
    """
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    name = config["architecture"]
    if name not in ARCHITECTURES:
        raise ValueError(f"{folder.name}/{CONFIG}: the architecture is none of {[*ARCHITECTURES]}")
    network = getattr(import_module(ARCHITECTURES[name]), name)(**config["hyperparameters"])
    network.specifications = _specifications(config["specifications"])
    network.setup()  # makes the layers that depend on the specifications
    stored = load_file(folder / WEIGHTS)
    for key, own in network.state_dict().items():
        # `load_state_dict` would read a quantised weight's numbers as weights.
        weight = stored.get(key, own)
        if own.is_floating_point() and (weight.dtype not in PLAIN or not weight.isfinite().all()):
            raise ValueError(f"{folder.name}/{WEIGHTS}: {key} is {weight.dtype} or not finite")
    network.load_state_dict(stored)
    loaded: torch.nn.Module = network.eval()
    return loaded


def _specifications(fields: dict[str, Any]) -> Any:  # noqa: ANN401
    from pyannote.audio.core.task import Problem, Resolution, Specifications

    converted = {
        "problem": Problem[fields["problem"]],
        "resolution": Resolution[fields["resolution"]],
        "warm_up": tuple(fields.get("warm_up", (0.0, 0.0))),
    }
    return Specifications(**fields | converted)


# Turns


def spare_memory(pipeline: Any) -> None:  # noqa: ANN401
    """Make a SpeakerDiarization's `reconstruct` hold one window at a time, with equal results,
    instead of all: 17 MB an hour for each speaker.
    """

    def reconstruct(segmentations: Any, hard_clusters: Array, count: Any) -> Any:  # noqa: ANN401
        return to_diarization(ClusteredWindows(segmentations, hard_clusters), count)

    to_diarization = pipeline.to_diarization
    pipeline.reconstruct = reconstruct


class ClusteredWindows:
    """The attributes of a SlidingWindowFeature (windows, frames, all speakers) that
    `pyannote.audio.Inference.aggregate` reads. A window's array is made when it is read.

    `segmentations` is a SlidingWindowFeature (windows, frames, local speakers) with the activity of
    each window's speakers. `clusters` (windows, local speakers) has their speaker of the recording,
    -2 for none.
    """

    def __init__(self, segmentations: Any, clusters: Array) -> None:  # noqa: ANN401
        self._segmentations, self._clusters = segmentations, clusters
        self.sliding_window = segmentations.sliding_window
        windows, frames, _ = segmentations.data.shape
        # Only the shape is read; a broadcast scalar takes no memory.
        self.data = np.broadcast_to(np.nan, (windows, frames, int(clusters.max()) + 1))

    def __iter__(self) -> Iterator[tuple[Any, Array]]:
        """Yield each window and its activity (frames, all speakers), NaN for absent speakers."""
        for clusters, (window, activity) in zip(self._clusters, self._segmentations, strict=True):
            scores = np.full(self.data.shape[1:], np.nan)
            for cluster in np.unique(clusters[clusters != -2]):
                scores[:, cluster] = activity[:, clusters == cluster].max(axis=1)
            yield window, scores


def _parse_output(output: object, duration: float) -> Diarization:
    """Parse pyannote 4's DiarizeOutput, or the Annotation of earlier and legacy pipelines."""
    annotation: Any = getattr(output, "speaker_diarization", output)
    turns = _parse_turns(annotation, duration)
    exclusive = getattr(output, "exclusive_speaker_diarization", None)
    rows = getattr(output, "speaker_embeddings", None)
    return Diarization(
        turns,
        turns if exclusive is None else _parse_turns(exclusive, duration),
        voices={} if rows is None else dict(zip(map(str, annotation.labels()), rows, strict=True)),
    )


def _parse_turns(annotation: Any, duration: float) -> tuple[SpeakerTurn, ...]:  # noqa: ANN401
    """Return the turns of an Annotation, clipped because pyannote pads the last window."""
    turns = (
        SpeakerTurn(str(label), max(0.0, float(segment.start)), min(duration, float(segment.end)))
        for segment, _, label in annotation.itertracks(yield_label=True)
    )
    return tuple(turn for turn in turns if turn.end > turn.start)


@contextmanager
def _full_precision() -> Iterator[None]:
    """Turn TF32 off in the block, for all threads; pyannote would turn it off for good. Recognition
    computes in float16 on CUDA and is not affected.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
