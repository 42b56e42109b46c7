"""Untrusted bytes are read by a process that the kernel ends, which is started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from tagged_files import TAGGED
from test_container_bombs import box, mp4
from untrusted import FUNCTIONS

from audio import bounded_process
from audio.bounded_process import run_bounded
from audio.decode import MAX_UNBOUNDED, AudioLimits, decode_audio
from config import REPOSITORY
from errors import AudioTooLong, InvalidAudio

LIMITS = AudioLimits(max_seconds=7_200, max_bytes=2**28)


def helpers(parent: int | None = None) -> set[int]:
    """The processes of a parent, this one if not told otherwise."""
    return {
        child.pid
        for child in psutil.Process(parent).children()
        if any("audio.bounded_process.serve()" in word for word in child.cmdline())
    }


@pytest.fixture
def none_at_first():
    bounded_process._end_idle()
    assert helpers() == set()
    yield
    bounded_process._end_idle()
    assert helpers() == set()


class TestFiles:
    @pytest.mark.parametrize("name", TAGGED)
    def test_names_by_the_ten_thousand_are_refused(self, name, monkeypatch):
        """Each takes a minute and more otherwise."""
        monkeypatch.setattr(bounded_process, "BUDGET", 0.2)
        with pytest.raises(InvalidAudio, match="too long to read"):
            decode_audio(TAGGED[name](150_000), 16_000, LIMITS)

    def test_empty_tracks_by_the_ten_thousand_are_refused(self, monkeypatch):
        """The search for an index that would exhaust memory is bounded, too."""
        monkeypatch.setattr(bounded_process, "BUDGET", 0.2)
        with pytest.raises(InvalidAudio, match="too long to read"):
            decode_audio(mp4(box(b"trak") * 200_000), 16_000, LIMITS)

    def test_others_are_decoded_meanwhile_and_afterwards(self, monkeypatch, source):
        """All at once in one thread each: as many bad files as processes hold up one good one by
        their budget.
        """
        monkeypatch.setattr(bounded_process, "BUDGET", 0.2)
        files = [TAGGED["flac"](150_000)] * bounded_process.PROCESSES + [source] * 4
        with ThreadPoolExecutor(len(files)) as threads:
            decoded = [threads.submit(decode_audio, data, 16_000, LIMITS) for data in files]
        errors = [future.exception() for future in decoded]
        assert [error and error.code for error in errors] == (
            ["INVALID_AUDIO"] * bounded_process.PROCESSES + [None] * 4
        )

    @pytest.mark.parametrize("name", TAGGED)
    def test_five_thousand_are_not(self, name):
        data = TAGGED[name](5_000)
        assert decode_audio(data, 16_000, LIMITS).duration == pytest.approx(
            decode_audio(TAGGED[name](0), 16_000, LIMITS).duration
        )

    def test_small_files_need_no_process(self, every_format, monkeypatch):
        small = [data for data in every_format.values() if len(data) <= MAX_UNBOUNDED]
        monkeypatch.setattr(bounded_process, "Popen", None)
        for data in small:
            decode_audio(data, 16_000, LIMITS)
        assert len(small) > 10

    @pytest.mark.usefixtures("none_at_first")
    def test_one_process_reads_all_large_files(self, source):
        decode_audio(source, 16_000, LIMITS)
        before = helpers()
        decode_audio(source, 16_000, LIMITS)
        assert helpers() == before
        assert len(before) == 1

    def test_what_is_too_long_is_told_from_there(self, source):
        with pytest.raises(
            AudioTooLong, match=r"^AUDIO_TOO_LONG: the audio is longer than the 0\.5 s"
        ):
            decode_audio(source, 16_000, AudioLimits(0.5, 2**28))


class TestBudget:
    def test_audio_that_is_read_earns_time_for_more(self, monkeypatch):
        """Twice the budget and more, of which steps and seconds earn the rest."""
        monkeypatch.setattr(bounded_process, "BUDGET", 0.1)
        run = FUNCTIONS + "busy_steps"
        assert run_bounded(run, b"", 60, 0.005, 10.0) == 600
        with pytest.raises(InvalidAudio, match="too long"):
            run_bounded(run, b"", 10_000, 0.0005, 0.001)  # seconds are few
        with pytest.raises(InvalidAudio, match="too long"):
            run_bounded(run, b"", 100, 0.05, 1_000.0)  # steps are few

    def test_waiting_costs_nothing(self, monkeypatch):
        monkeypatch.setattr(bounded_process, "BUDGET", 0.1)
        assert run_bounded(FUNCTIONS + "sleep", b"", 0.3) == 0.3

    def test_every_request_has_its_own(self, monkeypatch):
        monkeypatch.setattr(bounded_process, "BUDGET", 0.2)
        for _ in range(4):
            assert run_bounded(FUNCTIONS + "busy_steps", b"", 1, 0.1, 0.0) == 0.0


@pytest.mark.usefixtures("none_at_first")
class TestProcesses:
    def test_bytes_arrive_whole(self):
        data = os.urandom(3_000_000)
        assert run_bounded(FUNCTIONS + "checksum", data) == sum(data)
        assert run_bounded(FUNCTIONS + "checksum", b"") == 0

    def test_keys_of_the_environment_are_not_passed_on(self, monkeypatch):
        for name in ("API_KEY", "CALLBACK_SECRET", "HF_TOKEN"):
            monkeypatch.setenv(name, "secret")
            assert run_bounded(FUNCTIONS + "has_variable", name.encode()) == 0

    def test_one_that_was_killed_is_replaced(self):
        pids = [int(run_bounded(FUNCTIONS + "own_pid", bytes(10**6)))]
        os.kill(pids[0], signal.SIGKILL)
        pids.append(int(run_bounded(FUNCTIONS + "own_pid", bytes(10**6))))
        assert pids[0] != pids[1]
        assert helpers() == {pids[1]}

    def test_one_that_is_killed_while_it_reads_is_replaced(self, tmp_path):
        mark = str(tmp_path / "killed").encode()
        assert run_bounded(FUNCTIONS + "killed_once", mark) == 1.0
        assert len(helpers()) == 1

    def test_bytes_that_kill_two_are_refused(self):
        with pytest.raises(InvalidAudio, match="crashes"):
            run_bounded(FUNCTIONS + "kill", b"")

    def test_a_fault_in_the_function_is_not_the_bytes_fault(self, capfd):
        with pytest.raises(RuntimeError, match="status 1"):
            run_bounded(FUNCTIONS + "fail", b"secret")
        assert "secret" not in capfd.readouterr().err

    def test_so_many_at_once_and_no_more(self):
        with ThreadPoolExecutor(12) as threads:
            pids = set(
                threads.map(lambda _: run_bounded(FUNCTIONS + "own_pid", bytes(10**5)), range(60))
            )
        assert helpers() == pids
        assert len(pids) <= bounded_process.PROCESSES

    def test_descriptors_go_with_their_process(self, monkeypatch):
        monkeypatch.setattr(bounded_process, "BUDGET", 0.05)
        before = psutil.Process().num_fds()
        for name in ("kill", "spin", "fail"):
            with pytest.raises((InvalidAudio, RuntimeError)):
                run_bounded(FUNCTIONS + name, b"")
        assert psutil.Process().num_fds() == before

    def test_an_interrupted_question_leaves_no_answer_to_the_next(self, monkeypatch):
        def interrupted(_line):
            raise KeyboardInterrupt

        run_bounded(FUNCTIONS + "own_pid", b"")
        with monkeypatch.context() as patch:
            patch.setattr(json, "loads", interrupted)
            with pytest.raises(KeyboardInterrupt):
                run_bounded(FUNCTIONS + "sleep", b"", 0.01)
        assert helpers() == set()


DRIVER = """
import os, sys
sys.path.append("tests")
from audio import bounded_process
from audio.bounded_process import run_bounded
from untrusted import FUNCTIONS
own = int(run_bounded(FUNCTIONS + "own_pid", b""))
{}
"""


def driven(script: str) -> subprocess.Popen[str]:
    """A parent of its own, in which `own` is its process."""
    command = [sys.executable, "-c", DRIVER.format(script)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )


class TestParents:
    def test_the_processes_end_with_their_parent(self):
        with driven("print(own)") as parent:
            pid = int(parent.stdout.readline())
        assert parent.returncode == 0
        assert not psutil.pid_exists(pid)

    @pytest.mark.parametrize(
        "doing",
        ["input()", "bounded_process.BUDGET = 0.3; run_bounded(FUNCTIONS + 'spin', b'')"],
    )
    def test_and_when_it_is_killed(self, doing):
        """Idle at once, busy when its budget is spent."""
        with driven(f"print(own, flush=True); {doing}") as parent:
            child = psutil.Process(int(parent.stdout.readline()))
            parent.kill()
        child.wait(60)

    def test_a_fork_starts_its_own(self):
        script = """
if not os.fork():
    print(own, int(run_bounded(FUNCTIONS + "own_pid", b"")), flush=True)
    os._exit(0)
os.wait()
print(own, int(run_bounded(FUNCTIONS + "own_pid", b"")), flush=True)
"""
        with driven(script) as parent:
            (own, forked), (still, again) = (map(int, line.split()) for line in parent.stdout)
        assert own == still == again != forked

    def test_another_working_folder_and_ctrl_c_are_nothing_to_it(self, tmp_path):
        script = f"""
os.chdir({str(tmp_path)!r})
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.killpg(0, signal.SIGINT)
print(own == run_bounded(FUNCTIONS + "own_pid", b""))
"""
        command = [sys.executable, "-c", DRIVER.format(script)]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=REPOSITORY, start_new_session=True
        )
        assert done.stdout == "True\n", done.stderr

    def test_a_handler_loaded_by_its_path_needs_no_folder_on_the_path(self, tmp_path):
        """As the servers do: from another folder, with Python told to add none by itself."""
        script = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from audio import decode
sys.path.remove({str(REPOSITORY)!r})
data = open({str(REPOSITORY / "demo" / "conversation.ogg")!r}, "rb").read()
print(round(decode.decode_audio(data, 16_000, decode.AudioLimits(7_200, 2**28)).duration))
"""
        command = [sys.executable, "-P", "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert done.stdout == "120\n", done.stderr
