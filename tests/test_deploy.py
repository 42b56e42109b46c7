"""deploy.py against a stand-in for the platform's API and for the endpoint, both on loopback."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from huggingface_hub import constants

import deploy
from config import REPOSITORY
from tests.helpers.loopback import Handler, Loopback

TOKEN, READ_TOKEN, KEY = "hf_manages_endpoints", "hf_only_reads", "key_of_the_server"
NAMED = ["who-said-what", "--repository", "me/handler", "--asr-model", "openai/whisper-large-v3"]
WEIGHTS = ["config.json", "model.safetensors"]
GATED = "pyannote/speaker-diarization-3.1"
TIME = "2026-01-01T00:00:00Z"
TURN = {"speaker": "SPEAKER_00", "text": " good morning", "timestamp": [0.62, 2.36]}
ANSWER = {"text": " good morning", "speakers": [TURN], "chunks": []}


class Platform(Loopback):
    """Holds endpoints as the API does. `states` are what an endpoint is in at each look, the last
    of them for good; the endpoint itself answers under /served."""

    def __init__(self) -> None:
        super().__init__(Api)
        self.endpoints: dict[str, dict[str, Any]] = {}
        self.states = ["pending", "initializing", "running"]
        self.calls: list[tuple[str, str, Any]] = []
        self.accepts = {TOKEN}
        self.tokens: dict[str, str] = {}
        self.public = False
        self.refusal: tuple[int, Any] | None = None
        self.answer: Any = lambda body: ANSWER
        self.files = {
            "me/handler": ["handler.py"],
            "openai/whisper-large-v3": WEIGHTS,
            "a/b": WEIGHTS,
            GATED: ["config.yaml"],
        }
        self.gated = {GATED}
        self.accepted: set[str] = set()

    def described(self, name: str) -> dict[str, Any]:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        url = {"url": f"{self.url}/served"} if state == "running" else {}
        status = {"state": state, "createdAt": TIME, "updatedAt": TIME} | url
        route = {"healthRoute": self.health_route(name)}
        return self.endpoints[name] | {"status": status} | route

    def health_route(self, name: str) -> str:
        (image,) = self.endpoints[name]["model"]["image"].values()
        return str(image.get("healthRoute", "/health"))

    def made(self, method: str) -> list[Any]:
        """The bodies of the calls made with `method`."""
        return [body for made, _, body in self.calls if made == method]


class Api(Handler):
    server: Platform

    def do_GET(self) -> None:
        self.respond(None if self.command == "GET" else json.loads(self.body() or b"{}"))

    do_POST = do_PUT = do_GET

    def respond(self, body: Any) -> None:
        self.server.calls.append((self.command, self.path, body))
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        self.server.tokens[self.path] = token
        is_open = self.server.public and self.path.startswith("/served")
        if self.path.startswith("/api/models/"):
            return self.tell(*self.model(*self.path.split("/")[3:]))
        if not is_open and token not in self.server.accepts:
            return self.tell(401, {"error": f"Invalid credentials: {token}"})
        return self.tell(*self.outcome(body))

    def outcome(self, body: Any) -> tuple[int, Any]:
        platform = self.server
        parts = self.path.strip("/").split("/")
        if parts == ["api", "whoami-v2"]:
            return 200, {"name": "me", "type": "user"}
        if parts[0] == "served":
            return self.served(parts[1:], body)
        if platform.refusal and self.command != "GET":
            return platform.refusal
        if self.command == "POST" and len(parts) == 2:
            platform.endpoints[body["name"]] = body | {"namespace": parts[1]}
            return 200, platform.described(body["name"])
        if parts[2] not in platform.endpoints:
            return 404, {"error": "Endpoint not found"}
        if self.command == "PUT":
            for part, changes in body.items():
                platform.endpoints[parts[2]][part].update(changes)
        if parts[3:] == ["resume"]:
            platform.states = ["running"]
        return 200, platform.described(parts[2])

    def model(self, owner: str, name: str, *more: str) -> tuple[int, Any]:
        """Return the Hub's description of a model, or whether its conditions were accepted."""
        id = f"{owner}/{name.partition('?')[0]}"
        if id not in self.server.files:
            return 404, {"error": "Repository not found"}
        if more[:1] == ("auth-check",):
            return (200, {}) if id in self.server.accepted else (403, {"error": "gated"})
        siblings = [{"rfilename": name} for name in self.server.files[id]]
        gated = "auto" if id in self.server.gated else False
        return 200, {"id": id, "siblings": siblings, "gated": gated}

    def served(self, parts: list[str], body: Any) -> tuple[int, Any]:
        if self.command == "GET":
            (name,) = self.server.endpoints
            asked = "/" + "/".join(parts)
            return (200, {}) if asked == self.server.health_route(name) else (404, {})
        answer = self.server.answer(body)
        return answer if isinstance(answer, tuple) else (200, answer)

    def tell(self, status: int, body: Any) -> None:
        codes = {"gated": "GatedRepo", "Repository not found": "RepoNotFound"}
        code = codes.get(body.get("error")) if isinstance(body, dict) else None
        named = {"X_Error_Code": code} if code else {}
        self.send(status, json.dumps(body).encode(), Content_Type="application/json", **named)


@pytest.fixture
def platform(monkeypatch) -> Iterator[Platform]:
    with Platform() as server:
        monkeypatch.setattr(constants, "INFERENCE_ENDPOINTS_ENDPOINT", server.url)
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(deploy, "REFRESH_SECONDS", 0.001)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The line that a failed deployment ends with; nothing on stdout, and no secret anywhere."""
    assert deploy.main([*NAMED, *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    for secret in (TOKEN, READ_TOKEN, KEY):
        assert secret not in err
    line = err.splitlines()[-1]
    assert line.startswith("deploy.py: ")
    return line.removeprefix("deploy.py: ")


class TestCreate:
    def test_endpoint_is_created_awaited_and_asked(self, platform, capsys):
        assert deploy.main(NAMED) == 0
        out, err = capsys.readouterr()
        assert out == "text: good morning\nSPEAKER_00   0.62 s  good morning\n"
        told = ["creating me/who-said-what", "waiting at most 1800 s for it to run"]
        assert err.splitlines() == [*told, f"asking {platform.url}/served"]
        created, asked = platform.made("POST")
        env, image = {"ASR_MODEL": "openai/whisper-large-v3"}, {"huggingface": {}}
        model = {"repository": "me/handler", "revision": None, "framework": "pytorch"}
        assert created["model"] == model | {"task": "custom", "image": image, "env": env}
        assert created["type"] == "authenticated"
        conversation = (REPOSITORY / "demo" / "conversation.ogg").read_bytes()
        assert asked == {"inputs": base64.b64encode(conversation).decode()}
        assert platform.calls[-2][:2] == ("GET", "/served/health")

    @pytest.mark.reliability
    def test_the_handler_answers_the_request(self, platform, capsys, demo_handler):
        platform.answer = demo_handler
        assert deploy.main(NAMED) == 0
        text, *turns = capsys.readouterr().out.splitlines()
        assert text.startswith("text: good morning how can i help you my name is david")
        assert len({turn.split()[0] for turn in turns}) == 3

    def test_models_variables_secrets_and_scaling(self, platform, capsys, monkeypatch):
        monkeypatch.setenv("ENDPOINT_HF_TOKEN", f"  {READ_TOKEN}\n")
        models = ["--assistant-model", "a/b@v1", "--diarization-model", "models/diarization"]
        models += ["--asr-model", "large-v3@main"]
        variables = ["--env", "DTYPE=float16", "--env", "MAX_AUDIO_SECONDS=60"]
        variables += ["--env", "OTHER_KEY=x", "--env", "a_token=y"]
        # Variables of this machine do not count.
        monkeypatch.setenv("DTYPE", "float8")
        monkeypatch.setenv("MAX_QUEUE", "none")
        scaling = ["--max-replica", "3", "--scale-to-zero", "15"]
        place = ["--namespace", "org", "--revision", "v2", "--region", "eu-west-1"]
        assert deploy.main([*NAMED, *models, *variables, *scaling, *place, "--no-wait"]) == 0
        (body,) = platform.made("POST")
        assert platform.calls[-1][1] == "/endpoint/org"
        assert capsys.readouterr().out == "who-said-what: pending\n"
        expected = {"minReplica": 0, "maxReplica": 3, "scaleToZeroTimeout": 15}
        assert body["compute"]["scaling"] == expected | {"measure": {"pendingRequests": 2}}
        assert body["provider"] == {"vendor": "aws", "region": "eu-west-1"}
        assert body["model"]["revision"] == "v2"
        asr = {"ASR_MODEL": "openai/whisper-large-v3@main", "ASSISTANT_MODEL": "a/b@v1"}
        given = {"DTYPE": "float16", "MAX_AUDIO_SECONDS": "60"}
        assert body["model"]["env"] == asr | {"DIARIZATION_MODEL": "models/diarization"} | given
        secrets = {"HF_TOKEN": READ_TOKEN, "OTHER_KEY": "x", "a_token": "y"}
        assert body["model"]["secrets"] == secrets

    @pytest.mark.parametrize(
        ("options", "measure"),
        [
            ("--container custom --image i:1", {"pendingRequests": 16}),
            ("--container custom --image i:1 --env MAX_ROWS=96", {"pendingRequests": 48}),
            ("--container custom --image i:1 --env MAX_ROWS=96.0", {"pendingRequests": 48}),
            ("--container hf-serve --image i:1", {"pendingRequests": 2}),
            ("--scaling-threshold 7", {"pendingRequests": 7}),
            ("--scaling-metric hardwareUsage --scaling-threshold 60", {"hardwareUsage": 60}),
        ],
    )
    def test_threshold_of_scaling_follows_the_rows(self, platform, options, measure):
        assert deploy.main([*NAMED, *options.split(), "--no-wait"]) == 0
        assert platform.made("POST")[0]["compute"]["scaling"]["measure"] == measure

    @pytest.mark.parametrize(
        ("scaling", "warns"), [("--scale-to-zero 9", True), ("--max-replica 2", True), ("", False)]
    )
    def test_jobs_on_replicas_that_come_and_go_are_warned_of(
        self, platform, capsys, scaling, warns
    ):
        options = ["--container", "custom", "--image", "i:1", "--env", "DATA_DIR=/data"]
        assert deploy.main([*NAMED, *options, *scaling.split(), "--dry-run"]) == 0
        assert ("DATA_DIR is of one replica" in capsys.readouterr().err) == warns

    def test_custom_image_answers_to_the_platforms_host_names(self, platform):
        """The platform's proxy has checked the token; its host name is not documented."""
        options = ["--container", "custom", "--image", "registry/image:1", "--no-wait"]
        assert deploy.main([*NAMED, *options]) == 0
        assert platform.made("POST")[0]["model"]["env"]["ALLOWED_HOSTS"] == "*"
        assert deploy.main([*NAMED, *options, "--env", "ALLOWED_HOSTS=a.example"]) == 0
        assert platform.made("PUT")[0]["model"]["env"]["ALLOWED_HOSTS"] == "a.example"

    @pytest.mark.parametrize(("given", "port"), [([], 8000), (["--port", "9000"], 9000)])
    def test_custom_image_listens_on_the_port_that_the_platform_calls(self, platform, given, port):
        assert deploy.main([*NAMED, "--container", "custom", "--image", "i:1", *given]) == 0
        model = platform.made("POST")[0]["model"]
        assert model["image"]["custom"]["port"] == int(model["env"]["PORT"]) == port

    def test_custom_image_with_an_api_key(self, platform, monkeypatch):
        monkeypatch.setenv("ENDPOINT_API_KEY", KEY)
        platform.accepts = {TOKEN, KEY}
        options = ["--container", "custom", "--image", "registry/ours:1", "--type", "public"]
        assert deploy.main([*NAMED, *options]) == 0
        body = platform.made("POST")[0]
        image = {"url": "registry/ours:1", "port": 8000, "healthRoute": "/ready"}
        assert body["model"]["image"] == {"custom": image}
        assert (body["type"], body["model"]["secrets"]) == ("public", {"API_KEY": KEY})
        assert ("GET", "/served/ready") in [call[:2] for call in platform.calls]
        assert (platform.tokens["/endpoint/me"], platform.tokens["/served"]) == (TOKEN, KEY)

    def test_a_public_endpoint_sees_no_token(self, platform):
        platform.public = True
        options = ["--container", "custom", "--image", "registry/ours:1", "--type", "public"]
        assert deploy.main([*NAMED, *options]) == 0
        served = {path: token for path, token in platform.tokens.items() if "/served" in path}
        assert served == {"/served/ready": "", "/served": ""}
        assert platform.tokens["/endpoint/me"] == TOKEN

    def test_endpoint_without_its_own_token_sees_the_managing_one(self, platform, monkeypatch):
        platform.accepts = {TOKEN, READ_TOKEN}
        for own, seen in (("", TOKEN), (READ_TOKEN, READ_TOKEN)):
            monkeypatch.setenv("ENDPOINT_HF_TOKEN", own)
            assert deploy.main(NAMED) == 0
            assert platform.tokens["/served/health"] == platform.tokens["/served"] == seen
            assert platform.tokens["/endpoint/me/who-said-what"] == TOKEN


class TestUpdate:
    @pytest.fixture(autouse=True)
    def existing(self, platform, capsys) -> None:
        assert deploy.main([*NAMED, "--no-wait", "--container", "custom", "--image", "old:1"]) == 0
        capsys.readouterr()
        platform.calls.clear()
        platform.states = ["updating", "running"]

    def test_existing_endpoint_is_updated_to_the_command_line(self, platform, capsys):
        assert deploy.main([*NAMED, "--max-replica", "4", "--env", "DTYPE=float32"]) == 0
        assert "updating me/who-said-what" in capsys.readouterr().err
        (body,) = platform.made("PUT")
        assert body.keys() == {"compute", "model"}
        measure = {"measure": {"pendingRequests": 2}}
        assert body["compute"]["scaling"] == {"minReplica": 1, "maxReplica": 4, **measure}
        assert body["model"]["image"] == {"huggingface": {}}
        assert body["model"]["env"]["DTYPE"] == "float32"
        assert len(platform.made("POST")) == 1  # the request to the endpoint itself

    def test_paused_endpoint_is_resumed(self, platform):
        platform.states = ["paused"]
        assert deploy.main(NAMED) == 0
        assert ("POST", "/endpoint/me/who-said-what/resume", {}) in platform.calls

    def test_sleeping_endpoint_is_not_awaited(self, platform, monkeypatch):
        platform.states = ["scaledToZero"]
        described = platform.described
        platform.described = lambda name: (
            described(name)
            | {"status": described(name)["status"] | {"url": f"{platform.url}/served"}}
        )
        assert deploy.main([*NAMED, "--timeout", "0"]) == 0
        assert "/served/health" not in [path for _, path, _ in platform.calls]

    def test_unchangeable_options_are_refused(self, platform, capsys):
        for option, value in (("--region", "eu-west-1"), ("--type", "public")):
            line = failure(capsys, option, value)
            assert line.startswith(f"me/who-said-what exists with {option[2:]} ")
        assert platform.made("PUT") == []


REFUSED = (500, {"detail": "OUT_OF_MEMORY: one window does not fit"})
WRONG_TOKEN = "127.0.0.1 answered 401: the token is missing, wrong or expired"
ANOTHER = "its answer has no text and speakers"


class TestFailures:
    @pytest.mark.parametrize(
        ("given", "options", "said"),
        [
            ({"states": ["pending", "failed"]}, [], "who-said-what failed to deploy"),
            ({"states": ["pending", "updateFailed"]}, [], "who-said-what failed to update"),
            ({"states": ["initializing"]}, ["--timeout", "0"], "Timeout while waiting"),
            ({"accepts": {"hf_another"}}, [], WRONG_TOKEN),
            ({"accepts": {"hf_another"}}, ["--namespace", "org"], WRONG_TOKEN),
            ({"refusal": (403, {"error": "no"})}, [], "127.0.0.1 answered 403: the token is"),
            ({"answer": lambda body: REFUSED}, [], "127.0.0.1 answered 500: "),
            ({"answer": lambda body: {"text": "only"}}, [], ANOTHER),
            ({"answer": lambda body: {"text": "", "speakers": [{"speaker": "A"}]}}, [], ANOTHER),
        ],
    )
    def test_failures_print_one_line(self, platform, capsys, given, options, said):
        vars(platform).update(given)
        assert failure(capsys, *options).startswith(said)

    def test_a_refusal_is_repeated_without_secrets(self, platform, capsys, monkeypatch):
        monkeypatch.setenv("ENDPOINT_HF_TOKEN", READ_TOKEN)
        platform.refusal = (400, {"error": f"no such\ninstance; {READ_TOKEN} {TOKEN} {KEY}"})
        line = failure(capsys, "--env", f"SOME_SECRET={KEY}")
        assert line == "127.0.0.1 answered 400: no such instance; <hidden> <hidden> <hidden>"

    def test_no_token(self, platform, capsys, monkeypatch):
        monkeypatch.setattr(deploy, "get_token", lambda: None)
        assert failure(capsys) == "no token: set HF_TOKEN or run `hf auth login`"
        assert platform.calls == []


class TestDryRun:
    def test_dry_run_prints_the_request_without_secrets(self, platform, capsys, monkeypatch):
        monkeypatch.setenv("ENDPOINT_HF_TOKEN", READ_TOKEN)
        variable = ["--env", f"DbPassword={KEY}"]
        assert deploy.main([*NAMED, *variable, "--dry-run"]) == 0
        printed = capsys.readouterr().out
        assert KEY not in printed
        assert {method for method, *_ in platform.calls} == {"GET"}
        assert READ_TOKEN not in printed
        dry = json.loads(printed)
        assert dry["secrets"] == {"HF_TOKEN": "<hidden>", "DbPassword": "<hidden>"}
        deploy.main([*NAMED, "--no-wait"])
        sent = platform.made("POST")[0]
        assert dry["name"] == sent["name"]
        assert dry["env"] == sent["model"]["env"]
        assert dry["instance_type"] == sent["compute"]["instanceType"]
        monkeypatch.setattr(deploy, "get_token", lambda: None)  # which it does not need
        assert deploy.main([*NAMED, "--dry-run"]) == 0


class TestChecks:
    """Faults found before anything is created, also in a dry run."""

    @pytest.fixture(params=[[], ["--dry-run"]], ids=["deploy", "dry-run"])
    def lines(self, request, platform, capsys):
        """Runs a deployment that fails and creates nothing, and returns what it prints."""

        def fail(*arguments: str) -> str:
            assert deploy.main([*NAMED, *arguments, *request.param]) == 1
            assert platform.made("POST") == platform.made("PUT") == []
            return capsys.readouterr().err

        return fail

    def test_ids_that_the_hub_has_not(self, platform, lines):
        told = lines("--repository", "me/none", "--assistant", "a/none@v1")
        assert "deploy.py: --repository: the Hub has no me/none that the token can read" in told
        assert "deploy.py: --assistant: the Hub has no a/none@v1 that the token can read" in told

    def test_repositories_without_what_is_needed(self, platform, lines):
        files = {"a/pickled": ["pytorch_model.bin"], "a/ctranslate2": ["model.bin"]}
        platform.files |= files | {"me/handler": ["README.md"]}
        assert "a/ctranslate2" not in lines("--model", "a/ctranslate2")
        told = lines("--model", "a/pickled")
        assert "me/handler has no handler.py: upload this repository to it" in told
        assert "a/pickled has no .safetensors file; pickles are not loaded" in told

    def test_weights_that_follow_one_speaker(self, platform, lines):
        told = lines("--conditioning", "a/none")
        assert "--conditioning: the Hub has no a/none that the token can read" in told
        told = lines("--conditioning", "a/b")
        assert "--conditioning: a/b has no conditioning.safetensors" in told
        platform.files["a/b"] = ["conditioning.safetensors"]
        platform.files["a/empty"] = []
        assert "a/empty" not in lines("--diarization", "a/empty", "--repository", "me/none")
        assert "a/b" not in lines("--conditioning", "a/b", "--repository", "me/none")

    def test_gated_pipelines(self, platform, lines, monkeypatch):
        told = lines("--diarization", GATED)
        assert f"--diarization: {GATED} is gated: set ENDPOINT_HF_TOKEN" in told
        monkeypatch.setenv("ENDPOINT_HF_TOKEN", READ_TOKEN)
        platform.files["pyannote/segmentation-3.0"] = ["config.yaml"]
        platform.accepted = {GATED}
        told = lines("--diarization", GATED)
        assert "pyannote/segmentation-3.0 is gated: accept its conditions at https" in told
        assert f"{GATED} is gated" not in told

    def test_unreachable_hub_gives_one_note(self, capsys, monkeypatch):
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
        monkeypatch.setattr(deploy, "get_token", lambda: None)
        assert deploy.main([*NAMED, "--assistant", "a/b", "--dry-run"]) == 0
        (note,) = capsys.readouterr().err.splitlines()
        assert note.startswith("note: the ids could not be checked on the Hub: ")

    def test_an_endpoint_that_exists_may_have_its_token_from_before(self, platform, capsys):
        assert deploy.main([*NAMED, "--no-wait"]) == 0
        assert deploy.main([*NAMED, "--no-wait", "--diarization", GATED]) == 0
        assert deploy.main([*NAMED, "--diarization", GATED, "--dry-run"]) == 0
        assert deploy.main([*NAMED, "--region", "eu-west-1", "--dry-run"]) == 1
        assert "exists with region us-east-1" in capsys.readouterr().err


class TestCommandLine:
    @pytest.mark.parametrize(
        ("variable", "option"),
        [("port=9", "--port"), ("ASR_MODEL=a/b", "--model"), ("CONDITIONING_MODEL=a/b", "--cond")],
    )
    def test_variables_of_options_are_left_to_the_options(self, capsys, variable, option):
        with pytest.raises(SystemExit) as ended:
            deploy.main([*NAMED, "--container", "custom", "--image", "i:1", "--env", variable])
        assert ended.value.code == 2
        assert f"{variable.partition('=')[0]} is given by {option}" in capsys.readouterr().err

    @pytest.mark.parametrize("options", [[], ["--container", "custom", "--image", "ours:1"]])
    def test_a_key_that_no_client_could_send(self, platform, capsys, monkeypatch, options):
        told = "needs --container custom --type public"
        assert told in failure(capsys, *options, "--env", "API_KEYS_FILE=/no/file")
        monkeypatch.setenv("ENDPOINT_API_KEY", KEY)
        assert failure(capsys, *options) == f"ENDPOINT_API_KEY {told}"
