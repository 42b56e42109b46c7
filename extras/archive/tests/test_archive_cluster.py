"""Runs on Ray, started as a user starts them; and the pool for the devices."""

import base64
import json
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ray")

from config import DEMO_MODELS, ModelSettings
from extras.archive.__main__ import main
from extras.archive.cluster import ClusterError, Pool, plan
from extras.archive.tests.stand_ins import write_recordings
from handler import EndpointHandler
from tests.helpers.programs import run_python
from tests.support.audio_files import speech
from whosaid.errors import EndpointError

MODEL = str(DEMO_MODELS / "asr")
COMMAND = "import sys; from extras.archive import run; from extras.archive.__main__ import main\n"
STAND_INS = "from extras.archive.tests import stand_ins; run.load_handler = stand_ins.{}\n"


def run(folder: Path, stand_in: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command, with a handler of `stand_ins` if one is named. Names of unix sockets may
    have 107 bytes, so Ray's folder is a short one."""
    arguments = [str(folder / "list.jsonl"), "--out", str(folder / "out"), *options]
    chosen = STAND_INS.format(stand_in) if stand_in else ""
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as short:
        environment = os.environ | {"RAY_TMPDIR": short, "ASR_MODEL": MODEL}
        script = f"{COMMAND}{chosen}sys.exit(main(sys.argv[1:]))"
        done = run_python("-c", script, *arguments, env=environment)
    assert "Traceback" not in done.stdout + done.stderr
    return done


def list_recordings(folder: Path, *names: str) -> None:
    lines = [json.dumps({"path": f"in/{name}"}) for name in names]
    (folder / "list.jsonl").write_text("\n".join(lines))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_recording_that_fails_stops_no_other(tmp_path):
    commands = {f"{number}.wav": f"say {number}" for number in range(4)}
    commands |= {"kill.wav": "kill", "once.wav": f"kill_once {tmp_path / 'killed'}"}
    commands |= {"hang.wav": "hang", "crash.wav": "crash", "refuse.wav": "refuse"}
    write_recordings(tmp_path / "in", commands)
    list_recordings(tmp_path, *commands, "none.wav")
    done = run(tmp_path, "stand_in", "--actors", "2", "--deadline", "5")
    assert done.returncode == 1, done.stderr
    assert "5 recordings done and 5 failed" in done.stdout
    records = {}
    for path in tmp_path.glob("out/*/*.json"):
        answer = json.loads(path.read_text())
        record = answer.get("recording", answer)
        records[record["name"]] = record["code"], record["attempt"]
    assert records == {
        **dict.fromkeys([f"{number}.wav" for number in range(4)], ("", 1)),
        "kill.wav": ("WORKER_DIED", 3),
        "once.wav": ("", 2),
        "hang.wav": ("DEADLINE_EXCEEDED", 1),
        "crash.wav": ("UNEXPECTED", 1),
        "refuse.wav": ("INVALID_AUDIO", 1),
        "none.wav": ("NOT_FOUND", 1),
    }


@pytest.mark.reliability
@pytest.mark.timeout(600)
def test_answers_are_those_of_the_handler(every_format, wav, tmp_path):
    names = ("a.wav", "a.flac", "a.mp3", "a.m4a", "opus.ogg")
    files = {name: every_format[name] for name in names}
    files |= {f"speech{index}.wav": wav(speech(1 + index / 8)) for index in range(2)}
    files |= {"silent.wav": wav(np.zeros(16_000)), "empty.mp3": b"", "text.ogg": b"no audio"}
    files |= {"cut.flac": every_format["a.flac"][:900], "torn.mp3": b"\0" * 99}
    (tmp_path / "in").mkdir()
    for name, content in files.items():
        (tmp_path / "in" / name).write_bytes(content)
    list_recordings(tmp_path, *files)
    parameters = {"language": "en", "output": ["srt"]}
    done = run(tmp_path, "", "--parameters", json.dumps(parameters))
    assert done.returncode == 1, done.stderr
    parameters["return_timestamps"] = "word"  # as an archive asks
    handler = EndpointHandler(settings=ModelSettings(asr_model=MODEL))
    found = set()
    for path in [*tmp_path.glob("out/results/**/*.json"), *tmp_path.glob("out/errors/*.json")]:
        answer = json.loads(path.read_text())
        record = answer.pop("recording", answer)
        found.add(record["name"])
        content = base64.b64encode(files[record["name"]]).decode()
        body = {"inputs": content, "parameters": parameters}
        if record["code"]:
            with pytest.raises(EndpointError) as raised:
                handler(body)
            assert f"{record['code']}: {record['detail']}" == str(raised.value)
        else:
            expected = handler(body)
            assert path.with_suffix(".srt").read_text() == expected.pop("output")["srt"]
            answer.pop("made_with")
            assert answer == expected
    assert found == files.keys()


@pytest.mark.reliability
@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        ("no_model", "ASR_MODEL: there is no such model"),
        ("dies", "the process died 3 times while loading the models"),
    ],
)
def test_models_that_do_not_load_end_the_run(tmp_path, handler, reason):
    write_recordings(tmp_path / "in", {"a.wav": "say a", "b.wav": "say b"})
    list_recordings(tmp_path, "a.wav", "b.wav")
    done = run(tmp_path, handler, "--actors", "2")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == f"python -m extras.archive: {reason}"


def test_a_missing_cluster_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ASR_MODEL", MODEL)
    write_recordings(tmp_path / "in", {"a.wav": "say a"})
    nowhere = ["--out", str(tmp_path / "out"), "--address", "127.0.0.1:1"]
    assert main([str(tmp_path / "in"), *nowhere]) == 1
    assert "python -m extras.archive: no cluster: " in capsys.readouterr().err


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
    with pytest.raises(ClusterError, match="DEVICE is cuda"):
        plan([{"CPU": 2.0}], "cuda")
    with pytest.raises(ClusterError, match="no machine"):
        plan([{}], "auto")
