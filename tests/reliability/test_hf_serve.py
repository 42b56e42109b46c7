"""hf-serve itself, on loopback, with this repository as its custom task: answers, log, and failed
starts. Nothing of the server is simulated; a small stand-in answers for the hub."""

import base64
import re

import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

from config import SPEAKERS_MODEL
from tests.helpers.servers import SECRET, check_failed_start, hub_client, running_hf_serve
from tests.helpers.stand_ins import RESPONSE_KEYS
from tests.support.audio_files import conversation, speech, wav_file
from tests.support.servers import Server, hf_serve, loopback

pytestmark = pytest.mark.slow


@pytest.fixture
def server(hf) -> Server:
    return hf.server


@pytest.fixture
def client(server, monkeypatch) -> InferenceClient:
    return hub_client(server.url, "hf_clients_token", monkeypatch)


def test_the_hub_client_sends_and_reads_our_json(client, hum):
    asked = {"language": "en", "batch_size": 2, "assisted": False, "num_speakers": 2}
    answer = client.automatic_speech_recognition(base64.b64decode(hum), extra_body=asked)
    assert set(answer) >= RESPONSE_KEYS
    assert answer.text == "".join(chunk.text for chunk in answer.chunks)
    assert answer.chunks[0].timestamp[1] <= answer["duration"] == 1.0
    assert answer["warnings"] == ["speaker hints are ignored: no diarization model is loaded"]


def test_hf_serve_cannot_read_the_hub_client_without_extra_body(client, hum):
    with pytest.raises(HfHubHTTPError, match="500"):
        client.automatic_speech_recognition(base64.b64decode(hum))


@pytest.mark.parametrize("path", ["/", "/predict"])
def test_plain_http(server, hum, path):
    body = {"inputs": hum, "parameters": {"language": "en"}}
    answer = loopback().post(server.url + path, json=body)
    assert answer.status_code == 200
    assert set(answer.json()) == RESPONSE_KEYS


def test_an_unknown_parameter_may_be_no_utf8(server, hum):
    content = b'{"inputs": "' + hum.encode() + b'", "parameters": {"\\ud800": NaN}}'
    answer = server.post(content)
    assert answer.status_code == 200
    assert answer.json()["warnings"] == ["unknown parameters are ignored: \\ud800"]


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({}, "INVALID_REQUEST: inputs"),
        ({"inputs": "UklGRg=="}, "INVALID_AUDIO: "),
        (
            {"inputs": "UklGRg==", "parameters": {"batch_size": float("nan")}},
            "INVALID_PARAMETER: batch_size",
        ),
    ],
)
def test_our_refusals_are_400_with_a_code(server, body, detail):
    answer = server.ask(body)
    assert answer.status_code == 400
    assert set(answer.json()) == {"detail"}
    assert answer.json()["detail"].startswith(detail)


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [
        (b"[]", "application/json", 422),
        (b"null", "application/json", 422),
        (b"{", "application/json", 422),
        (b'{"inputs": "\xff"}', "application/json", 400),
        (b"RIFF\xff\xfe\xfd\xfc", "audio/wav", 500),
    ],
)
def test_hf_serve_refuses_malformed_bodies_itself(server, content, content_type, status):
    assert server.post(content, content_type).status_code == status


def test_the_server_lives_on_after_all_of_this(server, hum):
    first = server.ask({"inputs": hum}).json()
    server.ask({"inputs": "!"})
    assert server.ask({"inputs": hum}).json() == first
    assert loopback().get(f"{server.url}/health").status_code == 200


@pytest.mark.reliability
@pytest.mark.timeout(600)
def test_models_diarization_is_found_from_another_folder():
    """The container starts in / and imports handler.py by its path. Two of the conversation's three
    people have spoken after 40.3 s.
    """
    audio = wav_file(conversation()[: round(40.3 * 16_000)], 16_000)
    models = {"ASR_MODEL": "demo/models/asr", "DIARIZATION_MODEL": SPEAKERS_MODEL}
    with running_hf_serve(**models) as server:
        answer = server.ask({"inputs": base64.b64encode(audio).decode()})
    assert answer.status_code == 200
    assert len({turn["speaker"] for turn in answer.json()["speakers"]}) == 2


def test_the_log_holds_no_audio_transcript_or_token(server, wav):
    audio = base64.b64encode(wav(speech(9.0))).decode()
    answer = server.ask({"inputs": audio, "parameters": {"language": "en"}}).json()
    server.ask({"inputs": audio, "parameters": {"batch_size": SECRET}})
    log = server.logged("9.0 s of audio answered in")
    assert re.search(
        r"Python 3\.12\S*, torch \S+, transformers 5\S+, pyannote.audio 4\S+, hf-serve", log
    )
    assert "Received request, body not logged" in log
    words = {word for word in answer["text"].split() if len(word) > 4}
    assert words
    for secret in (audio[:30], audio[100:130], SECRET, *words):
        assert secret not in log


@pytest.mark.reliability
def test_a_failed_start_is_one_line_and_a_status():
    check_failed_start(hf_serve, 1)
