"""`scripts/gpu-check`: prints the report; the exit status is the verdict."""

import sys
from argparse import Namespace
from pathlib import Path

from benchmarks.gpu_check.checks import check_log
from benchmarks.gpu_check.page import Page, Status, leave_out
from benchmarks.gpu_check.sections import SECTIONS, run_apart
from config import ModelSettings


def make_page(settings: ModelSettings, quick: bool, output: Path | None) -> Page:
    """Run every check that this machine allows. The growing page, in which a running section is
    marked as not ended, is written to `output`. This process never uses the device, whose mode may
    allow one process alone. Raises OSError.
    """
    page = Page(quick)
    warnings: list[str] = []

    def run(section: str, settings: ModelSettings, title: str) -> bool:
        page.sections[title] = [leave_out("all", "the check did not end")]
        _keep(output, page)
        outcome = run_apart(section, settings, quick)
        page.sections[title] = outcome.findings
        warnings.extend(outcome.warnings)
        return outcome.loaded

    def skip(reason: str) -> None:
        left = [section for section in SECTIONS if section not in page.sections]
        page.sections |= {section: [leave_out("all", reason)] for section in left}

    if not run("Machine", settings, "Machine"):
        skip("the endpoint would not start")
        return page
    if run("Load", settings, "Load"):
        for section in SECTIONS[2:]:
            run(section, settings, section)
    else:
        skip("the models did not load")
        gpu = next(each for each in page.sections["Machine"] if each.check == "GPU")
        if settings.cuda_graphs and gpu.status is not Status.LEFT_OUT:
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
