"""`python -m server`: which models it serves, under which key, and what its log says."""

from __future__ import annotations

import logging
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from huggingface_hub import constants
from servers import OURS_LISTENS, SAME_NUMBERS

from config import DEMO_MODELS, ModelSettings
from errors import StartError
from model_sources.choice import NothingFetched
from server import serving as start
from server.__main__ import read_settings
from server.lifecycle import DrainingServer, address
from server.options import read
from testing.audio_files import conversation


def chosen(monkeypatch, *arguments: str, error: StartError | None = None):
    """What is served where `error`, if any, comes of choosing the models."""

    def choose(options, screen, speakers):
        if error:
            raise error
        return ModelSettings.for_models("owner/whisper")

    monkeypatch.setattr(start, "choose", choose)
    return start._choose_models(read(list(arguments)))


def test_only_where_nothing_can_be_fetched_the_embedded_models_serve(monkeypatch, caplog):
    models, notice = chosen(monkeypatch)
    assert (models.asr_model.name, notice) == ("owner/whisper", None)
    models, notice = chosen(monkeypatch, error=NothingFetched("no hub"))
    assert models.asr_model.name == str(DEMO_MODELS / "asr")
    assert "133 English words" in notice
    assert models.diarization_model.name == str(DEMO_MODELS / "diarization")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "no hub" in record.getMessage()


def test_speakers_that_are_not_wanted_are_not_loaded(monkeypatch):
    wanted = []

    def choose(options, screen, speakers):
        wanted.append(speakers)
        raise NothingFetched("no hub")

    monkeypatch.setattr(start, "choose", choose)
    models, _ = start._choose_models(read(["--no-speakers"]))
    assert (wanted, models.diarization_model) == ([False], None)


def test_a_model_that_was_named_is_never_replaced(monkeypatch):
    nothing = NothingFetched("no hub")
    with pytest.raises(StartError):
        chosen(monkeypatch, "--diarization", "a/b", error=nothing)
    with pytest.raises(StartError):
        chosen(monkeypatch, error=StartError("MAX_AUDIO_SECONDS: should be a number"))
    monkeypatch.setenv("ASSISTANT_MODEL", "a/b")
    with pytest.raises(StartError):
        chosen(monkeypatch, error=nothing)


def test_an_option_goes_before_its_variable(monkeypatch):
    monkeypatch.setenv("PORT", "9000")
    monkeypatch.setenv("HOST", "::1")
    settings = read_settings(read(["--port", "0"]))
    assert (settings.host, settings.port) == ("::1", 0)


def test_the_key_is_a_files_without_the_line_feed(monkeypatch, tmp_path):
    (tmp_path / "key").write_text("a secret\n")
    monkeypatch.setenv("API_KEY", "another")
    settings = read_settings(read(["--api-key-file", str(tmp_path / "key")]))
    assert settings.api_key.get_secret_value() == "a secret"


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "No such file"), (b" \n", "is empty"), (b"\xff", "is not UTF-8")],
)
def test_a_file_without_a_key_is_one_line(tmp_path, content, said):
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    with pytest.raises(StartError, match=f"--api-key-file .*key: {said}"):
        read_settings(read(["--api-key-file", str(tmp_path / "key")]))


def test_the_log_names_models_device_precision_and_page_and_answers_warn(
    tmp_path, wav, monkeypatch, caplog
):
    """Offline, with an empty cache and no package index, as on a machine behind a firewall. A
    process of its own, which finds speakers too, is that of test_telemetry.py.
    """
    nowhere = {
        "XDG_CACHE_HOME": str(tmp_path),
        "PIP_NO_INDEX": "1",
        "UV_NO_INDEX": "1",
        "ASR_MODL": "owner/whisper",
        "PAGE": "true",
        "PORT": "0",
    }
    for name, value in (nowhere | SAME_NUMBERS).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    caplog.set_level(logging.INFO)
    startup, asked = DrainingServer.startup, []

    def ask(server, url):
        try:
            audio = wav(conversation()[:48_000])
            answer = httpx2.post(url, content=audio, timeout=120).json()
            return answer, httpx2.get(f"{url}/info").json()
        finally:
            server.handle_exit(signal.SIGTERM, None)

    async def then_ask(server, sockets):
        await startup(server, sockets)
        asked.append(threads.submit(ask, server, address(sockets[0])))

    monkeypatch.setattr(DrainingServer, "startup", then_ask)
    options = read(["--no-speakers"])
    with ThreadPoolExecutor(1) as threads:
        assert start.serve(options, read_settings(options)) == 0
    answer, info = asked[0].result()
    log = "\n".join(f"{each.levelname} {each.name}: {each.getMessage()}" for each in caplog.records)
    notice = info["notice"]
    assert answer["warnings"][0] == notice
    assert notice.endswith("Whisper base could not be fetched")
    assert f"WARNING server: {notice}; " in log
    assert "ASR_MODL is no variable of this endpoint; did you mean ASR_MODEL?" in log
    folders = ", ".join(str(DEMO_MODELS / name) for name in ("asr", "assistant"))
    assert f"loading {folders}" in log
    assert re.search(r"models ready on cpu in float32 after", log)
    assert re.search(rf"{OURS_LISTENS}, page \1/app", log)
