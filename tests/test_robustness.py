"""The fault table: hostile, broken and odd requests, each with its code, on tiny models."""

import base64
import json
import logging
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import pytest_socket

from config import ModelSettings
from handler import EndpointHandler
from tests.helpers.calls import calls_of
from tests.helpers.stand_ins import RESPONSE_KEYS
from tests.support import audio_files as files
from tests.support.audio_files import speech
from whosaid.audio.decode import AudioLimits
from whosaid.endpoint import request_steps
from whosaid.errors import EndpointError

RATE = 16_000
SECRET = "hf_this_token_must_not_show"
LIMITS = AudioLimits(max_seconds=10, max_bytes=400_000)


def text64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def spoken(seconds: float, channels: int = 1) -> np.ndarray:
    samples = speech(seconds)
    return samples if channels == 1 else np.repeat(samples[:, None], channels, axis=1)


def pcm(samples: np.ndarray, rate: int = RATE) -> bytes:
    return files.wav_file(samples, rate)


GOOD = pcm(spoken(1))
GOOD64 = text64(GOOD)

# What each field and each kind of file may hold is tested with its reader.
BODIES: dict[str, tuple[Any, str]] = {
    "body is null": (None, "INVALID_REQUEST"),
    "body is a list": ([{"inputs": GOOD64}], "INVALID_REQUEST"),
    "body is text": (GOOD64, "INVALID_REQUEST"),
    "body is empty": ({}, "INVALID_REQUEST"),
    "inputs under another name": ({"audio": GOOD64}, "INVALID_REQUEST"),
    "inputs null": ({"inputs": None}, "INVALID_REQUEST"),
    "inputs a number": ({"inputs": 5}, "INVALID_REQUEST"),
    "inputs a list": ({"inputs": [GOOD64, 5]}, "INVALID_REQUEST"),
    "inputs an object": ({"inputs": {"raw": [0.0], "sampling_rate": 16_000}}, "INVALID_REQUEST"),
    "parameters a list": ({"inputs": GOOD64, "parameters": []}, "INVALID_REQUEST"),
    "parameters text": ({"inputs": GOOD64, "parameters": "batch_size=1"}, "INVALID_REQUEST"),
    "shape before parameters": ({"inputs": 5, "parameters": {"batch_size": 0}}, "INVALID_REQUEST"),
    **{
        f"parameters {given_}"[:40]: ({"inputs": "!", "parameters": given_}, "INVALID_PARAMETER")
        for given_ in (
            {"batch_size": 0},
            {"batch_size": 10**400},
            {"num_speakers": 0, "diarize": False},
            {"language": SECRET * 40_000},
            {"language": "\ud800\ud800"},
            {"language": "yue"},  # not in this checkpoint
        )
    },
}
TEXTS = (
    *("https://example.com/audio.wav", "http://127.0.0.1:1/audio.wav", "file:///etc/hostname"),
    *("/etc/hostname", "/etc/passwd1", "", " \r\n\t ", "!!!!", GOOD64 + "====", "\ud800" * 8),
)
FILES: dict[str, tuple[bytes, str]] = {
    "plain text": (b"hello " * 100, "INVALID_AUDIO"),
    "half a header": (GOOD[:20], "INVALID_AUDIO"),
    "50 ms": (pcm(spoken(0.05)), "INVALID_AUDIO"),
    "NaN": (files.wav_file(np.full(RATE, np.nan), RATE, "f32"), "INVALID_AUDIO"),
    "9 channels": (files.raw_wav(bytes(RATE), RATE, 9), "INVALID_AUDIO"),
    "a list of files": (b"ffconcat version 1.0\nfile /etc/hostname\n", "INVALID_AUDIO"),
    "above the time limit": (pcm(spoken(10.5)), "AUDIO_TOO_LONG"),
    "above the byte limit": (bytes(LIMITS.max_bytes + 1), "AUDIO_TOO_LONG"),
}
REFUSALS: dict[str, tuple[Any, str]] = (
    BODIES
    | {text[:40]: ({"inputs": text}, "INVALID_AUDIO") for text in TEXTS}
    | {name: ({"inputs": text64(file)}, code) for name, (file, code) in FILES.items()}
)

LONG64 = text64(pcm(spoken(4)))
ANSWERS: dict[str, dict[str, Any]] = {
    "plain": {"inputs": GOOD64},
    "raw bytes": {"inputs": GOOD},
    "a data URL": {"inputs": f"data:audio/wav;base64,{GOOD64}"},
    "lines of 76": {"inputs": base64.encodebytes(GOOD).decode()},
    "8 channels": {"inputs": text64(pcm(spoken(1, channels=8)))},
    "native 96 kHz": {"inputs": text64(pcm(spoken(3), rate=96_000))},
    "decoded to 8 kHz": {"inputs": GOOD64, "parameters": {"sampling_rate": 8_000}},
    "floats": {"inputs": text64(files.wav_file(spoken(1), RATE, "f32"))},
    "silence": {"inputs": text64(pcm(np.zeros(3 * RATE)))},
    "loud": {"inputs": text64(pcm(np.sign(spoken(1))))},
    "several windows, one by one": {"inputs": LONG64, "parameters": {"batch_size": 1}},
    "several windows, short": {
        "inputs": LONG64,
        "parameters": {"chunk_length_s": 1, "batch_size": 4},
    },
    "assisted, in batches": {"inputs": LONG64, "parameters": {"assisted": None, "batch_size": 8}},
    "translated": {"inputs": GOOD64, "parameters": {"task": "translate", "language": "German"}},
    "without times": {"inputs": GOOD64, "parameters": {"return_timestamps": False}},
    "names of anything": {
        "inputs": GOOD64,
        "\ud800": 1,
        "parameters": {"\n" * 1_000: 1, SECRET[3:] * 1_000: 2},
    },
}


@pytest.fixture(scope="module")
def endpoint(whisper_folder, assistant_folder) -> EndpointHandler:
    """Tiny models, tight limits, and a token that must not show."""
    models = {"asr_model": str(whisper_folder), "assistant_model": str(assistant_folder)}
    limits = {"max_audio_seconds": LIMITS.max_seconds, "max_audio_bytes": LIMITS.max_bytes}
    made = EndpointHandler(settings=ModelSettings(**models, **limits, hf_token=SECRET))
    made.endpoint.recogniser.transcriber.fallback = None  # random models are never sure
    return made


def outcome(endpoint: EndpointHandler, body: Any) -> dict[str, Any] | str:
    """The response, or the message of the refusal; any other exception is a failure of the test."""
    try:
        return endpoint(body)
    except EndpointError as error:
        return str(error)


@pytest.fixture
def encoder_passes(endpoint, monkeypatch) -> list[Any]:
    """The passes in which the main model listens: nothing is decoded without one."""
    encoder = endpoint.endpoint.recogniser.transcriber.engine.context.encoder
    return calls_of(monkeypatch, encoder, "run_pass")


@pytest.fixture
def decoders(monkeypatch) -> list[list[Any]]:
    """The calls in which audio is read."""
    names = ("decode_files", "decoding_steps")
    return [calls_of(monkeypatch, request_steps, name) for name in names]


@pytest.mark.parametrize("name", REFUSALS)
def test_fault(endpoint, name, encoder_passes, decoders, caplog):
    """The code it must get; no model runs, nor is audio read where the form is refused."""
    body, code = REFUSALS[name]
    with caplog.at_level(logging.DEBUG):
        message = outcome(endpoint, body)
    assert isinstance(message, str), "answered"
    assert message.startswith(f"{code}: ")
    assert message.isascii()
    assert len(message) <= 500
    for secret in (SECRET, GOOD64[100:140], "/etc/", "/tmp/"):
        assert secret not in message + caplog.text
    assert encoder_passes == []
    if name in BODIES:
        assert decoders == [[], []]


def test_the_counts_above_would_notice(endpoint, encoder_passes, decoders):
    outcome(endpoint, ANSWERS["plain"])
    assert encoder_passes
    assert all(decoders)


_audit: list[str] | None = None


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    watched = {"open", "socket.connect", "socket.getaddrinfo", "subprocess.Popen"}
    if _audit is not None and event in watched:
        _audit.append(f"{event} {arguments[0]!r}")


sys.addaudithook(_note)


@contextmanager
def audited() -> Iterator[list[str]]:
    """Record Python's opened files, connections, look-ups and processes during the block."""
    global _audit
    _audit = events = []
    try:
        yield events
    finally:
        _audit = None


def test_text_is_never_opened_nor_fetched(endpoint, tmp_path):
    outcome(endpoint, {"inputs": GOOD64})
    recording = tmp_path / "aaaa"
    recording.write_bytes(GOOD)
    for text in (*TEXTS, str(recording), recording.as_uri()):
        with audited() as events:
            assert str(outcome(endpoint, {"inputs": text})).startswith("INVALID_AUDIO"), text
        assert events == [], text


def check_response(response: Any) -> None:
    """The promises that hold for every answer."""
    assert isinstance(response, dict), response
    assert set(response) == RESPONSE_KEYS
    assert json.loads(json.dumps(response, allow_nan=False)) == response
    times = [time for chunk in response["chunks"] for time in chunk["timestamp"]]
    assert times == sorted(times)
    assert all(0 <= time <= response["duration"] for time in times)
    assert all(warning.isascii() and len(warning) <= 500 for warning in response["warnings"])


@pytest.fixture(scope="module")
def answers(endpoint) -> dict[str, dict[str, Any]]:
    """The answer to every good request, one after another."""
    return {name: endpoint(body) for name, body in ANSWERS.items()}


@pytest.mark.parametrize("name", ANSWERS)
def test_odd_but_good(answers, name):
    check_response(answers[name])


def test_audio_in_any_wrapping_gets_the_same_answer(answers):
    for name in ("raw bytes", "a data URL", "lines of 76"):
        assert answers[name] == answers["plain"]


def test_requests_leave_no_descriptor_thread_or_file_behind(endpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    bodies = [ANSWERS["floats"], ANSWERS["8 channels"], *(body for body, _ in REFUSALS.values())]

    def footprint() -> tuple[int, int, list[Path]]:
        return psutil.Process().num_fds(), psutil.Process().num_threads(), list(tmp_path.iterdir())

    # Pools start a thread where none is idle yet, up to their bound; what is left behind would grow
    # with every round.
    rounds = []
    for _ in range(10):
        for body in bodies:
            outcome(endpoint, body)
        rounds.append(footprint())
        if rounds[-2:-1] == rounds[-1:]:
            return
    pytest.fail(f"it grows: {rounds}")


def test_logs_hold_no_audio_text_or_token(endpoint, caplog):
    with caplog.at_level(logging.DEBUG):
        names = ("plain", "floats", "names of anything", "without times")
        responses = [endpoint(ANSWERS[name]) for name in names]
    words = {word for response in responses for word in response["text"].split() if len(word) > 4}
    assert words, "nothing was said that could have leaked"
    for secret in (SECRET, GOOD64[100:140], *words):
        assert secret not in caplog.text


def test_the_suite_cannot_reach_out():
    with (
        pytest.warns(UserWarning, match="192.0.2.1"),
        pytest.raises(pytest_socket.SocketConnectBlockedError),
    ):
        socket.socket(socket.AF_INET, socket.SOCK_STREAM).connect(("192.0.2.1", 80))
    with pytest.raises(AssertionError, match="looked up the name"):
        socket.create_connection(("huggingface.co", 443))
