"""`scripts/gpu-check` on a CPU, and with stand-ins for torch's answers about a GPU."""

import os
import re
import subprocess
import sys
import time
from collections import Counter
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from benchmarks.gpu_check import __main__ as command
from benchmarks.gpu_check import checks, kernels, memory, sections, speed
from benchmarks.gpu_check.page import (
    HEADER,
    LONGEST_CELL,
    Page,
    Status,
    findings_of,
    judge,
    leave_out,
    note,
)
from benchmarks.gpu_check.subject import Subject, lasting, load_models
from benchmarks.options import read_gpu_check
from config import REPOSITORY, ModelSettings
from tests.helpers.cuda_emulator import CUDA, emulated_cuda, on_cuda
from tests.support.audio_files import conversation
from whosaid.runtime.device import choose_dtype

SCRIPT = REPOSITORY / "scripts" / "gpu-check"
SECTIONS = [*sections.SECTIONS, "Log"]
LONGEST_PAGE = 100  # lines
CPU = torch.device("cpu")


def lines_of(page):
    """(section, check, expected, found, status) of every line of a page."""
    section, lines = "", []
    for line in page.splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif line.startswith("| ") and not line.startswith(("| check |", "| --- |")):
            lines.append((section, *(cell.strip() for cell in line[2:-2].split(" | "))))
    return lines


@pytest.mark.reliability
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_quick_check_on_a_cpu_prints_one_page(tmp_path, monkeypatch, capsys):
    """Only one section runs in its own process, though all do for a user; the others transcribe
    the conversation up to a pause after two speakers."""
    beginning = lasting(conversation(), 9.9)

    def run(section, *options):
        apart = section == "Load"
        return (sections.run_apart if apart else sections.run_here)(section, *options)

    monkeypatch.setattr(sections, "Subject", partial(Subject, recording=beginning))
    monkeypatch.setenv("DEVICE", "cpu")
    # How fast this machine is at the moment is not looked at.
    monkeypatch.setattr(checks, "FIRST_REQUEST_EXTRA", 1e9)
    monkeypatch.setattr(speed, "QUICK_SECONDS", 4.0)
    monkeypatch.setattr(command, "run_apart", run)
    assert command.main(read_gpu_check(["--quick", "--output", str(tmp_path / "page.md")])) == 0
    printed = capsys.readouterr()
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == printed.out
    assert len(printed.out.splitlines()) <= LONGEST_PAGE
    assert re.fullmatch(r"Load: [\d.]+ s\n", printed.err)
    lines = lines_of(printed.out)
    assert list(dict.fromkeys(section for section, *_ in lines)) == SECTIONS
    assert {line[-1] for line in lines} == {Status.OK, Status.LEFT_OUT}
    assert all(len(line) == 1 + len(HEADER) and line[3] for line in lines)
    left_out = {check for _, check, *_, status in lines if status == Status.LEFT_OUT}
    assert {"GPU", "graphs captured at load", "memory after load", "RTFx, batch 96"} <= left_out
    found = {check: found for _, check, _, found, _ in lines}
    dtype = str(choose_dtype("auto", torch.device("cpu"))).removeprefix("torch.")
    assert found["weights"] == f"{dtype} on cpu"
    assert float(found["RTFx, batch 8"]) > 0
    assert re.fullmatch(r"\d+ words, [1-9] speakers", found["words and speakers"])


@pytest.mark.reliability
@pytest.mark.slow
def test_loads_and_texts_are_as_expected_on_an_emulated_gpu(monkeypatch):
    def load_there(settings, device, _):
        models = load_models(settings, CPU, torch.float32)
        return on_cuda(models) if device == CUDA else models

    monkeypatch.setattr("benchmarks.gpu_check.subject.load_models", load_there)
    beginning = lasting(conversation(), 9.9)
    monkeypatch.setattr(sections, "Subject", partial(Subject, recording=beginning))
    monkeypatch.setattr(sections, "choose_device", lambda _: CUDA)
    monkeypatch.setattr(sections, "choose_dtype", lambda *_: torch.float32)
    monkeypatch.setattr(sections, "prepare_device", lambda _: None)
    monkeypatch.setattr(checks, "LARGE_BATCH", 5)
    settings = ModelSettings.for_demo()
    with emulated_cuda(monkeypatch, rows=(1, 5)):
        outcomes = [sections.run_here(each, settings, True) for each in ("Load", "Texts")]
    assert not any(each.warnings for each in outcomes)
    statuses = Counter(line.status for each in outcomes for line in each.findings)
    assert statuses == {Status.OK: 12, Status.LEFT_OUT: 1}  # there is no float16


def test_interpreter_without_packages_gets_the_command_to_install(tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHON": str(bare)}
    done = subprocess.run([SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("scripts/gpu-check: first pip install torch transformers")


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA works here")
def test_unusable_gpu_fails_the_check_and_skips_the_rest(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DEVICE", "cuda")
    assert command.main(read_gpu_check(["--quick", "--output", str(tmp_path / "page.md")])) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("Machine: ")
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == printed.out
    lines = lines_of(printed.out)
    assert lines[0][1] == "torch can use the device"
    assert "DEVICE=cuda, but torch cannot use CUDA" in lines[0][3]
    assert {line[-1] for line in lines if line[0] != "Machine"} == {Status.LEFT_OUT}


def test_failing_check_is_a_line_beside_the_others():
    def fails():
        raise ValueError("a | b\nc" + "x" * 500)

    others = [note("figure", "1"), leave_out("other", "no time")]
    page = Page(True, {"first": findings_of(fails), "second": findings_of(lambda: others)})
    assert not page.fine
    (failure, figure, other) = lines_of(page.markdown())
    assert failure[0] == "first"
    assert failure[-1] == Status.NOT_OK
    assert failure[3].startswith("ValueError: a / b cxxx")
    assert len(failure[3]) == LONGEST_CELL
    assert (figure[-1], other[-1]) == (Status.OK, Status.LEFT_OUT)
    assert "**Not as expected**: 1 OK, 1 NOT OK, 1 left out." in page.markdown()


def test_first_line_summarises_the_page():
    page = Page(False)
    graphs = judge("graphs captured at load", "123", "123", fine=True)
    page.sections["Load"] = [note("load and warm-up", "8.2 s"), graphs]
    page.sections["Speed"] = [note("RTFx", "477.8 at batch 24"), note("GPU busy", "89%")]
    summary = page.markdown().splitlines()[4]
    figures = "starts in 8.2 s; graphs: 123; RTFx 477.8 at batch 24; GPU busy 89%"
    assert summary == f"As expected: 4 OK, 0 NOT OK, 0 left out. {figures}"


def profiled(events):
    """torch's profiler, where it saw these kinds of work from one second to another."""
    spans = [(kind, SimpleNamespace(start=start, end=end)) for kind, start, end in events]
    seen = [SimpleNamespace(device_type=kind, time_range=span) for kind, span in spans]
    return lambda **_: nullcontext(SimpleNamespace(events=lambda: seen))


def refuses(**_):
    raise RuntimeError("CUPTI is not permitted")


@pytest.mark.parametrize("graphs", [True, False])
def test_the_checked_kernels_are_the_engines(monkeypatch, graphs):
    """On a GPU: cuDNN's attention is permitted as at a start with or without graphs."""
    permitted = []
    monkeypatch.setattr(kernels.CUDNN, "permit", permitted.append)
    monkeypatch.setattr(kernels, "_check", lambda *_: note("error", "0%"))
    settings = ModelSettings.for_demo().model_copy(update={"cuda_graphs": graphs})
    subject = Subject(settings, torch.device("cuda"), torch.float16, quick=True)
    assert kernels.check_kernels(subject)
    assert permitted == [graphs]


# Two kernels at once, a pause, and a copy; and the CPU.
ON = torch.autograd.DeviceType
EVENTS = [(ON.CUDA, 2e6, 5e6), (ON.CUDA, 1e6, 3e6), (ON.CUDA, 8e6, 9e6), (ON.CPU, 0, 10e6)]


@pytest.mark.parametrize(
    ("profiler", "found", "status"),
    [
        (profiled(EVENTS), "50% at batch 24", Status.OK),
        (profiled([]), "torch's profiler saw no work of the GPU", Status.LEFT_OUT),
        (refuses, "torch's profiler failed: RuntimeError: CUPTI is not permitted", Status.LEFT_OUT),
    ],
)
def test_the_gpu_is_busy_while_any_of_its_work_runs(monkeypatch, profiler, found, status):
    monkeypatch.setattr(speed, "profile", profiler)
    monkeypatch.setattr(speed, "time_once", lambda *_: 10.0)
    subject = SimpleNamespace(on_cuda=True, device=CPU)
    finding = speed._note_busy(subject, SimpleNamespace(batch_size=24))
    assert (finding.check, finding.found, finding.status) == ("GPU busy", found, status)


def aborts(*_):
    os.abort()


def hangs(*_):
    time.sleep(60)


@pytest.mark.parametrize(
    ("run", "found"),
    [
        pytest.param(aborts, "its process was ended by signal 6", marks=pytest.mark.reliability),
        (hangs, "its process did not end within 0 s"),
    ],
)
def test_aborted_or_hung_process_spoils_only_its_section(run, found, monkeypatch, capsys):
    if run is hangs:
        monkeypatch.setattr(sections, "MAX_SECONDS", 0.3)
    monkeypatch.setattr(sections, "run_here", run)
    outcome = sections.run_apart("Texts", ModelSettings.for_demo(), quick=True)
    (finding,) = outcome.findings
    assert (finding.status, finding.found) == (Status.NOT_OK, found)
    assert not outcome.loaded
    assert capsys.readouterr().err.startswith("Texts: ")


def test_the_documented_tables_of_memory_are_those_of_the_arithmetic():
    document = (REPOSITORY / "docs" / "gpu.md").read_text(encoding="utf-8")
    assert memory.memory_table() in document
    assert memory.device_table() in document
