"""The handler in the containers: its path, its log, its callers' threads and its own."""

import asyncio
import gc
import importlib.util
import itertools
import logging
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from config import REPOSITORY, ModelSettings
from handler import EndpointHandler
from tests.support.audio_files import request_body, speech
from tests.test_endpoint import StandInDiarizer


@pytest.fixture(scope="module")
def precise_handler(whisper_folder, assistant_folder) -> EndpointHandler:
    """A float32 handler, in which no batch changes a number; without second attempts, because
    random models are never sure."""
    settings = ModelSettings(
        asr_model=str(whisper_folder), assistant_model=str(assistant_folder), dtype="float32"
    )
    made = EndpointHandler(settings=settings)
    made.endpoint.recogniser.transcriber.fallback = None
    return made


def test_file_can_be_imported_by_path_from_anywhere(monkeypatch):
    """hf-serve and the toolkit do so (`reliability/test_hf_serve.py`, `test_toolkit.py`)."""
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(REPOSITORY)])
    spec = importlib.util.spec_from_file_location("theirs", REPOSITORY / "handler.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert sys.path[0] == str(REPOSITORY)
    monkeypatch.delenv("ASR_MODEL", raising=False)
    with pytest.raises(SystemExit, match=r"^START_FAILED: ASR_MODEL: is required$"):
        module.EndpointHandler("/repository")


def test_hf_serves_log_of_the_body_is_cut(caplog, tiny_handler, hum):
    logger = logging.getLogger("hf-serve")
    with caplog.at_level(logging.INFO):
        logger.info(
            f"[abc] Received request with: {{'inputs': '{hum}'}}"
        )  # as hf_serve.routers.custom writes it
        logger.info("another %s", "line")
    assert caplog.messages == ["[abc] Received request, body not logged", "another line"]


def test_our_log_counts_and_times(tiny_handler, hum, caplog):
    with caplog.at_level(logging.INFO, logger="endpoint"):
        response = tiny_handler({"inputs": hum})
    assert "1.0 s of audio answered in" in caplog.text
    assert response["text"]
    assert response["text"] not in caplog.text


def test_concurrent_calls_share_a_batch_with_unchanged_answers(precise_handler, wav):
    """All calls arrive before the engine takes a step, so that their windows share rows."""
    audio = wav(speech(2.0))
    both = itertools.product((False, None), ("en", None))
    options = [{"assisted": assisted, "language": language} for assisted, language in both]
    bodies = [request_body(audio, **each) for each in options]
    alone = [precise_handler(body) for body in bodies]
    recogniser = precise_handler.endpoint.recogniser
    before = recogniser.counts.steps, recogniser.counts.rows
    go_on, submitted = threading.Event(), threading.Semaphore(0)
    submit = recogniser.submit

    def count(*arguments):
        job = submit(*arguments)
        submitted.release()
        return job

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(len(bodies) + 1) as pool:
        patch.setattr(recogniser, "submit", count)
        pool.submit(recogniser.run, partial(go_on.wait, 60))
        answers = [pool.submit(precise_handler, body) for body in bodies]
        try:
            for _ in bodies:
                assert submitted.acquire(timeout=60)
        finally:
            go_on.set()
        assert [each.result() for each in answers] == alone
    steps, rows = recogniser.counts.steps - before[0], recogniser.counts.rows - before[1]
    assert rows > 2 * steps


def test_a_call_may_come_from_within_an_event_loop(tiny_handler, hum):
    """The older toolkit's server calls it so."""

    async def call():
        return tiny_handler({"inputs": hum})

    assert asyncio.run(call()) == tiny_handler({"inputs": hum})


def test_a_call_that_is_interrupted_frees_its_rows(precise_handler, wav, monkeypatch):
    """Ctrl-C interrupts so: the caller's wait raises once its windows are in rows."""
    recogniser = precise_handler.endpoint.recogniser
    step, submit = recogniser.transcriber.engine.step, recogniser.submit
    begin, cancelled = asyncio.run_coroutine_threadsafe, recogniser.counts.cancelled
    running, left, freed = (threading.Event() for _ in range(3))

    def step_and_wait():
        rows = step()
        if rows:
            running.set()
            assert left.wait(60)
        return rows

    def watched(transcription, tell):
        close = transcription.close
        transcription.close = lambda: close() or freed.set()
        job = submit(transcription, tell)
        cancel = job.cancel
        job.cancel = lambda: cancel() or left.set()
        return job

    def interrupt():
        assert running.wait(60)
        raise KeyboardInterrupt

    def interrupted(coroutine, loop):
        future = begin(coroutine, loop)
        future.result = interrupt
        return future

    monkeypatch.setattr(recogniser.transcriber.engine, "step", step_and_wait)
    monkeypatch.setattr(recogniser, "submit", watched)
    monkeypatch.setattr("whosaid.runtime.event_loop.asyncio.run_coroutine_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        precise_handler({"inputs": wav(speech(20.0)), "parameters": {"language": "en"}})
    assert freed.wait(60)
    scheduler = recogniser.transcriber.engine.scheduler
    assert (scheduler.running, scheduler.waiting) == (0, 0)
    assert recogniser.counts.cancelled == cancelled + 1


@pytest.mark.parametrize("closed", [True, False])
def test_a_handler_that_is_let_go_of_ends_its_threads(whisper_folder, hum, closed):
    before = set(threading.enumerate())
    made = EndpointHandler(settings=ModelSettings(asr_model=str(whisper_folder)))
    made.endpoint.models.diarizer = StandInDiarizer()
    made({"inputs": hum, "parameters": {"logprob_threshold": -1_000}})
    own = set(threading.enumerate()) - before
    kinds = {thread.name.partition("_")[0] for thread in own}
    assert kinds == {"engine", "endpoint", "asyncio", "preparation", "diarization"}
    if closed:
        made.endpoint.close()
    del made
    gc.collect()
    for thread in own:
        thread.join(60)
        assert not thread.is_alive(), thread.name
