"""Turns from pyannote's outputs, cancellation, and what its failures are turned into."""

import contextlib
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pyannote.audio import Pipeline as StockPipeline
from pyannote.audio.models.embedding.wespeaker import WeSpeakerResNet34, WeSpeakerResNet152
from pyannote.core import Annotation, Segment

from config import DEMO_MODELS
from tests.helpers.hub_errors import hub_error
from tests.helpers.refusals import start_failure
from tests.support.audio_files import speech
from whosaid.diarization import load_diarizer, pyannote
from whosaid.diarization.diarizer import Diarization, DiarizationCancelled, SpeakerHints
from whosaid.diarization.embeddings import share_frames
from whosaid.diarization.pyannote import SAME_VOICE, PyannoteDiarizer, same_voice
from whosaid.errors import ModelError, OutOfMemory
from whosaid.runtime.versions import load_pyannote_pipeline
from whosaid.transcript import SpeakerTurn

CPU = torch.device("cpu")
SECOND = np.zeros(16_000, np.float32)


@dataclass
class DiarizeOutput:
    """pyannote.audio 4's result."""

    speaker_diarization: Annotation
    exclusive_speaker_diarization: Annotation


def annotation(*turns: tuple[str, float, float]) -> Annotation:
    result = Annotation()
    for track, (speaker, start, end) in enumerate(turns):
        result[Segment(start, end), track] = speaker
    return result


class Pipeline:
    """Returns `output`, or raises it, and records how it was called."""

    memory_error = torch.OutOfMemoryError("CUDA out of memory")

    def __init__(self, output, largest_batch=64):
        self.output, self.largest_batch = output, largest_batch
        self.segmentation_batch_size = self.embedding_batch_size = 1
        self.calls = []

    def __call__(self, file, *, hook=None, **hints):
        self.calls.append((file, hints, self.segmentation_batch_size, self.embedding_batch_size))
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        if self.embedding_batch_size > self.largest_batch:
            raise self.memory_error
        if isinstance(self.output, Exception):
            raise self.output
        return self.output


def test_both_views_of_pyannote_4_are_kept():
    both = annotation(("A", 0, 0.6), ("B", 0.5, 1)), annotation(("A", 0, 0.5), ("B", 0.5, 1))
    found = PyannoteDiarizer(Pipeline(DiarizeOutput(*both)), 8).diarize(SECOND, SpeakerHints())
    assert found.turns == (SpeakerTurn("A", 0, 0.6), SpeakerTurn("B", 0.5, 1))
    assert found.exclusive == (SpeakerTurn("A", 0, 0.5), SpeakerTurn("B", 0.5, 1))


def test_a_legacy_annotation_stands_for_both():
    pipeline = Pipeline(annotation(("A", 0, 0.6), ("B", 0.5, 1)))
    found = PyannoteDiarizer(pipeline, 8).diarize(SECOND, SpeakerHints())
    assert found.exclusive == found.turns == (SpeakerTurn("A", 0, 0.6), SpeakerTurn("B", 0.5, 1))


def test_turns_stay_within_the_audio():
    found = PyannoteDiarizer(Pipeline(annotation(("A", -0.1, 0.5), ("A", 0.9, 7), ("B", 3, 4))), 8)
    turns = (SpeakerTurn("A", 0, 0.5), SpeakerTurn("A", 0.9, 1))
    assert found.diarize(SECOND, SpeakerHints()).turns == turns


def test_no_speaker_means_no_turns():
    found = PyannoteDiarizer(Pipeline(DiarizeOutput(Annotation(), Annotation())), 8)
    for hints in (SpeakerHints(), SpeakerHints(max_speakers=2)):
        assert found.diarize(SECOND, hints) == Diarization((), (), hints)
        assert found.diarize(SECOND, hints).warnings == ()
    (warning,) = found.diarize(SECOND, SpeakerHints(2)).warnings
    assert warning == "speaker hints could not be met: 0 found"


def test_the_waveform_and_the_hints_given_are_passed_on():
    pipeline = Pipeline(annotation(("A", 0, 1), ("B", 0, 1)))
    PyannoteDiarizer(pipeline, 8).diarize(SECOND, SpeakerHints(min_speakers=2, max_speakers=4))
    file, hints, *batch_sizes = pipeline.calls[0]
    assert hints == {"min_speakers": 2, "max_speakers": 4}
    assert (file["waveform"].shape, file["sample_rate"]) == ((1, 16_000), 16_000)
    assert batch_sizes == [8, 8]


@pytest.fixture(scope="module")
def diarizer():
    return load_diarizer(str(DEMO_MODELS / "diarization"), None, None, CPU)


def test_more_speakers_than_there_are_voices_are_a_warning(diarizer):
    """pyannote's own clustering raises ValueError for it."""
    found = diarizer.diarize(speech(4.0).astype(np.float32), SpeakerHints(num_speakers=9))
    assert found.turns
    (warning,) = found.warnings
    assert warning.startswith("speaker hints could not be met: ")


def test_out_of_memory_halves_the_batch_down_to_one():
    """`test_device_errors.py` has the forms in which torch reports it."""
    pipeline = Pipeline(annotation(("A", 0, 1)), largest_batch=2)
    diarizer = PyannoteDiarizer(pipeline, 8)
    for _ in range(2):
        assert diarizer.diarize(SECOND, SpeakerHints()).turns
    assert [call[3] for call in pipeline.calls] == [8, 4, 2, 8, 4, 2]
    pipeline.largest_batch = 0
    with pytest.raises(OutOfMemory) as caught:
        diarizer.diarize(SECOND, SpeakerHints())
    assert caught.value.__cause__ is pipeline.memory_error
    assert [call[3] for call in pipeline.calls[6:]] == [8, 4, 2, 1]


@pytest.mark.parametrize("output", [RuntimeError("/secret/path"), "not an annotation"])
def test_exceptions_and_wrong_outputs_of_pyannote_are_model_errors(output):
    with pytest.raises(ModelError) as caught:
        PyannoteDiarizer(Pipeline(output), 4).diarize(SECOND, SpeakerHints())
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is not None


@pytest.fixture
def tf32():
    """Turns TF32 on for one test."""
    switches = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [switch.allow_tf32 for switch in switches]
    for switch in switches:
        switch.allow_tf32 = True
    yield switches
    for switch, value in zip(switches, before, strict=True):
        switch.allow_tf32 = value


@pytest.mark.parametrize("output", [annotation(("A", 0, 1)), RuntimeError()])
def test_tf32_is_left_as_it_was(output, tf32):
    with contextlib.suppress(ModelError):
        PyannoteDiarizer(Pipeline(output), 4).diarize(SECOND, SpeakerHints())
    assert [switch.allow_tf32 for switch in tf32] == [True, True]


class Demo:
    """The demo's pipeline with batches of one; `step` runs after every batch of either network."""

    def __init__(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pipeline = load_pyannote_pipeline(str(DEMO_MODELS / "diarization"), None, None)
        share_frames(pipeline)
        self.batches, self.step = [], lambda: None
        segmentation, embedding = pipeline._segmentation.model, pipeline._embedding.model_
        segmentation.register_forward_hook(lambda *_: self.count("segmentation"))
        features = embedding.compute_fbank
        embedding.compute_fbank = lambda audio: (self.count("embeddings"), features(audio))[1]
        self.diarizer = PyannoteDiarizer(pipeline, 1)

    def count(self, network):
        self.batches.append(network)
        self.step()


@pytest.fixture(scope="module")
def demo():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Demo()


@pytest.fixture(scope="module")
def spoken():
    return speech(8.0).astype(np.float32)


def test_a_cancelled_call_computes_no_further_batch(demo, spoken):
    """Cancelled during a batch of either network, the first, one amid others or the last of all,
    that batch is the last."""
    hints = SpeakerHints(num_speakers=2)
    demo.batches, demo.step = [], lambda: None
    uncancelled = demo.diarizer.diarize(spoken, hints)
    batches = list(demo.batches)
    assert batches.count("segmentation") > 2
    assert batches.count("embeddings") > 2
    segmented = batches.count("segmentation")
    for last in (1, segmented + 1, len(batches)):
        cancelled, demo.batches = threading.Event(), []
        demo.step = lambda last=last, event=cancelled: len(demo.batches) == last and event.set()

        def pause(*_, event=cancelled):
            if event.is_set():
                raise DiarizationCancelled

        with pytest.raises(DiarizationCancelled):
            demo.diarizer.diarize(spoken, hints, pause)
        assert demo.batches == batches[:last]
    demo.step = lambda: None
    assert demo.diarizer.diarize(spoken, hints) == uncancelled


def test_pauses_tell_the_share_that_is_done(demo, spoken):
    shares = []
    demo.diarizer.diarize(spoken, SpeakerHints(), lambda *share: shares.extend(share))
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert len({*shares}) > 4


def test_short_recording_is_diarized_between_batches(demo, spoken):
    short, hints = spoken[: len(spoken) // 2], SpeakerHints()
    alone = [demo.diarizer.diarize(each, hints) for each in (spoken, short)]
    found = []

    def between(*_):
        if len(found) < 3:
            with ThreadPoolExecutor(1) as pool:
                found.append(pool.submit(demo.diarizer.diarize, short, hints).result(60))

    assert demo.diarizer.diarize(spoken, hints, between) == alone[0]
    assert found == [alone[1]] * 3


class Onlooker(Pipeline):
    """Records what the whole process shares while the pipeline runs."""

    def __call__(self, file, *, hook=None, **hints):
        self.seen = warnings.filters, sys.stdout, sys.stderr
        self.stream = torch.cuda.current_stream() if torch.cuda.is_available() else None
        return super().__call__(file, **hints)


def test_other_threads_keep_their_output_and_their_warnings():
    pipeline = Onlooker(annotation(("A", 0, 1)))
    PyannoteDiarizer(pipeline, 8).diarize(SECOND, SpeakerHints())
    for seen, own in zip(pipeline.seen, (warnings.filters, sys.stdout, sys.stderr), strict=True):
        assert seen is own


def test_one_call_runs_at_a_time():
    class Counting(Pipeline):
        running = 0

        def __call__(self, file, *, hook=None, **hints):
            self.running += 1
            assert self.running == 1
            turns = super().__call__(file, **hints)
            assert self.running == 1
            self.running -= 1
            return turns

    diarizer = PyannoteDiarizer(Counting(annotation(("A", 0, 1))), 8)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: diarizer.diarize(SECOND, SpeakerHints()), range(64)))
    assert len({result.turns for result in found}) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_pipeline_computes_on_its_stream():
    pipeline, stream = Onlooker(annotation(("A", 0, 1))), torch.cuda.Stream()
    PyannoteDiarizer(pipeline, 8, stream).diarize(SECOND, SpeakerHints())
    assert pipeline.stream == stream != torch.cuda.current_stream()


def test_a_model_is_known_by_its_class_and_mel_bands(diarizer):
    published, demo = (SAME_VOICE["WeSpeakerResNet34", bands] for bands in (80, 32))
    assert published < demo == diarizer.capabilities.same_voice
    assert same_voice(WeSpeakerResNet34()) == published
    assert same_voice(WeSpeakerResNet34(num_mel_bins=32)) == demo


@pytest.mark.parametrize(
    "model", [WeSpeakerResNet34(num_mel_bins=40), WeSpeakerResNet152(), torch.nn.Linear(1, 1), None]
)
def test_any_other_has_no_threshold(model):
    assert same_voice(model) is None


def test_a_pipeline_without_a_model_of_its_own_has_none():
    for pipeline in (SimpleNamespace(), SimpleNamespace(_embedding=lambda *_: None)):
        assert PyannoteDiarizer(pipeline, 1).capabilities.same_voice is None


def test_embeddings_too_short_to_be_averaged_cause_no_warning(diarizer):
    """0.7 s of speech; pytest turns any warning into an error."""
    samples = speech(0.7).astype(np.float32)
    assert diarizer.diarize(samples, SpeakerHints()).turns
    with pytest.raises(RuntimeWarning, match="Degrees of freedom"):
        np.var(samples[:0])
    with pytest.raises(RuntimeWarning, match="invalid value"):
        np.log(np.array([-1.0]))


def test_turns_are_reconstructed_a_window_at_a_time(diarizer, spoken, monkeypatch):
    """Overlapping and exclusive turns agree with every supported release."""
    made = []

    class Counted(pyannote.ClusteredWindows):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(pyannote, "ClusteredWindows", Counted)
    assert diarizer.diarize(spoken, SpeakerHints()).exclusive
    assert made


def test_other_pipelines_run_as_they_are():
    clustering = type("VBxClustering", (), {})()
    stages = {"get_embeddings": lambda file: None, "reconstruct": lambda windows: None}
    pipeline = SimpleNamespace(**stages, clustering=clustering)
    before = dict(vars(pipeline))
    pyannote.replace_stages(pipeline)
    assert vars(pipeline) == before


@pytest.fixture
def hub(monkeypatch):
    """Replaces downloads by files or errors; pipelines have no config.json."""
    import huggingface_hub

    files: dict[str, object] = {}

    def download(repository, *names, **__):
        answer = files[repository]
        if "config.json" in names and not isinstance(answer, Exception):
            answer = hub_error(404, "EntryNotFound", repository)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with contextlib.suppress(ImportError):  # pyannote.audio 4's own name of it
        from pyannote.audio.utils import hf_hub

        monkeypatch.setattr(hf_hub, "hf_hub_download", download)
    return files


def test_both_licences_of_a_pipeline_are_named(hub, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(
        "pipeline:\n  name: pyannote.audio.pipelines.SpeakerDiarization\n"
        "  params: {segmentation: pyannote/segmentation-3.0}\n"
    )
    hub["pyannote/speaker-diarization-3.1"] = str(config)
    community = "pyannote/speaker-diarization-community-1"
    hub["pyannote/segmentation-3.0"] = hub_error(403, "GatedRepo", community)
    message = start_failure("pyannote/speaker-diarization-3.1")
    assert "two licences must be accepted" in message
    assert "https://hf.co/pyannote/speaker-diarization-3.1" in message
    assert "https://hf.co/pyannote/speaker-diarization-community-1" in message


def test_none_from_older_releases_is_a_start_error(hub, monkeypatch, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("pipeline: {name: pyannote.audio.pipelines.SpeakerDiarization, params: {}}")
    hub["some/pipeline"] = str(config)
    monkeypatch.setattr(StockPipeline, "from_pretrained", lambda *_, **__: None)
    said = "DIARIZATION_MODEL: some/pipeline: pyannote returned no pipeline"
    assert said in start_failure("some/pipeline")


def test_a_missing_folder_is_named(tmp_path):
    assert "could not be loaded" in start_failure(str(tmp_path / "missing"))
