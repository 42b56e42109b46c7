"""Create or update an Inference Endpoint of this repository, wait for it, and ask it once.

The one decision: the command line says everything, and an endpoint that exists is brought to it.
All calls are huggingface_hub's, so the body that the API gets is the library's; a dry run lets the
library build that body and prints it instead of sending it. Tokens come from the environment
(`config.DeploySecrets`, and `HF_TOKEN` or a saved login for the API itself), not from the command
line, which other users of a machine can read, and are cut out of whatever is printed. The one that
manages endpoints goes to the API, and to an endpoint only where no other opens it.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import re
import sys
import time
import wave
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from huggingface_hub import HfApi, InferenceEndpoint, get_session, get_token
from huggingface_hub.errors import HfHubHTTPError, InferenceEndpointError
from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

from audio import AudioLimits, decode_audio
from config import MODEL_VARIABLES, REPOSITORY, DeploySecrets, ModelReference
from timebase import SAMPLE_RATE

CONVERSATION = REPOSITORY / "demo" / "conversation.ogg"
CLIP_SECONDS = 12  # two speakers, three turns
REFRESH_SECONDS = 5
REQUEST_SECONDS = 600  # an endpoint scaled to zero first loads its models
MANAGED, HF_SERVE, CUSTOM = "managed", "hf-serve", "custom"
PAUSED, SCALED_TO_ZERO, RUNNING = "paused", "scaledToZero", "running"
FAILED = {"failed": "deploy", "updateFailed": "update"}
# What the API cannot change in an endpoint that exists.
FIXED = ("vendor", "region", "type")
OK, NOT_FOUND = 200, 404
HIDDEN = "<hidden>"
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Variables with such a name are secrets of the endpoint, and are not printed.
SECRET_NAME = re.compile(r"key|token|secret|passw", re.IGNORECASE)
SECRET_VARIABLES = {"HF_TOKEN": "ENDPOINT_HF_TOKEN", "API_KEY": "ENDPOINT_API_KEY"}
STATUS_REASONS = {
    401: "the token is missing, wrong or expired: set HF_TOKEN or run `hf auth login`",
    403: "the token may not manage the endpoints of this namespace",
}
# Of the HTTP library that huggingface_hub's release uses: a server that cannot be reached.
HTTPError: type[BaseException] = HfHubHTTPError.__bases__[0]


class DeployError(Exception):
    """What keeps the endpoint from being deployed, in one line."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


class _Recorded(Exception):
    """Ends a dry run with the `body` that was about to be sent."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body


def model_name(text: str) -> str:
    """A model variable's value, as the endpoint will read it; an absolute path is the container's.

    Raises argparse.ArgumentTypeError where neither a hub id nor a path can be meant.
    """
    if not text.startswith("/"):
        try:
            ModelReference.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return text


def variable(text: str) -> tuple[str, str]:
    """`NAME=VALUE` as a pair; the two secrets that have a variable here are refused, in any case:
    the endpoint reads `api_key` too.
    """
    name, equals, value = text.partition("=")
    if not equals or not VARIABLE.fullmatch(name):
        raise argparse.ArgumentTypeError("not of the form NAME=VALUE")
    if instead := SECRET_VARIABLES.get(name.upper()):
        raise argparse.ArgumentTypeError(
            f"{name} is a secret: set {instead} in the environment instead"
        )
    return name, value


def endpoint_name(text: str) -> str:
    """Lower-case letters, digits and single hyphens, as the platform wants names."""
    if not NAME.fullmatch(text):
        raise argparse.ArgumentTypeError("only lower-case letters, digits and hyphens")
    return text


def replicas(text: str) -> int:
    """A number of replicas, or of minutes."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError("not a whole number")
    return int(text[:9])


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; a wrong one ends the program with status 2 and one line."""
    parser = _Parser(
        prog="deploy.py",
        description="Create or update an Inference Endpoint, wait until it runs, ask it once.",
        epilog="HF_TOKEN, or a saved login, is the token that manages endpoints. The endpoint gets"
        " ENDPOINT_HF_TOKEN as its secret HF_TOKEN (read access to gated models is enough) and"
        " ENDPOINT_API_KEY as its secret API_KEY.",
    )
    parser.add_argument("name", type=endpoint_name, help="of the endpoint")
    parser.add_argument("--repository", required=True, help="on the Hub: owner/name")
    parser.add_argument("--revision", help="a commit, tag or branch; default: main, or as it is")
    parser.add_argument("--namespace", help="user or organisation that pays; default: the token's")
    _add_container(parser)
    _add_models(parser)
    _add_hardware(parser)
    parser.add_argument(
        "--timeout", type=replicas, default=1800, metavar="SECONDS", help="default: 1800"
    )
    last = parser.add_mutually_exclusive_group()
    last.add_argument("--no-wait", action="store_true", help="neither wait nor ask")
    last.add_argument("--dry-run", action="store_true", help="print the body, send nothing")
    options = parser.parse_args(arguments)
    fault = _contradiction(options)
    if fault:
        parser.error(fault)
    return options


def _add_container(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("container")
    group.add_argument(
        "--container",
        choices=(MANAGED, HF_SERVE, CUSTOM),
        default=MANAGED,
        help="the platform's image (default), hf-serve by name, or an image of your own",
    )
    group.add_argument("--image", metavar="URL", help="of hf-serve's or your own image")
    group.add_argument("--port", type=replicas, default=8000, help="of your own; default: 8000")
    group.add_argument(
        "--health-route", default="/ready", help="of your own, 200 when it serves; default: /ready"
    )
    group.add_argument(
        "--type",
        choices=("authenticated", "public"),
        default="authenticated",
        help="whether the platform asks clients for a token (default)",
    )


def _add_models(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("models and variables")
    for name, help_text in zip(
        MODEL_VARIABLES,
        ("a Whisper", "what drafts for it", "a pyannote pipeline"),
        strict=True,
    ):
        option = f"--{name.lower().replace('_', '-')}"
        group.add_argument(
            option, type=model_name, metavar="MODEL", required=name == "ASR_MODEL", help=help_text
        )
    group.add_argument(
        "--env",
        type=variable,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other variable of docs/deploy.md; may be repeated; one whose name has key, token,"
        " secret or password in it becomes a secret of the endpoint",
    )


def _add_hardware(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("hardware and scaling")
    for option, default in (
        ("--vendor", "aws"),
        ("--region", "us-east-1"),
        ("--accelerator", "gpu"),
        ("--instance-type", "nvidia-a10g"),
        ("--instance-size", "x1"),
    ):
        group.add_argument(option, default=default, help=f"default: {default}")
    group.add_argument("--min-replica", type=replicas, help="default: 1, or 0 with --scale-to-zero")
    group.add_argument("--max-replica", type=replicas, default=1, help="default: 1")
    group.add_argument(
        "--scale-to-zero", type=replicas, metavar="MINUTES", help="stop after so long without work"
    )


def _contradiction(options: argparse.Namespace) -> str | None:
    """What is wrong between the options, if anything; also settles the number of replicas."""
    if (options.image is None) != (options.container == MANAGED):
        return "--image goes with --container hf-serve or custom, and they with it"
    if options.min_replica is None:
        options.min_replica = 1 if options.scale_to_zero is None else 0
    if options.scale_to_zero is not None and (options.min_replica or not options.scale_to_zero):
        return "--scale-to-zero takes at least 1 minute, and --min-replica 0"
    if not options.min_replica <= options.max_replica or not options.max_replica:
        return "--max-replica is at least 1 and at least --min-replica"
    return None


def endpoint_arguments(options: argparse.Namespace, secrets: DeploySecrets) -> dict[str, Any]:
    """The keywords of `create_inference_endpoint` that the command line means.

    Raises DeployError for an API_KEY that no client could send: the platform's proxy already wants
    its own token in the same header, and only the server of `server/` reads the variable.
    """
    if "API_KEY" in secrets.values() and (options.container, options.type) != (CUSTOM, "public"):
        raise DeployError("ENDPOINT_API_KEY goes with --container custom --type public")
    models = {name: getattr(options, name.lower()) for name in MODEL_VARIABLES}
    shown = {name: value for name, value in options.env if not SECRET_NAME.search(name)}
    # The platform's proxy asks by names of its own.
    hosts = {"ALLOWED_HOSTS": "*"} if options.container == CUSTOM else {}
    return {
        "repository": options.repository,
        "revision": options.revision,
        "framework": "pytorch",
        "task": "custom",
        "custom_image": _image(options),
        "env": {name: value for name, value in models.items() if value} | hosts | shown,
        "secrets": all_secrets(options, secrets) or None,
        "vendor": options.vendor,
        "region": options.region,
        "accelerator": options.accelerator,
        "instance_type": options.instance_type,
        "instance_size": options.instance_size,
        "min_replica": options.min_replica,
        "max_replica": options.max_replica,
        "scale_to_zero_timeout": options.scale_to_zero,
        "type": options.type,
    }


def all_secrets(options: argparse.Namespace, secrets: DeploySecrets) -> dict[str, str]:
    """The endpoint's secrets: those of the environment, and variables that are called so."""
    called_so = {name: value for name, value in options.env if SECRET_NAME.search(name)}
    return called_so | secrets.values()


def _image(options: argparse.Namespace) -> dict[str, Any]:
    """The image by its variant. The managed one is named too: an update may replace another."""
    if options.container == MANAGED:
        return {"huggingface": {}}
    if options.container == HF_SERVE:
        return {"hfServe": {"url": options.image}}
    return {"url": options.image, "port": options.port, "healthRoute": options.health_route}


def request_body(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The JSON that would create the endpoint, secrets hidden. Nothing is sent: a hook of the
    library's HTTP client ends the request when it is complete.
    """
    client = get_session()
    hooks = client.event_hooks
    client.event_hooks = {**hooks, "request": [_record, *hooks["request"]]}
    try:
        HfApi(token=False).create_inference_endpoint(name, namespace="-", **arguments)
    except _Recorded as recorded:
        secrets = recorded.body["model"].get("secrets", {})
        secrets.update(dict.fromkeys(secrets, HIDDEN))
        return recorded.body
    finally:
        client.event_hooks = hooks
    raise DeployError("huggingface_hub answered without a request")


def _record(request: Any) -> NoReturn:  # noqa: ANN401  # a Request of httpx or httpx2
    raise _Recorded(json.loads(request.content))


def create_or_update(
    name: str, arguments: dict[str, Any], namespace: str | None, token: str
) -> InferenceEndpoint:
    """Create the endpoint `name`, or bring it to `arguments`; one that is paused starts again.

    Raises DeployError where it exists and differs in what the API cannot change, and what
    huggingface_hub raises.
    """
    api = HfApi(token=token)
    namespace = namespace or str(api.whoami()["name"])
    try:
        existing = api.get_inference_endpoint(name, namespace=namespace)
    except HfHubHTTPError as error:
        if error.response.status_code != NOT_FOUND:
            raise
        _say(f"creating {namespace}/{name}")
        return api.create_inference_endpoint(name, namespace=namespace, **arguments)
    provider = existing.raw.get("provider", {}) | {"type": existing.raw.get("type")}
    for key in FIXED:
        if provider.get(key, arguments[key]) != arguments[key]:
            raise DeployError(
                f"{namespace}/{name} exists with {key} {provider[key]}, which cannot be changed:"
                " delete it first, or take another name"
            )
    _say(f"updating {namespace}/{name}")
    changes = {key: value for key, value in arguments.items() if key not in FIXED}
    updated = api.update_inference_endpoint(name, namespace=namespace, **changes)
    return updated.resume() if updated.status == PAUSED else updated


def client_headers(
    options: argparse.Namespace, secrets: DeploySecrets, managing: str
) -> dict[str, str]:
    """What the endpoint wants from clients, as headers.

    Whoever serves the endpoint may read them. So one that is public is shown its own key at most.
    The platform in front of another wants a token: the endpoint's own, where it has one, else there
    is but the one that manages endpoints.
    """
    own = secrets.values()
    public = options.type == "public"
    token = own.get("API_KEY") if public else own.get("HF_TOKEN", managing)
    return {"Authorization": f"Bearer {token}"} if token else {}


def wait_until_running(endpoint: InferenceEndpoint, seconds: int, headers: dict[str, str]) -> None:
    """Wait until the endpoint's health route answers 200; one scaled to zero is left asleep, and
    wakes by the request. Raises InferenceEndpointError.

    The library's own `wait` would show the endpoint the token that manages endpoints.
    """
    if endpoint.status == SCALED_TO_ZERO:
        return
    _say(f"waiting at most {seconds} s for it to run")
    end = time.monotonic() + seconds
    while not _serves(endpoint, headers):
        if time.monotonic() > end:
            raise InferenceEndpointError(f"Timeout while waiting for {endpoint.name} to run")
        time.sleep(REFRESH_SECONDS)
        endpoint.fetch()


def _serves(endpoint: InferenceEndpoint, headers: dict[str, str]) -> bool:
    if endpoint.status in FAILED:
        raise InferenceEndpointError(f"{endpoint.name} failed to {FAILED[endpoint.status]}")
    if endpoint.status != RUNNING or not endpoint.url:
        return False
    route = f"{endpoint.url.rstrip('/')}/{endpoint.health_route.lstrip('/')}"
    return bool(get_session().get(route, headers=headers).status_code == OK)


def clip() -> bytes:
    """The beginning of the demo's conversation as a WAV file, 16 kHz mono."""
    audio = decode_audio(CONVERSATION.read_bytes(), SAMPLE_RATE, AudioLimits(3600, 2**24))
    samples = np.rint(audio.samples[: CLIP_SECONDS * SAMPLE_RATE].clip(-1, 1) * 32_767)
    file = io.BytesIO()
    with wave.open(file, "wb") as wav:
        wav.setnchannels(1)
        wav.setsampwidth(2)
        wav.setframerate(SAMPLE_RATE)
        wav.writeframes(samples.astype("<i2").tobytes())
    return file.getvalue()


def ask(endpoint: InferenceEndpoint, headers: dict[str, str]) -> Any:  # noqa: ANN401
    """The endpoint's answer to the clip. Raises what huggingface_hub raises."""
    audio = base64.b64encode(clip()).decode()
    answer = get_session().post(
        str(endpoint.url),
        json={"inputs": audio, "parameters": {"return_timestamps": True}},
        headers={"X-Scale-Up-Timeout": str(REQUEST_SECONDS), **headers},
        timeout=REQUEST_SECONDS,
    )
    hf_raise_for_status(answer)
    return answer.json()


def answer_lines(answer: Any) -> list[str]:  # noqa: ANN401
    """What the answer says: a line for each segment of a speaker, or the text alone.

    Raises DeployError where it is not an answer of this project's.
    """
    try:
        lines = [
            f"{part['speaker'] or 'nobody'} {part['timestamp'][0]:6.2f} s  {part['text'].strip()}"
            for part in answer["speakers"]
        ]
        return [f"text: {answer['text'].strip()}", *lines]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise DeployError("it answered, but not with text and speakers") from error


def reason(error: BaseException) -> str:
    """One line for what huggingface_hub or the endpoint said."""
    if not isinstance(error, HfHubHTTPError):
        return " ".join(str(error).split()) or type(error).__name__
    status, host = error.response.status_code, error.response.request.url.host
    if status in STATUS_REASONS:
        return f"{host} answered {status}: {STATUS_REASONS[status]}"
    said = " ".join((error.server_message or error.response.text).split())
    return f"{host} answered {status}: {said[:500]}".rstrip(": ")


def run(options: argparse.Namespace, secrets: DeploySecrets) -> None:
    """Do what the command line says. Raises DeployError and what huggingface_hub raises."""
    arguments = endpoint_arguments(options, secrets)
    if options.dry_run:
        print(json.dumps(request_body(options.name, arguments), indent=2))
        return
    managing = get_token()
    if not managing:
        raise DeployError("no token: set HF_TOKEN or run `hf auth login`")
    endpoint = create_or_update(options.name, arguments, options.namespace, managing)
    if options.no_wait:
        print(f"{endpoint.name}: {endpoint.status}")
        return
    headers = client_headers(options, secrets, managing)
    wait_until_running(endpoint, options.timeout, headers)
    _say(f"asking {endpoint.url}")
    print("\n".join(answer_lines(ask(endpoint, headers))))


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0, 1 where it failed, with one line that says why, or 2 for a wrong command."""
    options = parse_arguments(arguments)
    secrets = DeploySecrets()
    try:
        run(options, secrets)
    except KeyboardInterrupt:
        return 130
    except (DeployError, HTTPError, InferenceEndpointError, OSError, ValueError) as error:
        line = reason(error)
        for secret in filter(None, (get_token(), *all_secrets(options, secrets).values())):
            line = line.replace(secret, HIDDEN)
        _say(f"deploy.py: {line}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
