"""rayjob.yaml starts a command line of the archive, in the image that the Dockerfile makes."""

from __future__ import annotations

import re
import shlex

import yaml
from packaging.requirements import Requirement

from config import REPOSITORY, ModelSettings
from extras.archive.options import read

ARCHIVE = REPOSITORY / "extras" / "archive"
VARIABLES, JOB = yaml.safe_load_all((ARCHIVE / "rayjob.yaml").read_text(encoding="utf-8"))
CLUSTER = JOB["spec"]["rayClusterSpec"]


def test_the_job_runs_the_command_on_the_cluster_that_it_makes():
    python, flag, module, *arguments = shlex.split(JOB["spec"]["entrypoint"])
    assert (python, flag, module) == ("python", "-m", "extras.archive")
    options = read(arguments)
    assert options.address == "auto"
    assert options.out.startswith("s3://")


def test_the_cluster_has_the_ray_that_is_required():
    text = (ARCHIVE / "requirements.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("ray")]
    (required,) = map(Requirement, lines)
    assert CLUSTER["rayVersion"] in required.specifier


def test_variables_are_those_of_the_models_the_place_of_the_modules_and_no_telemetry():
    dockerfile = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
    variables = dict(VARIABLES["data"])
    assert variables.pop("PYTHONPATH") in re.findall(r"^WORKDIR (.+)$", dockerfile, re.MULTILINE)
    assert variables.pop("RAY_USAGE_STATS_ENABLED") == "0"
    assert variables
    assert set(variables) <= {name.upper() for name in ModelSettings.model_fields}
