"""Nothing leaves the machine: the server starts, answers a recording and its page, in a network
namespace that holds loopback alone, and the kernel counts packets to other hosts."""

import json
import os
import re
import subprocess
import sys

import pytest

from config import REPOSITORY
from tests.helpers.programs import run_python
from tests.support.audio_files import conversation, wav_file

# Runs in the namespace, and everything that it starts. What has no route is counted when a program
# tries to connect; a name is looked up by a datagram, whether to loopback or elsewhere.
IN_NAMESPACE = """
import fcntl, json, os, re, socket, struct, subprocess, sys, urllib.error, urllib.request

def counted():
    rows = [line.split() for line in open("/proc/net/snmp")]
    values = {head[0] + name: int(value)
              for head, row in zip(rows[::2], rows[1::2])
              for name, value in zip(head[1:], row[1:])}
    values |= {name: int(value) for name, value in map(str.split, open("/proc/net/snmp6"))}
    names = ("Ip:OutNoRoutes", "Ip6OutNoRoutes", "Udp:OutDatagrams", "Udp6OutDatagrams")
    return [values[name] for name in names]

def ask(path, body=None, **headers):
    request = urllib.request.Request(address + path, body, headers)
    with urllib.request.urlopen(request, timeout=100) as answer:
        return answer.read()

os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNET)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
    fcntl.ioctl(made, 0x8914, struct.pack("16sH14x", b"lo", 1))  # SIOCSIFFLAGS: up
before = counted()
with subprocess.Popen([sys.executable, *json.loads(sys.argv[1])], stderr=subprocess.PIPE,
                      text=True) as server:
    log = []
    try:
        for line in server.stderr:
            log.append(line)
            if found := re.search(r"listening on (http://127.0.0.1:[0-9]+)", line):
                break
        else:
            sys.exit("".join(log))
        address = found[1]
        recording = open(sys.argv[2], "rb").read()
        answer = json.loads(ask("/?num_speakers=2", recording, **{"Content-Type": "audio/wav"}))
        page = ask("/app/").decode()
        for path in re.findall(r"(?:src|href)=.(?!https?:|//|data:|#)[.]?/?([^\\"' >]+)", page):
            try:
                ask("/" + path if path.startswith("app/") else "/app/" + path)
            except urllib.error.HTTPError:
                pass
    finally:
        server.terminate()
        log.append(server.stderr.read())
after = counted()
try:
    socket.create_connection(("192.0.2.1", 443), timeout=1)
except OSError:
    pass
print(json.dumps({
    "left": [now - then for now, then in zip(after, before)],
    "seen": counted()[0] - after[0],
    "speakers": len({one["speaker"] for one in answer["speakers"]}),
    "page": len(page),
    "log": "".join(log),
}))
"""
MAY_UNSHARE = "import os; os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNET)"


@pytest.fixture(scope="module")
def lonely():
    """Skip if this kernel or container makes no network namespace."""
    if sys.platform != "linux" or sys.version_info < (3, 12):
        pytest.skip("namespaces are made by Linux, for Python 3.12")
    done = subprocess.run([sys.executable, "-c", MAY_UNSHARE], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("no network namespace can be made here: " + done.stderr.decode()[-80:].strip())


@pytest.mark.reliability
@pytest.mark.slow
def test_start_request_and_page_send_no_telemetry(lonely, tmp_path):
    kept = {name: os.environ[name] for name in ("PATH", "OMP_NUM_THREADS")}
    beginning = tmp_path / "beginning.wav"  # 10 s, in which two speak
    beginning.write_bytes(wav_file(conversation()[: 10 * 16_000], 16_000))
    server = json.dumps(["-m", "whosaid.server", "--embedded"])
    where = {"HOME": str(tmp_path), "HOST": "127.0.0.1", "PORT": "0", "PYTHONWARNINGS": "ignore"}
    variables = kept | where | {"PYTHONPATH": str(REPOSITORY)}
    done = run_python("-c", IN_NAMESPACE, server, beginning, env=variables)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["speakers"] == 2
    assert found["page"] > 1000
    assert re.search(r" INFO endpoint: models ready on cpu in \S+ after ", found["log"])
    assert found["log"].rstrip().endswith(" INFO server: drained")
    assert found["seen"] == 1, "the kernel does not count"
    assert found["left"] == [0, 0, 0, 0]
    # Where its telemetry is on, onnxruntime writes one at once, minutes before its first call.
    assert not list(tmp_path.rglob("Microsoft"))
