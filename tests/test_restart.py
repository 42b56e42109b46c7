"""A process begins again without CUDA graphs once, and only where its command line began it."""

import os
import subprocess
import sys

import pytest

from config import REPOSITORY
from whosaid.runtime import servers
from whosaid.runtime.environment import turn_graphs_off

SCRIPT = """
import logging, os, sys, threading
from whosaid.runtime.servers import restart_without_graphs

logging.basicConfig(format="%(message)s")
print(os.getpid(), os.environ.get("CUDA_GRAPHS"), sys.argv[1:], flush=True)
listening = os.open("/dev/null", os.O_RDONLY)
work = lambda: restart_without_graphs("device lost")
if sys.argv[1:] == ["thread"]:
    starting = threading.Thread(target=work)
    starting.start()
    starting.join()
else:
    work()
print("gives up", len(os.listdir("/proc/self/fd")), flush=True)
"""


def run(command, **options):
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, **options
    )
    return done.stdout.splitlines(), done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="command lines are read in /proc")
@pytest.mark.parametrize("argument", ["", "thread"])
def test_process_restarts_once_with_its_command_line(tmp_path, argument):
    """Servers may start the application in a thread."""
    script = tmp_path / "serve.py"
    script.write_text(SCRIPT)
    (first, second, end), log = run([sys.executable, str(script), argument])
    assert first.split()[0] == second.split()[0]  # the same process, for who watches it
    assert (first.split()[1], second.split()[1]) == ("None", "0")
    assert first.split()[2] == second.split()[2] == str([argument])
    assert end.startswith("gives up")
    assert log.count("the start failed (device lost): the process starts again WITHOUT") == 1


FORKED = """
import os
from whosaid.runtime.servers import began_by_command_line

print(began_by_command_line(), flush=True)
if not (child := os.fork()):
    print(began_by_command_line(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="command lines are read in /proc")
def test_a_worker_that_another_process_made_is_left_alone(tmp_path):
    script = tmp_path / "serve.py"
    script.write_text(FORKED)
    assert run([sys.executable, str(script)])[0] == ["True", "False"]


def test_the_first_process_of_a_container_has_no_parent(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "serve"])
    own = tmp_path / "self"
    own.mkdir()
    (own / "cmdline").write_bytes(b"python\0-m\0serve\0")
    assert servers.began_by_command_line(tmp_path)
    (own / "cmdline").write_bytes(b"renamed\0")
    assert not servers.began_by_command_line(tmp_path)


def test_disabled_graphs_are_no_reason_to_restart(monkeypatch):
    monkeypatch.setenv("CUDA_GRAPHS", "0")
    monkeypatch.setattr(os, "execv", None)
    monkeypatch.setattr(servers, "began_by_command_line", lambda: True)
    assert not turn_graphs_off()
    servers.restart_without_graphs("device lost")
