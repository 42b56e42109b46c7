"""Untrusted bytes are read in processes that the system confines, and that leave nothing behind."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psutil
import pytest
from nightly import some
from tagged_files import TAGGED
from test_bombs import box, mp4
from untrusted import FUNCTIONS

from config import REPOSITORY
from whosaid.audio import sandbox
from whosaid.audio.decode import AudioLimits, check_container, decode_audio
from whosaid.audio.sandbox import Confined, run_confined
from whosaid.errors import InvalidAudio

LIMITS = AudioLimits(max_seconds=7_200, max_bytes=2**28)


def templates(parent: int | None = None) -> set[int]:
    """Return the templates of a process, by default this one."""
    return {
        child.pid
        for child in psutil.Process(parent).children()
        if any("whosaid.audio.sandbox.serve" in word for word in child.cmdline())
    }


@pytest.fixture(scope="module", autouse=True)
def _functions_of_tests():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sandbox, "PRELOADED", (*sandbox.PRELOADED, "untrusted"))
        sandbox._template.end()
        yield
    sandbox._template.end()


@pytest.fixture
def none_at_first():
    sandbox._template.end()
    assert templates() == set()
    yield
    sandbox._template.end()
    assert templates() == set()


class TestRecordings:
    @pytest.mark.parametrize("name", some(3, TAGGED))
    def test_names_by_the_ten_thousand_are_refused(self, name, monkeypatch):
        """libav takes a minute and more for each."""
        monkeypatch.setattr(sandbox, "HEADER_SECONDS", 0.2)
        with pytest.raises(InvalidAudio, match=r"takes too long|far more memory"):
            decode_audio(TAGGED[name](150_000), 16_000, LIMITS)

    def test_empty_tracks_by_the_ten_thousand_are_refused(self):
        with pytest.raises(InvalidAudio):
            decode_audio(mp4(box(b"trak") * 200_000), 16_000, LIMITS)

    def test_others_are_decoded_meanwhile_and_afterwards(self, monkeypatch, source):
        monkeypatch.setattr(sandbox, "HEADER_SECONDS", 0.2)
        files = [TAGGED["flac"](150_000)] * 2 + [source] * 2
        with ThreadPoolExecutor(len(files)) as threads:
            decoded = [threads.submit(decode_audio, data, 16_000, LIMITS) for data in files]
        errors = [future.exception() for future in decoded]
        assert [error and error.code for error in errors] == ["INVALID_AUDIO"] * 2 + [None] * 2

    @pytest.mark.parametrize("name", some(2, TAGGED))
    def test_five_thousand_are_not(self, name):
        data = TAGGED[name](5_000)
        assert decode_audio(data, 16_000, LIMITS).duration == pytest.approx(
            decode_audio(TAGGED[name](0), 16_000, LIMITS).duration
        )

    def test_a_header_can_be_looked_at_alone(self, source):
        check_container(source)
        with pytest.raises(InvalidAudio, match="no audio could be read"):
            check_container(b"no audio at all" * 99)


class TestLimits:
    def test_processor_time_is_limited(self, monkeypatch):
        monkeypatch.setattr(sandbox, "HEADER_SECONDS", 0.1)
        with pytest.raises(InvalidAudio, match="too long"):
            run_confined(FUNCTIONS + "compute", b"", 60.0)

    def test_a_function_that_gets_on_has_more(self, monkeypatch):
        monkeypatch.setattr(sandbox, "HEADER_SECONDS", 0.1)
        allowed = [0.1 * part for part in range(1, 11)]
        assert run_confined(FUNCTIONS + "compute", b"", 0.5, allowed) == 0.5
        with pytest.raises(InvalidAudio, match="too long"):
            run_confined(FUNCTIONS + "compute", b"", 2.0, allowed)

    def test_waiting_costs_nothing(self, monkeypatch):
        monkeypatch.setattr(sandbox, "HEADER_SECONDS", 0.1)
        assert run_confined(FUNCTIONS + "sleep", b"", 0.3) == 0.3

    @pytest.mark.skipif(sys.platform != "linux", reason="macOS enforces no limit of memory")
    def test_memory_is_limited_by_the_size(self):
        free, per_byte = sandbox.FREE_MEMORY, sandbox.MEMORY_PER_BYTE
        data = bytes(10_000_000)
        more = free + per_byte * len(data) * 3 // 4
        assert run_confined(FUNCTIONS + "allocate", data, more) == more
        for small, too_much in ((b"", more), (data, free + per_byte * len(data))):
            with pytest.raises(InvalidAudio, match="far more memory than its size"):
                run_confined(FUNCTIONS + "allocate", small, too_much)

    def test_no_file_and_no_connection_can_be_opened(self, tmp_path):
        (tmp_path / "file").touch()
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            found = run_confined(FUNCTIONS + "errors", b"", str(tmp_path / "file"), port)
        assert found == [f"OSError{errno.EMFILE}"] * 4

    def test_nothing_of_the_environment_is_passed_on(self, monkeypatch):
        for name in ("API_KEY", "CALLBACK_SECRET", "HF_TOKEN"):
            monkeypatch.setenv(name, "secret")
        sandbox._template.end()
        assert "secret" not in str(run_confined(FUNCTIONS + "environment", b""))


@pytest.mark.usefixtures("none_at_first")
class TestProcesses:
    def test_bytes_arrive_whole(self):
        data = os.urandom(3_000_000)
        assert run_confined(FUNCTIONS + "checksum", data) == sum(data)
        assert run_confined(FUNCTIONS + "checksum", b"") == 0
        with closing(Confined(FUNCTIONS + "halves", data)) as process:
            first, second = process.step(), process.step()
        assert (first.value, first.last, second.value, second.last) == ("first", False, "second", 1)
        assert first.content + second.content == data

    def test_one_that_finished_takes_the_next_recording(self, monkeypatch):
        pids = [run_confined(FUNCTIONS + "own_pid", b"") for _ in range(5)]
        assert len({*pids}) == 1
        assert pids[0] not in templates()
        with pytest.raises(InvalidAudio):
            check_container(b"no audio")
        again = run_confined(FUNCTIONS + "own_pid", b"")
        psutil.wait_procs([psutil.Process(pids[0])] if psutil.pid_exists(pids[0]) else [], 60)
        assert again != pids[0]
        assert not psutil.pid_exists(pids[0])

    def test_so_many_recordings_and_no_more(self):
        pids = [run_confined(FUNCTIONS + "own_pid", b"") for _ in range(250)]
        assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [100, 100, 50]

    def test_a_template_that_was_killed_is_replaced(self):
        run_confined(FUNCTIONS + "own_pid", b"")
        (before,) = templates()
        psutil.Process(before).kill()
        os.waitid(os.P_PID, before, os.WEXITED | os.WNOWAIT)
        for _ in range(3):
            run_confined(FUNCTIONS + "own_pid", b"")
        (after,) = templates()
        assert after != before

    @pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
    def test_a_crash_is_that_recordings_alone(self, number, source):
        with closing(Confined(FUNCTIONS + "halves", b"abcd")) as other:
            other.step()
            with pytest.raises(InvalidAudio, match="crashes"):
                run_confined(FUNCTIONS + "kill", b"", number)
            assert other.step().content == b"cd"
        assert decode_audio(source, 16_000, LIMITS).duration == 2.0

    def test_a_fault_of_ours_is_not_the_recordings(self, capfd):
        with pytest.raises(RuntimeError, match=r"KeyError, fail:\d+") as raised:
            run_confined(FUNCTIONS + "fail", b"secret")
        assert "secret" not in str(raised.value) + capfd.readouterr().err

    def test_many_at_once(self):
        with ThreadPoolExecutor(12) as threads:
            data = [os.urandom(10**5) for _ in range(60)]
            sums = threads.map(lambda each: run_confined(FUNCTIONS + "checksum", each), data)
        assert [*sums] == [sum(each) for each in data]
        assert len(templates()) == 1

    def test_descriptors_and_processes_go_with_the_recording(self, monkeypatch):
        monkeypatch.setattr(sandbox, "HEADER_SECONDS", 0.05)
        run_confined(FUNCTIONS + "own_pid", b"")
        (template,) = map(psutil.Process, templates())
        before = psutil.Process().num_fds(), template.num_fds()
        for name, argument in (("kill", [9]), ("compute", [60.0]), ("fail", [])):
            with pytest.raises((InvalidAudio, RuntimeError)):
                run_confined(FUNCTIONS + name, b"", *argument)
        with closing(Confined(FUNCTIONS + "halves", bytes(10**6))) as left:
            left.step()
        psutil.wait_procs(template.children(), 60)
        run_confined(FUNCTIONS + "own_pid", b"")
        deadline = time.monotonic() + 60
        while template.num_fds() > before[1] and time.monotonic() < deadline:
            time.sleep(0.01)  # the template has just forked
        assert psutil.Process().num_fds() == before[0]
        assert template.num_fds() <= before[1]
        assert len(template.children()) == 1

    def test_an_interrupted_step_leaves_no_answer_to_the_next(self, monkeypatch):
        def interrupted(_line):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(sandbox.json, "loads", interrupted)
            with pytest.raises(KeyboardInterrupt):
                run_confined(FUNCTIONS + "sleep", b"", 0.01)
        assert run_confined(FUNCTIONS + "checksum", b"\1") == 1

    def test_the_template_has_no_heavy_modules(self):
        script = (
            "import sys, whosaid.audio.libav; print(*{each.split('.')[0] for each in sys.modules})"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, cwd=REPOSITORY
        )
        assert not {"torch", "scipy", "pydantic", "transformers"} & {*done.stdout.split()}


DRIVER = """
import os, sys
sys.path.append("tests")
import psutil
from whosaid.audio import sandbox
from whosaid.audio.sandbox import Confined, run_confined
sandbox.PRELOADED += ("untrusted",)
from untrusted import FUNCTIONS
sandbox.start()
run_confined(FUNCTIONS + "own_pid", b"")
def template():
    children = psutil.Process().children()
    serving = (each for each in children if "audio.sandbox.serve" in str(each.cmdline()))
    return next(serving).pid
{}
"""


def driven(script: str) -> subprocess.Popen[str]:
    """Start a parent of its own, in which `template()` is the process ID of its template."""
    command = [sys.executable, "-c", DRIVER.format(script)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )


class TestParents:
    def test_all_end_when_it_is_killed(self):
        script = "process = Confined(FUNCTIONS + 'halves', b''); print(template(), flush=True)"
        with driven(f"{script}; run_confined(FUNCTIONS + 'compute', b'', 60)") as parent:
            template = psutil.Process(int(parent.stdout.readline()))
            forks = template.children()
            parent.kill()
        assert forks
        assert psutil.wait_procs([template, *forks], 60)[1] == []

    def test_a_fork_of_the_parent_starts_its_own(self):
        script = """
own = template()
if not os.fork():
    run_confined(FUNCTIONS + "own_pid", b"")
    print(own, template(), flush=True)
    os._exit(0)
os.wait()
run_confined(FUNCTIONS + "own_pid", b"")
print(own, template(), flush=True)
"""
        with driven(script) as parent:
            (own, forked), (still, again) = (map(int, line.split()) for line in parent.stdout)
        assert own == still == again != forked

    def test_another_working_folder_and_ctrl_c_are_nothing_to_it(self, tmp_path):
        script = f"""
own = template()
os.chdir({str(tmp_path)!r})
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.killpg(0, signal.SIGINT)
run_confined(FUNCTIONS + "own_pid", b"")
print(own == template())
"""
        command = [sys.executable, "-c", DRIVER.format(script)]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=REPOSITORY, start_new_session=True
        )
        assert done.stdout == "True\n", done.stderr

    def test_a_handler_loaded_by_its_path_needs_no_folder_on_the_path(self, tmp_path):
        """Like the servers: from another folder, with Python's safe path."""
        script = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from whosaid.audio import decode
sys.path.remove({str(REPOSITORY)!r})
data = open({str(REPOSITORY / "demo" / "conversation.ogg")!r}, "rb").read()
print(round(decode.decode_audio(data, 16_000, decode.AudioLimits(7_200, 2**28)).duration))
"""
        command = [sys.executable, "-P", "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert done.stdout == "120\n", done.stderr
