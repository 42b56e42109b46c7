"""What would fail, or cost in vain, once a machine is paid for; found before anything is created.

A fault ends the deployment, a note is only told. What the Hub is asked for is left out where it
cannot be reached, with a note that says so.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError

from config import (
    MODEL_VARIABLES,
    ModelReference,
    ModelSettings,
    misspelt_variables,
)
from deployment.memory import GB, PUBLISHED, Dimensions, need_of, need_on_cpu
from deployment.options import CUSTOM, MANAGED, MODELS, REGIONS
from server.settings import ServerSettings

# GB of one GPU, and the types whose size N has 2 GB of memory for each of N processors: the
# platform's table of instances (huggingface.co/docs/inference-endpoints, "Pricing").
GPUS = {
    "nvidia-t4": 16,
    "nvidia-l4": 24,
    "nvidia-a10g": 24,
    "nvidia-l40s": 48,
    "nvidia-a100": 80,
    "nvidia-h100": 80,
    "nvidia-h200": 141,
}
CPUS, CPU_GB = ("intel-icl", "intel-spr", "intel-xeon"), 2
# Bytes of a number by DTYPE; `auto` takes two, on a CPU where it multiplies in bfloat16.
WIDTHS = {"float32": 4, "int8": 1}
BFLOAT16_CPU = "intel-spr"
# Precisions that the other kind of device has not.
REFUSED = {"gpu": ("int8",), "cpu": ("float16",)}
DEFAULT_ROWS = 24
# Pipelines that are gated, and what else they load that is; pyannote.audio 4 loads the last one.
GATED = "pyannote/speaker-diarization"
SEGMENTATION, COMMUNITY = "pyannote/segmentation-3.0", "pyannote/speaker-diarization-community-1"
PARTS = (SEGMENTATION, "pyannote/segmentation", "pyannote/wespeaker-voxceleb-resnet34-LM")
NEMOTRON = "nvidia/Nemotron-3-Diarization"
IN_REPOSITORY = "/repository"
PATIENCE = 20.0  # seconds for an answer of the Hub
NOT_FOUND = (401, 404)
# Of the HTTP library that huggingface_hub's release uses: a server that cannot be reached.
HTTPError: type[BaseException] = HfHubHTTPError.__bases__[0]


@dataclass
class Findings:
    """Lines of what was found."""

    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def command_fault(options: Namespace) -> str | None:
    """What is wrong with the variables of the command line by themselves, if anything."""
    variables = dict(options.env)
    if misspelt := misspelt_variables(ModelSettings, ServerSettings, given=variables):
        return f"--env: {misspelt[0]}"
    try:
        _check_variables(variables)
    except ValueError as error:
        return f"--env: {error}"
    return None


def _check_variables(variables: Mapping[str, str]) -> None:
    """Check what another machine's environment will have, but for models; nothing of this one's
    counts. Raises ValueError naming the first variable that is wrong.
    """
    given = {name.lower(): value for name, value in variables.items() if value}
    models = {name.lower(): ModelReference("elsewhere") for name in MODEL_VARIABLES}
    for settings in (ModelSettings, ServerSettings):
        fields = settings.model_fields
        values = {name: field.default for name, field in fields.items()} | models
        values |= {name: given[name] for name in fields.keys() & given.keys() - models.keys()}
        settings.from_environment(**{name: values[name] for name in fields})


def check(options: Namespace, token: str | None, own_token: str | None, keeps: bool) -> Findings:
    """All that is found about the deployment. `token` reads the repository, and `own_token` is the
    endpoint's; `keeps` is whether the endpoint may have one from before.
    """
    findings = Findings()
    hub = Hub(findings)
    _check_repository(options, hub, token)
    sizes = {name: _check_model(options, hub, name, own_token, keeps) for name in MODELS}
    _check_assistant(options, findings, sizes["ASR_MODEL"], sizes["ASSISTANT_MODEL"])
    _check_instance(options, findings)
    _check_memory(options, findings, sizes["ASR_MODEL"], sizes["ASSISTANT_MODEL"])
    return findings


class Hub:
    """Asks the Hub, and writes down what it says; not again once it could not be reached."""

    def __init__(self, findings: Findings) -> None:
        self.findings, self._reachable = findings, True

    def files(
        self, what: str, id: str, revision: str | None, token: str | None
    ) -> tuple[set[str], bool] | None:
        """The names of a repository's files, and whether it is gated; None where there is none, or
        nobody to ask.
        """
        if not self._reachable:
            return None
        try:
            info = HfApi(token=token or False).model_info(id, revision=revision, timeout=PATIENCE)
        except HfHubHTTPError as error:
            self._refused(what, id, revision, error)
            return None
        except (HTTPError, OSError, ValueError) as error:
            self._unreachable(error)
            return None
        return {each.rfilename for each in info.siblings or ()}, bool(info.gated)

    def check_access(self, what: str, id: str, token: str) -> None:
        """Whether the account of `token` has accepted the conditions of `id`."""
        if not self._reachable:
            return
        try:
            HfApi(token=token).auth_check(id)
        except GatedRepoError:
            self.findings.faults.append(
                f"{what}: {id} is gated: accept its conditions at https://hf.co/{id} with the"
                " account of ENDPOINT_HF_TOKEN"
            )
        except HfHubHTTPError as error:
            self._refused(what, id, None, error)
        except (HTTPError, OSError) as error:
            self._unreachable(error)

    def dimensions(self, id: str, revision: str | None, token: str | None) -> Dimensions | None:
        """Those of a Whisper, as far as they can be had."""
        if published := PUBLISHED.get(id):
            return published
        if not self._reachable:
            return None
        try:
            api = HfApi(token=token or False)
            file = api.hf_hub_download(id, "config.json", revision=revision)
            return Dimensions.read(id, json.loads(Path(file).read_text(encoding="utf-8")))
        except (HfHubHTTPError, HTTPError, OSError, KeyError, TypeError, ValueError):
            return None

    def _refused(self, what: str, id: str, revision: str | None, error: HfHubHTTPError) -> None:
        status = error.response.status_code
        if status not in NOT_FOUND:
            self._unreachable(f"it answered {status}")
            return
        at = f"@{revision}" if revision else ""
        self.findings.faults.append(f"{what}: the Hub has no {id}{at} that the token may read")

    def _unreachable(self, reason: object) -> None:
        self._reachable = False
        line = " ".join(str(reason).split())[:200]
        self.findings.notes.append(f"the Hub could not be asked whether the ids exist: {line}")


def _check_repository(options: Namespace, hub: Hub, token: str | None) -> None:
    found = hub.files("--repository", options.repository, options.revision, token)
    if found and options.container != CUSTOM and "handler.py" not in found[0]:
        hub.findings.faults.append(
            f"--repository: {options.repository} has no handler.py: upload this repository to it"
        )


def _check_model(
    options: Namespace, hub: Hub, variable: str, token: str | None, keeps: bool
) -> Dimensions | None:
    """The model's dimensions, where it is a Whisper and they are known."""
    what, text = MODELS[variable][0], getattr(options, variable.lower())
    if text == IN_REPOSITORY:
        return hub.dimensions(options.repository, options.revision, token)
    if not text or text.startswith("/") or Path(ModelReference.parse(text).name).is_absolute():
        return None  # nothing, or a folder there
    model = ModelReference.parse(text)
    found = hub.files(what, model.name, model.revision, token)
    if variable == "ASR_MODEL" and found and not _has_safetensors(found[0]):
        hub.findings.faults.append(
            f"{what}: {model.name} has no safetensors weights, and pickled ones are not loaded"
        )
    if model.name.startswith(GATED) or (found and found[1]):
        _check_licence(options, hub, what, model.name, token, keeps)
    if variable == "DIARIZATION_MODEL":
        if model.name in PARTS:
            hub.findings.faults.append(
                f"{what}: {model.name} is a part of a pipeline; use {COMMUNITY} or {GATED}-3.1"
            )
        if model.name == NEMOTRON and options.container == MANAGED:
            hub.findings.notes.append(
                f"{what}: {NEMOTRON} needs transformers 5.18, and the start fails in the older of"
                " the platform's two servers; --container hf-serve asks for the other"
            )
        return None
    return hub.dimensions(model.name, model.revision, token)


def _check_assistant(
    options: Namespace, findings: Findings, main: Dimensions | None, assistant: Dimensions | None
) -> None:
    """Whether the assistant reads and writes what the model does (asr/checkpoint/assistants.py)."""
    if main is None or assistant is None:
        return
    for name, (ours, its) in {
        "tokens": (main.vocabulary, assistant.vocabulary),
        "mel bins": (main.mel_bins, assistant.mel_bins),
    }.items():
        if ours != its:
            findings.faults.append(
                f"--assistant: {options.assistant_model} cannot draft for {options.asr_model}:"
                f" it has {its:,} {name}, and the model {ours:,}"
            )
            return


def _has_safetensors(files: set[str]) -> bool:
    return any(name.endswith(".safetensors") for name in files)


def _check_licence(
    options: Namespace, hub: Hub, what: str, id: str, token: str | None, keeps: bool
) -> None:
    if token:
        parts = [SEGMENTATION] if id.startswith(f"{GATED}-3") else []
        parts += [COMMUNITY] if options.container != MANAGED else []
        for each in dict.fromkeys([id, *(parts if id.startswith(GATED) else [])]):
            hub.check_access(what, each, token)
    elif not keeps:
        hub.findings.faults.append(
            f"{what}: {id} is gated: set ENDPOINT_HF_TOKEN to a token whose account has accepted"
            " its conditions"
        )


def _check_instance(options: Namespace, findings: Findings) -> None:
    """Whether options and variables go with the instance."""
    written = REGIONS.get(options.vendor)
    if written is None:
        findings.notes.append(f"--vendor: {options.vendor} is none of {', '.join(REGIONS)}")
    elif not written.fullmatch(options.region):
        findings.notes.append(
            f"--region: {options.region} does not look like a region of {options.vendor}"
        )
    kind, instance = options.accelerator, options.instance_type
    for other, types in (("gpu", GPUS), ("cpu", CPUS)):
        if instance in types and kind != other:
            findings.faults.append(f"--instance-type: {instance} goes with --accelerator {other}")
    variables = {name.upper(): value for name, value in options.env}
    device, dtype = variables.get("DEVICE", "auto"), variables.get("DTYPE", "auto")
    if device == "cuda" and kind == "cpu":
        findings.faults.append("--env: DEVICE=cuda, and the instance has no GPU")
    if device == "cpu" and kind == "gpu":
        findings.notes.append("--env: DEVICE=cpu leaves the GPU idle that is paid for")
    elif dtype in REFUSED.get(kind, ()):
        findings.faults.append(f"--env: DTYPE={dtype} does not go with --accelerator {kind}")
    if instance in GPUS and (_size(options) or 1) > 1:
        findings.notes.append(
            f"--instance-size: the endpoint computes on one GPU; {options.instance_size} has more,"
            " which stay idle"
        )


def _check_memory(
    options: Namespace, findings: Findings, main: Dimensions | None, assistant: Dimensions | None
) -> None:
    memory, where = _memory(options), f"{options.instance_type} {options.instance_size}"
    if memory is None:
        findings.notes.append(f"the memory of {where} is not known here, and was not compared")
        return
    if main is None:
        findings.notes.append("the size of --model is not known here: memory was not compared")
        return
    dtype = {name.upper(): value for name, value in options.env}.get("DTYPE", "auto")
    if options.instance_type in CPUS:
        if dtype == "auto":
            dtype = "bfloat16" if options.instance_type == BFLOAT16_CPU else "float32"
        need, page = need_on_cpu(main, assistant, WIDTHS.get(dtype, 2)), "docs/decoding.md"
        what = f", float32 weights and their copies for products in {dtype} ({page}, Precision)"
    else:
        need, page = need_of(main, assistant, WIDTHS.get(dtype, 2)), "docs/gpu.md"
        what = f" ({page}, Memory)"
    rows = need.rows_in(memory)
    has = f"{where} has {memory / GB:.0f} GB"
    if rows < 1:
        least = f"{need.smallest / GB:.1f} GB at least"
        findings.faults.append(f"--instance-type: {has}, and the models need {least}{what}")
    elif rows < DEFAULT_ROWS:
        findings.notes.append(
            f"{has}, by {page} enough for {rows} windows at once; requests ask for"
            f" {DEFAULT_ROWS} where they do not say, and get what fits"
        )


def _memory(options: Namespace) -> int | None:
    """Bytes of the device, or None where the instance is not in the table."""
    if options.instance_type in GPUS:
        return GPUS[options.instance_type] * GB
    size = _size(options)
    return size * CPU_GB * GB if options.instance_type in CPUS and size else None


def _size(options: Namespace) -> int | None:
    number = options.instance_size.removeprefix("x")
    return int(number) if number.isascii() and number.isdigit() and len(number) < 4 else None
