"""huggingface-inference-toolkit itself, on loopback, with this repository as its custom task and
the libraries of its container; and the same requests to both servers, which answer alike."""

import base64
import re
import subprocess
from collections.abc import Iterator

import httpx2
import pytest
from huggingface_hub.errors import BadRequestError

from config import DEMO_MODELS
from tests.helpers import servers
from tests.support import audio_files

pytestmark = [pytest.mark.slow, pytest.mark.reliability, pytest.mark.timeout(600)]

RAW = {"language": "en", "batch_size": "4", "diarize": "false", "output": "srt,vtt"}
# Of the request's options, those that lead another way through the models than no options.
REQUESTS = {"assisted": {"diarize": False, "assisted": None, "batch_size": 8}}
REQUESTS["told language"] = {"diarize": False, "language": "en", "chunk_length_s": 15}
# Seconds, in pauses of the conversation: before the first two have spoken, before the second three,
# before the third each of them several times.
SHORT_PAUSE, PAUSE, LONG_PAUSE = 9.9, 40.3, 64.3


@pytest.fixture(scope="module", autouse=True)
def toolkit_is_there() -> None:
    servers.require_toolkit()


@pytest.fixture(scope="module")
def demo_models() -> dict[str, str]:
    """The deployer's environment for the embedded models."""
    folders = {"ASR_MODEL": "asr", "ASSISTANT_MODEL": "assistant"}
    folders["DIARIZATION_MODEL"] = "diarization"
    return {name: str(DEMO_MODELS / folder) for name, folder in folders.items()}


@pytest.fixture(scope="module")
def named_parts(tmp_path_factory) -> str:
    """The demo's pipeline as pyannote/speaker-diarization-3.1 has it: a configuration alone, in the
    format of pyannote.audio 3, which names its models one by one."""
    folder, made = DEMO_MODELS / "diarization", tmp_path_factory.mktemp("diarization")
    config = (folder / "config.pyannote-3.yaml").read_text(encoding="utf-8")
    for part in ("segmentation", "embedding"):
        config = config.replace(f"$model/{part}", str(folder / part / "pytorch_model.bin"))
    assert "$model" not in config
    (made / "config.yaml").write_text(config.replace("dependencies:\n  pyannote.audio", "version"))
    return str(made)


@pytest.fixture(scope="module")
def server(toolkit_is_there, demo_models, named_parts) -> Iterator[servers.Server]:
    models = demo_models | {"DIARIZATION_MODEL": named_parts}
    with servers.running_toolkit(HF_TOKEN=servers.SECRET, **models) as running:
        yield running


@pytest.fixture(scope="module")
def other_server(toolkit_is_there, demo_models) -> Iterator[servers.Server]:
    """hf-serve with the same models."""
    with servers.running_hf_serve(**demo_models) as running:
        yield running


def wav_until(seconds: float) -> bytes:
    return audio_files.wav_file(audio_files.conversation()[: round(seconds * 16_000)], 16_000)


@pytest.fixture(scope="module")
def beginning() -> bytes:
    return wav_until(PAUSE)


@pytest.fixture(scope="module")
def short() -> bytes:
    return wav_until(SHORT_PAUSE)


def test_both_servers_answer_a_conversation_alike(server, other_server):
    """Speakers are alike too, by the same networks in the formats of pyannote.audio 3 and 4."""
    options = {"return_timestamps": "word", "output": ["srt", "rttm"], "num_speakers": 3}
    expected = answered_alike(server, other_server, wav_until(LONG_PAUSE), options)
    assert len(expected["text"].split()) > 150
    assert len({segment["speaker"] for segment in expected["speakers"]}) == 3


@pytest.mark.parametrize("name", REQUESTS)
def test_both_servers_answer_the_same_request_alike(server, other_server, beginning, name):
    answered_alike(server, other_server, beginning, REQUESTS[name])


def answered_alike(server, other_server, audio, parameters):
    body = audio_files.request_body(audio, **parameters)
    answer, expected = server.ask(body), other_server.ask(body)
    assert (answer.status_code, expected.status_code) == (200, 200)
    answer, expected = answer.json(), expected.json()
    assert answer.keys() == expected.keys()
    assert answer["text"] == expected["text"]
    assert spoken(answer["chunks"]) == spoken(expected["chunks"])
    assert spoken(answer["speakers"]) == spoken(expected["speakers"])
    assert spoken(answer.get("words", [])) == spoken(expected.get("words", []))
    for key in ("language", "duration", "warnings", "output"):
        assert answer.get(key) == expected.get(key)
    return expected


def spoken(blocks: list[dict]) -> list[tuple]:
    """Return texts, times and speakers, without scores, which differ by rounding."""
    texts = [(block.get("text", block.get("word")), block) for block in blocks]
    return [(text, block["timestamp"], block.get("speaker")) for text, block in texts]


def test_both_refuse_alike_but_under_another_key(server, other_server):
    body = {"inputs": "UklGRg==", "parameters": {"batch_size": 0}}
    ours, theirs = server.ask(body), other_server.ask(body)
    assert (ours.status_code, theirs.status_code) == (400, 400)
    assert ours.json()["error"] == theirs.json()["detail"]


def test_the_hub_clients_json(server, short, monkeypatch):
    client = servers.hub_client(server.url, "hf_clients_token", monkeypatch)
    options = {"language": "en", "diarize": False}
    answer = client.automatic_speech_recognition(short, extra_body=options)
    assert answer.text.startswith(" good morning how can i help you")
    assert answer["duration"] == SHORT_PAUSE
    with pytest.raises(BadRequestError) as caught:
        client.automatic_speech_recognition(short, extra_body={"batch_size": 0})
    assert caught.value.response.json()["error"].startswith("INVALID_PARAMETER: batch_size: ")


def test_the_hub_client_of_the_container_itself(server, short, tmp_path):
    """The container's client sets no content type, without which the toolkit reads no body."""
    script = (
        "import sys, huggingface_hub\n"
        "json = {'Content-Type': 'application/json'}\n"
        "client = huggingface_hub.InferenceClient(sys.argv[1], token='hf_client', headers=json)\n"
        "answer = client.automatic_speech_recognition(sys.argv[2], extra_body={'diarize': False})\n"
        "print(huggingface_hub.__version__, answer.text)\n"
    )
    (tmp_path / "a.wav").write_bytes(short)
    done = subprocess.run(
        [str(servers.TOOLKIT_PYTHON), "-c", script, server.url, str(tmp_path / "a.wav")],
        env={"PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("0.30.2  good morning how can i help you"), done.stderr


@pytest.mark.parametrize("path", ["/", "/predict"])
def test_raw_audio_with_query_parameters(server, short, path):
    headers = {"content-type": "audio/wav"}
    reply = httpx2.post(server.url + path, content=short, headers=headers, params=RAW, timeout=120)
    answer = reply.json()
    assert answer["text"].startswith(" good morning how can i help you")
    assert answer["speakers"] == answer["warnings"] == []
    assert answer["output"]["srt"].startswith("1\n00:00:00,")
    assert answer["output"]["vtt"].startswith("WEBVTT")


def test_wrong_query_parameters_and_wrong_bytes(server):
    answer = server.post(b"RIFF", "audio/wav", {"batch_size": "0"})
    told = answer.json()["error"]
    assert (answer.status_code, told[:29]) == (400, "INVALID_PARAMETER: batch_size")
    answer = server.post(b"RIFF", "audio/wav")
    assert (answer.status_code, answer.json()["error"][:15]) == (400, "INVALID_AUDIO: ")


def test_the_log_names_versions_but_no_contents(server, beginning):
    audio = base64.b64encode(beginning).decode()
    answer = server.ask({"inputs": audio, "parameters": {"diarize": False}}).json()
    server.ask({"input": audio})
    server.ask({"inputs": audio, "parameters": {"batch_size": servers.SECRET}})
    log = "".join(server.log)
    assert re.search(
        r"Python 3\.11\.\d+, torch 2\.5\.1\S*, transformers 4\.51\.3, pyannote\.audio 3\.4\.0, "
        r"huggingface-inference-toolkit",
        log,
    )
    assert f"{PAUSE} s of audio answered in" in log
    assert "Received request, body not logged" in log
    words = {word for word in answer["text"].split() if len(word) > 5}
    assert len(words) > 10
    for secret in (audio[:30], audio[100:130], servers.SECRET, *words):
        assert secret not in log


def test_a_failed_start_is_one_line_and_a_status():
    assert servers.check_failed_start(servers.toolkit, 3).startswith("START_FAILED: ")
