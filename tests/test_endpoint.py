"""A request's way and its edges: what reaches which module, what comes back, what is logged."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from handler import TranscriptionEndpoint, respond
from tests.helpers.recogniser_stand_ins import (
    EndlessDiarizer,
    StandInEngine,
    StandInTranscriber,
    StandInTranscription,
    resident,
)
from tests.helpers.stand_ins import RESPONSE_KEYS
from whosaid.asr import HotWords, Recogniser, TranscriptionOptions
from whosaid.asr.engine.fallback import DEFAULT_FALLBACK
from whosaid.asr.engine.request import DecodeOptions
from whosaid.asr.frontend.vad import VadOptions
from whosaid.audio.decode import AudioLimits
from whosaid.diarization.diarizer import Capabilities, Diarization, SpeakerHints
from whosaid.endpoint import Workers
from whosaid.endpoint.request import ignored_names
from whosaid.errors import ModelError, OutOfMemory, Unsupported
from whosaid.runtime.errors import ENDING, EXIT_STATUS, end_process
from whosaid.transcript import Chunk, DecodeStats, SpeakerTurn, Transcript, Word

WORDS = (Word(" good", 0.0, 0.2), Word(" morning", 0.2, 0.4), Word(" yes", 0.5, 0.9))
GREETING = Chunk(" good morning", 0.0, 0.4, words=WORDS[:2])
CHUNKS = (GREETING, Chunk(" yes", 0.5, 0.9, words=WORDS[2:]))
SPEECH = Transcript(CHUNKS, "en", speech=((0.0, 1.0),))
SILENCE = Transcript((), None)  # no speech
TURNS = (SpeakerTurn("SPEAKER_00", 0.0, 0.45), SpeakerTurn("SPEAKER_01", 0.45, 1.0))
LIMITS = AudioLimits(7200, 500_000_000)


def speaks(answer: Transcript | Exception = SPEECH) -> StandInTranscriber:
    return StandInTranscriber(answer)


@dataclass
class StandInDiarizer:
    """Finds these turns, and remembers the hints."""

    turns: tuple[SpeakerTurn, ...] = TURNS
    hints: list[SpeakerHints] = field(default_factory=list)
    capabilities = Capabilities(hints=True, voices=True)

    def diarize(self, samples, hints, pause=lambda *_: None) -> Diarization:
        self.hints.append(hints)
        return Diarization(self.turns, self.turns, hints)


class Waits(EndlessDiarizer):
    """Speech is recognised once it has `begun`."""

    def then(self, answer: Transcript | Exception) -> StandInTranscriber:
        transcriber = speaks(answer)
        say = transcriber.say
        transcriber.say = lambda: say() if self.begun.wait(60) else None
        return transcriber


class Asked(TranscriptionEndpoint):
    """Answers as the handler does, each request in an event loop of its own."""

    def __call__(self, data):
        return asyncio.run(respond(self, data))


@pytest.fixture
def endpoint() -> Iterator[partial[Asked]]:
    """Makes an endpoint of the real modules around a given transcriber and diarizer."""

    def make(transcriber, diarizer=None, device="cpu") -> Asked:
        models = resident(Recogniser(lambda: transcriber, 1), diarizer)
        workers = Workers(models, LIMITS, torch.device(device), 1)
        return stack.enter_context(closing(Asked(workers)))

    with ExitStack() as stack:
        yield make


def test_the_response_of_the_contract(endpoint, hum):
    diarizer = StandInDiarizer()
    response = endpoint(speaks(), diarizer)({"inputs": hum, "parameters": {"num_speakers": 3}})
    assert set(response) == RESPONSE_KEYS
    first = {"speaker": "SPEAKER_00", "text": " good morning", "timestamp": [0.0, 0.4]}
    second = {"speaker": "SPEAKER_01", "text": " yes", "timestamp": [0.5, 0.9]}
    assert response["speakers"] == [first, second]
    assert [chunk["text"] for chunk in response["chunks"]] == [" good morning", " yes"]
    assert response["text"] == " good morning yes"
    assert response["warnings"] == ["speaker hints could not be met: 2 found"]
    assert diarizer.hints == [SpeakerHints(3, None, None)]


@pytest.mark.parametrize(("wanted", "found"), [(2, None), (3, 2)])
def test_speakers_are_counted_where_there_is_speech(endpoint, hum, wanted, found):
    """The third voice is in noise: two speakers were found."""
    diarizer = StandInDiarizer((*TURNS, SpeakerTurn("SPEAKER_02", 5.0, 9.0)))
    body = {"inputs": hum, "parameters": {"num_speakers": wanted}}
    warnings = endpoint(speaks(), diarizer)(body)["warnings"]
    assert warnings == ([f"speaker hints could not be met: {found} found"] if found else [])


def test_diarize_false_skips_diarization(endpoint, hum):
    diarizer = StandInDiarizer()
    body = {"inputs": hum, "parameters": {"diarize": False}}
    assert endpoint(speaks(), diarizer)(body)["speakers"] == diarizer.hints == []


@pytest.mark.parametrize(
    ("diarizer", "timed"), [(None, False), (StandInDiarizer(), True)], ids=["alone", "for speakers"]
)
def test_return_timestamps_false_hides_chunks(endpoint, hum, diarizer, timed):
    transcriber = speaks()
    body = {"inputs": hum, "parameters": {"return_timestamps": False}}
    response = endpoint(transcriber, diarizer)(body)
    assert (response["chunks"], response["text"]) == ([], " good morning yes")
    assert transcriber.asked[0].decode.timestamps is timed
    assert len(response["speakers"]) == (2 if diarizer else 0)


def test_every_parameter_reaches_the_transcriber(endpoint, hum):
    transcriber = speaks()
    plain = {"task": "translate", "language": "nl", "multilingual": True, "chunk_length_s": 15}
    decode = {"assisted": True, "batch_size": 3, "num_beams": 5, "length_penalty": 0.5}
    more = {"prompt": "A talk.", "hotwords": ["Ada", "Lovelace"], "return_timestamps": "segment"}
    endpoint(transcriber)({"inputs": hum, "parameters": plain | decode | more})
    hotwords, options = HotWords(("Ada", "Lovelace")), DecodeOptions(**decode)
    expected = TranscriptionOptions(**plain, prompt="A talk.", hotwords=hotwords, decode=options)
    assert transcriber.asked == [expected]


UNPAID = "assisted: measured costs do not show that drafts save time; decoded without them"
ASSISTANT_MISSING = "assisted: no assistant model is loaded; decoded without one"


@pytest.mark.parametrize(
    ("parameters", "stats", "reasons", "warnings"),
    [
        ({"assisted": True}, DecodeStats(steps=9), (), [UNPAID]),
        ({"assisted": True}, DecodeStats(steps=9, drafted=3), (), []),
        ({"assisted": True}, DecodeStats(), (), []),
        ({"assisted": True}, DecodeStats(steps=9), (ASSISTANT_MISSING,), [ASSISTANT_MISSING]),
        ({"assisted": False}, DecodeStats(steps=9), (), []),
        ({"assisted": None}, DecodeStats(steps=9), (), []),
        ({}, DecodeStats(steps=9), (), []),
    ],
)
def test_missing_drafts_give_a_warning(endpoint, hum, parameters, stats, reasons, warnings):
    transcriber = speaks(replace(SPEECH, stats=stats, warnings=reasons))
    answer = endpoint(transcriber)({"inputs": hum, "parameters": parameters})
    assert answer["warnings"] == warnings


def test_thresholds_reach_the_transcriber(endpoint, hum):
    given: list[dict] = [
        {"temperature": 0.5},
        {"compression_ratio_threshold": 3, "no_speech_threshold": 0.5},
        {"logprob_threshold": -1},
        {"vad_filter": True, "vad_parameters": {"threshold": 0.6, "speech_pad_ms": 0}},
        {"vad_filter": False},
    ]
    transcriber = speaks()
    for parameters in given:
        endpoint(transcriber)({"inputs": hum, "parameters": parameters})
    fallbacks = [each.decode.fallback for each in transcriber.asked]
    asked = replace(DEFAULT_FALLBACK, compression_ratio_threshold=3.0, no_speech_threshold=0.5)
    sure = replace(DEFAULT_FALLBACK, logprob_threshold=-1.0, silence_logprob_threshold=-1.0)
    assert fallbacks == [None, asked, sure, None, None]
    assert [each.decode.temperature for each in transcriber.asked] == [0.5, 0, 0, 0, 0]
    filters = [VadOptions()] * 3 + [VadOptions(0.6, speech_pad_ms=0), None]
    assert [each.vad for each in transcriber.asked] == filters


@pytest.mark.parametrize(
    ("parameters", "timed"),
    [
        ({}, True),
        ({"return_timestamps": "word"}, True),
        ({"output": ["txt"], "return_timestamps": False}, True),
        ({"output": ["rttm", "tsv"], "return_timestamps": False}, True),
        ({"output": ["srt"], "return_timestamps": False}, True),
        ({"output": ["rttm"], "return_timestamps": False}, False),
    ],
)
def test_segments_are_timed_if_the_answer_shows_them(endpoint, hum, parameters, timed):
    transcriber = speaks()
    response = endpoint(transcriber)({"inputs": hum, "parameters": parameters})
    assert transcriber.asked[0].decode.timestamps is timed
    assert set(response.get("output", {})) == set(parameters.get("output", []))


def test_bytes_are_the_file_itself_and_their_parameters_text(endpoint, wav):
    transcriber = speaks()
    noise = np.random.default_rng(1).normal(0, 0.1, 8_000)
    body = {"inputs": wav(noise, rate=8_000), "parameters": {"batch_size": "2", "assisted": "true"}}
    assert endpoint(transcriber)(body)["duration"] == 1.0
    decode = DecodeOptions(assisted=True, batch_size=2)
    assert transcriber.asked[0] == TranscriptionOptions(decode=decode)


def test_names_that_mean_nothing_are_ignored_and_named(endpoint, hum):
    parameters = {"best_of": 2, "generate_kwargs": {"num_beams": 5}}
    body = {"inputs": hum, "options": 1, "parameters": parameters}
    keys, names = endpoint(speaks())(body)["warnings"]
    assert keys == "unknown keys are ignored: options"
    assert names == "unknown parameters are ignored: best_of, generate_kwargs"


@given(st.dictionaries(st.text(), st.none(), min_size=1))
@example(dict.fromkeys("\U0010ffff" * 40 + str(number) for number in range(9)))
@example(dict.fromkeys("\U0010ffff" * 39 + chr(0x10000 + number) for number in range(9)))
def test_warnings_about_names_stay_short_and_ascii(names):
    warning = ignored_names("parameters", list(names))
    assert warning.isascii()
    assert len(warning) < 700
    assert "\n" not in warning


HINTS, RTTM = "speaker hints are ignored", "output: rttm is empty"
MISSING, OFF = "no diarization model is loaded", "diarize is false"
HOT = {"compression_ratio_threshold": 2.0, "temperature": 0.5}


@pytest.mark.parametrize(
    ("diarizer", "parameters", "warning"),
    [
        (None, {"num_speakers": 2}, f"{HINTS}: {MISSING}"),
        (None, {"max_speakers": 2, "diarize": False}, f"{HINTS}: {MISSING}"),
        (StandInDiarizer(), {"min_speakers": 2, "diarize": False}, f"{HINTS}: {OFF}"),
        (StandInDiarizer(), {"num_speakers": 2}, None),
        (None, {"num_speakers": None}, None),
        (None, {"output": ["srt", "rttm"]}, f"{RTTM}: {MISSING}"),
        (StandInDiarizer(), {"output": ["rttm"], "diarize": False}, f"{RTTM}: {OFF}"),
        (StandInDiarizer(), {"output": ["rttm"]}, None),
        (None, HOT, "compression_ratio_threshold is ignored: temperature is above 0"),
    ],
)
def test_ignored_wishes_about_speakers_give_a_warning(endpoint, hum, diarizer, parameters, warning):
    answer = endpoint(speaks(), diarizer)({"inputs": hum, "parameters": parameters})
    assert answer["warnings"] == ([warning] if warning else [])


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
def test_model_exceptions_are_translated_without_text(endpoint, hum, caplog, raised, answered):
    with pytest.raises(answered) as caught:
        endpoint(speaks(raised))({"inputs": hum})
    for text in (str(caught.value), caplog.text):
        assert "secret" not in text
        assert "patient" not in text


def test_log_names_the_origin_of_unexpected_errors(endpoint, hum, caplog):
    with pytest.raises(ModelError, match="unexpected KeyError"):
        endpoint(speaks(KeyError("x")))({"inputs": hum})
    assert "KeyError in recogniser_stand_ins.py, line" in caplog.text


def test_recognition_and_diarization_run_in_parallel(endpoint, hum):
    """Each waits for the other to have begun: one after the other would never end."""
    both = threading.Barrier(2, timeout=60)

    class Beside(StandInTranscriber):
        def say(self):
            both.wait()
            return super().say()

    class BesideToo(StandInDiarizer):
        def diarize(self, *arguments):
            both.wait()
            return super().diarize(*arguments)

    assert len(endpoint(Beside(SPEECH), BesideToo())({"inputs": hum})["speakers"]) == 2


def test_silence_cancels_diarization(endpoint, hum):
    diarizer = Waits()
    response = endpoint(diarizer.then(SILENCE), diarizer)({"inputs": hum})
    assert response["speakers"] == response["chunks"] == response["warnings"] == []
    assert response["text"] == ""
    assert diarizer.ended.wait(60)


def test_diarization_is_cancelled_where_recognition_fails(endpoint, hum):
    diarizer = Waits()
    with pytest.raises(OutOfMemory):
        endpoint(diarizer.then(OutOfMemory("no window fits")), diarizer)({"inputs": hum})
    assert diarizer.ended.wait(60)


@pytest.mark.parametrize("fails", ["asr", "diarization"])
def test_failure_on_either_side_leaves_no_thread(endpoint, hum, fails):
    class Fails(StandInDiarizer):
        def diarize(self, *_):
            raise OutOfMemory("speaker diarization does not fit")

    before = set(threading.enumerate())
    answer = OutOfMemory("no window fits") if fails == "asr" else SPEECH
    made = endpoint(speaks(answer), StandInDiarizer() if fails == "asr" else Fails())
    with pytest.raises(OutOfMemory, match="window" if fails == "asr" else "diarization"):
        made({"inputs": hum})
    made.close()
    assert set(threading.enumerate()) <= before


LOST = RuntimeError("CUDA error: an illegal memory access was encountered")


@pytest.fixture
def process_ends(monkeypatch) -> Iterator[SimpleQueue[int]]:
    statuses = SimpleQueue()
    monkeypatch.setattr("whosaid.runtime.errors.SECONDS_TO_ANSWER", 0.0)
    monkeypatch.setattr("whosaid.runtime.errors.os._exit", statuses.put)
    yield statuses
    join_timers()


def join_timers() -> None:
    """Wait for the threads that end the process: while one is alive, no other starts."""
    for each in threading.enumerate():
        if each.name == ENDING:
            each.join(60)


@pytest.mark.parametrize("side", ["asr", "diarization"])
def test_a_lost_device_is_answered_and_ends_the_process(endpoint, hum, caplog, process_ends, side):

    class Fails(StandInDiarizer):
        def diarize(self, *_):
            raise ModelError("speaker diarization failed") from LOST

    answer = LOST if side == "asr" else SPEECH
    with pytest.raises(ModelError):
        endpoint(speaks(answer), StandInDiarizer() if side == "asr" else Fails())({"inputs": hum})
    assert process_ends.get(timeout=60) == EXIT_STATUS
    assert "illegal memory access" in caplog.text


@pytest.mark.parametrize("why", [SystemError("nothing works"), LOST])
def test_process_ends_after_its_engine_thread(endpoint, hum, caplog, process_ends, why):
    """No request could be answered any more, though the process could continue."""

    def fail(*_):
        raise why

    class Never(StandInTranscriber):
        def say(self):
            pytest.fail("the engine takes no step")

    made = endpoint(Never(SPEECH, StandInEngine(fail)))
    job = made.recogniser.submit(StandInTranscription(lambda: None))
    assert isinstance(job.result.exception(timeout=60), ModelError)
    for _ in range(2):
        with pytest.raises(ModelError, match="has stopped"):
            made({"inputs": hum})
        assert process_ends.get(timeout=60) == EXIT_STATUS
        join_timers()


def test_requests_of_an_endpoint_that_was_closed_end_no_process(endpoint, hum, process_ends):
    made = endpoint(speaks())
    made.close()
    with pytest.raises(ModelError, match="has stopped"):
        made({"inputs": hum})
    assert process_ends.empty()


def test_the_process_ends_once_however_many_ask(caplog, process_ends, monkeypatch):
    monkeypatch.setattr("whosaid.runtime.errors.SECONDS_TO_ANSWER", 60.0)
    for _ in range(3):
        end_process("the device is lost")
    assert caplog.text.count("the process ends: the device is lost") == 1
    (timer,) = (each for each in threading.enumerate() if each.name == ENDING)
    timer.cancel()


@pytest.mark.parametrize(("device", "lasts"), [("cuda", True), ("cpu", False)])
def test_on_cuda_requests_are_diarized_in_one_thread_that_lasts(endpoint, hum, device, lasts):
    """A thread that ends would leave behind what cuDNN keeps for it."""
    seen = []

    class Diarizer(StandInDiarizer):
        def diarize(self, *arguments):
            seen.append(threading.current_thread())
            return super().diarize(*arguments)

    made = endpoint(speaks(), Diarizer(), device)
    for _ in range(3):
        made({"inputs": hum})
    assert [each.is_alive() for each in seen] == [lasts] * (4 if lasts else 3)  # with the warm-up
    assert len(set(seen)) == (1 if lasts else 3)
