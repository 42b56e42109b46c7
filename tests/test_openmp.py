"""Threads that compute: the requested ones, and no leftovers."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from config import REPOSITORY
from tests.helpers.programs import run_python
from whosaid.runtime.device import compute_beside, set_threads

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
linux = pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")


def computing_threads() -> int:
    """How many threads torch has for the calling thread once it has computed."""
    (torch.ones(400, 400) @ torch.ones(400, 400)).sin()
    return torch.get_num_threads()


@pytest.fixture(autouse=True)
def number_of_threads():
    """Restore the number of threads after each test."""
    before = torch.get_num_threads()
    yield
    set_threads(before)


def test_a_thread_keeps_the_number_that_was_set_in_it():
    """Another thread sets a different number before this one's first product."""
    before = torch.get_num_threads()
    with ThreadPoolExecutor(1, initializer=set_threads, initargs=(1,)) as pool:
        pool.submit(int).result()
        set_threads(before)
        assert pool.submit(computing_threads).result() == 1


@pytest.mark.parametrize("device", [CPU, CUDA], ids=str)
def test_requested_threads_compute_beside_the_engine(device):
    assert compute_beside(computing_threads, 2, device) == 2


@pytest.mark.parametrize("device", [CPU, CUDA], ids=str)
def test_exceptions_beside_the_engine_reach_the_caller(device):
    def end():
        raise SystemExit("no model")

    with pytest.raises(SystemExit, match="no model"):
        compute_beside(end, 1, device)


def test_only_a_cpu_computes_in_a_passing_thread():
    """A thread that has used cuDNN leaks its plans when it ends."""
    here = threading.current_thread()
    assert compute_beside(threading.current_thread, 1, CUDA) is here
    passing = compute_beside(threading.current_thread, 1, CPU)
    assert passing is not here
    assert not passing.is_alive()


COUNTING = """
import os, threading, time
import torch
from whosaid.runtime.device import compute_beside

def native():
    "How many threads there are that are not Python's."
    python = {str(thread.native_id) for thread in threading.enumerate()}
    return len(set(os.listdir("/proc/self/task")) - python)

def until(count):
    "What has ended is still listed for a moment."
    while native() > count:
        time.sleep(0.001)
"""


def run(script: str) -> None:
    """Run in a new process, which must exit with 0."""
    # Threads that wait sleep: how many there are does not depend on it, and others want to compute.
    variables = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive", "OPENBLAS_NUM_THREADS": "1"}
    variables["PYTHONPATH"] = str(REPOSITORY)
    environment = os.environ | variables
    done = run_python("-W", "ignore", "-c", script, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr


A_THREAD_ENDS = """
def product():
    torch.ones(1000, 1000).sin()
    return native()

until(compute_beside(product, 4, torch.device("cpu")) - 3)
"""
A_START = """
import gc, sys
from config import ModelSettings
from handler import EndpointHandler
assert gc.isenabled() and gc.get_freeze_count() > 100_000  # what is imported is not looked through
assert "pyannote.audio" not in sys.modules  # seconds of a start without speakers
"""
ONE_TEAM = """
from tests.support.audio_files import conversation, wav_file

# Without an assistant no draft is timed, which takes seconds where others compute.
settings = ModelSettings.for_demo().model_copy(update={"assistant_model": None})
handler = EndpointHandler(settings=settings)
loaded = native()
clip = wav_file(conversation()[: 6 * 16_000], 16_000)
body = {"inputs": clip, "parameters": {"num_speakers": "2"}}
assert handler(body)["speakers"]
until(loaded)
names = {thread.name.partition("_")[0] for thread in threading.enumerate()}
assert names >= {"engine", "endpoint", "asyncio", "preparation", "diarization"}, names
team = handler.endpoint.recogniser.run(torch.get_num_threads)
assert team > 1
handler.endpoint.recogniser.close()
until(loaded - (team - 1))
"""


@linux
@pytest.mark.reliability
def test_started_process_is_frozen_and_ended_threads_free_teams():
    """The process imports no diarization."""
    run(A_START + COUNTING + A_THREAD_ENDS)


@linux
@pytest.mark.reliability
def test_only_the_engine_thread_has_a_team():
    """Products never wait for a wake-up: models load in this thread, diarization's thread ends, and
    all others compute without a team."""
    run(A_START + COUNTING + ONE_TEAM)
