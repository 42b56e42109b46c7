"""huggingface-inference-toolkit itself, on loopback, with this repository as its custom task and
the libraries of its container; and the same requests to both servers, which answer alike."""

from __future__ import annotations

import base64
import re
import subprocess
from collections.abc import Iterator

import httpx2
import huggingface_hub.constants
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import BadRequestError
from servers import (
    FAILED_STARTS,
    SECRET,
    TOOLKIT_PYTHON,
    Server,
    check_failed_start,
    fail_to_start,
    require_toolkit,
    running_hf_serve,
    running_toolkit,
    stand_in_hub,
    toolkit,
)

from config import DEMO_MODELS, REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RAW = {"language": "en", "batch_size": "4", "diarize": "false", "output": "srt,vtt"}
# The start's options and the request's, for each way through the models.
REQUESTS = {
    "default": {},
    "assisted": {"assisted": True, "batch_size": 8},
    "words": {"return_timestamps": "word"},
    "files": {"output": ["srt", "rttm"], "num_speakers": 3},
    "no speakers": {"diarize": False, "language": "en", "chunk_length_s": 15},
}


@pytest.fixture(scope="module", autouse=True)
def toolkit_is_there() -> None:
    require_toolkit()


@pytest.fixture(scope="module")
def demo_models() -> dict[str, str]:
    """The deployer's environment for the embedded models."""
    folders = {
        "ASR_MODEL": "asr",
        "ASSISTANT_MODEL": "assistant",
        "DIARIZATION_MODEL": "diarization",
    }
    return {name: str(DEMO_MODELS / folder) for name, folder in folders.items()}


@pytest.fixture(scope="module")
def server(toolkit_is_there, demo_models) -> Iterator[Server]:
    with running_toolkit(HF_TOKEN=SECRET, **demo_models) as running:
        yield running


@pytest.fixture(scope="module")
def other_server(toolkit_is_there, demo_models) -> Iterator[Server]:
    """hf-serve with the same models."""
    with running_hf_serve(**demo_models) as running:
        yield running


@pytest.fixture(scope="module")
def conversation() -> bytes:
    return (REPOSITORY / "demo" / "conversation.ogg").read_bytes()


# ---- both servers


@pytest.mark.parametrize("name", REQUESTS)
def test_both_servers_answer_the_same_request_alike(server, other_server, conversation, name):
    body = {"inputs": base64.b64encode(conversation).decode(), "parameters": REQUESTS[name]}
    answer, expected = server.ask(body), other_server.ask(body)
    assert (answer.status_code, expected.status_code) == (200, 200)
    answer, expected = answer.json(), expected.json()
    assert len(expected["text"].split()) > 300
    assert answer.keys() == expected.keys()
    assert answer["text"] == expected["text"]
    assert spoken(answer["chunks"]) == spoken(expected["chunks"])
    assert spoken(answer["speakers"]) == spoken(expected["speakers"])
    assert spoken(answer.get("words", [])) == spoken(expected.get("words", []))
    for key in ("language", "duration", "warnings", "output"):
        assert answer.get(key) == expected.get(key)
    if REQUESTS[name].get("diarize", True):
        assert len({segment["speaker"] for segment in answer["speakers"]}) == 3


def spoken(blocks: list[dict]) -> list[tuple]:
    """What was said when and by whom; scores, which differ by rounding, are left out."""
    return [
        (block.get("text", block.get("word")), block["timestamp"], block.get("speaker"))
        for block in blocks
    ]


def test_both_refuse_alike_but_under_another_key(server, other_server):
    body = {"inputs": "UklGRg==", "parameters": {"batch_size": 0}}
    ours, theirs = server.ask(body), other_server.ask(body)
    assert (ours.status_code, theirs.status_code) == (400, 400)
    assert ours.json()["error"] == theirs.json()["detail"]


# ---- clients


def test_the_hub_clients_json(server, conversation, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    client = InferenceClient(model=server.url, token="hf_clients_token")
    answer = client.automatic_speech_recognition(
        conversation, extra_body={"language": "en", "diarize": False}
    )
    assert answer.text.startswith(" good morning how can i help you")
    assert answer["duration"] == 120.4
    with pytest.raises(BadRequestError) as caught:
        client.automatic_speech_recognition(conversation, extra_body={"batch_size": 0})
    assert caught.value.response.json()["error"].startswith("INVALID_PARAMETER: batch_size: ")


def test_the_hub_client_of_the_container_itself(server):
    """It names no content type by itself, without which the toolkit reads no body."""
    script = (
        "import sys, huggingface_hub\n"
        "json = {'Content-Type': 'application/json'}\n"
        "client = huggingface_hub.InferenceClient(sys.argv[1], token='hf_client', headers=json)\n"
        "answer = client.automatic_speech_recognition(sys.argv[2], extra_body={'diarize': False})\n"
        "print(huggingface_hub.__version__, answer.text)\n"
    )
    audio = str(REPOSITORY / "demo" / "conversation.ogg")
    done = subprocess.run(
        [str(TOOLKIT_PYTHON), "-c", script, server.url, audio],
        env={"PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("0.30.2  good morning how can i help you"), done.stderr


@pytest.mark.parametrize("path", ["/", "/predict"])
def test_raw_audio_with_query_parameters(server, conversation, path):
    answer = httpx2.post(
        server.url + path,
        content=conversation,
        headers={"content-type": "audio/ogg"},
        params=RAW,
        timeout=120,
    ).json()
    assert answer["text"].startswith(" good morning how can i help you")
    assert answer["speakers"] == answer["warnings"] == []
    assert answer["output"]["srt"].startswith("1\n00:00:00,")
    assert answer["output"]["vtt"].startswith("WEBVTT")


def test_raw_audio_without_any_parameters(server, conversation):
    answer = server.post(conversation, "audio/ogg").json()
    assert len({segment["speaker"] for segment in answer["speakers"]}) == 3


# ---- wrong bodies


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"inputs": None}, "INVALID_REQUEST: inputs"),
        ({"inputs": "https://example.com/a.wav"}, "INVALID_AUDIO: "),
        ({"inputs": "UklGRg=="}, "INVALID_AUDIO: "),
        ({"inputs": "UklGRg==", "parameters": []}, "INVALID_REQUEST: parameters"),
        (
            {"inputs": "UklGRg==", "parameters": {"return_timestamps": "letter"}},
            "INVALID_PARAMETER: return_timestamps",
        ),
    ],
)
def test_our_refusals_are_400_with_a_code(server, body, error):
    answer = server.ask(body)
    assert answer.status_code == 400
    assert set(answer.json()) == {"error"}
    assert answer.json()["error"].startswith(error)


def test_wrong_query_parameters_and_wrong_bytes(server):
    answer = server.post(b"RIFF", "audio/wav", {"batch_size": "0"})
    assert (answer.status_code, answer.json()["error"][:29]) == (
        400,
        "INVALID_PARAMETER: batch_size",
    )
    answer = server.post(b"RIFF", "audio/wav")
    assert (answer.status_code, answer.json()["error"][:15]) == (400, "INVALID_AUDIO: ")


@pytest.mark.parametrize(
    ("content", "content_type"),
    [
        (b"{}", "application/json"),
        (b"[]", "application/json"),
        (b"null", "application/json"),
        (b"{", "application/json"),
        (b'{"inputs": "\xff"}', "application/json"),
        (b"RIFF", "video/mp4"),
    ],
)
def test_what_the_toolkit_answers_itself_is_400(server, content, content_type):
    answer = server.post(content, content_type)
    assert answer.status_code == 400
    assert set(answer.json()) == {"error"}


# ---- the log


def test_the_log_names_the_versions_and_holds_no_audio_transcript_or_token(server, conversation):
    audio = base64.b64encode(conversation).decode()
    answer = server.ask({"inputs": audio, "parameters": {"diarize": False}}).json()
    server.ask({"input": audio})
    server.ask({"inputs": audio, "parameters": {"batch_size": SECRET}})
    log = "".join(server.log)
    assert re.search(
        r"Python 3\.11\.\d+, torch 2\.5\.1\S*, transformers 4\.51\.3, pyannote\.audio 3\.4\.0, "
        r"huggingface-inference-toolkit",
        log,
    )
    assert "120.4 s of audio answered in" in log
    assert "Received request, body not logged" in log
    words = {word for word in answer["text"].split() if len(word) > 5}
    assert len(words) > 20
    for secret in (audio[:30], audio[100:130], SECRET, *words):
        assert secret not in log


# ---- diarization in the format of pyannote.audio 3


def test_a_pipeline_in_the_format_of_pyannote_3_as_a_folder(conversation, demo_models, tmp_path):
    """As in pyannote/speaker-diarization-3.1, whose models are named one by one."""
    folder = DEMO_MODELS / "diarization"
    config = (folder / "config.pyannote-3.yaml").read_text(encoding="utf-8")
    for part in ("segmentation", "embedding"):
        config = config.replace(f"$model/{part}", str(folder / part / "pytorch_model.bin"))
    assert "$model" not in config
    (tmp_path / "config.yaml").write_text(
        config.replace("dependencies:\n  pyannote.audio", "version")
    )
    variables = {"ASR_MODEL": demo_models["ASR_MODEL"], "DIARIZATION_MODEL": str(tmp_path)}
    with running_toolkit(**variables) as running:
        answer = running.post(conversation, "audio/ogg").json()
    assert len({segment["speaker"] for segment in answer["speakers"]}) == 3


# ---- a start that must fail


def test_a_failed_start_is_one_line_and_a_status(tmp_path):
    with stand_in_hub(tmp_path) as hub:
        status, out, err = fail_to_start(toolkit, ["gated"], hub)["gated"]
    check_failed_start("gated", 3, status, out, err)
    assert re.match(FAILED_STARTS["gated"][1], err)
