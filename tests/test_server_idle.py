"""A server whose models are not in memory (IDLE_UNLOAD_SECONDS)."""

import asyncio

import pytest

from tests.helpers.asgi import HELLO, call, served
from whosaid.errors import StartError
from whosaid.runtime.on_demand import OnDemand


class Idle:
    """A server that is idle; `loads` counts how often its models were loaded since."""

    def __init__(self) -> None:
        self.endpoint, self.app = served()
        self.endpoint.release.set()
        models, self.loads, self.error = self.endpoint.models, 0, None

        def load():
            if self.error:
                raise self.error
            self.loads += 1
            return models

        self.endpoint._models = OnDemand(models, load, lambda _: None, 3600)
        self.endpoint._models._unload_unused()  # as if the hour had passed
        assert self.endpoint.idle

    def ask(self, path, method="GET"):
        posted = method == "POST"
        headers = {"content-type": "application/json", "content-length": len(HELLO[0])}
        parts = HELLO if posted else (b"",)
        return asyncio.run(call(self.app, method, path, headers if posted else {}, parts))


@pytest.fixture
def idle():
    made = Idle()
    yield made
    made.endpoint._models.close()


@pytest.mark.parametrize("path", ["/", "/health", "/ready", "/metrics", "/nothing"])
def test_requests_without_models_leave_the_server_idle(idle, path):
    idle.ask(path)
    assert idle.endpoint.idle
    assert not idle.loads


def test_an_idle_server_is_healthy_and_reports_idle(idle):
    assert idle.ask("/health").json == {"status": "ok"}
    reply = idle.ask("/ready")
    assert (reply.status, reply.json) == (200, {"status": "idle"})
    metrics = idle.ask("/metrics").body.decode()
    assert "asr_engine_alive 1.0" in metrics
    assert "asr_running_rows 0.0" in metrics
    assert "asr_windows_total 5.0" in metrics  # as before the models were unloaded


@pytest.mark.parametrize(
    ("path", "method"), [("/", "POST"), ("/predict", "POST"), ("/v1/models", "GET")]
)
def test_a_request_loads_the_models_and_is_answered(idle, path, method):
    assert idle.ask(path, method).status == 200
    assert idle.loads == 1
    assert idle.ask("/ready").json == {"status": "ready"}


def test_a_failed_reload_fails_only_the_request(idle):
    idle.error = StartError("ASR_MODEL=/models/secret: is gone")
    reply = idle.ask("/", "POST")
    assert (reply.status, reply.code) == (500, "MODEL_ERROR")
    assert b"secret" not in reply.body
    idle.error = None
    assert idle.ask("/", "POST").status == 200
