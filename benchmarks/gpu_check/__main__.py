"""`scripts/gpu-check`: prints the report; the exit status is the verdict."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from benchmarks.gpu_check.checks import check_log, check_machine
from benchmarks.gpu_check.page import Page, findings_of, judge, leave_out
from benchmarks.gpu_check.sections import SECTIONS, run_apart
from config import ModelSettings
from whosaid.errors import StartError
from whosaid.runtime.device import choose_device, prepare_device


def make_page(settings: ModelSettings, quick: bool, output: Path | None) -> Page:
    """Run every check that this machine allows. The growing page, in which a running section is
    marked as not ended, is written to `output`. Raises OSError.
    """
    page = Page(quick)
    try:
        device = choose_device(settings.device)
    except StartError as error:
        refusal = judge("torch can use the device", "yes", str(error), fine=False)
        machine = findings_of(lambda: check_machine(settings, None))
        page.sections["Machine"] = [refusal, *machine]
        reason = "the endpoint would not start"
        page.sections |= {section: [leave_out("all", reason)] for section in SECTIONS}
        return page
    prepare_device(device)
    page.sections["Machine"] = findings_of(lambda: check_machine(settings, device))
    warnings: list[str] = []

    def run(section: str, settings: ModelSettings, title: str) -> bool:
        page.sections[title] = [leave_out("all", "the check did not end")]
        _keep(output, page)
        outcome = run_apart(section, settings, quick)
        page.sections[title] = outcome.findings
        warnings.extend(outcome.warnings)
        return outcome.loaded

    if run("Load", settings, "Load"):
        for section in SECTIONS[1:]:
            run(section, settings, section)
    else:
        page.sections |= {
            section: [leave_out("all", "the models did not load")] for section in SECTIONS[1:]
        }
        if settings.cuda_graphs and device.type == "cuda":
            without = settings.model_copy(update={"cuda_graphs": False})
            run("Load", without, "Load without graphs")  # shows whether graphs are the cause
    page.sections["Log"] = check_log(warnings)
    return page


def main(options: Namespace) -> int:
    """Print the page. Return 0 if all is as expected, 1 if not, 2 if nothing can be checked."""
    try:
        settings = ModelSettings.for_demo()
    except ValueError as error:
        print(f"scripts/gpu-check: {error}", file=sys.stderr)
        return 2
    try:
        page = make_page(settings, options.quick, options.output)
        _keep(options.output, page)
    except OSError as error:
        print(f"scripts/gpu-check: {options.output}: {error.strerror}", file=sys.stderr)
        return 2
    sys.stdout.write(page.markdown() + "\n")
    return 0 if page.fine else 1


def _keep(output: Path | None, page: Page) -> None:
    """Write the page so far. Raises OSError."""
    if output is not None:
        output.write_text(page.markdown() + "\n", encoding="utf-8")
