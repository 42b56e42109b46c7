"""Models of a stand-in for the hub are downloaded before the endpoint loads them."""

import fcntl
import hashlib
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pysubs2
import pytest
import torch
from huggingface_hub import constants

from config import DEMO_MODELS, REPOSITORY, ModelSettings
from tests.helpers.loopback import Handler, Loopback
from tests.helpers.programs import run_python
from tests.support.audio_files import conversation, wav_file
from tests.test_nemotron_diarizer import save
from whosaid.diarization import load_diarizer
from whosaid.diarization.voiced import VoicedDiarizer
from whosaid.models.download import with_local_models
from whosaid.transcribe.__main__ import main


def demo(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the steps of scripts/demo, from a folder outside the repository."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "OMP_NUM_THREADS")}
    scripts = {"PYTHONPATH": str(REPOSITORY), "PYTHONWARNINGS": "ignore"}
    scripts["HF_HUB_VERBOSITY"] = "error"
    command = ("-m", "whosaid.transcribe", "demo", *arguments)
    return run_python(*command, cwd="/", env=kept | scripts | variables)


COMMIT = "0123456789abcdef0123456789abcdef01234567"
RESOLVED = re.compile(f"^/owner/whisper/resolve/(main|{COMMIT})/")


@contextmanager
def hub(files: dict[str, bytes], asked: list[str]) -> Iterator[str]:
    """The hub's answers about one model, owner/whisper; `asked` collects the files downloaded."""

    class Answers(Handler):
        def do_GET(self):
            path, headers, body = self.path.split("?")[0], {}, None
            digest = {name: hashlib.sha1(data).hexdigest() for name, data in files.items()}
            if path == f"/api/models/owner/whisper/tree/{COMMIT}":
                entries = [
                    {"type": "file", "path": name, "size": len(data), "oid": digest[name]}
                    for name, data in files.items()
                ]
                body = json.dumps(entries).encode()
            elif path.startswith("/api/models/owner/whisper"):
                body = json.dumps({"id": "owner/whisper", "sha": COMMIT}).encode()
            elif (name := RESOLVED.sub("", path)) in files:
                body = files[name]
                headers = {"ETag": f'"{digest[name]}"', "X_Repo_Commit": COMMIT}
                if self.command == "GET":
                    asked.append(name)
            else:
                headers = {"X_Error_Code": "EntryNotFound"}
            self.send(404 if body is None else 200, body or b"", **headers)

        do_HEAD = do_GET

    with Loopback(Answers) as server:
        yield server.url


@pytest.fixture
def published() -> dict[str, bytes]:
    """The embedded model as a repository of the hub: other formats too, and clean-up asked for."""
    names = [path for path in (DEMO_MODELS / "asr").iterdir() if path.suffix != ".md"]
    files = {path.name: path.read_bytes() for path in names}
    settings = json.loads(files["tokenizer_config.json"])
    settings["clean_up_tokenization_spaces"] = True
    files["tokenizer_config.json"] = json.dumps(settings).encode()
    return files | {"pytorch_model.bin": b"other", "flax_model.msgpack": b"other"}


@pytest.fixture(scope="module")
def beginning(tmp_path_factory) -> Path:
    """The conversation's first 10 s, in which two speak."""
    file = tmp_path_factory.mktemp("beginning") / "beginning.wav"
    file.write_bytes(wav_file(conversation()[: 10 * 16_000], 16_000))
    return file


@pytest.mark.reliability
@pytest.mark.slow
def test_hub_model_is_downloaded_and_run_quietly(published, beginning, tmp_path):
    """The endpoint's answer is all that is printed, speakers included."""
    asked: list[str] = []
    with hub(published, asked) as url:
        where = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path)}
        models = ("--model", "owner/whisper", "--diarization", DEMO_MODELS / "diarization")
        done = demo(beginning, "--output-format", "json", *models, **where)
    loading = f"Loading owner/whisper and {DEMO_MODELS / 'diarization'} ...\n"
    assert (done.returncode, done.stderr) == (0, loading)
    read = (".json", ".safetensors", "merges.txt")
    assert set(asked) == {name for name in published if name.endswith(read)}
    response = json.loads(done.stdout)
    assert response["text"].startswith(" good morning how can i help you")
    assert "".join(chunk["text"] for chunk in response["chunks"]) == response["text"]
    assert response["language"] == "en"
    assert len({entry["speaker"] for entry in response["speakers"]}) == 2


@pytest.mark.reliability
@pytest.mark.slow
def test_a_download_shows_its_progress_on_a_terminal(published, tmp_path):
    code = (
        "from config import ModelSettings\n"
        "from whosaid.models.download import with_local_models\n"
        "settings = ModelSettings.for_models('owner/whisper')\n"
        "print(with_local_models(settings).asr_model.name)\n"
    )
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    with hub(published, []) as url:
        where = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
        with subprocess.Popen(
            [sys.executable, "-c", code],
            env=os.environ | where,
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=terminal,
        ) as process:
            os.close(terminal)
            written = b""
            with suppress(OSError):  # once nobody writes to it any more
                while part := os.read(screen, 1 << 16):
                    written += part
            printed, _ = process.communicate()
    os.close(screen)
    shown = written.decode()
    assert process.returncode == 0, shown
    assert Path(printed.decode().strip()).parts[-2:] == ("snapshots", COMMIT)
    assert "100%" in shown
    assert "Fetching" in shown


def test_nemotron_is_downloaded_without_its_other_format(tmp_path, monkeypatch):
    save(tmp_path / "model")
    files = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    asked: list[str] = []
    with hub(files | {"model.nemo": b"other"}, asked) as url:
        monkeypatch.setattr(constants, "ENDPOINT", url)
        of_a_file = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", of_a_file)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        loaded = load_diarizer("owner/whisper", None, None, torch.device("cpu"))
        settings = ModelSettings.for_models(str(DEMO_MODELS / "asr"), None, "owner/whisper")
        folder = with_local_models(settings).diarization_model.name
    assert isinstance(loaded, VoicedDiarizer)
    assert {path.name for path in Path(folder).iterdir()} == set(asked) == set(files)


@pytest.mark.reliability
@pytest.mark.slow
def test_srt_is_subtitles_of_the_whole_conversation(capsys, demo_endpoint, monkeypatch):
    loaded = {ModelSettings.for_demo(): demo_endpoint}
    monkeypatch.setattr("handler.load_endpoint", loaded.pop)
    assert main(["demo", "--output-format", "srt"]) == 0
    events = pysubs2.SSAFile.from_string(capsys.readouterr().out, format_="srt").events
    assert len(events) > 30
    assert 115_000 < events[-1].end < 121_000
    assert all(event.text.startswith("SPEAKER_0") for event in events)
