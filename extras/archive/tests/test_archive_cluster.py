"""One run on Ray, started as a user starts it, with recordings that kill their workers among those
that the endpoint's handler answers; and the pool that devices allow.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ray")

from config import DEMO_MODELS, REPOSITORY, ModelSettings
from extras.archive.__main__ import main
from extras.archive.cluster import ClusterError, Pool, plan
from extras.archive.tests.stand_ins import write_recordings
from handler import EndpointHandler
from tests.support.audio_files import speech
from whosaid.errors import EndpointError

MODEL = str(DEMO_MODELS / "asr")
COMMAND = (
    "import sys; from extras.archive.__main__ import main;"
    " from extras.archive.tests.stand_ins import endpoint; sys.exit(main(sys.argv[1:], endpoint))"
)


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Names of unix sockets may have 107 bytes, so Ray's folder is a short one."""
    arguments = [str(folder / "list.jsonl"), "--out", str(folder / "out"), *options]
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as short:
        return subprocess.run(
            [sys.executable, "-c", COMMAND, *arguments],
            cwd=REPOSITORY,
            env=os.environ | {"RAY_TMPDIR": short, "ASR_MODEL": MODEL},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_whatever_a_recording_does_the_others_equal_the_handler(every_format, wav, tmp_path):
    names = ("a.wav", "a.flac", "a.mp3", "a.m4a", "opus.ogg")
    files: dict[str, bytes | None] = {name: every_format[name] for name in names}
    files |= {f"speech{index}.wav": wav(speech(1 + index / 8)) for index in range(2)}
    files |= {"silent.wav": wav(np.zeros(16_000)), "empty.mp3": b"", "text.ogg": b"no audio"}
    files |= {"cut.flac": every_format["a.flac"][:900], "torn.mp3": b"\0" * 99, "none.wav": None}
    deadly = {"kill.wav": "kill", "once.wav": f"kill_once {tmp_path / 'killed'}"}
    write_recordings(tmp_path / "in", deadly | {"crash.wav": "crash"})
    for name, content in files.items():
        if content is not None:
            (tmp_path / "in" / name).write_bytes(content)
    lines = [json.dumps({"path": f"in/{name}"}) for name in (*files, *deadly, "crash.wav")]
    (tmp_path / "list.jsonl").write_text("\n".join(lines))
    parameters = {"language": "en", "output": ["srt"]}
    done = run(tmp_path, "--parameters", json.dumps(parameters), "--actors", "2")
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert not (tmp_path / "out" / "attempts").exists() or not any(
        (tmp_path / "out" / "attempts").iterdir()
    )
    assert not [path for path in (tmp_path / "out").rglob("*") if path.name.endswith(".part")]
    parameters["return_timestamps"] = "word"  # as an archive asks
    handler = EndpointHandler(settings=ModelSettings(asr_model=MODEL))
    outcomes = {}
    for path in [*tmp_path.glob("out/results/**/*.json"), *tmp_path.glob("out/errors/*.json")]:
        answer = json.loads(path.read_text())
        record = answer.pop("recording", answer)
        name = Path(record["path"]).name
        outcomes[name] = record["code"], record["attempt"]
        if (content := files.get(name)) is None:
            continue
        body = {"inputs": base64.b64encode(content).decode(), "parameters": parameters}
        if record["code"]:
            with pytest.raises(EndpointError) as raised:
                handler(body)
            assert f"{record['code']}: {record['detail']}" == str(raised.value)
        else:
            expected = handler(body)
            assert path.with_suffix(".srt").read_text() == expected.pop("output")["srt"]
            answer.pop("made_with")
            assert answer == expected
    assert outcomes.pop("kill.wav") == ("WORKER_DIED", 3)
    assert outcomes.pop("once.wav") == ("", 2)
    assert outcomes.pop("crash.wav") == ("UNEXPECTED", 1)
    assert outcomes["none.wav"] == ("NOT_FOUND", 1)
    assert outcomes.keys() == files.keys()


def test_a_cluster_that_is_not_there_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ASR_MODEL", MODEL)
    write_recordings(tmp_path / "in", {"a.wav": "say a"})
    nowhere = ["--out", str(tmp_path / "out"), "--address", "127.0.0.1:1"]
    assert main([str(tmp_path / "in"), *nowhere]) == 1
    told = capsys.readouterr().err
    assert "no cluster: " in told
    assert "Traceback" not in told


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
