"""How an endpoint is loaded: in which thread, what ends a start, and what is tried again."""

import logging
import threading
from types import SimpleNamespace

import pytest
import torch

import handler
from config import ModelSettings
from handler import load_endpoint
from whosaid.asr.model.cpu_threads import CpuThreads
from whosaid.runtime import servers


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({}, "START_FAILED: ASR_MODEL: is required"),
        ({"ASR_MODEL": "/no/such"}, "START_FAILED: ASR_MODEL: neither a hub id"),
        (
            {"ASR_MODEL": "owner/model"},
            "START_FAILED: ASR_MODEL=owner/model: the hub cannot be reached",
        ),
        ({"ASR_MODEL": "tests"}, "START_FAILED: ASR_MODEL: .*tests has no config.json of a model"),
    ],
)
def test_failing_start_ends_the_process_with_one_line(monkeypatch, variables, line):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match=f"^{line}") as caught:
        load_endpoint()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("field_name", ["assistant_model", "diarization_model"])
def test_the_line_names_the_variable_of_the_model_at_fault(whisper_folder, tmp_path, field_name):
    settings = ModelSettings(asr_model=str(whisper_folder), **{field_name: str(tmp_path)})
    with pytest.raises(SystemExit, match=f"^START_FAILED: {field_name.upper()}[=:]"):
        load_endpoint(settings=settings)


def test_an_assistant_that_does_not_fit_ends_the_process(whisper_folder, misfit_folder):
    settings = ModelSettings(asr_model=str(whisper_folder), assistant_model=str(misfit_folder))
    line = "^START_FAILED: ASSISTANT_MODEL: the assistant .* does not fit the model "
    with pytest.raises(SystemExit, match=line) as caught:
        load_endpoint(settings=settings)
    assert "\n" not in str(caught.value)


LOST = getattr(torch, "AcceleratorError", RuntimeError)(
    "CUDA error: an illegal memory access was encountered"
)


class FirstStarts:
    """Stands in for Transcriber on CUDA: a start with graphs raises `error`."""

    def __init__(self, error):
        self.error, self.starts = error, []

    def __call__(self, models, cuda_graphs, limits):
        self.starts.append(cuda_graphs)
        engine = SimpleNamespace(threads=CpuThreads(1))
        return SimpleNamespace(warm_up=lambda: self.warm_up(cuda_graphs), engine=engine)

    def warm_up(self, cuda_graphs):
        if cuda_graphs:
            raise self.error


@pytest.fixture
def first_starts(monkeypatch):
    """Makes the start on CUDA fail; returns the stand-in, and what restarts were asked for."""

    def make(error):
        starts, restarts = FirstStarts(error), []
        monkeypatch.setattr("whosaid.endpoint.loading.restart_without_graphs", restarts.append)
        monkeypatch.setattr("whosaid.asr.transcriber.Transcriber", starts)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        on_cuda = SimpleNamespace(device=torch.device("cuda"), checkpoint=None)
        monkeypatch.setattr(handler, "load_whisper", lambda *_: on_cuda)
        return starts, restarts

    return make


def test_failed_start_is_repeated_without_graphs(first_starts, caplog):
    starts, restarts = first_starts(RuntimeError("captures do not work here"))
    load_endpoint(settings=ModelSettings(asr_model="owner/model")).close()
    assert (starts.starts, restarts) == ([True, False], [])
    (line,) = (each.getMessage() for each in caplog.records if each.levelname == "CRITICAL")
    assert "the start failed (RuntimeError: captures do not work here)" in line
    assert "WITHOUT CUDA graphs" in line


@pytest.mark.parametrize("serves", [True, False])
def test_device_lost_at_start_asks_for_another_process(first_starts, serves):
    starts, restarts = first_starts(LOST)
    settings = ModelSettings(asr_model="owner/model")
    with pytest.raises(SystemExit, match="illegal memory access"):
        load_endpoint(settings=settings, serves=serves)
    assert starts.starts == [True]
    assert len(restarts) == serves


def test_without_graphs_nothing_is_tried_again(first_starts):
    starts, restarts = first_starts(LOST)
    starts.warm_up = lambda _: (_ for _ in ()).throw(LOST)
    with pytest.raises(SystemExit, match="illegal memory access"):
        load_endpoint(settings=ModelSettings(asr_model="owner/model", cuda_graphs=False))
    assert (starts.starts, restarts) == ([False], [])


def engine_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "engine"]


def test_models_load_in_the_thread_that_will_compute_with_them(monkeypatch, whisper_folder):
    """Diarization's models load in its thread too; the caller computes nothing."""
    loaded_in = []
    for name in ("load_whisper", "start_transcriber", "load_diarizer"):
        load = getattr(handler, name)

        def noted(*arguments, load=load):
            loaded_in.append(threading.current_thread())
            return load(*arguments)

        monkeypatch.setattr(handler, name, noted)
    settings = ModelSettings.for_demo()
    before = engine_threads()
    made = load_endpoint(settings)
    (engine,) = set(engine_threads()) - set(before)
    assert loaded_in == [engine] * 3
    made.close()
    assert not engine.is_alive()


@pytest.mark.parametrize("fails", ["load_whisper", "start_transcriber", "load_diarizer"])
def test_a_start_that_fails_leaves_no_thread(monkeypatch, whisper_folder, fails):
    def fail(*_):
        ended.append(threading.current_thread())
        raise ValueError("no model")

    ended = []
    monkeypatch.setattr(handler, fails, fail)
    settings = ModelSettings(asr_model=str(whisper_folder), diarization_model=str(whisper_folder))
    with pytest.raises(SystemExit, match=r"START_FAILED: .*ValueError: no model"):
        load_endpoint(settings)
    (engine,) = ended
    engine.join(60)
    assert not engine.is_alive()


def test_log_filter_is_added_once_for_all_endpoints(whisper_folder):
    for _ in range(2):
        load_endpoint(ModelSettings(asr_model=str(whisper_folder))).close()
    assert logging.getLogger("hf-serve").filters.count(servers.hide_body) == 1
