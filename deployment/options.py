"""The command line of deploy.py, read by the standard library alone."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from commands.parser import CommandParser, one_of, option, whole_number
from model_reference import ModelReference

MANAGED, HF_SERVE, CUSTOM = "managed", "hf-serve", "custom"
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
REPOSITORY_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# Variables with such a name are secrets of the endpoint, and are not printed.
SECRET_NAME = re.compile(r"key|token|secret|passw", re.IGNORECASE)
# What is given in another way than by --env.
SECRET_VARIABLES = {"HF_TOKEN": "ENDPOINT_HF_TOKEN", "API_KEY": "ENDPOINT_API_KEY"}
# The options that name models, by the variable that the endpoint reads.
MODELS = {
    "ASR_MODEL": ("--model", "a Whisper"),
    "ASSISTANT_MODEL": ("--assistant", "what drafts for it"),
    "DIARIZATION_MODEL": ("--diarization", "a pyannote pipeline, or Nemotron-3-Diarization"),
}
# Regions by vendor, as each writes them: us-east-1, eastus2, us-east4.
REGIONS = {
    "aws": re.compile(r"[a-z]{2}(-[a-z]+)+-\d"),
    "azure": re.compile(r"[a-z]+\d?"),
    "gcp": re.compile(r"[a-z]+-[a-z]+\d"),
}


def read(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options; ends the process with status 2 and one line where they are wrong."""
    parser = CommandParser(
        "deploy.py",
        "Create or update an Inference Endpoint, wait until it runs, ask it once.",
        (
            (
                "what would be created, and what is wrong with it",
                "deploy.py who-said-what --repository YOU/who-said-what"
                " --model openai/whisper-large-v3 --dry-run",
            ),
            (
                "with speakers, stopped after 15 minutes without work",
                "deploy.py who-said-what --repository YOU/who-said-what"
                " --model openai/whisper-large-v3"
                " --diarization pyannote/speaker-diarization-3.1 --scale-to-zero 15",
            ),
        ),
        "HF_TOKEN, or a saved login, is the token that manages endpoints. The endpoint gets"
        " ENDPOINT_HF_TOKEN as its secret HF_TOKEN (read access to gated models is enough) and"
        " ENDPOINT_API_KEY as its secret API_KEY. The exit status is 0, 1 where it failed or would"
        " fail, 2 for a wrong command line.",
    )
    parser.add_argument("name", type=_endpoint_name, metavar="NAME", help="of the endpoint")
    option(
        parser,
        "--repository",
        "on the Hub: owner/name",
        type=_repository,
        required=True,
        metavar="ID",
    )
    option(parser, "--revision", "a commit, tag or branch; default: main, or as it is")
    option(parser, "--namespace", "user or organisation that pays; default: the token's")
    _add_container(parser)
    _add_models(parser)
    _add_hardware(parser)
    option(
        parser, "--timeout", "default: 1800", type=whole_number(0), default=1800, metavar="SECONDS"
    )
    last = parser.add_mutually_exclusive_group()
    option(last, "--no-wait", "neither wait nor ask", action="store_true")
    option(last, "--dry-run", "check all, print the body, create nothing", action="store_true")
    options: argparse.Namespace = parser.parse_args(arguments)
    if fault := _contradiction(options):
        parser.error(fault)
    return options


def _add_container(parser: CommandParser) -> None:
    group = parser.add_argument_group("container")
    option(
        group,
        "--container",
        "managed (default: the platform's image), hf-serve, or custom: an image of your own",
        type=one_of(MANAGED, HF_SERVE, CUSTOM),
        default=MANAGED,
        metavar="KIND",
    )
    option(group, "--image", "of hf-serve's or your own image", metavar="URL")
    option(group, "--port", "of your own; default: 8000", type=whole_number(1, 65535), default=8000)
    option(
        group,
        "--health-route",
        "of your own, 200 when it serves; default: /ready",
        default="/ready",
        metavar="PATH",
    )
    option(
        group,
        "--type",
        "authenticated (default: the platform asks clients for a token) or public",
        type=one_of("authenticated", "public"),
        default="authenticated",
    )


def _add_models(parser: CommandParser) -> None:
    group = parser.add_argument_group(
        "models and variables",
        "MODEL is a Hub id (owner/name or owner/name@revision), a short name such as large-v3, a"
        " folder of the repository, or an absolute path in the container.",
    )
    for name, (short, help_text) in MODELS.items():
        option(
            group,
            short,
            help_text,
            name,
            also=(f"--{name.lower().replace('_', '-')}",),
            dest=name.lower(),
            type=_model,
            metavar="MODEL",
            required=name == "ASR_MODEL",
        )
    option(
        group,
        "--env",
        "any other variable of docs/deploy.md; may be repeated; one whose name has key, token,"
        " secret or password in it becomes a secret of the endpoint",
        type=_variable,
        action="append",
        default=[],
        metavar="NAME=VALUE",
    )


def _add_hardware(parser: CommandParser) -> None:
    group = parser.add_argument_group("hardware and scaling")
    for name, default in (
        ("--vendor", "aws"),
        ("--region", "us-east-1"),
        ("--accelerator", "gpu"),
        ("--instance-type", "nvidia-a10g"),
        ("--instance-size", "x1"),
    ):
        option(group, name, f"default: {default}", default=default)
    number = whole_number(0)
    option(group, "--min-replica", "default: 1, or 0 with --scale-to-zero", type=number)
    option(group, "--max-replica", "default: 1", type=whole_number(1), default=1)
    option(
        group,
        "--scale-to-zero",
        "stop after so long without work",
        type=whole_number(1),
        metavar="MINUTES",
    )


def _contradiction(options: argparse.Namespace) -> str | None:
    """What is wrong between the options, if anything; also settles the number of replicas."""
    if (options.image is None) != (options.container == MANAGED):
        return "--image goes with --container hf-serve or custom, and they with it"
    if options.min_replica is None:
        options.min_replica = 1 if options.scale_to_zero is None else 0
    if options.scale_to_zero is not None and options.min_replica:
        return "--scale-to-zero takes --min-replica 0"
    if options.min_replica > options.max_replica:
        return "--max-replica is at least --min-replica"
    return None


def _endpoint_name(text: str) -> str:
    """Lower-case letters, digits and single hyphens, as the platform wants names."""
    if not NAME.fullmatch(text):
        raise argparse.ArgumentTypeError("only lower-case letters, digits and hyphens")
    return text


def _model(text: str) -> str:
    """An absolute path in the container or a folder of the repository as it is, or a hub id."""
    if text.startswith("/"):
        return text
    try:
        model = ModelReference.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text if model.name.startswith("/") else str(model)


def _repository(text: str) -> str:
    if not REPOSITORY_ID.fullmatch(text):
        raise argparse.ArgumentTypeError("should be the id of a repository on the Hub, owner/name")
    return text


def _variable(text: str) -> tuple[str, str]:
    """`NAME=VALUE` as a pair. What has a place of its own is refused, in any case: the endpoint
    reads `api_key` too.
    """
    name, equals, value = text.partition("=")
    if not equals or not VARIABLE.fullmatch(name):
        raise argparse.ArgumentTypeError("not of the form NAME=VALUE")
    if instead := SECRET_VARIABLES.get(name.upper()):
        raise argparse.ArgumentTypeError(
            f"{name} is a secret: set {instead} in the environment instead"
        )
    if name.upper() in MODELS:
        raise argparse.ArgumentTypeError(f"{name} is given by {MODELS[name.upper()][0]}")
    return name, value
