"""Shared frames against pyannote: every embedding, every mask, and the turns that result."""

import warnings
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pyannote.audio import Audio
from pyannote.audio.models.blocks.pooling import StatsPool
from pyannote.audio.pipelines import SpeakerDiarization
from pyannote.core import SlidingWindow, SlidingWindowFeature
from torch import nn

from config import DEMO_MODELS
from tests.helpers import nightly
from tests.support.dialogue import draw_dialogues
from whosaid.diarization.diarizer import SpeakerHints
from whosaid.diarization.embeddings import (
    MAX_CPU_ELEMENTS,
    WindowEmbeddings,
    _last_elements,
    _min_samples,
    share_frames,
    speaker_masks,
)
from whosaid.diarization.pyannote import PyannoteDiarizer, spare_memory
from whosaid.runtime.versions import load_pyannote_pipeline

CPU = torch.device("cpu")
FOLDER = DEMO_MODELS / "diarization"
RATE = 16_000


class Statistics(nn.Module):
    """A small embedding model in two halves: ten features every 20 ms, then masked statistics."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(320, 10)
        self.windows = 0

    def forward_frames(self, waveforms):
        self.windows += len(waveforms)
        return self.mix(waveforms[:, 0].unfold(1, 320, 320)).transpose(1, 2)

    def forward_embedding(self, frames, weights):
        return StatsPool()(frames, weights)

    def forward(self, waveforms, weights):
        return self.forward_embedding(self.forward_frames(waveforms), weights)


class Wrapped:
    """A model with the interface of pyannote's wrapper for its pipelines."""

    sample_rate, device = RATE, CPU

    def __init__(self, model, min_num_samples=4_000):
        self.model_, self.min_num_samples = model.eval(), min_num_samples

    def __call__(self, waveforms, masks):
        with torch.inference_mode():
            return self.model_(waveforms, weights=masks).numpy()


def pipeline_of(embedding, seconds=2.0, batch_size=4):
    """The parts of a SpeakerDiarization that its `get_embeddings` uses."""
    audio, segmentation = Audio(RATE, mono="downmix"), SimpleNamespace(duration=seconds)
    parts = {"_embedding": embedding, "_segmentation": segmentation, "_audio": audio}
    return SimpleNamespace(training=False, embedding_batch_size=batch_size, **parts)


def scene(windows, frames=50, seconds=2.0, step=0.6, seed=0):
    """Noise and random activity: some speakers rare, some frequent, some overlapping, some silent.

    The last window extends past the end of the noise."""
    rng = np.random.default_rng(seed)
    samples = round((step * (windows - 1) + 0.9 * seconds) * RATE)
    noise = rng.normal(0, 0.1, (1, samples)).astype(np.float32)
    levels = rng.choice([0.0, 0.0, 0.1, 0.5, 1.0], (windows, 1, 3))
    activity = (rng.random((windows, frames, 3)) < levels).astype(np.float32)
    activity[0] = 0
    window = SlidingWindow(start=0.0, duration=seconds, step=step)
    file = {"waveform": torch.from_numpy(noise), "sample_rate": RATE}
    return file, SlidingWindowFeature(activity, window)


def both(pipeline, file, activity, exclude_overlap):
    by_pyannote = SpeakerDiarization.get_embeddings
    stock = by_pyannote(pipeline, file, activity, exclude_overlap=exclude_overlap)
    return stock, WindowEmbeddings(pipeline)(file, activity, exclude_overlap=exclude_overlap)


@pytest.mark.parametrize("exclude_overlap", [False, True])
@pytest.mark.parametrize(("batch_size", "seed"), [(1, 0), (4, 1), (4, 2), (32, 3)])
def test_embeddings_equal_pyannotes(exclude_overlap, batch_size, seed):
    pipeline = pipeline_of(Wrapped(Statistics()), batch_size=batch_size)
    stock, ours = both(pipeline, *scene(9, seed=seed), exclude_overlap)
    assert ours.shape == stock.shape == (9, 3, 20)
    assert ours.dtype == stock.dtype
    np.testing.assert_allclose(ours, stock, rtol=1e-4, atol=1e-6)


@settings(max_examples=40)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(2, 4),
    st.sampled_from([2, 1_000, 12_345, 32_000]),
    st.booleans(),
)
def test_masks_equal_pyannotes(seed, speakers, min_num_samples, exclude_overlap):
    rng = np.random.default_rng(seed)
    frames = int(rng.integers(1, 60))
    data = (rng.random((3, frames, speakers)) < rng.random((3, 1, speakers))).astype(np.float32)
    data[rng.random(data.shape) < 0.05] = np.nan
    passed = []

    class Recorder(Wrapped):
        def __call__(self, waveforms, masks):
            passed.append(masks.numpy())
            return np.zeros((len(masks), 1))

    activity = SlidingWindowFeature(data, SlidingWindow(start=0.0, duration=2.0, step=1.0))
    file = {"waveform": torch.zeros(1, 4 * RATE), "sample_rate": RATE}
    stub = pipeline_of(Recorder(Statistics(), min_num_samples))
    SpeakerDiarization.get_embeddings(stub, file, activity, exclude_overlap=exclude_overlap)
    min_frames = int(np.ceil(frames * min_num_samples / (2.0 * RATE)))
    ours = speaker_masks(data, min_frames if exclude_overlap else None)
    np.testing.assert_array_equal(ours.reshape(-1, frames), np.concatenate(passed))


def test_network_runs_once_for_each_window_with_speech():
    file, activity = scene(12)
    activity.data[[3, 4, 11]] = 0
    model = Statistics()
    embed = WindowEmbeddings(pipeline_of(Wrapped(model)))
    model.windows = 0
    embed(file, activity)
    assert model.windows == (activity.data.sum(axis=(1, 2)) > 0).sum() == 8


def test_file_without_speech_needs_no_network():
    file, activity = scene(3)
    activity.data[:] = 0
    stock, ours = both(pipeline_of(Wrapped(Statistics())), file, activity, True)
    np.testing.assert_allclose(ours, stock, atol=1e-6)


@pytest.mark.parametrize(
    ("asked", "numbers", "largest"),
    [(8, MAX_CPU_ELEMENTS // 4, 4), (3, MAX_CPU_ELEMENTS // 4, 3), (8, 9 * MAX_CPU_ELEMENTS, 1)],
)
def test_a_batch_on_the_cpu_stays_within_its_cache(asked, numbers, largest):
    class Wide(Statistics):
        def forward_frames(self, waveforms):
            batches.append(len(waveforms))
            return torch.zeros(len(waveforms), 10, numbers // 10)

    batches = []
    model = Wide()
    WindowEmbeddings(pipeline_of(Wrapped(model), batch_size=asked))(*scene(20))
    assert max(batches) == largest


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_hook_is_called_at_first_and_after_each_batch(batch_size):
    file, activity = scene(7)
    calls = []

    def hook(step, artifact, *, total, completed):
        rows = 0 if artifact is None else len(artifact)
        calls.append((step, total, completed, model.windows, rows))

    model = Statistics()
    embed = WindowEmbeddings(pipeline_of(Wrapped(model), batch_size=batch_size))
    model.windows = 0
    embed(file, activity, hook=hook)
    active = int((activity.data.sum(axis=(1, 2)) > 0).sum())
    seen = [min(active, start) for start in range(0, active + batch_size, batch_size)]
    sizes = [0, *np.diff(seen)]
    total = len(seen) - 1
    blocks = enumerate(zip(seen, sizes, strict=True))
    assert calls == [("embeddings", total, done, *block) for done, block in blocks]


def quietly_loaded(folder: str):
    """The pipeline with its own method, by the loader that both releases of pyannote have."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_pyannote_pipeline(folder, None, None)


def test_the_demos_pipeline_shares_frames():
    pipeline = quietly_loaded(str(FOLDER))
    share_frames(pipeline)
    assert isinstance(pipeline.get_embeddings, WindowEmbeddings)


def test_shapes_of_a_residual_network_are_those_of_its_passes():
    embedding = quietly_loaded(str(FOLDER))._embedding
    window = torch.zeros(1, 1, 5 * RATE)
    shortest, elements = _min_samples(embedding), _last_elements(embedding.model_, window)
    del embedding.min_num_samples  # pyannote keeps it
    assert shortest == embedding.min_num_samples
    with torch.inference_mode():
        assert elements == embedding.model_.forward_frames(window).numel()


def test_embedding_models_in_one_piece_are_left_unchanged():
    pipeline = pipeline_of(Wrapped(nn.Linear(1, 1)))
    before = dict(vars(pipeline))
    share_frames(pipeline)
    assert vars(pipeline) == before


VBX = {"segmentation": {"min_duration_off": 0.0}}
VBX["clustering"] = {"threshold": 0.6, "Fa": 0.07, "Fb": 0.8}
# Which of them is taken says nothing about embeddings.
HINTS = {"community-1": [SpeakerHints(num_speakers=2)], "demo": [SpeakerHints()]}
HINTS["3.1"] = [SpeakerHints(num_speakers=3)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The demo's pipeline with its own options, and those of community-1 and of 3.1."""

    def variant(**changes):
        config = yaml.safe_load((FOLDER / "config.yaml").read_text().replace("$model", str(FOLDER)))
        config["pipeline"]["params"] |= changes
        if changes["clustering"] == "VBxClustering":
            config["params"] = VBX
        folder = tmp_path_factory.mktemp("pipeline")
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        return str(folder)

    return {
        "demo": str(FOLDER),
        "community-1": variant(clustering="VBxClustering", segmentation_step=0.2),
        "3.1": variant(
            clustering="AgglomerativeClustering",
            embedding_exclude_overlap=False,
            legacy=True,
            segmentation_step=0.2,
        ),
    }


@pytest.fixture(scope="module")
def dialogue():
    return draw_dialogues([("f5", "Mario", "belinda")], seed=11, seconds=12.0)[0].samples


@pytest.mark.slow
@pytest.mark.parametrize("options", nightly.some(1, HINTS))
def test_turns_equal_those_of_stock_pyannote(folders, dialogue, options):
    if options == "community-1" and version("pyannote.audio").startswith("3."):
        pytest.skip("pyannote.audio 3 has no such clustering")
    stock = PyannoteDiarizer(quietly_loaded(folders[options]), 8)
    pipeline = quietly_loaded(folders[options])
    share_frames(pipeline)
    spare_memory(pipeline)
    ours = PyannoteDiarizer(pipeline, 8)
    for hints in HINTS[options]:
        found = ours.diarize(dialogue, hints)
        assert found == stock.diarize(dialogue, hints)
    assert len({turn.speaker for turn in found.turns}) > 1
