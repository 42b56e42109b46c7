"""`python -m whosaid.server`: which models it serves, under which key, and what its log says."""

from __future__ import annotations

import logging
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from servers import OURS_LISTENS, SAME_NUMBERS, loopback

from config import DEMO_MODELS
from tests.support.audio_files import conversation
from whosaid.errors import StartError
from whosaid.server import serving as start
from whosaid.server.__main__ import read_settings
from whosaid.server.lifecycle import DrainingServer, address
from whosaid.server.options import read


def test_speakers_that_are_not_wanted_are_not_loaded(monkeypatch):
    wanted = []

    def choose(options, screen, speakers):
        wanted.append(speakers)
        raise StartError("no hub")

    monkeypatch.setattr(start, "choose", choose)
    monkeypatch.setenv("PORT", "0")
    for arguments in (["--no-speakers"], []):
        options = read(arguments)
        with pytest.raises(StartError):
            start.serve(options, read_settings(options))
    assert wanted == [False, True]


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


def test_the_log_names_models_device_precision_and_page(wav, monkeypatch, caplog):
    """A process of its own, which finds speakers too, is that of test_telemetry.py."""
    variables = {"ASR_MODL": "owner/whisper", "PAGE": "true", "PORT": "0"}
    for name, value in (variables | SAME_NUMBERS).items():
        monkeypatch.setenv(name, value)
    caplog.set_level(logging.INFO)
    startup, asked = DrainingServer.startup, []

    def ask(server, url):
        try:
            audio = wav(conversation()[:48_000])
            return loopback().post(url, content=audio).json()
        finally:
            server.handle_exit(signal.SIGTERM, None)

    async def then_ask(server, sockets):
        await startup(server, sockets)
        asked.append(threads.submit(ask, server, address(sockets[0])))

    monkeypatch.setattr(DrainingServer, "startup", then_ask)
    options = read(["--no-speakers", "--embedded"])
    with ThreadPoolExecutor(1) as threads:
        assert start.serve(options, read_settings(options)) == 0
    assert asked[0].result()["warnings"] == []
    log = "\n".join(f"{each.levelname} {each.name}: {each.getMessage()}" for each in caplog.records)
    assert "INFO server: The demo models know only the 133 English words" in log
    assert "ASR_MODL is not a variable of this endpoint; did you mean ASR_MODEL?" in log
    folders = ", ".join(str(DEMO_MODELS / name) for name in ("asr", "assistant"))
    assert f"loading {folders}" in log
    assert re.search(r"models ready on cpu in float32 after", log)
    assert re.search(rf"{OURS_LISTENS}, page \1/app", log)
