"""`python -m whosaid.server`: its models, its key, and its log."""

import logging
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest

from config import DEMO_MODELS
from tests.support.audio_files import conversation
from tests.support.servers import OURS_LISTENS, SAME_NUMBERS, loopback
from whosaid.cli.__main__ import COMMANDS, function
from whosaid.errors import StartError
from whosaid.runtime.environment import FOLDER
from whosaid.server import serving as start
from whosaid.server.__main__ import read_settings
from whosaid.server.__main__ import run as start_without_jobs
from whosaid.server.jobs.store import JobStore
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


def test_the_key_file_may_end_with_a_line_feed(monkeypatch, tmp_path):
    (tmp_path / "key").write_text("a secret\n")
    monkeypatch.setenv("API_KEY", "another")
    settings = read_settings(read(["--api-key-file", str(tmp_path / "key")]))
    assert settings.api_key.get_secret_value() == "a secret"


@pytest.mark.parametrize(
    ("content", "said"), [(None, "No such file"), (b" \n", "is empty"), (b"\xff", "is not UTF-8")]
)
def test_a_file_without_a_key_is_one_line(tmp_path, content, said):
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    with pytest.raises(StartError, match=f"--api-key-file .*key: {said}"):
        read_settings(read(["--api-key-file", str(tmp_path / "key")]))


@pytest.fixture
def opened(monkeypatch, tmp_path) -> Iterator[Callable[..., JobStore | None]]:
    """Return a function that starts a server with options, and returns its jobs."""
    stores = []

    def store_of(endpoint, settings, drivers, store):
        stores.append(store)
        return store

    for name in ("load_endpoint", "LiveDrivers"):
        monkeypatch.setattr(start, name, lambda *_, **__: None)
    monkeypatch.setattr(start, "create_app", store_of)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def open_jobs(*arguments: str, user_jobs: bool = True) -> JobStore | None:
        options = read(arguments)
        store, _ = start.load_app(None, read_settings(options), user_jobs and not options.no_jobs)
        return store

    yield open_jobs
    for store in filter(None, stores):
        store.close()


def kept_in(folder: Path) -> set[str]:
    return {str(each.parent.relative_to(folder)) for each in folder.rglob("jobs.sqlite")}


def test_each_port_keeps_its_jobs_in_the_users_folder(opened, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    user = f"state/{FOLDER}/jobs"
    assert opened()
    assert opened("--port", "9000")
    assert kept_in(tmp_path) == {f"{user}/8000", f"{user}/9000"}
    assert f"jobs are kept in {tmp_path / user / '9000'}" in caplog.text
    assert opened("--port", "9000") is None  # on another address
    assert f"ends its transcription: {tmp_path / user / '9000'}: another server" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "variable", "folders"),
    [
        *(("--data-dir mine", each, {"mine"}) for each in (None, "theirs")),
        ("", "theirs", {"theirs"}),
        *(("--no-jobs", each, set()) for each in (None, "theirs")),
        ("--host 0.0.0.0", None, set()),
        ("--host ::1", None, {f"state/{FOLDER}/jobs/8000"}),
        ("--host 0.0.0.0 --api-key-file key", None, {f"state/{FOLDER}/jobs/8000"}),
    ],
)
def test_options_then_variables_choose_the_folder_for_jobs(
    opened, tmp_path, monkeypatch, arguments, variable, folders
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key").write_text("a long secret of letters")
    if variable:
        monkeypatch.setenv("DATA_DIR", variable)
    opened(*arguments.split())
    assert kept_in(tmp_path) == folders


def test_without_a_home_the_server_starts_without_jobs(opened, monkeypatch, caplog):
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", mock.Mock(side_effect=RuntimeError("no home")))
    assert opened() is None
    assert "no jobs are kept, so a closed tab ends its transcription: no home" in caplog.text


def test_only_scripts_serve_keeps_jobs_by_default(opened, tmp_path, monkeypatch):
    assert opened(user_jobs=False) is None
    assert kept_in(tmp_path) == set()
    asked: list[bool] = []
    monkeypatch.setattr(start, "serve", lambda *each: asked.append(each[-1]))
    monkeypatch.setattr("whosaid.server.__main__.log_to_stderr", lambda *_: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    for run in (function(COMMANDS["serve"].run), start_without_jobs):
        with pytest.raises(SystemExit):
            run(read([]))
    assert asked == [True, False]


def test_the_log_names_models_device_precision_and_page(wav, monkeypatch, caplog):
    """A process of its own, which finds speakers too, is that of test_telemetry.py."""
    variables = {"ASR_MODL": "owner/whisper", "PAGE": "true", "PORT": "0"}
    for name, value in (variables | SAME_NUMBERS).items():
        monkeypatch.setenv(name, value)
    caplog.set_level(logging.INFO)
    startup, asked = DrainingServer.startup, []

    def ask(server, url):
        try:
            return loopback().post(url, content=wav(conversation()[:48_000])).json()
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
