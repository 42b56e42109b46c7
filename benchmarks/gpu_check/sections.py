"""The sections of the check, each in a process of its own.

A CUDA error such as an illegal memory access spoils all that its process does afterwards, and a
process that aborts or hangs says nothing more. So each section loads the models anew, and the page
says how its process ended if the section itself reported nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu_check.checks import check_diarization, check_load, check_texts
from benchmarks.gpu_check.page import Finding, Page, Status, failure
from benchmarks.gpu_check.requests import check_requests
from benchmarks.gpu_check.speed import check_memory, check_speed
from benchmarks.gpu_check.subject import Subject, log_kept
from config import ModelSettings
from whosaid.runtime.device import choose_device, choose_dtype, prepare_device
from whosaid.runtime.environment import nvidia_device_present

# In their order; with the models loaded, but for "Load", which loads them, and "Requests".
SECTIONS: dict[str, Callable[[Subject], list[Finding]]] = {
    "Load": check_load,
    "Texts": check_texts,
    "Speed": check_speed,
    "Memory": check_memory,
    "Without graphs": check_texts,
    "Diarization": check_diarization,
    "Requests": check_requests,
}
LOADING_ITSELF = ("Load", "Requests")
MAX_SECONDS = 1800.0  # of a section, after which its process is ended


class Outcome(NamedTuple):
    """The findings of a section, the endpoint's warnings, and True if the models loaded."""

    findings: list[Finding]
    warnings: list[str]
    loaded: bool


def run_here(section: str, settings: ModelSettings, quick: bool) -> Outcome:
    """Run a section in this process. Raises StartError if the device cannot be used."""
    if section == "Without graphs":
        settings = settings.model_copy(update={"cuda_graphs": False})
    device = choose_device(settings.device, nvidia_device_present())
    prepare_device(device)
    subject = Subject(settings, device, choose_dtype(settings.dtype, device), quick)
    page = Page("", "")

    def check() -> list[Finding]:
        if section not in LOADING_ITSELF:
            subject.load()
        return SECTIONS[section](subject)

    with log_kept() as records:
        page.check(section, check)
    return Outcome(page.sections[section], records.messages, subject.loaded)


def run_apart(section: str, settings: ModelSettings, quick: bool) -> Outcome:
    """Run a section in a process of its own, which reads its settings from the same environment."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outcome.json"
        command = [sys.executable, "-m", "benchmarks.gpu_check", "--section", section]
        command += ["--outcome", str(file), *(["--quick"] if quick else [])]
        started = time.perf_counter()
        ended, log = _run(command)
        print(f"{section}: {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)
        if file.exists():
            return _read(file)
    return Outcome([failure(f"its process {ended}", log)], [], loaded=False)


def write(file: Path, outcome: Outcome) -> None:
    """Leave an outcome to the process that asked for it; all of it or nothing."""
    findings = [astuple(each) for each in outcome.findings]
    whole = {"findings": findings, "warnings": outcome.warnings, "loaded": outcome.loaded}
    part = file.with_suffix(".part")
    part.write_text(json.dumps(whole), encoding="utf-8")
    os.replace(part, file)


def _read(file: Path) -> Outcome:
    whole = json.loads(file.read_text(encoding="utf-8"))
    findings = [
        Finding(check, expected, found, Status(status), detail)
        for check, expected, found, status, detail in whole["findings"]
    ]
    return Outcome(findings, whole["warnings"], whole["loaded"])


def _run(command: list[str]) -> tuple[str, str]:
    """Run a command; return how its process ended and what it wrote."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=MAX_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        wrote = error.stderr or b""
        return f"did not end within {MAX_SECONDS:.0f} s", bytes(wrote).decode(errors="replace")
    status = done.returncode
    ended = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
    return ended, done.stdout + done.stderr
