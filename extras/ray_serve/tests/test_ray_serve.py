"""extras/ray_serve without Ray: the middleware around the application, and the YAML file."""

import asyncio

import pytest
import yaml
from starlette.responses import PlainTextResponse

import config
from config import DEMO_MODELS
from extras.ray_serve import deployment
from extras.ray_serve.deployment import (
    FILE,
    OF_ONE_PROCESS,
    ProxyAnswers,
    Replica,
    proxy_middlewares,
)
from tests.helpers.asgi import call, served
from whosaid.server.settings import ServerSettings

TOLD = yaml.safe_load(FILE.read_text(encoding="utf-8"))
(APPLICATION,) = TOLD["applications"]
(DEPLOYMENT,) = APPLICATION["deployments"]
CALLBACK = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
DEFAULTS = {name: field.default for name, field in ServerSettings.model_fields.items()}


@pytest.fixture
def environment(monkeypatch):
    """Set a model, and allow Ray's usage reports."""
    monkeypatch.setenv("ASR_MODEL", str(DEMO_MODELS / "asr"))
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_BACKEND_LOG_LEVEL", CALLBACK):
        monkeypatch.setenv(name, "1")


# ---- the proxy


@pytest.mark.parametrize(
    ("path", "headers", "passed"),
    [
        ("/", {"X-Content-Type-Options": "nosniff", "Retry-After": "7"}, True),
        ("/-/healthz", {}, True),
        ("/", {}, False),
        ("/v1/audio/transcriptions", {}, False),
    ],
)
@pytest.mark.parametrize("status", [404, 503])
def test_answers_pass_and_proxy_errors_ask_for_a_retry(path, headers, passed, status):
    (middleware,) = proxy_middlewares()
    app = middleware.cls(PlainTextResponse("what was said", status, headers))
    reply = asyncio.run(call(app, path=path))
    if passed:
        assert (reply.status, reply.body) == (status, b"what was said")
        assert reply.headers.get("retry-after") == headers.get("Retry-After")
    else:
        assert (reply.status, reply.code, reply.headers["retry-after"]) == (503, "NO_REPLICA", "1")
        assert ("error" in reply.json) is (path != "/")


def test_a_missing_answer_asks_for_a_retry():
    async def dies(scope, receive, send):
        pass

    assert asyncio.run(call(ProxyAnswers(dies))).code == "NO_REPLICA"


def test_the_requests_id_comes_once():
    async def twice(scope, receive, send):
        name = b"x-request-id"
        headers = [(name, b"a"), (b"x-content-type-options", b"nosniff"), (name, b"a")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(ProxyAnswers(twice)({"type": "http", "path": "/"}, None, send))
    assert [name for name, _ in sent[0]["headers"]].count(b"x-request-id") == 1


# ---- a replica


def test_a_replica_serves_what_all_processes_can(monkeypatch, environment):
    async def scenario():
        endpoint, gate = served(api_key="key")
        monkeypatch.setattr("whosaid.server.serving.load_app", lambda *_: (gate, endpoint))
        replica = Replica()
        app = replica.__serve_build_asgi_app__()
        key = {"authorization": "Bearer key"}
        for path in (*OF_ONE_PROCESS, "/v1/jobs/abc"):
            assert (await call(app, "GET", path)).status == 401
            refused = await call(app, "GET", path, key)
            assert (refused.status, refused.code) == (400, "UNSUPPORTED"), path
        assert (await call(app, "GET", "/ready", key)).status == 200
        replica.check_health()
        endpoint.recogniser.alive = False
        with pytest.raises(RuntimeError, match="engine"):
            replica.check_health()

    asyncio.run(scenario())


def test_a_replica_that_cannot_load_says_why(monkeypatch, environment):
    def fail(*_):
        raise SystemExit("START_FAILED: no such model")

    monkeypatch.setattr("whosaid.server.serving.load_app", fail)
    with pytest.raises(RuntimeError, match="START_FAILED: no such model"):
        Replica()
    monkeypatch.setenv("MAX_QUEUE", "-1")
    with pytest.raises(RuntimeError, match="MAX_QUEUE"):
        Replica()


# ---- the file and the command line


def test_the_file_says_what_the_settings_say():
    assert APPLICATION["import_path"] == "extras.ray_serve.deployment:application"
    assert DEPLOYMENT["name"] == Replica.__name__
    assert DEPLOYMENT["max_ongoing_requests"] == DEFAULTS["max_queue"]
    assert DEPLOYMENT["graceful_shutdown_timeout_s"] == DEFAULTS["drain_timeout"]
    assert TOLD["http_options"] == {name: DEFAULTS[name] for name in ("host", "port")}
    assert DEPLOYMENT["ray_actor_options"]["num_gpus"] == 1
    for part in (TOLD, DEPLOYMENT):  # paths are logged by neither
        assert part["logging_config"] == {"log_level": "WARNING", "enable_access_log": False}


def test_a_machine_without_room_ends_the_command():
    wanted = {"num_gpus": 1, "num_cpus": 4}
    deployment._require_room({"GPU": 1.0, "CPU": 4.0}, wanted)
    with pytest.raises(SystemExit, match="num_gpus: 1 for each replica, and Ray finds 0"):
        deployment._require_room({"CPU": 4.0}, wanted)


@pytest.mark.parametrize("variable", ["ASR_MODEL", "PORT"])
def test_a_setting_that_replicas_refuse_ends_the_command(monkeypatch, environment, variable):
    monkeypatch.setenv(variable, "not this")
    with pytest.raises(SystemExit, match=f"START_FAILED: {variable}"):
        deployment.main([])
    assert config.os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    module, _, name = config.os.environ[CALLBACK].partition(":")
    assert (module, getattr(deployment, name)) == (deployment.__name__, proxy_middlewares)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("applications:", "a: ["),
        ("  port: 8000", "  port: none"),
        ("import_path", "path"),
        ("applications:", "applications: [] #"),
    ],
)
def test_a_file_that_is_none_is_one_line(tmp_path, before, after):
    pytest.importorskip("ray.serve.schema")
    bad = tmp_path / "bad.yaml"
    with pytest.raises(SystemExit, match="--config"):
        deployment._read_file(bad)
    bad.write_text(FILE.read_text().replace(before, after))
    with pytest.raises(SystemExit, match=r"--config .*bad\.yaml: .+$") as raised:
        deployment._read_file(bad)
    assert "\n" not in str(raised.value)
