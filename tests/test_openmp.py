"""Which threads compute: those that were asked for, and none that are left over."""

import asyncio
import base64
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from server.shortest_first import in_one_step

import handler
from config import ModelSettings
from runtime.openmp import SecondThread, run_in_passing_thread, set_threads
from server.service import Service
from transcribe.__main__ import CONVERSATION


def computing_threads() -> int:
    """How many threads torch has for the calling thread once it has computed."""
    (torch.ones(400, 400) @ torch.ones(400, 400)).sin()
    return torch.get_num_threads()


def test_a_thread_keeps_the_number_that_was_set_in_it():
    """Not the one that another thread sets before this one's first product."""
    before = torch.get_num_threads()
    with ThreadPoolExecutor(1, initializer=set_threads, initargs=(1,)) as pool:
        pool.submit(int).result()
        set_threads(before)
        assert pool.submit(computing_threads).result() == 1
    assert run_in_passing_thread(computing_threads, 2) == 2
    set_threads(before)


def test_what_is_raised_in_a_passing_thread_is_raised_to_the_caller():
    def end():
        raise SystemExit("no model")

    with pytest.raises(SystemExit, match="no model"):
        run_in_passing_thread(end, 1)


@pytest.mark.parametrize("lasts", [True, False])
def test_on_cuda_a_second_thread_is_the_same_for_all_work(lasts):
    """A thread that has used cuDNN leaks its plans when it ends."""
    before = torch.get_num_threads()
    second, seen = SecondThread(2, lasts), []
    for _ in range(3):
        with second.running(lambda: seen.append(threading.current_thread())) as running:
            running.result()
    assert len(set(seen)) == (1 if lasts else 3)
    assert [each.is_alive() for each in seen] == [lasts] * 3
    assert threading.current_thread() not in seen
    here = second.run(threading.current_thread)
    assert (here is threading.current_thread()) == lasts
    assert second.run(computing_threads) == 2
    set_threads(before)


@pytest.mark.parametrize("lasts", [True, False])
def test_the_block_is_left_when_the_second_thread_has_ended(lasts):
    failed, ended = threading.Event(), []

    def work():
        failed.wait()
        ended.append(True)

    def fail():
        failed.set()
        raise KeyError

    with pytest.raises(KeyError), SecondThread(1, lasts).running(work):
        fail()
    assert ended == [True]


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_a_passing_thread_leaves_no_team_behind():
    code = """if True:
        import os, time, torch
        from runtime.openmp import run_in_passing_thread

        def tasks():
            return len(os.listdir("/proc/self/task"))

        def product():
            torch.ones(1000, 1000).sin()
            return tasks()

        meanwhile = run_in_passing_thread(product, 4)
        while tasks() > meanwhile - 4:  # what has ended is still listed for a moment
            time.sleep(0.001)
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_loading_and_diarizing_compute_in_threads_that_end(monkeypatch):
    """So the engine has the only team that stays, and its products never wait for a wake-up."""
    computed_in = []

    def noted(work, *arguments):
        computed_in.append(threading.current_thread())
        return work(*arguments)

    load = handler.load_whisper
    monkeypatch.setattr(handler, "load_whisper", lambda *given: noted(load, *given))
    endpoint = handler.EndpointHandler(settings=ModelSettings.for_demo())
    diarize = endpoint.diarizer.diarize
    monkeypatch.setattr(
        endpoint.diarizer,
        "diarize",
        lambda *given, **named: noted(partial(diarize, **named), *given),
    )
    service = Service(endpoint)
    try:
        body = {"inputs": base64.b64encode(CONVERSATION.read_bytes()).decode()}
        asyncio.run(service.answer(endpoint.parse(body)))
        with service._preparation.recording(1.0) as recording:
            decoding = [
                service._preparation.submit(recording, in_one_step(computing_threads)).result()
                for _ in range(2)
            ]
    finally:
        service.close()
    assert decoding == [1, 1]
    assert len(computed_in) == 2
    assert not any(each.is_alive() for each in computed_in)
