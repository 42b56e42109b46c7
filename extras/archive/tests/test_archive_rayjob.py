"""rayjob.yaml starts a command line of the archive, in the image that the Dockerfile makes."""

import re
import shlex

import yaml
from packaging.requirements import Requirement

from config import REPOSITORY, ModelSettings
from extras.archive.options import read
from tests.test_parameters import TABLE

ARCHIVE = REPOSITORY / "extras" / "archive"
VARIABLES, JOB = yaml.safe_load_all((ARCHIVE / "rayjob.yaml").read_text(encoding="utf-8"))


def test_the_archive_has_the_commands_options():
    options = vars(read(["talks/", "--output-dir", "out"]))
    ours = {name for name, decision in TABLE.items() if decision.option} - {"text", "output"}
    assert options.keys() & TABLE.keys() == ours


def test_the_job_runs_the_command_on_the_required_ray():
    python, flag, module, *arguments = shlex.split(JOB["spec"]["entrypoint"])
    assert (python, flag, module) == ("python", "-m", "extras.archive")
    options = read(arguments)
    assert options.address == "auto"
    assert options.out.startswith("s3://")
    lines = (ARCHIVE / "requirements.txt").read_text(encoding="utf-8").splitlines()
    (required,) = (Requirement(line) for line in lines if line.startswith("ray"))
    assert JOB["spec"]["rayClusterSpec"]["rayVersion"] in required.specifier


def test_variables_set_models_module_path_and_no_telemetry():
    dockerfile = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
    variables = dict(VARIABLES["data"])
    assert variables.pop("PYTHONPATH") in re.findall(r"^WORKDIR (.+)$", dockerfile, re.MULTILINE)
    assert variables.pop("RAY_USAGE_STATS_ENABLED") == "0"
    assert variables
    assert set(variables) <= {name.upper() for name in ModelSettings.model_fields}
