"""Untrusted bytes are read in processes that the system confines, and that leave nothing behind."""

import ctypes
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

from config import REPOSITORY
from tests.helpers.nightly import some
from tests.helpers.programs import run_python
from tests.helpers.tagged_files import TAGGED
from tests.helpers.untrusted import FUNCTIONS
from tests.support.audio_files import box
from tests.test_bombs import mp4
from whosaid.audio import sandbox
from whosaid.audio.confinement import LAYERS
from whosaid.audio.decode import AudioLimits, check_container, decode_audio
from whosaid.audio.sandbox import Confined, run_confined
from whosaid.errors import InvalidAudio, Unavailable
from whosaid.scheduling.steps import run_steps

LIMITS = AudioLimits(max_seconds=7_200, max_bytes=2**28)


def templates(parent: int | None = None) -> set[int]:
    """Return the templates of a process, by default this one."""
    serves, children = "whosaid.audio.sandbox.serve", psutil.Process(parent).children()
    return {each.pid for each in children if any(serves in word for word in each.cmdline())}


def wait_for_end(pid: int) -> None:
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], 60)
    assert not psutil.pid_exists(pid)


@pytest.fixture(scope="module", autouse=True)
def _functions_of_tests():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sandbox, "PRELOADED", (*sandbox.PRELOADED, "tests.helpers.untrusted"))
        sandbox._template.end()
        yield
    sandbox._template.end()


@pytest.fixture
def preloaded(tmp_path_factory, monkeypatch):
    """A function that runs a script in the template of the test before it forks."""

    def preload(script: str) -> None:
        folder = tmp_path_factory.mktemp("preloaded")
        imports = "import os\nfrom whosaid.audio import confinement\n"
        (folder / "before_forks.py").write_text(imports + script)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setattr(sandbox, "PRELOADED", (*sandbox.PRELOADED, "before_forks"))
        sandbox._template.end()

    yield preload
    sandbox._template.end()


@pytest.fixture
def none_at_first():
    sandbox._template.end()
    assert templates() == set()
    yield
    sandbox._template.end()
    assert templates() == set()


@pytest.fixture
def impatient(monkeypatch):
    """Return a function that shortens MOST_SILENCE until a process is replaced: on a busy machine
    the replacement may need longer to start."""
    usual, take = sandbox.MOST_SILENCE, sandbox._template.take

    def take_with_patience(fresh):
        if fresh:
            monkeypatch.setattr(sandbox, "MOST_SILENCE", usual)
        return take(fresh)

    monkeypatch.setattr(sandbox._template, "take", take_with_patience)
    return lambda: monkeypatch.setattr(sandbox, "MOST_SILENCE", 0.6)


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
        tagged, plain = (decode_audio(TAGGED[name](n), 16_000, LIMITS) for n in (5_000, 0))
        assert tagged.duration == pytest.approx(plain.duration)

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

    @pytest.mark.parametrize("lacking", [(), ("system_calls",), ("system_calls", "files")])
    def test_code_in_the_process_is_refused(self, lacking, preloaded, tmp_path, caplog):
        """Also on kernels that lack layers. The log says which layers hold."""
        preloaded("".join(f"confinement._deny_{each} = lambda _: False\n" for each in lacking))
        (tmp_path / "file").write_text("content")
        (tmp_path / "program").write_text("#!none\n")
        (tmp_path / "program").chmod(0o755)
        secret = ctypes.create_string_buffer(b"API_KEY=secret")
        with socket.create_server(("127.0.0.1", 0)) as server:
            targets = server.getsockname()[1], os.getpid(), ctypes.addressof(secret)
            with subprocess.Popen([sys.executable], stdin=subprocess.PIPE) as other:
                arguments = str(tmp_path), *targets, other.pid
                found = run_confined(FUNCTIONS + "attempts", b"", *arguments)
                other.kill()
                sandbox._template.end()  # a process that attached to the other holds it
        with caplog.at_level("INFO", "endpoint"):
            sandbox.log_layers()
        layers = run_confined(f"{sandbox.__name__}:held_layers", b"")
        assert all(layer in caplog.text for layer in LAYERS)
        assert len(layers) <= len(LAYERS) - len(lacking)
        refused = {name for name, outcome in found.items() if outcome != "done"}
        assert {"open", "create", "connect", "pipe"} <= refused
        if "landlock" in layers:
            assert {"unlink", "mkdir", "rename", "read memory", "attach", "execute"} <= refused
        if "seccomp" in layers:
            assert {*found} == refused
            assert (tmp_path / "file").read_text() == "content"

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
            first, second = run_steps(process.step()), run_steps(process.step())
        assert (first.value, first.last, second.value, second.last) == ("first", False, "second", 1)
        assert first.content + second.content == data

    def test_one_that_finished_takes_the_next_recording(self):
        pids = [run_confined(FUNCTIONS + "own_pid", b"") for _ in range(5)]
        assert len({*pids}) == 1
        assert pids[0] not in templates()
        with pytest.raises(InvalidAudio):
            check_container(b"no audio")
        assert run_confined(FUNCTIONS + "own_pid", b"") != pids[0]
        wait_for_end(pids[0])

    def test_a_fork_serves_a_hundred_recordings(self):
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

    @pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS])
    def test_a_crash_is_that_recordings_alone(self, number, source):
        with closing(Confined(FUNCTIONS + "halves", b"abcd")) as other:
            run_steps(other.step())
            with pytest.raises(InvalidAudio, match="crashes"):
                run_confined(FUNCTIONS + "kill", b"", number)
            assert run_steps(other.step()).content == b"cd"
        assert decode_audio(source, 16_000, LIMITS).duration == 2.0

    @pytest.mark.parametrize("ended", [signal.SIGKILL, signal.SIGTERM])
    def test_one_that_the_machine_ended_is_replaced_once(self, ended):
        """The caller gets each step once, whichever process computes it."""
        with closing(Confined(FUNCTIONS + "pids", b"")) as process:
            steps = [run_steps(process.step()).value]
            psutil.Process(steps[0][1]).send_signal(ended)
            steps += [run_steps(process.step()).value for _ in range(2)]
            assert [number for number, _ in steps] == [0, 1, 2]
            assert steps[0][1] != steps[1][1] == steps[2][1]
            psutil.Process(steps[2][1]).send_signal(ended)
            with pytest.raises(Unavailable):
                run_steps(process.step())

    def test_one_that_stands_still_is_replaced_and_holds_no_thread(self, impatient):
        with closing(Confined(FUNCTIONS + "pids", b"")) as process:
            pid = run_steps(process.step()).value[1]
            os.kill(pid, signal.SIGSTOP)
            impatient()
            step = process.step()
            step.send(None)  # it gives way
            assert run_steps(step).value[0] == 1
        wait_for_end(pid)

    def test_a_template_that_stands_still_is_replaced(self, impatient):
        with closing(Confined(FUNCTIONS + "halves", b"abcd")) as other:
            run_steps(other.step())
            (before,) = templates()
            os.kill(before, signal.SIGSTOP)
            impatient()
            assert run_confined(FUNCTIONS + "checksum", b"\1") == 1
            assert run_steps(other.step()).content == b"cd"
        assert before not in templates()

    def test_without_free_processes_it_is_unavailable(self, preloaded):
        """The template survives, and with it the forks that it has."""
        preloaded("""
fork, calls = os.fork, []
def limited():
    calls.append(None)
    if len(calls) in (2, 3):
        raise BlockingIOError
    return fork()
os.fork = limited
""")
        with closing(Confined(FUNCTIONS + "halves", b"abcd")) as other:
            run_steps(other.step())
            before = templates()
            with pytest.raises(Unavailable) as raised:
                run_confined(FUNCTIONS + "own_pid", b"")
            assert raised.value.status == 503
            assert run_confined(FUNCTIONS + "checksum", b"\1") == 1
            assert run_steps(other.step()).content == b"cd"
        assert templates() == before

    def test_one_that_computes_gives_way_and_ends_with_its_request(self):
        with closing(Confined(FUNCTIONS + "own_pid_and_compute", b"", 60.0)) as process:
            pid = run_steps(process.step()).value
            step = process.step()
            for _ in range(2):
                step.send(None)
            step.close()
        wait_for_end(pid)

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
            with pytest.raises((InvalidAudio, Unavailable, RuntimeError)):
                run_confined(FUNCTIONS + name, b"", *argument)
        with closing(Confined(FUNCTIONS + "halves", bytes(10**6))) as left:
            run_steps(left.step())
        psutil.wait_procs(template.children(), 60)
        run_confined(FUNCTIONS + "own_pid", b"")
        deadline = time.monotonic() + 60
        while template.num_fds() > before[1] and time.monotonic() < deadline:
            time.sleep(0.01)  # the template has just forked
        assert psutil.Process().num_fds() <= before[0]
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
        script = "import sys, whosaid.audio.libav; print(*{it.split('.')[0] for it in sys.modules})"
        modules = run_python("-c", script).stdout.split()
        assert not {"torch", "scipy", "pydantic", "transformers"} & {*modules}


DRIVER = """
import os
import psutil
from whosaid.audio import sandbox
from whosaid.audio.sandbox import Confined, run_confined
sandbox.PRELOADED += ("tests.helpers.untrusted",)
from tests.helpers.untrusted import FUNCTIONS
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
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=REPOSITORY)


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

    def test_a_changed_folder_and_ctrl_c_do_not_stop_it(self, tmp_path):
        script = f"""
own = template()
os.chdir({str(tmp_path)!r})
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.killpg(0, signal.SIGINT)
run_confined(FUNCTIONS + "own_pid", b"")
print(own == template())
"""
        done = run_python("-c", DRIVER.format(script), start_new_session=True)
        assert done.stdout == "True\n", done.stderr

    def test_a_handler_loaded_by_path_needs_no_import_path(self, tmp_path):
        """Servers import it so: from another folder, with Python's safe path."""
        script = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from whosaid.audio import decode
sys.path.remove({str(REPOSITORY)!r})
data = open({str(REPOSITORY / "demo" / "conversation.ogg")!r}, "rb").read()
print(round(decode.decode_audio(data, 16_000, decode.AudioLimits(7_200, 2**28)).duration))
"""
        done = run_python("-P", "-c", script, cwd=tmp_path)
        assert done.stdout == "120\n", done.stderr
