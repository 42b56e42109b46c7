"""Turns from pyannote's outputs, and what becomes of its failures."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate

import httpx2
import numpy as np
import pytest
import torch
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError
from huggingface_hub.utils import hf_raise_for_status
from hypothesis import given
from hypothesis import strategies as st
from pyannote.core import Annotation, Segment

from config import DEMO_MODELS
from diarization.pipeline import MARGIN, Diarization, Diarizer, SpeakerHints, load_diarizer
from errors import ModelError, OutOfMemory, StartError
from model_errors import loading
from testing.audio_files import speech
from transcript import SpeakerTurn

CPU = torch.device("cpu")
SECOND = np.zeros(16_000, np.float32)


# ---- pyannote's answers


@dataclass
class DiarizeOutput:
    """What pyannote.audio 4 answers."""

    speaker_diarization: Annotation
    exclusive_speaker_diarization: Annotation


def annotation(*turns: tuple[str, float, float]) -> Annotation:
    result = Annotation()
    for track, (speaker, start, end) in enumerate(turns):
        result[Segment(start, end), track] = speaker
    return result


class Pipeline:
    """Answers `output`, or raises it, and remembers how it was called."""

    def __init__(self, output, largest_batch=64):
        self.output, self.largest_batch = output, largest_batch
        self.segmentation_batch_size = self.embedding_batch_size = 1
        self.calls = []

    def __call__(self, file, **hints):
        self.calls.append((file, hints, self.segmentation_batch_size, self.embedding_batch_size))
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        if self.embedding_batch_size > self.largest_batch:
            raise torch.OutOfMemoryError("CUDA out of memory")
        if isinstance(self.output, Exception):
            raise self.output
        return self.output


def test_both_views_of_pyannote_4_are_kept():
    output = DiarizeOutput(
        annotation(("A", 0, 0.6), ("B", 0.5, 1)), annotation(("A", 0, 0.5), ("B", 0.5, 1))
    )
    found = Diarizer(Pipeline(output), 8).diarize(SECOND, SpeakerHints())
    assert found.turns == (SpeakerTurn("A", 0, 0.6), SpeakerTurn("B", 0.5, 1))
    assert found.exclusive == (SpeakerTurn("A", 0, 0.5), SpeakerTurn("B", 0.5, 1))


def test_a_legacy_annotation_stands_for_both():
    found = Diarizer(Pipeline(annotation(("A", 0, 0.6), ("B", 0.5, 1))), 8).diarize(
        SECOND, SpeakerHints()
    )
    assert found.exclusive == found.turns == (SpeakerTurn("A", 0, 0.6), SpeakerTurn("B", 0.5, 1))


def test_turns_stay_within_the_audio():
    found = Diarizer(Pipeline(annotation(("A", -0.1, 0.5), ("A", 0.9, 7), ("B", 3, 4))), 8)
    assert found.diarize(SECOND, SpeakerHints()).turns == (
        SpeakerTurn("A", 0, 0.5),
        SpeakerTurn("A", 0.9, 1),
    )


def test_no_speaker_means_no_turns():
    found = Diarizer(Pipeline(DiarizeOutput(Annotation(), Annotation())), 8)
    for hints in (SpeakerHints(), SpeakerHints(max_speakers=2)):
        assert found.diarize(SECOND, hints) == Diarization((), (), hints)
        assert found.diarize(SECOND, hints).warnings == ()
    assert found.diarize(SECOND, SpeakerHints(2)).warnings == (
        "speaker hints could not be met: 0 found",
    )


def test_the_waveform_and_the_hints_given_are_passed_on():
    pipeline = Pipeline(annotation(("A", 0, 1), ("B", 0, 1)))
    Diarizer(pipeline, 8).diarize(SECOND, SpeakerHints(min_speakers=2, max_speakers=4))
    file, hints, *batch_sizes = pipeline.calls[0]
    assert hints == {"min_speakers": 2, "max_speakers": 4}
    assert (file["waveform"].shape, file["sample_rate"], batch_sizes) == (
        (1, 16_000),
        16_000,
        [8, 8],
    )


@pytest.mark.parametrize("hints", [SpeakerHints(num_speakers=3), SpeakerHints(min_speakers=3)])
def test_hints_that_cannot_be_met_are_a_warning(hints):
    found = Diarizer(Pipeline(annotation(("A", 0, 1))), 8).diarize(SECOND, hints)
    assert found.turns
    assert found.warnings == ("speaker hints could not be met: 1 found",)


def test_hints_that_break_the_clustering_are_dropped_with_a_warning():
    class Strict(Pipeline):
        def __call__(self, file, **hints):
            if hints:
                raise ValueError("n_samples=2 should be >= n_clusters=9.")
            return super().__call__(file)

    found = Diarizer(Strict(annotation(("A", 0, 1))), 8).diarize(
        SECOND, SpeakerHints(num_speakers=9)
    )
    assert found.turns
    assert found.warnings == ("speaker hints could not be met: 1 found",)


def test_out_of_memory_halves_the_batch_for_this_call_only():
    pipeline = Pipeline(annotation(("A", 0, 1)), largest_batch=2)
    diarizer = Diarizer(pipeline, 8)
    for _ in range(2):
        assert diarizer.diarize(SECOND, SpeakerHints()).turns
    assert [call[3] for call in pipeline.calls] == [8, 4, 2, 8, 4, 2]


def test_out_of_memory_with_a_batch_of_one_is_said():
    with pytest.raises(OutOfMemory) as caught:
        Diarizer(Pipeline(None, largest_batch=0), 4).diarize(SECOND, SpeakerHints())
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)


@pytest.mark.parametrize("output", [RuntimeError("/secret/path"), "not an annotation"])
def test_what_pyannote_raises_or_answers_wrongly_is_a_model_error(output):
    with pytest.raises(ModelError) as caught:
        Diarizer(Pipeline(output), 4).diarize(SECOND, SpeakerHints())
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is not None


@pytest.fixture
def tf32():
    """TF32 on, and off again afterwards, as it is for matrix products by default."""
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
        Diarizer(Pipeline(output), 4).diarize(SECOND, SpeakerHints())
    assert [switch.allow_tf32 for switch in tf32] == [True, True]


# ---- beside other threads


class Onlooker(Pipeline):
    """Sees what the whole process shares while it runs."""

    def __call__(self, file, **hints):
        self.seen = warnings.filters, sys.stdout, sys.stderr
        self.stream = torch.cuda.current_stream() if torch.cuda.is_available() else None
        return super().__call__(file, **hints)


def test_other_threads_keep_their_output_and_their_warnings():
    pipeline = Onlooker(annotation(("A", 0, 1)))
    Diarizer(pipeline, 8).diarize(SECOND, SpeakerHints())
    for seen, own in zip(pipeline.seen, (warnings.filters, sys.stdout, sys.stderr), strict=True):
        assert seen is own


def test_one_call_runs_at_a_time():
    class Counting(Pipeline):
        running = 0

        def __call__(self, file, **hints):
            self.running += 1
            assert self.running == 1
            turns = super().__call__(file, **hints)
            assert self.running == 1
            self.running -= 1
            return turns

    diarizer = Diarizer(Counting(annotation(("A", 0, 1))), 8)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: diarizer.diarize(SECOND, SpeakerHints()), range(64)))
    assert len({result.turns for result in found}) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_it_computes_on_the_stream_it_was_given():
    pipeline, stream = Onlooker(annotation(("A", 0, 1))), torch.cuda.Stream()
    Diarizer(pipeline, 8, stream).diarize(SECOND, SpeakerHints())
    assert pipeline.stream == stream != torch.cuda.current_stream()


# ---- turns within speech


stretches = st.lists(st.tuples(st.integers(1, 300), st.integers(0, 300)), max_size=8).map(
    lambda steps: [
        (end - length, end)
        for (length, _), end in zip(steps, accumulate(sum(step) for step in steps), strict=True)
    ]
)
spoken_turns = st.lists(
    st.builds(
        lambda who, start, length: (f"S{who}", start, start + length),
        st.integers(0, 2),
        st.integers(0, 2000),
        st.integers(1, 500),
    ),
    max_size=8,
)


@given(spoken_turns, stretches)
def test_turns_lie_in_speech_and_its_margin_and_lose_nothing_there(turns, speech):
    """Moment by moment, in hundredths of a second."""
    margin = round(100 * MARGIN)
    found = tuple(
        SpeakerTurn(who, start / 100, end / 100)
        for who, start, end in sorted(turns, key=lambda turn: turn[1])
    )
    cut = Diarization(found, found[::2], SpeakerHints(2)).within(
        [(start / 100, end / 100) for start, end in speech]
    )
    heard = {at for start, end in speech for at in range(start - margin, end + margin)}
    for before, after in ((found, cut.turns), (found[::2], cut.exclusive)):
        expected = Counter(
            (turn.speaker, at) for turn in before for at in moments(turn) if at in heard
        )
        assert Counter((turn.speaker, at) for turn in after for at in moments(turn)) == expected
        assert [turn.start for turn in after] == sorted(turn.start for turn in after)
    voices = len({turn.speaker for turn in cut.turns})
    assert cut.warnings == (
        () if voices == 2 else (f"speaker hints could not be met: {voices} found",)
    )


def moments(turn: SpeakerTurn) -> range:
    return range(round(100 * turn.start), round(100 * turn.end))


# ---- very short audio


def test_voices_too_short_to_be_averaged_are_nothing_to_warn_of():
    """The pipeline that ships, in 0.7 s of speech; here, any warning that gets through is an
    error.
    """
    samples = speech(0.7).astype(np.float32)
    diarizer = load_diarizer(str(DEMO_MODELS / "diarization"), None, None, CPU)
    assert diarizer.diarize(samples, SpeakerHints()).turns
    with pytest.raises(RuntimeWarning, match="Degrees of freedom"):
        np.var(samples[:0])
    with pytest.raises(RuntimeWarning, match="invalid value"):
        np.log(np.array([-1.0]))


# ---- starting


def refused(repository: str, file: str) -> Exception:
    """What huggingface_hub raises for a file of a gated repository."""
    request = httpx2.Request("GET", f"https://huggingface.co/{repository}/resolve/main/{file}")
    with pytest.raises(GatedRepoError) as caught:
        hf_raise_for_status(
            httpx2.Response(403, headers={"X-Error-Code": "GatedRepo"}, request=request)
        )
    return caught.value


@pytest.fixture
def hub(monkeypatch):
    """Stands for the hub: repository names to files, or to the error that asking for one raises."""
    from pyannote.audio.utils import hf_hub

    files: dict[str, object] = {}

    def download(repository, *_, **__):
        answer = files[repository]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(hf_hub, "hf_hub_download", download)
    return files


def start_failure(name: str) -> str:
    with pytest.raises(StartError) as caught, loading("DIARIZATION_MODEL", name):
        load_diarizer(name, None, "hf_secret", CPU)
    assert "hf_secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_gated_pipeline_is_one_clear_line(hub, capsys):
    hub["some/pipeline"] = refused("some/pipeline", "config.yaml")
    message = start_failure("some/pipeline")
    assert "accept its licence at https://hf.co/some/pipeline" in message
    assert "HF_TOKEN" in message
    assert capsys.readouterr().out == ""


def test_a_part_behind_another_licence_is_named(hub, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(
        "pipeline:\n  name: pyannote.audio.pipelines.SpeakerDiarization\n"
        "  params: {segmentation: pyannote/segmentation-3.0}\n"
    )
    hub["pyannote/speaker-diarization-3.1"] = str(config)
    hub["pyannote/segmentation-3.0"] = refused(
        "pyannote/speaker-diarization-community-1", "plda/plda.npz"
    )
    message = start_failure("pyannote/speaker-diarization-3.1")
    assert "two licences must be accepted" in message
    assert "https://hf.co/pyannote/speaker-diarization-3.1" in message
    assert "https://hf.co/pyannote/speaker-diarization-community-1" in message


def test_a_hub_out_of_reach_is_said(hub):
    hub["some/pipeline"] = LocalEntryNotFoundError("cannot find the requested files")
    assert "hub cannot be reached" in start_failure("some/pipeline")


def test_older_releases_that_return_none_are_understood(monkeypatch):
    from pyannote.audio import Pipeline as Stock

    monkeypatch.setattr(Stock, "from_pretrained", lambda *_, **__: None)
    assert "DIARIZATION_MODEL: some/pipeline: no pipeline came back" in start_failure(
        "some/pipeline"
    )


def test_a_missing_folder_is_said(tmp_path):
    assert "could not be loaded" in start_failure(str(tmp_path / "missing"))
