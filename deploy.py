"""Creates or updates an Inference Endpoint of this repository, waits for it, and tests it.

Tokens come from the environment (`DeploySecrets`, and HF_TOKEN or a saved login for the API), never
from the command line, which other users of a machine can read, and are cut out of all output. The
managing token goes to the API, and to an endpoint only if there is no other token for it.
"""

import argparse
import base64
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, InferenceEndpoint, get_session, get_token
from huggingface_hub.errors import (
    HfHubHTTPError,
    InferenceEndpointError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]
from pydantic import SecretStr

from config import (
    REPOSITORY,
    EnvironmentSettings,
    ModelReference,
    ModelSettings,
    misspelt_variables,
)
from whosaid.cli.options import MODELS as SHARED_MODELS
from whosaid.cli.parser import (
    FAILED,
    INTERRUPTED,
    CommandParser,
    Option,
    add_options,
    argument,
    count,
    one_of,
    option,
    whole_number,
)
from whosaid.server.settings import ServerSettings

CONVERSATION = REPOSITORY / "demo" / "conversation.ogg"
MANAGED, HF_SERVE, CUSTOM = "managed", "hf-serve", "custom"
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
REPOSITORY_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# Variables with such a name become secrets of the endpoint.
SECRET_NAME = re.compile(r"key|token|secret|passw", re.IGNORECASE)
SECRET_VARIABLES = {"HF_TOKEN": "ENDPOINT_HF_TOKEN", "API_KEY": "ENDPOINT_API_KEY"}
CONDITIONING = ("--conditioning", "CONDITIONING_MODEL", "lets the model follow one speaker")
MODELS = (*SHARED_MODELS, CONDITIONING)
MODEL_OPTIONS = {variable: option for option, variable, _ in MODELS}
OPTION_VARIABLES = MODEL_OPTIONS | {"PORT": "--port"}
# Ends of weights' file names, of which a repository needs one; model.bin is CTranslate2's.
ENDS = {"--model": (".safetensors", "/model.bin"), "--conditioning": ("conditioning.safetensors",)}
# A gated pipeline, and the gated models that it loads; the last only in pyannote.audio 4.
PIPELINE, SEGMENTATION = "pyannote/speaker-diarization-3.1", "pyannote/segmentation-3.0"
COMMUNITY = "pyannote/speaker-diarization-community-1"
REFRESH_SECONDS, HUB_SECONDS = 5, 20.0
DEFAULT_ROWS = 32  # of a CPU; a GPU has as many or more
REQUEST_SECONDS = 600  # an endpoint scaled to zero first loads its models
PAUSED, SCALED_TO_ZERO, RUNNING = "paused", "scaledToZero", "running"
BROKEN = {"failed": "deploy", "updateFailed": "update"}
FIXED = ("vendor", "region", "type")  # the API cannot change these in an existing endpoint
# Options that `create_inference_endpoint` takes as they are.
PASSED_ON = (
    *("repository", "revision", *FIXED, "accelerator", "instance_type", "instance_size"),
    *("min_replica", "max_replica", "scaling_metric"),
)
OK, NOT_FOUND = 200, 404
HIDDEN = "<hidden>"
STATUS_REASONS = {
    401: "the token is missing, wrong or expired: set HF_TOKEN or run `hf auth login`",
    403: "the token is not allowed to manage endpoints of this namespace",
}
# Raised by huggingface_hub's HTTP library if a server cannot be reached.
HTTPError: type[BaseException] = HfHubHTTPError.__bases__[0]


class DeployError(Exception):
    """The endpoint cannot be deployed; one line."""


class DeploySecrets(EnvironmentSettings):
    """The endpoint's secrets. They are not HF_TOKEN and API_KEY, because the token that manages
    endpoints may do more than an endpoint needs, and API_KEY may be the key of a server here.
    """

    endpoint_hf_token: SecretStr = SecretStr("")
    endpoint_api_key: SecretStr = SecretStr("")


# ---- the command line


def _matching(pattern: re.Pattern[str], told: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not pattern.fullmatch(text):
            raise argparse.ArgumentTypeError(told)
        return text

    return read


def _model(text: str) -> str:
    """Complete a Hub id; keep an absolute path in the container or a folder of the repository."""
    try:
        is_folder = text.startswith("/") or Path(ModelReference.parse(text).name).is_absolute()
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text if is_folder else str(ModelReference.parse(text))


def _variable(text: str) -> tuple[str, str]:
    """Split `NAME=VALUE`. Names in small letters are refused too: the endpoint reads `api_key`."""
    name, equals, value = text.partition("=")
    if not equals or not VARIABLE.fullmatch(name):
        raise argparse.ArgumentTypeError("not of the form NAME=VALUE")
    if instead := SECRET_VARIABLES.get(name.upper()):
        raise argparse.ArgumentTypeError(f"{name} is a secret: set {instead} in the environment")
    if other := OPTION_VARIABLES.get(name.upper()):
        raise argparse.ArgumentTypeError(f"{name} is given by {other}")
    return name, value


ID = _matching(REPOSITORY_ID, "should be the id of a repository on the Hub, owner/name")
CONTAINER = "managed (the platform's image), hf-serve, or custom (your own image)"
TYPE = "authenticated (the platform asks clients for a token) or public"
ENV = (
    "any other variable of docs/deploy.md; repeatable; a name with key, token, secret or password"
    " becomes a secret of the endpoint"
)
PENDING = "pendingRequests"
METRICS = one_of(PENDING, "hardwareUsage")
METRIC = "pendingRequests (of a replica, without an answer) or hardwareUsage"
THRESHOLD = (
    "above which a replica is added; default: half of MAX_ROWS for custom (16 without it), 2 for"
    " the others, which answer one request at a time; the platform's for hardwareUsage"
)
KINDS = one_of(MANAGED, HF_SERVE, CUSTOM)
TYPES = one_of("authenticated", "public")
PORT = whole_number(1, 65535)
# By group of the help. A default is shown behind the help of its option.
OPTIONS: dict[str, tuple[Option, ...]] = {
    "repository": (
        argument("--repository", "on the Hub: owner/name", "ID", type=ID, required=True),
        argument("--revision", "a commit, tag or branch; default: main; in an update, unchanged"),
        argument("--namespace", "user or organisation that pays; default: the token's"),
    ),
    "container": (
        argument("--container", CONTAINER, "KIND", type=KINDS, default=MANAGED),
        argument("--image", "hf-serve's or your own image", "URL"),
        argument("--port", "of your own image", type=PORT, default=8000),
        argument("--health-route", "of your own image, 200 when it serves", default="/ready"),
        argument("--type", TYPE, type=TYPES, default="authenticated"),
    ),
    "hardware, scaling, variables": (
        argument("--vendor", "the cloud", default="aws"),
        argument("--region", "the vendor's", default="us-east-1"),
        argument("--accelerator", "gpu or cpu", default="gpu"),
        argument("--instance-type", "from the platform's catalogue", default="nvidia-a10g"),
        argument("--instance-size", "from the platform's catalogue", default="x1"),
        argument("--min-replica", "1, or 0 with --scale-to-zero", type=whole_number(0)),
        count("--max-replica", "at most so many", default=1),
        count("--scale-to-zero", "stop after so many idle minutes", metavar="MINUTES"),
        argument("--scaling-metric", METRIC, type=METRICS, default=PENDING),
        argument("--scaling-threshold", THRESHOLD, "NUMBER", type=whole_number(1)),
        argument("--env", ENV, "NAME=VALUE", type=_variable, action="append", default=[]),
        argument("--timeout", "until it runs", "SECONDS", type=whole_number(0), default=1800),
    ),
}


def read(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    command = "deploy.py who-said-what --repository YOU/who-said-what --model large-v3"
    parser = CommandParser(
        "deploy.py",
        "Create or update an Inference Endpoint, wait until it runs, and test it.",
        (
            ("show what would be created, and its faults", f"{command} --dry-run"),
            (
                "with speakers, stopped after 15 idle minutes",
                f"{command} --diarization models/diarization --scale-to-zero 15",
            ),
        ),
        "HF_TOKEN, or a saved login, manages endpoints. The endpoint gets"
        " ENDPOINT_HF_TOKEN as its secret HF_TOKEN (read access to gated models is enough) and"
        " ENDPOINT_API_KEY as its secret API_KEY. The exit status is 0, 1 if it failed or would"
        " fail, 2 for a wrong command line.",
    )
    name = _matching(NAME, "only lower-case letters, digits and hyphens")
    parser.add_argument("name", type=name, metavar="NAME", help="of the endpoint")
    for title, group in OPTIONS.items():
        shown = [
            (flag, f"{told}; default: {how['default']}" if how.get("default") else told, how)
            for flag, told, how in group
        ]
        add_options(parser, title, "", shown)
    models = parser.add_argument_group(
        "models",
        "MODEL is a Hub id (owner/name or owner/name@revision), a short name such as large-v3, a"
        " folder of the repository, or an absolute path in the container.",
    )
    for flag, variable, told in MODELS:
        how = {"type": _model, "metavar": "MODEL", "required": variable == "ASR_MODEL"}
        also = (f"--{variable.lower().replace('_', '-')}",)
        option(models, flag, told, variable, also, dest=variable.lower(), **how)
    last = parser.add_mutually_exclusive_group()
    option(last, "--no-wait", "do not wait, and do not test", action="store_true")
    checked = "check, and print the request instead of sending it"
    option(last, "--dry-run", checked, action="store_true")
    options: argparse.Namespace = parser.parse_args(arguments)
    if fault := _contradiction(options) or _wrong_variable(dict(options.env)):
        parser.error(fault)
    return options


def _contradiction(options: argparse.Namespace) -> str | None:
    """Return an error if options contradict each other; set the default numbers of replicas."""
    if (options.image is None) != (options.container == MANAGED):
        return "--container hf-serve or custom needs --image, and --image needs one of them"
    if options.min_replica is None:
        options.min_replica = 1 if options.scale_to_zero is None else 0
    if options.scale_to_zero is not None and options.min_replica:
        return "--scale-to-zero needs --min-replica 0"
    if options.min_replica > options.max_replica:
        return "--max-replica must be at least --min-replica"
    return None


def _wrong_variable(variables: Mapping[str, str]) -> str | None:
    """Return what is wrong with the endpoint's variables, regardless of those here."""
    if misspelt := misspelt_variables(ModelSettings, ServerSettings, given=variables):
        return f"--env: {misspelt[0]}"
    given: dict[str, Any] = {name.lower(): value for name, value in variables.items() if value}
    given["asr_model"] = ModelReference("elsewhere")
    given["api_keys_file"] = None  # a file of the container
    for settings in (ModelSettings, ServerSettings):
        fields = settings.model_fields.items()
        try:
            settings.from_environment(**{name: given.get(name, it.default) for name, it in fields})
        except ValueError as error:
            return f"--env: {error}"
    return None


# ---- checks, before costs arise


def check(
    options: argparse.Namespace, managing: str | None, own: str | None, keeps: bool
) -> list[str]:
    """Ask the Hub about the repository and the models; return a line for each fault. `managing`
    reads the repository, `own` is the endpoint's token, besides which it `keeps` one from before.
    """
    faults: list[str] = []
    try:
        faults += _repository_faults(options, managing or own)
        for variable, what in MODEL_OPTIONS.items():
            text = getattr(options, variable.lower())
            if text and not text.startswith("/"):
                model = ModelReference.parse(text)
                if not Path(model.name).is_absolute():
                    faults += _model_faults(what, model, own, keeps, options.container)
    except (HTTPError, OSError, ValueError) as error:
        _say(f"note: the ids could not be checked on the Hub: {reason(error)[:200]}")
    return faults


def _repository_faults(options: argparse.Namespace, token: str | None) -> Iterator[str]:
    repository = ModelReference(options.repository, options.revision)
    info = _info(repository, token)
    if info is None:
        yield f"--repository: the Hub has no {repository} that the token can read"
    elif options.container != CUSTOM and "handler.py" not in _files(info):
        yield f"--repository: {repository.name} has no handler.py: upload this repository to it"


def _model_faults(
    what: str, model: ModelReference, token: str | None, keeps: bool, container: str
) -> Iterator[str]:
    info = _info(model, token)
    if info is None:
        yield f"{what}: the Hub has no {model} that the token can read"
        return
    ends = ENDS.get(what)
    if ends and not any(f"/{name}".endswith(ends) for name in _files(info)):
        yield f"{what}: {model.name} has no {ends[0]} file; pickles are not loaded"
    if info.gated and token:
        # The account of `token` has to accept the conditions of each of these.
        parts = [SEGMENTATION] if container == MANAGED else [SEGMENTATION, COMMUNITY]
        for id in (model.name, *(parts if model.name == PIPELINE else ())):
            try:
                HfApi(token=token).auth_check(id)
            except RepositoryNotFoundError:  # raised for a gated repository too
                yield (
                    f"{what}: {id} is gated: accept its conditions at https://hf.co/{id} with the"
                    " account of ENDPOINT_HF_TOKEN"
                )
    elif info.gated and not keeps:
        yield (
            f"{what}: {model.name} is gated: set ENDPOINT_HF_TOKEN to a token whose account has"
            " accepted its conditions"
        )


def _info(model: ModelReference, token: str | None) -> Any:  # noqa: ANN401
    """Return the Hub's description of a repository, or None if the token cannot read it."""
    api = HfApi(token=token or False)
    try:
        return api.model_info(model.name, revision=model.revision, timeout=HUB_SECONDS)
    except (RepositoryNotFoundError, RevisionNotFoundError):
        return None


def _files(info: Any) -> set[str]:  # noqa: ANN401
    return {each.rfilename for each in info.siblings or ()}


# ---- the endpoint


def endpoint_arguments(options: argparse.Namespace, secrets: dict[str, str]) -> dict[str, Any]:
    """Return the keywords of `create_inference_endpoint`. Raises DeployError for keys that
    clients could not send beside the token of the platform's proxy.
    """
    for variable, given in (("API_KEY", "ENDPOINT_API_KEY"), ("API_KEYS_FILE", "API_KEYS_FILE")):
        if variable in secrets and (options.container, options.type) != (CUSTOM, "public"):
            raise DeployError(f"{given} needs --container custom --type public")
    models = {name: getattr(options, name.lower()) for name in MODEL_OPTIONS}
    shown = {name: value for name, value in options.env if not SECRET_NAME.search(name)}
    # The platform's proxy sends its own host names.
    own = {"ALLOWED_HOSTS": "*", "PORT": str(options.port)} if options.container == CUSTOM else {}
    return {name: getattr(options, name) for name in PASSED_ON} | {
        "framework": "pytorch",
        "task": "custom",
        "custom_image": _image(options),
        "env": {name: value for name, value in models.items() if value} | own | shown,
        "secrets": secrets or None,
        "scale_to_zero_timeout": options.scale_to_zero,
        "scaling_threshold": options.scaling_threshold or _threshold(options),
    }


def _threshold(options: argparse.Namespace) -> int | None:
    """Return the pending requests that fill half of a replica's rows, one window each."""
    if options.scaling_metric != PENDING:
        return None
    if options.container != CUSTOM:
        return 2
    return max(2, int(float(dict(options.env).get("MAX_ROWS") or DEFAULT_ROWS)) // 2)


def read_secrets(options: argparse.Namespace) -> dict[str, str]:
    """Return the endpoint's secrets in the clear, by variable."""
    named = {name: value for name, value in options.env if SECRET_NAME.search(name)}
    own = DeploySecrets()
    given = {"HF_TOKEN": own.endpoint_hf_token, "API_KEY": own.endpoint_api_key}
    texts = {name: secret.get_secret_value().strip() for name, secret in given.items()}
    return named | {name: text for name, text in texts.items() if text}


def _image(options: argparse.Namespace) -> dict[str, Any]:
    """Return the image; also the managed one, because an update may switch back to it."""
    if options.container == MANAGED:
        return {"huggingface": {}}
    if options.container == HF_SERVE:
        return {"hfServe": {"url": options.image}}
    return {"url": options.image, "port": options.port, "healthRoute": options.health_route}


def find(api: HfApi, name: str, namespace: str) -> InferenceEndpoint | None:
    try:
        return api.get_inference_endpoint(name, namespace=namespace)
    except HfHubHTTPError as error:
        if error.response.status_code != NOT_FOUND:
            raise
        return None


def check_fixed(existing: InferenceEndpoint, arguments: dict[str, Any]) -> None:
    """Raise DeployError if the endpoint differs in what the API cannot change."""
    provider = existing.raw.get("provider", {}) | {"type": existing.raw.get("type")}
    for key in FIXED:
        if provider.get(key, arguments[key]) != arguments[key]:
            raise DeployError(
                f"{existing.namespace}/{existing.name} exists with {key} {provider[key]}, which"
                " cannot be changed: delete it first, or take another name"
            )


def client_headers(public: bool, secrets: dict[str, str], managing: str) -> dict[str, str]:
    """Return the headers with which to call the endpoint, whose operators can read them: at most
    its own key if it is public, else its own token, or the managing token if it has none.
    """
    token = secrets.get("API_KEY") if public else secrets.get("HF_TOKEN", managing)
    return {"Authorization": f"Bearer {token}"} if token else {}


def wait_until_running(endpoint: InferenceEndpoint, seconds: int, headers: dict[str, str]) -> None:
    """Wait until the endpoint's health route answers 200, unless it is scaled to zero. The
    library's `wait` would send it the managing token. Raises InferenceEndpointError.
    """
    if endpoint.status == SCALED_TO_ZERO:  # the request wakes the endpoint
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


def ask(endpoint: InferenceEndpoint, headers: dict[str, str]) -> list[str]:
    """Return the endpoint's transcript of the demo's conversation, a line for each speaker segment.
    Raises DeployError if the answer is not this project's, and huggingface_hub's exceptions.
    """
    answer = get_session().post(
        str(endpoint.url),
        json={"inputs": base64.b64encode(CONVERSATION.read_bytes()).decode()},
        headers={"X-Scale-Up-Timeout": str(REQUEST_SECONDS), **headers},
        timeout=REQUEST_SECONDS,
    )
    hf_raise_for_status(answer)
    try:
        said = answer.json()
        lines = [
            f"{part['speaker'] or 'nobody'} {part['timestamp'][0]:6.2f} s  {part['text'].strip()}"
            for part in said["speakers"]
        ]
        return [f"text: {said['text'].strip()}", *lines]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise DeployError("its answer has no text and speakers") from error


def reason(error: BaseException) -> str:
    """Return one line for an error of huggingface_hub or of the endpoint."""
    if not isinstance(error, HfHubHTTPError):
        return " ".join(str(error).split()) or type(error).__name__
    status, host = error.response.status_code, error.response.request.url.host
    if status in STATUS_REASONS:
        return f"{host} answered {status}: {STATUS_REASONS[status]}"
    said = " ".join((error.server_message or error.response.text).split())
    return f"{host} answered {status}: {said[:500]}".rstrip(": ")


def run(options: argparse.Namespace, secrets: dict[str, str]) -> None:
    """Deploy. Raises DeployError; exceptions of huggingface_hub pass through."""
    arguments = endpoint_arguments(options, secrets)
    if "DATA_DIR" in arguments["env"] and (options.min_replica, options.max_replica) != (1, 1):
        _say(
            "note: DATA_DIR is of one replica: others do not know its jobs, and a replica that is"
            " scaled in loses them, because a job that runs counts as answered"
        )
    managing, existing = get_token(), None
    if managing:
        api = HfApi(token=managing)
        namespace = options.namespace or str(api.whoami()["name"])
        if existing := find(api, options.name, namespace):
            check_fixed(existing, arguments)
    elif not options.dry_run:
        raise DeployError("no token: set HF_TOKEN or run `hf auth login`")
    if faults := check(options, managing, secrets.get("HF_TOKEN"), existing is not None):
        raise DeployError("\ndeploy.py: ".join(faults))
    if options.dry_run:
        hidden = dict.fromkeys(secrets, HIDDEN) or None
        print(json.dumps({"name": options.name, **arguments, "secrets": hidden}, indent=2))
        return
    if existing is None:
        _say(f"creating {namespace}/{options.name}")
        made = api.create_inference_endpoint(options.name, namespace=namespace, **arguments)
    else:
        _say(f"updating {namespace}/{options.name}")
        changes = {key: value for key, value in arguments.items() if key not in FIXED}
        made = api.update_inference_endpoint(options.name, namespace=namespace, **changes)
        made = made.resume() if made.status == PAUSED else made
    if options.no_wait:
        print(f"{made.name}: {made.status}")
        return
    headers = client_headers(options.type == "public", secrets, str(managing))
    wait_until_running(made, options.timeout, headers)
    _say(f"asking {made.url}")
    print("\n".join(ask(made, headers)))


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    options = read(arguments)
    secrets = read_secrets(options)
    try:
        run(options, secrets)
    except KeyboardInterrupt:
        return INTERRUPTED
    except (DeployError, HTTPError, InferenceEndpointError, OSError, ValueError) as error:
        line = str(error) if isinstance(error, DeployError) else reason(error)
        for secret in filter(None, (get_token(), *secrets.values())):
            line = line.replace(secret, HIDDEN)
        _say(f"deploy.py: {line}")
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
