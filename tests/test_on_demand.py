"""Models that unload after a time without use, and load again for the next."""

import asyncio
import gc
import logging
import mmap
import os
import sys
import threading
import weakref
from collections import Counter
from pathlib import Path

import pytest
import torch

from config import ModelSettings
from handler import EndpointHandler
from tests.helpers.programs import run_python
from whosaid.errors import ModelError, StartError
from whosaid.runtime.on_demand import OnDemand

SOON = 0.02


class Loads:
    """Loads 1, 2, 3 ...; `unloaded` are those that were given back."""

    def __init__(self, seconds=SOON) -> None:
        self.made, self.unloaded, self.changed = 0, [], threading.Condition()
        self.error: Exception | None = None
        self.models = OnDemand(self.load(), self.load, self.unload, seconds)

    def load(self) -> str:
        if self.error is not None:
            raise self.error
        self.made += 1
        return str(self.made)

    def unload(self, models) -> None:
        with self.changed:
            self.unloaded.append(models)
            self.changed.notify_all()

    async def use(self) -> str:
        async with self.models.use() as models:
            return models

    def wait_until_unloaded(self, *models) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.unloaded == [*models], 60)


def timers() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if isinstance(each, threading.Timer)}


def test_without_seconds_nothing_is_unloaded():
    before = timers()
    loads = Loads(seconds=None)
    assert loads.models.current == "1"
    assert timers() <= before
    loads.models.close()
    assert loads.unloaded == ["1"]


def test_unused_models_unload_and_the_next_use_loads_them_again():
    loads = Loads()
    loads.wait_until_unloaded("1")
    assert asyncio.run(loads.use()) == "2"
    loads.wait_until_unloaded("1", "2")
    assert loads.models.current is None


def test_models_stay_while_one_of_two_uses_lasts():
    loads = Loads(seconds=1e-6)
    loads.wait_until_unloaded("1")

    async def both() -> None:
        async with loads.models.use() as first:
            async with loads.models.use() as second:
                assert first == second == "2"
            loads.models._unload_unused()  # as if the timer ended now
            assert loads.unloaded == ["1"]

    asyncio.run(both())
    loads.wait_until_unloaded("1", "2")


def test_uses_that_come_together_load_once():
    loads = Loads()
    loads.wait_until_unloaded("1")

    async def many() -> list[str]:
        return await asyncio.gather(*(loads.use() for _ in range(8)))

    assert asyncio.run(many()) == ["2"] * 8


def test_a_failed_load_is_one_requests_error_and_tried_again(caplog):
    loads = Loads()
    loads.wait_until_unloaded("1")
    loads.error = StartError("ASR_MODEL=/models/secret: is gone")

    with caplog.at_level(logging.ERROR), pytest.raises(ModelError) as raised:
        asyncio.run(loads.use())
    assert "secret" not in str(raised.value)
    assert "ASR_MODEL=/models/secret: is gone" in caplog.text
    loads.error = None
    assert asyncio.run(loads.use()) == "2"


def test_use_cancelled_during_loading_lets_models_unload():
    loads = Loads()
    loads.wait_until_unloaded("1")
    loading, go_on = threading.Event(), threading.Event()
    load = loads.models._load

    def slowly() -> str:
        loading.set()
        assert go_on.wait(60)
        return load()

    loads.models._load = slowly

    async def leave() -> None:
        async def use() -> None:
            async with loads.models.use():
                pytest.fail("the use was cancelled")

        task = asyncio.ensure_future(use())
        assert await asyncio.to_thread(loading.wait, 60)
        task.cancel()
        await asyncio.wait([task])
        go_on.set()

    asyncio.run(leave())
    loads.wait_until_unloaded("1", "2")


def test_an_idle_handler_holds_no_weights_and_answers_as_before(whisper_folder, hum):
    settings = ModelSettings(asr_model=str(whisper_folder), idle_unload_seconds=3600)
    made = EndpointHandler(settings=settings)
    body = {"inputs": hum, "parameters": {"language": "en", "logprob_threshold": -1_000}}
    before, windows = made(body), made.endpoint.counts.windows
    transcriber = made.endpoint.recogniser.transcriber
    parts = (transcriber.engine, *transcriber.models.model.weights.values())
    held = [weakref.ref(each) for each in parts]
    del transcriber, parts
    made.endpoint._models._unload_unused()  # as if the hour had passed
    gc.collect()
    assert made.endpoint.idle
    assert made.endpoint.alive
    assert len(held) > 1
    assert all(each() is None for each in held)
    assert made(body) == before
    assert not made.endpoint.idle
    assert made.endpoint.counts.windows == 2 * windows
    made.endpoint.close()


def open_files() -> list[str]:
    return sorted(os.readlink(it) for it in Path("/proc/self/fd").iterdir() if it.is_symlink())


@pytest.mark.skipif(sys.platform != "linux", reason="files are listed in /proc")
def test_ten_reloads_leave_no_thread_no_file_and_no_memory(whisper_folder, hum):
    settings = ModelSettings(asr_model=str(whisper_folder), idle_unload_seconds=3600)
    made = EndpointHandler(settings=settings)
    body, seen = {"inputs": hum, "parameters": {"language": "en"}}, []
    for _ in range(12):
        made(body)
        made.endpoint._models._unload_unused()
        # asyncio's threads grow to a fixed number; timers are other endpoints'.
        kept = {each for each in threading.enumerate() if not each.name.startswith("asyncio")}
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        seen.append((kept - timers(), open_files(), pages * mmap.PAGESIZE / 2**20))
    # The first two start what stays; earlier tests' threads and files may end meanwhile.
    (before, files, held), (after, later, now) = seen[1], seen[-1]
    assert now - held < 8  # MiB; about 0.5 without a leak
    assert after <= before
    assert Counter(later) <= Counter(files)
    made.endpoint.close()


@pytest.mark.parametrize("on_cuda", [True, False])
def test_an_unload_gives_back_what_cublas_keeps(monkeypatch, on_cuda):
    calls = []
    clear = "_cuda_clearCublasWorkspaces"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: on_cuda)
    monkeypatch.setattr(torch._C, clear, lambda: calls.append("cuBLAS"), raising=False)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("cache"))
    loads = Loads(seconds=None)
    loads.models._unload_unused()
    assert (calls, loads.unloaded) == (["cuBLAS", "cache"] if on_cuda else [], ["1"])


FIRST_START = """
import gc, weakref
from config import ModelSettings
from handler import EndpointHandler

made = EndpointHandler(settings=ModelSettings.for_demo())
held = [weakref.ref(each) for each in (made.endpoint.recogniser, made.endpoint.diarizer)]
made.endpoint._models._unload_unused()
gc.collect()
print([each() for each in held])
made.endpoint.close()
"""


@pytest.mark.reliability
def test_imported_libraries_keep_no_models():
    """In a new process, because libraries are imported only once."""
    assert run_python("-c", FIRST_START, check=True).stdout == "[None, None]\n"
