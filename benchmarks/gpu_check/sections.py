"""Runs the sections of the check, each in its own process.

After a CUDA error such as an illegal memory access every later call of the process fails, and a
process that aborts or hangs reports nothing. So each section runs in a new process with newly
loaded models. If a section reports nothing, the page shows how its process ended.

An A10G should need less than six minutes with large-v3 and distil-large-v3 (estimated).
"""

import logging
import sys
import time
from collections.abc import Callable
from logging.handlers import BufferingHandler
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import NamedTuple

from benchmarks.gpu_check.checks import check_load, check_machine, check_requests, check_texts
from benchmarks.gpu_check.kernels import check_kernels
from benchmarks.gpu_check.page import Finding, failure, findings_of, judge
from benchmarks.gpu_check.speed import check_speed
from benchmarks.gpu_check.subject import Subject
from config import ModelSettings
from whosaid.errors import StartError
from whosaid.runtime.device import choose_device, choose_dtype, prepare_device

CHECKS: dict[str, Callable[[Subject], list[Finding]]] = {
    "Machine": lambda subject: check_machine(subject.settings, subject.device),
    "Load": check_load,
    "Kernels": check_kernels,
    "Texts": check_texts,
    "Speed": check_speed,
    "Requests": check_requests,
}
SECTIONS = tuple(CHECKS)
LOADED = ("Texts", "Speed")  # sections that get loaded models
MAX_SECONDS = 1800.0  # of a section, after which its process is ended


class Outcome(NamedTuple):
    """The findings of a section, the endpoint's warnings, and True if the models loaded, or, of the
    machine, if torch can use the device.
    """

    findings: list[Finding]
    warnings: list[str]
    loaded: bool


def run_here(section: str, settings: ModelSettings, quick: bool) -> Outcome:
    """Run a section in this process."""
    try:
        device = choose_device(settings.device)
    except StartError as error:
        refusal = judge("torch can use the device", "yes", str(error), fine=False)
        machine = findings_of(lambda: check_machine(settings, None))
        return Outcome([refusal, *machine], [], loaded=False)
    prepare_device(device)
    subject = Subject(settings, device, choose_dtype(settings.dtype, device), quick)

    def check() -> list[Finding]:
        if section in LOADED:
            subject.load()
        return CHECKS[section](subject)

    logger, warnings = logging.getLogger("endpoint"), BufferingHandler(sys.maxsize)
    warnings.setLevel(logging.WARNING)
    logger.addHandler(warnings)
    try:
        findings = findings_of(check)
    finally:
        logger.removeHandler(warnings)
    messages = [record.getMessage() for record in warnings.buffer]
    return Outcome(findings, messages, section == "Machine" or hasattr(subject, "transcriber"))


def run_apart(section: str, settings: ModelSettings, quick: bool) -> Outcome:
    """Run a section in its own process, which writes to this one's stderr."""
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, run_here, section, settings, quick))
    started = time.perf_counter()
    process.start()
    sender.close()
    try:
        if receiver.poll(MAX_SECONDS):
            outcome: Outcome = receiver.recv()
            return outcome
        ended = f"did not end within {MAX_SECONDS:.0f} s"
    except EOFError:
        process.join()
        status = process.exitcode or 0
        ended = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
    finally:
        process.kill()
        process.join()
        print(f"{section}: {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)
    return Outcome([failure(f"its process {ended}")], [], loaded=False)


def _send(sender: Connection, run: Callable[..., Outcome], *what: object) -> None:
    sender.send(run(*what))
