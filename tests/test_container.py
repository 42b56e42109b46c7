"""Dockerfile, .dockerignore and compose.yaml name existing files and the packages of setup."""

import json
import os
import re
import shlex
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from config import REPOSITORY, SPEAKERS_MODEL, ModelSettings
from tests.helpers.loopback import Handler, Loopback
from whosaid.runtime.environment import cache_folder
from whosaid.server.settings import ServerSettings


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions in order, each with its arguments on one line."""
    text = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines) if word]


def stages() -> list[dict[str, list[str]]]:
    """Return the arguments of each stage's instructions, by the instruction's name."""
    found: list[dict[str, list[str]]] = []
    for word, rest in instructions():
        if word == "FROM":
            found.append({})
        found[-1].setdefault(word, []).append(rest)
    return found


BUILD, FINAL = stages()
SETUP = (REPOSITORY / "scripts" / "environment").read_text(encoding="utf-8")
COPIED = [place for copy in FINAL["COPY"] if "--from" not in copy for place in copy.split()[:-1]]
ENVIRONMENT = dict(word.split("=", 1) for line in FINAL["ENV"] for word in shlex.split(line))
COMPOSE = yaml.safe_load((REPOSITORY / "compose.yaml").read_text(encoding="utf-8"))
IGNORED = [
    line
    for line in (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]


def is_sent(path: Path) -> bool:
    """Return whether the builder gets a file: the last pattern of .dockerignore decides that
    matches it or a folder above it."""
    places = [str(path), *map(str, path.parents)]
    sent = True
    for line in IGNORED:
        pattern = line.removeprefix("!").removeprefix("**/")
        names = [Path(place).name for place in places] if "**/" in line else places
        if any(fnmatch(name, pattern) for name in names if "/" not in name or "/" in pattern):
            sent = line.startswith("!")
    return sent


def in_image(path: Path) -> bool:
    places = [path, *path.parents]
    named = any(place.match(pattern) for place in places for pattern in COPIED)
    return named and is_sent(path)


def test_image_holds_the_package_and_its_models():
    held = {*(REPOSITORY / "whosaid").rglob("*.py"), *(REPOSITORY / SPEAKERS_MODEL).rglob("*.*")}
    held |= {REPOSITORY / f"{name}.py" for name in ("config", "diarization_utils", "handler")}
    held |= {*(REPOSITORY / "demo" / "models" / "asr").glob("*.safetensors")}
    assert len(held) > 100
    assert [path for path in held if not in_image(path.relative_to(REPOSITORY))] == []


@pytest.mark.parametrize(
    "path",
    [
        *(".git/config", ".venv/ready", ".env", "tests/conftest.py", "demo/conversation.ogg"),
        *("benchmarks/speed.py", "deploy.py", "whosaid/__pycache__/x.pyc"),
        "whosaid/server/__pycache__/x.pyc",
    ],
)
def test_nothing_else_is_sent_to_the_builder(path):
    assert not is_sent(Path(path))


def test_both_stages_use_setups_python_and_hashed_packages():
    steps = " && ".join(BUILD["RUN"])
    assert "--no-deps --require-hashes -r lock.txt" in steps
    assert re.findall(r"\S+==\d\S*", steps) == []
    (version,) = re.findall(r"^prepare \.venv ([\d.]+)", SETUP, re.MULTILINE)
    (image,) = {stage["FROM"][0].split()[0] for stage in (BUILD, FINAL)}
    assert re.fullmatch(rf"python:{version}-slim-bookworm@sha256:[0-9a-f]{{64}}", image)


def test_ci_pins_images_and_actions_by_digest():
    text = (REPOSITORY / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    job = yaml.safe_load(text)["jobs"]["gate"]
    assert re.fullmatch(r"python:3\.12-bookworm@sha256:[0-9a-f]{64}", job["container"])
    used = [step["uses"] for step in job["steps"] if "uses" in step]
    assert [one for one in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", one)] == []


def test_image_runs_the_server_as_its_first_process(monkeypatch):
    """Whisper base of the package index goes into the volume: the root is read-only."""
    assert json.loads(FINAL["CMD"][0]) == ["python", "-m", "whosaid.server"]
    assert "ENTRYPOINT" not in FINAL
    settings = ServerSettings(host=ENVIRONMENT["HOST"], port=int(ENVIRONMENT["PORT"]))
    assert (settings.host, FINAL["EXPOSE"]) == ("0.0.0.0", [str(settings.port)])
    monkeypatch.setattr(os, "environ", ENVIRONMENT | {"HOME": "/home/server"})
    assert cache_folder().is_relative_to(ENVIRONMENT["HF_HOME"])


def test_model_of_the_build_is_readable_for_any_user():
    (baked,) = [step for step in BUILD["RUN"] if '"$MODEL"' in step]
    assert "mkdir -m 755 /opt/model" in baked
    assert "chmod -R a+rX /opt/model" in baked
    assert ENVIRONMENT["ASR_MODEL"] == "${MODEL:+/opt/model}"
    words = [word for stage in (BUILD, FINAL) for word in stage["ARG"]]
    models = [word.split("=")[1].strip('"') for word in words if word.startswith("MODEL=")]
    assert models == ["", ""]
    assert not any("/opt/model".startswith(each) for each in FINAL["VOLUME"][0].split())


@pytest.mark.parametrize(
    ("given", "port", "hosts", "model"),
    [
        ({}, "8080", "*", ""),
        ({"SAGEMAKER_BIND_TO_PORT": "8081"}, "8081", "*", ""),
        ({"ALLOWED_HOSTS": "a.example", "ASR_MODEL": "/m"}, "8080", "a.example", "/m"),
    ],
)
def test_serve_starts_the_server_as_sagemaker_asks(tmp_path, given, port, hosts, model):
    """`docker run IMAGE serve`; https://docs.aws.amazon.com/sagemaker/latest/dg/\
    your-algorithms-inference-code.html"""
    python = tmp_path / "python"
    shown = '"$*" "$HOST" "$PORT" "$ALLOWED_HOSTS" "$ASR_MODEL"'
    python.write_text(f"#!/bin/sh\nprintf '%s\\n' {shown}\n")
    python.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **given}
    (copied,) = [each.split()[-2:] for each in FINAL["COPY"] if each.endswith("/serve")]
    script, place = REPOSITORY / copied[0], Path(copied[1])
    done = subprocess.run([script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["-m whosaid.server", "0.0.0.0", port, hosts, model]
    assert str(place.parent) in ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"]


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
def test_the_health_check_asks_health(status, healthy):
    paths = []

    class Answer(Handler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send(status)

    (check,) = FINAL["HEALTHCHECK"]
    command = json.loads(check.partition("CMD ")[2])
    assert command[0] == "python"
    with Loopback(Answer) as listening:
        # A proxy is for what is outside.
        given = {"PORT": str(listening.server_port), "http_proxy": "http://127.0.0.1:9"}
        done = subprocess.run(
            [sys.executable, *command[1:]], env=os.environ | given, capture_output=True, check=False
        )
    assert (paths, done.returncode == 0) == (["/health"], healthy)


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_compose_gives_settings_as_variables_and_three_places_to_write(name):
    service = COMPOSE["services"][name]
    assert FINAL["USER"][0].isdigit()
    assert ("deploy" in service) == (name == "gpu")
    grace = int(service["stop_grace_period"].removesuffix("s"))
    assert grace > ServerSettings.model_fields["drain_timeout"].default
    assert service["volumes"] == [f"models:{ENVIRONMENT['HF_HOME']}", "data:/data"]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert ENVIRONMENT["MPLCONFIGDIR"].startswith("/tmp/")
    fields = {*ModelSettings.model_fields, *ServerSettings.model_fields}
    # Where it listens is the image's matter.
    assert {each.lower() for each in service["environment"]} == fields - {"host", "port"}
    assert set(service["environment"].values()) == {None}
