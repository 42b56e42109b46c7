"""Whole runs on Ray: each is a process of its own, and most of them use one cluster that is started
here. What recordings do to their workers is told by a handler without models; the last test starts
the command as a user does, with the endpoint's own handler, and compares with it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("ray")

from config import REPOSITORY, ModelSettings
from extras.archive import shards
from extras.archive.__main__ import main
from extras.archive.cluster import ClusterError, Pool, plan
from extras.archive.results import Results
from extras.archive.tests.stand_ins import TEXT, write_recordings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

TOKEN = secrets.token_hex(32)
SECONDS = 500  # that a run may take on the slowest machine
MODEL = str(REPOSITORY / "demo" / "models" / "asr")


@pytest.fixture(scope="module")
def environment(bucket) -> Iterator[dict[str, str]]:
    """Of all processes here, with the bucket's server and keys. Names of unix sockets may have 107
    bytes, so the folder is a short one.
    """
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        yield os.environ | {
            "RAY_TMPDIR": folder,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": TOKEN,
            "RAY_USAGE_STATS_ENABLED": "0",
            "ASR_MODEL": MODEL,
        }


@pytest.fixture(scope="module")
def driver(environment) -> Iterator[subprocess.Popen[str]]:
    """The parent of all runs but the last test's."""
    with subprocess.Popen(
        [sys.executable, "-m", "extras.archive.tests.driver"],
        cwd=REPOSITORY,
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        yield process


@pytest.fixture
def start(driver, tmp_path_factory) -> Iterator[Callable[..., Run]]:
    """Starts runs, and ends those that a test left."""
    runs: list[Run] = []

    def started(*arguments, **options) -> Run:
        runs.append(Run(driver, tmp_path_factory.mktemp("said"), *arguments, **options))
        return runs[-1]

    yield started
    for run in runs:
        if not run.has_ended:
            run.signal(signal.SIGKILL)
            run.end()


@pytest.fixture(scope="module")
def address(environment) -> Iterator[str]:
    """A cluster of two logical cores that asks for its token and ends with its stdin. Of them a
    worker takes one, so that two runs of one each go on at once.
    """
    options = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 2**27}
    script = (
        "import ray, sys\n"
        f"ray.init('local', **{options})\n"
        "print('address', ray.get_runtime_context().gcs_address, flush=True)\n"
        "sys.stdin.read()\n"
        "ray.shutdown()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env=environment,
        cwd="/",
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield next(line.split()[1] for line in process.stdout if line.startswith("address"))
    finally:
        process.communicate(timeout=SECONDS)


def wait_until(is_so) -> None:
    end = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def has_ended(process_id: int) -> bool:
    try:
        return psutil.Process(process_id).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Run:
    """One run on the recordings in `top/in` to `top/out`, which writes to files in `said`."""

    def __init__(
        self, driver, said: Path, top: Path | str, *options: str, handler: str = "stand_in"
    ) -> None:
        self._driver, self._said = driver, (said / "stdout", said / "stderr")
        arguments = (handler, f"{top}/in", "--out", f"{top}/out", *options)
        self._process_id = self._ask(*map(str, self._said), *arguments)
        self.has_ended = False

    def _ask(self, *told: str | int) -> int:
        print(json.dumps(told), file=self._driver.stdin, flush=True)
        return int(self._driver.stdout.readline())

    def signal(self, number: int) -> None:
        os.kill(self._process_id, number)

    def end(self) -> tuple[int, str, str]:
        """Exit status, stdout, stderr."""
        self.has_ended, status = True, self._ask(self._process_id)
        stdout, stderr = (file.read_text() for file in self._said)
        assert TEXT not in stdout + stderr
        return status, stdout, stderr


def outcomes(folder: Path) -> dict[str, tuple[str, int]]:
    """Code, empty where there is none, and number of the attempt by file name; whoever asks finds
    neither a file that is half written nor the mark of an attempt.
    """
    out, found = folder / "out", {}
    assert [path for path in out.rglob("*") if path.name.endswith(".part")] == []
    assert list((out / "attempts").iterdir()) == []
    for path in [*out.glob("index/*.json"), *out.glob("errors/*.json")]:
        record = json.loads(path.read_text())
        name = Path(record["path"]).name
        assert name not in found
        found[name] = record["code"], record["attempt"]
    return found


def test_whatever_a_recording_does_the_others_are_done(start, address, tmp_path):
    good = {f"good{number:02}.wav": f"say {number}" for number in range(6)}
    bad = {
        "kill.wav": "kill",
        "once.wav": f"kill_once {tmp_path / 'killed'}",
        "hang.wav": "hang",
        "text.wav": "refuse",
        "crash.wav": "crash",
    }
    write_recordings(tmp_path / "in", good | bad)
    options = ("--address", address, "--actors", "2", "--deadline", "5")
    status, stdout, stderr = start(tmp_path, *options).end()
    assert (status, "2 workers" in stderr) == (1, True), stderr
    codes = outcomes(tmp_path)
    assert {name: codes.pop(name) for name in bad} == {
        "kill.wav": ("WORKER_DIED", 3),
        "once.wav": ("", 2),
        "hang.wav": ("DEADLINE_EXCEEDED", 1),
        "text.wav": ("INVALID_AUDIO", 1),
        "crash.wav": ("UNEXPECTED", 1),
    }
    assert codes == dict.fromkeys(good, ("", 1))
    assert re.search(r"WORKER_DIED +1  .*kill.wav: .*3 times\n", stdout)
    assert "7 recordings done and 4 failed" in stdout


def test_a_killed_run_goes_on_where_it_was(start, address, tmp_path):
    go = tmp_path / "go"
    write_recordings(tmp_path / "in", {"a-wait.wav": f"wait {go} {'-' * 99}"})
    write_recordings(tmp_path / "in", {f"{number}.wav": f"say {number}" for number in range(6)})
    options = ("--address", address, "--actors", "2")
    run, results = start(tmp_path, *options), tmp_path / "out" / "results"
    # What tells the next run that one is done is written after its results.
    done = tmp_path / "out" / "index"
    wait_until(lambda: done.is_dir() and len(list(done.glob("*.json"))) == 6)
    waits = Path(f"{go} {'-' * 99}.waits")
    wait_until(lambda: waits.exists() and waits.read_text())
    # Who is ended while it writes leaves a part: the other worker has loaded its models by then.
    wait_until(lambda: not [*(tmp_path / "out" / "attempts").glob("*loading-*")])
    run.signal(signal.SIGKILL)
    assert run.end()[0] == -signal.SIGKILL
    # Ray ends the workers of a killed run a little later.
    wait_until(lambda: has_ended(int(waits.read_text())))
    first = {path: path.stat().st_mtime_ns for path in results.iterdir()}
    Path(f"{go} {'-' * 99}").touch()
    status, stdout, stderr = start(tmp_path, "--address", address).end()
    assert status == 0, stderr
    assert "1 recording done and 0 failed" in stdout
    assert {path: path.stat().st_mtime_ns for path in first} == first
    assert len(outcomes(tmp_path)) == 7
    status, stdout, stderr = start(tmp_path, "--address", "127.0.0.1:1").end()
    assert (status, stdout) == (
        0,
        "7 recordings were done before, and nothing is left.\n",
    )


def test_a_run_that_is_told_to_stop_leaves_no_mark(start, address, tmp_path):
    write_recordings(tmp_path / "in", {"wait.wav": f"wait {tmp_path / 'never'}"})
    run = start(tmp_path, "--address", address)
    wait_until((tmp_path / "never.waits").exists)
    run.signal(signal.SIGTERM)
    status, _, stderr = run.end()
    assert (status, "stopped" in stderr) == (130, True)
    assert outcomes(tmp_path) == {}


def test_two_runs_at_once_from_a_bucket_into_shards(start, address, bucket):
    client, top = bucket
    for number in range(16):
        client.put_object(Bucket="calls", Key=f"in/{number:03}.wav", Body=f"say {number}".encode())
    options = ("--address", address, "--shards", "--actors", "1")
    runs = [start(top, *options) for _ in range(2)]
    assert [run.end()[0] for run in runs] == [0, 0]
    results = Results(f"{top}/out", in_shards=True)
    assert len(results.finished()) == 16
    keys = [each["Key"] for each in client.list_objects_v2(Bucket="calls")["Contents"]]
    written = [key for key in keys if key.startswith("out/") and not key.endswith("/")]
    # An entry may be left of a result that both have computed; the next run deletes it.
    written = [key for key in written if not key.startswith("out/index/")]
    gathered = [key for key in written if key.startswith("out/shards/")]
    assert written == ["out/manifest.jsonl", *gathered]
    paths = [row["path"] for key in gathered for row in shards.read(f"{top}/{key}", ["path"])]
    assert sorted(set(paths)) == [f"{top}/in/{number:03}.wav" for number in range(16)]


def test_workers_that_cannot_load_end_the_run(start, address, tmp_path):
    """Here each dies of it; Ray tells of that on stdout."""
    write_recordings(tmp_path / "in", {"a.wav": "say a"})
    run = start(tmp_path, "--address", address, handler="killed_by_loading")
    status, stdout, stderr = run.end()
    assert (status, "Traceback" in stdout + stderr) == (2, False)
    reason = "the process died 3 times while loading the models"
    assert stderr.splitlines()[-1] == f"python -m extras.archive: {reason}"
    assert stderr.count("\n") < 10


def test_an_output_place_that_cannot_be_written_ends_the_run(start, address, tmp_path):
    write_recordings(tmp_path / "in", {"a.wav": f"touch {tmp_path / 'out' / 'results'}"})
    status, stdout, stderr = start(tmp_path, "--address", address).end()
    assert (status, stdout, "Traceback" in stderr) == (1, "", False)
    assert "Not a directory" in stderr
    assert stderr.count("\n") < 10


def test_a_cluster_that_is_not_there_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ASR_MODEL", MODEL)
    write_recordings(tmp_path / "in", {"a.wav": "say a"})
    nowhere = ["--out", str(tmp_path / "out"), "--address", "127.0.0.1:1"]
    assert main([str(tmp_path / "in"), *nowhere]) == 1
    told = capsys.readouterr().err
    assert "no cluster: " in told
    assert "Traceback" not in told


def test_files_of_all_kinds_equal_the_handler_one_by_one(environment, every_format, wav, tmp_path):
    """By the demo's Whisper, on Ray's own cluster on this machine, which the command starts."""
    import base64

    import numpy as np

    from errors import EndpointError
    from handler import EndpointHandler
    from testing.audio_files import speech

    files = {name: every_format[name] for name in ("a.wav", "a.flac", "a.mp3", "a.m4a", "opus.ogg")}
    files |= {f"speech{index}.wav": wav(speech(1 + index / 8)) for index in range(2)}
    files |= {"silent.wav": wav(np.zeros(16_000)), "empty.mp3": b"", "text.ogg": b"no audio"}
    files |= {"cut.flac": files["a.flac"][:900], "torn.mp3": b"\0" * 99, "none.wav": None}
    (tmp_path / "in").mkdir()
    lines = [json.dumps({"path": f"in/{name}"}) for name in files]
    (tmp_path / "list.jsonl").write_text("\n".join(lines))
    for name, content in files.items():
        if content is not None:
            (tmp_path / "in" / name).write_bytes(content)
    parameters = {"language": "en", "output": ["srt"]}
    command = [sys.executable, "-m", "archive", str(tmp_path / "list.jsonl"), "--out"]
    command += [str(tmp_path / "out"), "--parameters", json.dumps(parameters)]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr  # some are no audio
    assert len(files) == len(outcomes(tmp_path)) == 13
    handler = EndpointHandler(settings=ModelSettings(asr_model=MODEL))
    for path in [*tmp_path.glob("out/results/*.json"), *tmp_path.glob("out/errors/*.json")]:
        answer = json.loads(path.read_text())
        record = answer.pop("recording", answer)
        content = files[Path(record["path"]).name]
        if content is None:
            assert record["code"] == "NOT_FOUND"
            continue
        body = {"inputs": base64.b64encode(content).decode(), "parameters": parameters}
        if record["code"]:
            with pytest.raises(EndpointError) as raised:
                handler(body)
            assert f"{record['code']}: {record['detail']}" == str(raised.value)
        else:
            expected = handler(body)
            assert path.with_suffix(".srt").read_text() == expected.pop("output")["srt"]
            assert answer == expected


def test_the_pool_is_what_devices_allow():
    gpus = [{"CPU": 8.0, "GPU": 4.0}, {"CPU": 8.0}]
    assert plan(gpus, "auto") == Pool(4, 1, 1)
    assert plan(gpus, "auto", 2) == Pool(2, 1, 1)
    assert plan([{"CPU": 16.0, "GPU": 2.0}, *gpus], "cuda") == Pool(6, 1, 1)
    assert plan([{"CPU": 16.0, "GPU": 2.0}, {"CPU": 4.0}], "auto") == Pool(2, 7, 1)
    assert plan(gpus, "cpu") == Pool(2, 7)
    assert plan([{"CPU": 2.0}], "auto") == Pool(1, 1)
    assert plan([{"CPU": 2.0}], "auto", 2) == Pool(2, 1)
    assert plan([{"CPU": 16.0}], "auto") == Pool(3, 5)
    assert plan([{"CPU": 64.0}, {"CPU": 4.0}, {}], "auto") == Pool(16, 3)


def test_without_a_device_there_is_no_pool():
    with pytest.raises(ClusterError, match="DEVICE is cuda"):
        plan([{"CPU": 2.0}], "cuda")
    with pytest.raises(ClusterError, match="no machine"):
        plan([{}], "auto")
