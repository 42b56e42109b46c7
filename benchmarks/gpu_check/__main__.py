"""`scripts/gpu-check`: prints the page and says by its exit status whether all is as expected."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import torch

from benchmarks.gpu_check.checks import (
    check_diarization,
    check_load,
    check_log,
    check_machine,
    check_texts,
)
from benchmarks.gpu_check.page import Finding, Page, judge
from benchmarks.gpu_check.speed import check_memory, check_speed
from benchmarks.gpu_check.subject import Subject, log_kept
from benchmarks.options import read_gpu_check
from config import ModelSettings, nvidia_device_present, prepare_environment
from device import choose_device, choose_dtype, prepare_device
from errors import StartError

TITLE = "GPU check"
# Sections after that of the machine, in their order.
SECTIONS = {
    "Load": check_load,
    "Texts": check_texts,
    "Speed": check_speed,
    "Memory": check_memory,
    "Diarization": check_diarization,
}
INTRODUCTION = (
    "Written by `scripts/gpu-check{quick}`; [docs/gpu.md](docs/gpu.md) explains the lines. "
    "Models: those that ASR_MODEL, ASSISTANT_MODEL and DIARIZATION_MODEL name, else the demo's."
)


def make_page(settings: ModelSettings, quick: bool) -> Page:
    """Run every check that this machine allows."""
    page = Page(TITLE, INTRODUCTION.format(quick=" --quick" if quick else ""))
    try:
        device = choose_device(settings.device, nvidia_device_present())
        dtype = choose_dtype(settings.dtype, device)
    except StartError as error:
        reason = str(error)
        page.check("Machine", lambda: _unusable(settings, reason))
        page.leave_out(list(SECTIONS), "the endpoint would not start")
        return page
    prepare_device(device)
    page.check("Machine", lambda: check_machine(settings, device))
    subject = Subject(settings, device, dtype, quick)
    with log_kept() as records:
        for section, check in SECTIONS.items():
            if section != "Load" and not subject.loaded:
                page.leave_out([section], "the models did not load")
                continue
            started = time.perf_counter()
            page.check(section, lambda check=check: check(subject))  # type: ignore[misc]
            print(f"{section}: {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)
            if subject.on_cuda:
                torch.cuda.empty_cache()
    page.check("Log", lambda: check_log(records))
    return page


def _unusable(settings: ModelSettings, reason: str) -> list[Finding]:
    """The machine's section where torch cannot use the device that is there or asked for."""
    refusal = judge("torch can use the device", "yes", reason, fine=False)
    return [refusal, *check_machine(settings, None)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the page; 0 where all is as expected, 1 where not, 2 where nothing can be checked."""
    options = read_gpu_check(arguments)
    prepare_environment()
    try:
        settings = ModelSettings.for_demo()
    except ValueError as error:
        print(f"scripts/gpu-check: {error}", file=sys.stderr)
        return 2
    page = make_page(settings, options.quick)
    text = page.markdown() + "\n"
    sys.stdout.write(text)
    if options.output is not None:
        try:
            options.output.write_text(text, encoding="utf-8")
        except OSError as error:
            print(f"scripts/gpu-check: {options.output}: {error.strerror}", file=sys.stderr)
            return 2
    return 0 if page.fine else 1


if __name__ == "__main__":
    sys.exit(main())
