"""Create or update an Inference Endpoint of this repository, wait for it, and ask it once.

The command line says everything, and an endpoint that exists is brought to it. All calls are
huggingface_hub's, so the body that the API gets is the library's; a dry run lets the library build
that body and prints it instead of sending it, after the checks that a deployment begins with
(deployment/checks.py). Tokens come from the environment (`deployment.secrets`, and `HF_TOKEN` or
a saved login for the API itself), not from the command line, which other users of a machine can
read, and are cut out of whatever is printed. The one that manages endpoints goes to the API, and to
an endpoint only where no other opens it.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import sys
import time
import wave
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from huggingface_hub import HfApi, InferenceEndpoint, get_session, get_token
from huggingface_hub.errors import HfHubHTTPError, InferenceEndpointError
from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

from audio.decode import AudioLimits, decode_audio
from commands.parser import FAILED, INTERRUPTED, WRONG
from config import MODEL_VARIABLES, REPOSITORY
from deployment.checks import Findings, HTTPError, check, command_fault
from deployment.options import CUSTOM, HF_SERVE, MANAGED, SECRET_NAME, read
from deployment.secrets import DeploySecrets
from timebase import SAMPLE_RATE

CONVERSATION = REPOSITORY / "demo" / "conversation.ogg"
CLIP_SECONDS = 12  # two speakers, three turns
REFRESH_SECONDS = 5
REQUEST_SECONDS = 600  # an endpoint scaled to zero first loads its models
PAUSED, SCALED_TO_ZERO, RUNNING = "paused", "scaledToZero", "running"
BROKEN = {"failed": "deploy", "updateFailed": "update"}
# What the API cannot change in an endpoint that exists.
FIXED = ("vendor", "region", "type")
OK, NOT_FOUND = 200, 404
HIDDEN = "<hidden>"
STATUS_REASONS = {
    401: "the token is missing, wrong or expired: set HF_TOKEN or run `hf auth login`",
    403: "the token may not manage the endpoints of this namespace",
}


class DeployError(Exception):
    """What keeps the endpoint from being deployed, in one line."""


class _Recorded(Exception):
    """Ends a dry run with the `body` that was about to be sent."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body


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


def find(api: HfApi, name: str, namespace: str) -> InferenceEndpoint | None:
    """The endpoint, where it exists. Raises what huggingface_hub raises."""
    try:
        return api.get_inference_endpoint(name, namespace=namespace)
    except HfHubHTTPError as error:
        if error.response.status_code != NOT_FOUND:
            raise
        return None


def check_fixed(existing: InferenceEndpoint, arguments: dict[str, Any]) -> None:
    """Raises DeployError where the endpoint differs in what the API cannot change."""
    provider = existing.raw.get("provider", {}) | {"type": existing.raw.get("type")}
    for key in FIXED:
        if provider.get(key, arguments[key]) != arguments[key]:
            raise DeployError(
                f"{existing.namespace}/{existing.name} exists with {key} {provider[key]}, which"
                " cannot be changed: delete it first, or take another name"
            )


def create_or_update(
    api: HfApi, name: str, arguments: dict[str, Any], namespace: str, exists: bool
) -> InferenceEndpoint:
    """Create the endpoint `name`, or bring it to `arguments`; one that is paused starts again.

    Raises what huggingface_hub raises.
    """
    if not exists:
        _say(f"creating {namespace}/{name}")
        return api.create_inference_endpoint(name, namespace=namespace, **arguments)
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
    if endpoint.status in BROKEN:
        raise InferenceEndpointError(f"{endpoint.name} failed to {BROKEN[endpoint.status]}")
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
    managing = get_token()
    if options.dry_run:
        rehearse(options, secrets, arguments, managing)
        return
    if not managing:
        raise DeployError("no token: set HF_TOKEN or run `hf auth login`")
    api = HfApi(token=managing)
    namespace = options.namespace or str(api.whoami()["name"])
    existing = find(api, options.name, namespace)
    if existing:
        check_fixed(existing, arguments)
    tell(_findings(options, secrets, managing, existing))
    endpoint = create_or_update(api, options.name, arguments, namespace, existing is not None)
    if options.no_wait:
        print(f"{endpoint.name}: {endpoint.status}")
        return
    headers = client_headers(options, secrets, managing)
    wait_until_running(endpoint, options.timeout, headers)
    _say(f"asking {endpoint.url}")
    print("\n".join(answer_lines(ask(endpoint, headers))))


def rehearse(
    options: argparse.Namespace,
    secrets: DeploySecrets,
    arguments: dict[str, Any],
    managing: str | None,
) -> None:
    """Print what would be sent, and what is wrong. Raises DeployError at a fault."""
    existing = None
    if managing:
        try:
            api = HfApi(token=managing)
            namespace = options.namespace or str(api.whoami()["name"])
            existing = find(api, options.name, namespace)
        except (HTTPError, OSError, ValueError) as error:
            _say(f"note: the API could not be asked whether the endpoint exists: {reason(error)}")
    print(json.dumps(request_body(options.name, arguments), indent=2))
    if existing:
        _say(f"note: {options.name} exists, and would be updated")
        check_fixed(existing, arguments)
    tell(_findings(options, secrets, managing, existing))


def _findings(
    options: argparse.Namespace,
    secrets: DeploySecrets,
    managing: str | None,
    existing: InferenceEndpoint | None,
) -> Findings:
    own = secrets.values().get("HF_TOKEN")
    return check(options, managing or own, own, keeps=existing is not None)


def tell(findings: Findings) -> None:
    """Print notes, and faults but for the last, which is raised as a DeployError."""
    for note in findings.notes:
        _say(f"note: {note}")
    for fault in findings.faults[:-1]:
        _say(f"deploy.py: {fault}")
    if findings.faults:
        raise DeployError(findings.faults[-1])


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0, 1 where it failed, with one line that says why, or 2 for a wrong command."""
    options = read(arguments)
    if fault := command_fault(options):
        _say(f"deploy.py: {fault}")
        return WRONG
    secrets = DeploySecrets()
    try:
        run(options, secrets)
    except KeyboardInterrupt:
        return INTERRUPTED
    except (DeployError, HTTPError, InferenceEndpointError, OSError, ValueError) as error:
        line = reason(error)
        for secret in filter(None, (get_token(), *all_secrets(options, secrets).values())):
            line = line.replace(secret, HIDDEN)
        _say(f"deploy.py: {line}")
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
