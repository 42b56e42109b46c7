"""A request's way and its edges: what reaches which module, what comes back, what is logged."""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import handler
from asr.engine.request import DecodeOptions
from asr.transcription import TranscriptionOptions
from config import REPOSITORY, ModelSettings
from diarization.pipeline import Diarization, DiarizationCancelled, SpeakerHints
from errors import InvalidParameter, InvalidRequest, ModelError, OutOfMemory, Unsupported
from handler import EndpointHandler
from runtime import server_logs
from runtime.openmp import SecondThread
from transcript import Chunk, SpeakerTurn, Transcript, Word

WORDS = (Word(" good", 0.0, 0.2), Word(" morning", 0.2, 0.4), Word(" yes", 0.5, 0.9))
CHUNKS = (
    Chunk(" good morning", 0.0, 0.4, words=WORDS[:2]),
    Chunk(" yes", 0.5, 0.9, words=WORDS[2:]),
)
SILENCE = Transcript((), None)  # no speech
TURNS = (SpeakerTurn("SPEAKER_00", 0.0, 0.45), SpeakerTurn("SPEAKER_01", 0.45, 1.0))
RESPONSE_KEYS = {
    "speakers",
    "chunks",
    "text",
    "language",
    "language_probability",
    "duration",
    "warnings",
}


@dataclass
class StandInTranscriber:
    """Answers what it was made with, or raises it, and remembers what it was asked."""

    answer: Transcript | Exception = field(
        default_factory=lambda: Transcript(CHUNKS, "en", speech=((0.0, 1.0),))
    )
    asked: list[TranscriptionOptions] = field(default_factory=list)

    def validate(self, options: TranscriptionOptions) -> TranscriptionOptions:
        return options

    def transcribe(self, samples: np.ndarray, options: TranscriptionOptions) -> Transcript:
        self.asked.append(options)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@dataclass
class StandInDiarizer:
    """Finds these turns, and remembers the hints and whether it was cancelled."""

    turns: tuple[SpeakerTurn, ...] = TURNS
    hints: list[SpeakerHints] = field(default_factory=list)
    cancelled: list[threading.Event] = field(default_factory=list)

    def diarize(
        self, samples: np.ndarray, hints: SpeakerHints, cancelled: threading.Event
    ) -> Diarization:
        self.hints.append(hints)
        self.cancelled.append(cancelled)
        return Diarization(self.turns, self.turns, hints)


@pytest.fixture
def endpoint(tiny_handler):
    """Makes an endpoint of the real modules around a given transcriber and diarizer."""

    def make(
        transcriber: StandInTranscriber, diarizer: StandInDiarizer | None = None
    ) -> EndpointHandler:
        made = object.__new__(EndpointHandler)
        made.transcriber, made.diarizer = transcriber, diarizer
        made.limits, made.threads = tiny_handler.limits, tiny_handler.threads
        made.second_thread = tiny_handler.second_thread
        return made

    return make


# ---- the response


def test_the_response_of_the_contract(endpoint, hum):
    diarizer = StandInDiarizer()
    response = endpoint(StandInTranscriber(), diarizer)(
        {"inputs": hum, "parameters": {"num_speakers": 3}}
    )
    assert set(response) == RESPONSE_KEYS
    assert response["speakers"] == [
        {"speaker": "SPEAKER_00", "text": " good morning", "timestamp": [0.0, 0.4]},
        {"speaker": "SPEAKER_01", "text": " yes", "timestamp": [0.5, 0.9]},
    ]
    assert [chunk["text"] for chunk in response["chunks"]] == [" good morning", " yes"]
    assert response["text"] == " good morning yes"
    assert response["warnings"] == ["speaker hints could not be met: 2 found"]
    assert diarizer.hints == [SpeakerHints(3, None, None)]


@pytest.mark.parametrize(("wanted", "found"), [(2, None), (3, 2)])
def test_speakers_are_counted_where_there_is_speech(endpoint, hum, wanted, found):
    """A third voice was found in noise, where it says nothing: two wanted are met, three are
    not.
    """
    diarizer = StandInDiarizer((*TURNS, SpeakerTurn("SPEAKER_02", 5.0, 9.0)))
    warnings = endpoint(StandInTranscriber(), diarizer)(
        {"inputs": hum, "parameters": {"num_speakers": wanted}}
    )["warnings"]
    assert warnings == ([f"speaker hints could not be met: {found} found"] if found else [])


def test_without_a_diarization_model_nobody_is_named(endpoint, hum):
    response = endpoint(StandInTranscriber())({"inputs": hum})
    assert (response["speakers"], response["text"], response["warnings"]) == (
        [],
        " good morning yes",
        [],
    )


def test_speech_that_no_turn_covers_belongs_to_nobody(endpoint, hum):
    response = endpoint(StandInTranscriber(), StandInDiarizer(turns=()))({"inputs": hum})
    assert [segment["speaker"] for segment in response["speakers"]] == [None]


def test_where_nothing_is_said_diarization_is_cancelled_and_its_turns_are_dropped(endpoint, hum):
    diarizer = StandInDiarizer()
    response = endpoint(StandInTranscriber(SILENCE), diarizer)({"inputs": hum})
    assert (response["speakers"], response["chunks"], response["text"], response["warnings"]) == (
        [],
        [],
        "",
        [],
    )
    assert [each.is_set() for each in diarizer.cancelled] == [True]


def test_diarize_false_skips_diarization(endpoint, hum):
    diarizer = StandInDiarizer()
    assert (
        endpoint(StandInTranscriber(), diarizer)({"inputs": hum, "parameters": {"diarize": False}})[
            "speakers"
        ]
        == []
    )
    assert diarizer.hints == []


@pytest.mark.parametrize(
    ("diarizer", "timed"), [(None, False), (StandInDiarizer(), True)], ids=["alone", "for speakers"]
)
def test_return_timestamps_false_hides_the_chunks_and_times_them_for_speakers_only(
    endpoint, hum, diarizer, timed
):
    transcriber = StandInTranscriber()
    response = endpoint(transcriber, diarizer)(
        {"inputs": hum, "parameters": {"return_timestamps": False}}
    )
    assert (response["chunks"], response["text"]) == ([], " good morning yes")
    assert (transcriber.asked[0].decode.timestamps, transcriber.asked[0].decode.words) == (
        timed,
        timed,
    )
    assert len(response["speakers"]) == (2 if diarizer else 0)


def test_a_real_transcriber_answers_plain_json(tiny_handler, hum):
    response = tiny_handler({"inputs": hum, "parameters": {"assisted": True, "language": "en"}})
    assert set(response) == RESPONSE_KEYS
    assert json.loads(json.dumps(response, allow_nan=False)) == response
    assert response["text"] == "".join(chunk["text"] for chunk in response["chunks"])


# ---- the request


def test_every_parameter_reaches_the_transcriber(endpoint, hum):
    transcriber = StandInTranscriber()
    endpoint(transcriber)(
        {
            "inputs": hum,
            "parameters": {
                "task": "translate",
                "language": "nl",
                "batch_size": 3,
                "assisted": True,
                "chunk_length_s": 15,
                "return_timestamps": "segment",
                "prompt": "A talk.",
                "hotwords": ["Ada", "Lovelace"],
                "num_beams": 5,
                "length_penalty": 0.5,
                "multilingual": True,
            },
        }
    )
    expected = TranscriptionOptions(
        task="translate",
        language="nl",
        multilingual=True,
        chunk_length_s=15,
        prompt="A talk.",
        hotwords=("Ada", "Lovelace"),
        decode=DecodeOptions(assisted=True, batch_size=3, num_beams=5, length_penalty=0.5),
    )
    assert transcriber.asked == [expected]


@pytest.mark.parametrize(
    ("parameters", "timed"),
    [
        ({}, False),
        ({"output": ["txt"], "return_timestamps": False}, False),
        ({"output": ["rttm", "tsv"], "return_timestamps": False}, False),
        ({"return_timestamps": "word"}, True),
        ({"output": ["srt"], "return_timestamps": False}, True),
        ({"output": ["vtt"]}, True),
        ({"output": ["tsv", "txt"]}, False),
    ],
)
def test_words_are_timed_where_the_answer_shows_them(endpoint, hum, parameters, timed):
    transcriber = StandInTranscriber()
    response = endpoint(transcriber)({"inputs": hum, "parameters": parameters})
    assert transcriber.asked[0].decode.words is timed
    assert transcriber.asked[0].decode.timestamps
    assert set(response.get("output", {})) == set(parameters.get("output", []))


def test_turns_alone_need_no_times_of_words(endpoint, hum):
    transcriber = StandInTranscriber()
    endpoint(transcriber)(
        {"inputs": hum, "parameters": {"output": ["rttm"], "return_timestamps": False}}
    )
    assert not transcriber.asked[0].decode.timestamps


def test_one_entry_a_chunk_where_speakers_are_not_grouped(endpoint, hum):
    diarizer = StandInDiarizer((SpeakerTurn("SPEAKER_00", 0.0, 1.0),))
    grouped = endpoint(StandInTranscriber(), diarizer)({"inputs": hum})["speakers"]
    single = endpoint(StandInTranscriber(), diarizer)(
        {"inputs": hum, "parameters": {"group_by_speaker": False}}
    )["speakers"]
    assert [entry["text"] for entry in grouped] == [" good morning yes"]
    assert [entry["text"] for entry in single] == [" good morning", " yes"]
    assert {entry["speaker"] for entry in single} == {"SPEAKER_00"}


def test_who_speaks_is_found_beside_what_is_said(endpoint, hum):
    """Each waits for the other to have begun: one after the other would never end."""
    begun = {"asr": threading.Event(), "diarization": threading.Event()}

    class Beside(StandInTranscriber):
        def transcribe(self, samples, options):
            begun["asr"].set()
            assert begun["diarization"].wait(60)
            return super().transcribe(samples, options)

    class BesideToo(StandInDiarizer):
        def diarize(self, samples, hints, cancelled):
            begun["diarization"].set()
            assert begun["asr"].wait(60)
            return super().diarize(samples, hints, cancelled)

    assert len(endpoint(Beside(), BesideToo())({"inputs": hum})["speakers"]) == 2


@pytest.mark.parametrize("fails", ["asr", "diarization"])
def test_a_failure_on_either_side_is_answered_and_leaves_no_thread(endpoint, hum, fails):
    class Fails(StandInDiarizer):
        def diarize(self, samples, hints, cancelled):
            raise OutOfMemory("speaker diarization does not fit")

    before = threading.active_count()
    transcriber = (
        StandInTranscriber(OutOfMemory("no window fits"))
        if fails == "asr"
        else StandInTranscriber()
    )
    with pytest.raises(OutOfMemory, match="window" if fails == "asr" else "diarization"):
        endpoint(transcriber, StandInDiarizer() if fails == "asr" else Fails())({"inputs": hum})
    assert threading.active_count() == before


def test_diarization_is_cancelled_where_recognition_fails(endpoint, hum):
    class WaitsToBeCancelled(StandInDiarizer):
        def diarize(self, samples, hints, cancelled):
            assert cancelled.wait(60)
            raise DiarizationCancelled

    with pytest.raises(OutOfMemory):
        endpoint(StandInTranscriber(OutOfMemory("no window fits")), WaitsToBeCancelled())(
            {"inputs": hum}
        )


@pytest.mark.parametrize("side", ["asr", "diarization"])
def test_a_lost_device_is_answered_and_then_ends_the_process(
    endpoint, hum, caplog, monkeypatch, side
):
    ended = threading.Event()
    monkeypatch.setattr(handler, "SECONDS_TO_ANSWER", 0.0)
    monkeypatch.setattr(handler.os, "_exit", lambda status: ended.set() or statuses.append(status))
    statuses: list[int] = []
    lost = RuntimeError("CUDA error: an illegal memory access was encountered")

    class Fails(StandInDiarizer):
        def diarize(self, samples, hints, cancelled):
            raise ModelError("speaker diarization failed") from lost

    transcriber = StandInTranscriber(lost) if side == "asr" else StandInTranscriber()
    with pytest.raises(ModelError):
        endpoint(transcriber, StandInDiarizer() if side == "asr" else Fails())({"inputs": hum})
    assert ended.wait(60)
    assert statuses == [handler.EXIT_STATUS]
    assert "illegal memory access" in caplog.text


@pytest.mark.parametrize(
    "data", [None, [], "text", 5, {}, {"inputs": None}, {"inputs": 5}, {"inputs": ["x"]}]
)
def test_a_body_of_another_shape_is_refused(tiny_handler, data):
    with pytest.raises(InvalidRequest):
        tiny_handler(data)


@pytest.mark.parametrize("parameters", [[], "batch_size=1", 5, True])
def test_parameters_of_another_shape_are_refused(tiny_handler, hum, parameters):
    with pytest.raises(InvalidRequest, match="parameters: should be a JSON object"):
        tiny_handler({"inputs": hum, "parameters": parameters})


def test_null_parameters_are_none(endpoint, hum):
    assert endpoint(StandInTranscriber())({"inputs": hum, "parameters": None}) == endpoint(
        StandInTranscriber()
    )({"inputs": hum})


def test_bytes_are_the_file_itself_and_their_parameters_text(endpoint, wav):
    transcriber = StandInTranscriber()
    noise = np.random.default_rng(1).normal(0, 0.1, 8_000)
    body = {"inputs": wav(noise, rate=8_000), "parameters": {"batch_size": "2", "assisted": "true"}}
    assert endpoint(transcriber)(body)["duration"] == 1.0
    decode = DecodeOptions(assisted=True, batch_size=2)
    assert transcriber.asked[0] == TranscriptionOptions(decode=decode)


def test_what_the_checkpoint_does_not_know_is_refused(tiny_handler, hum):
    with pytest.raises(InvalidParameter, match="language"):
        tiny_handler({"inputs": hum, "parameters": {"language": "klingon"}})


def test_names_that_mean_nothing_are_ignored_and_named(endpoint, hum):
    body = {
        "inputs": hum,
        "options": 1,
        "parameters": {"temperature": 0.2, "generate_kwargs": {"num_beams": 5}},
    }
    assert endpoint(StandInTranscriber())(body)["warnings"] == [
        "unknown keys are ignored: options",
        "unknown parameters are ignored: temperature, generate_kwargs",
    ]


@given(st.dictionaries(st.text(), st.none(), min_size=1))
@example(dict.fromkeys("\U0010ffff" * 40 + str(number) for number in range(9)))
@example(dict.fromkeys("\U0010ffff" * 39 + chr(0x10000 + number) for number in range(9)))
def test_warnings_about_names_stay_short_and_ascii(names):
    warning = handler.ignored_names("parameters", list(names))
    assert warning.isascii()
    assert len(warning) < 700
    assert "\n" not in warning


@pytest.mark.parametrize(
    ("diarizer", "parameters", "warnings"),
    [
        (None, {"num_speakers": 2}, ["speaker hints are ignored: no diarization model is loaded"]),
        (
            None,
            {"max_speakers": 2, "diarize": False},
            ["speaker hints are ignored: no diarization model is loaded"],
        ),
        (
            StandInDiarizer(),
            {"min_speakers": 2, "diarize": False},
            ["speaker hints are ignored: diarize is false"],
        ),
        (StandInDiarizer(), {"num_speakers": 2}, []),
        (None, {"num_speakers": None}, []),
        (
            None,
            {"output": ["srt", "rttm"]},
            ["output: rttm is empty: no diarization model is loaded"],
        ),
        (
            StandInDiarizer(),
            {"output": ["rttm"], "diarize": False},
            ["output: rttm is empty: diarize is false"],
        ),
        (StandInDiarizer(), {"output": ["rttm"]}, []),
    ],
)
def test_wishes_about_speakers_that_nobody_looks_at_are_a_warning(
    endpoint, hum, diarizer, parameters, warnings
):
    assert (
        endpoint(StandInTranscriber(), diarizer)({"inputs": hum, "parameters": parameters})[
            "warnings"
        ]
        == warnings
    )


# ---- errors


@pytest.mark.parametrize(
    ("raised", "answered"),
    [
        (RuntimeError("/secret/path: the patient said"), ModelError),
        (ValueError("bad tensor"), ModelError),
        (torch.OutOfMemoryError("CUDA out of memory"), OutOfMemory),
        (MemoryError(), OutOfMemory),
        (Unsupported("as it is"), Unsupported),
    ],
)
def test_what_a_model_raises_becomes_ours_and_says_nothing_it_should_not(
    endpoint, hum, caplog, raised, answered
):
    with pytest.raises(answered) as caught:
        endpoint(StandInTranscriber(raised))({"inputs": hum})
    for text in (str(caught.value), caplog.text):
        assert "secret" not in text
        assert "patient" not in text


def test_the_log_names_the_origin_of_what_was_unexpected(endpoint, hum, caplog):
    with pytest.raises(ModelError, match="unexpected KeyError"):
        endpoint(StandInTranscriber(KeyError("x")))({"inputs": hum})
    assert "KeyError in test_handler.py, line" in caplog.text


def test_on_cuda_requests_are_diarized_in_one_thread_that_lasts(endpoint, hum, monkeypatch):
    """Each that ended would leave behind what cuDNN keeps for it."""
    seen = []

    class Diarizer(StandInDiarizer):
        def diarize(self, *arguments):
            seen.append(threading.current_thread())
            return super().diarize(*arguments)

    made = endpoint(StandInTranscriber(), Diarizer())
    for lasts in (True, False):
        made.second_thread = SecondThread(1, lasts)
        seen.clear()
        for _ in range(3):
            made({"inputs": hum})
        assert [each.is_alive() for each in seen] == [lasts] * 3
        assert len(set(seen)) == (1 if lasts else 3)


# ---- the start


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({}, "START_FAILED: ASR_MODEL: is required"),
        ({"ASR_MODEL": "/no/such"}, "START_FAILED: ASR_MODEL: neither a hub id"),
        (
            {"ASR_MODEL": "owner/model"},
            "START_FAILED: ASR_MODEL=owner/model: the hub cannot be reached",
        ),
        ({"ASR_MODEL": "tests"}, "START_FAILED: ASR_MODEL=.*could not be loaded"),
    ],
)
def test_a_start_that_must_fail_ends_the_process_with_one_line(monkeypatch, variables, line):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match=f"^{line}") as caught:
        EndpointHandler("")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("field_name", ["assistant_model", "diarization_model"])
def test_the_line_names_the_variable_of_the_model_at_fault(whisper_folder, tmp_path, field_name):
    settings = ModelSettings(asr_model=str(whisper_folder), **{field_name: str(tmp_path)})
    with pytest.raises(SystemExit, match=f"^START_FAILED: {field_name.upper()}[=:]"):
        EndpointHandler(settings=settings)


LOST = getattr(torch, "AcceleratorError", RuntimeError)(
    "CUDA error: an illegal memory access was encountered"
)


class FirstStarts:
    """Stands in for Transcriber on CUDA: a start with graphs raises `error`."""

    def __init__(self, error):
        self.error, self.starts = error, []

    def __call__(self, models, cuda_graphs):
        self.starts.append(cuda_graphs)
        return SimpleNamespace(warm_up=lambda: self.warm_up(cuda_graphs))

    def warm_up(self, cuda_graphs):
        if cuda_graphs:
            raise self.error


@pytest.fixture
def first_starts(monkeypatch):
    """Makes the start on CUDA fail; returns the stand-in, and what restarts were asked for."""

    def make(error):
        starts, restarts = FirstStarts(error), []
        monkeypatch.setattr("asr.startup.Transcriber", starts)
        monkeypatch.setattr(handler, "restart_without_graphs", restarts.append)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        on_cuda = SimpleNamespace(device=torch.device("cuda"))
        monkeypatch.setattr(handler, "load_whisper", lambda *_: on_cuda)
        return starts, restarts

    return make


def test_what_fails_with_graphs_is_tried_without_them(first_starts, caplog):
    starts, restarts = first_starts(RuntimeError("captures do not work here"))
    EndpointHandler(settings=ModelSettings(asr_model="owner/model"))
    assert (starts.starts, restarts) == ([True, False], [])
    (line,) = (each.getMessage() for each in caplog.records if each.levelname == "CRITICAL")
    assert "the start failed (RuntimeError: captures do not work here)" in line
    assert "WITHOUT CUDA graphs" in line


@pytest.mark.parametrize("serves", [True, False])
def test_where_the_device_is_lost_at_the_start_a_new_process_is_wanted(first_starts, serves):
    starts, restarts = first_starts(LOST)
    settings = ModelSettings(asr_model="owner/model")
    with pytest.raises(SystemExit, match="illegal memory access"):
        EndpointHandler(settings=settings, serves=serves)
    assert starts.starts == [True]
    assert len(restarts) == serves


def test_without_graphs_nothing_is_tried_again(first_starts):
    starts, restarts = first_starts(LOST)
    starts.warm_up = lambda _: (_ for _ in ()).throw(LOST)
    with pytest.raises(SystemExit, match="illegal memory access"):
        EndpointHandler(settings=ModelSettings(asr_model="owner/model", cuda_graphs=False))
    assert (starts.starts, restarts) == ([False], [])


def test_a_server_may_import_the_file_by_its_path_from_anywhere(tmp_path):
    script = (
        "import importlib.util, os, sys\n"
        f"path = {str(REPOSITORY / 'handler.py')!r}\n"
        "spec = importlib.util.spec_from_file_location('handler', path)\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "assert 'handler' not in sys.modules and 'pyannote.audio' not in sys.modules\n"
        "module.EndpointHandler('/repository')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "START_FAILED: ASR_MODEL: is required\n")


# ---- the log


def test_hf_serves_log_of_the_body_is_cut(caplog, tiny_handler, hum):
    logger = logging.getLogger("hf-serve")
    with caplog.at_level(logging.INFO):
        logger.info(
            f"[abc] Received request with: {{'inputs': '{hum}'}}"
        )  # as hf_serve.routers.custom writes it
        logger.info("another %s", "line")
    assert caplog.messages == ["[abc] Received request, body not logged", "another line"]


def test_the_filter_is_there_once_however_often_the_endpoint_is_made(whisper_folder):
    for _ in range(2):
        EndpointHandler(settings=ModelSettings(asr_model=str(whisper_folder)))
    assert logging.getLogger("hf-serve").filters.count(server_logs.hide_body) == 1


def test_our_log_counts_and_times(tiny_handler, hum, caplog):
    with caplog.at_level(logging.INFO, logger="endpoint"):
        response = tiny_handler({"inputs": hum})
    assert "1.0 s of audio answered in" in caplog.text
    assert response["text"]
    assert response["text"] not in caplog.text


def test_requests_at_once_are_answered_as_one_after_another(tiny_handler, hum):
    bodies = [
        {
            "inputs": hum,
            "parameters": {
                "assisted": assisted,
                "language": language,
                "return_timestamps": timestamps,
            },
        }
        for assisted in (False, True)
        for language in ("en", None)
        for timestamps in (True, False)
    ]
    serial = [tiny_handler(body) for body in bodies]
    answers: list[dict] = [{}] * len(bodies)

    def ask(index: int) -> None:
        with contextlib.suppress(Exception):
            answers[index] = tiny_handler(bodies[index])

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == serial
