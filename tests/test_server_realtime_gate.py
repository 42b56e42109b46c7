"""The opening of sessions by key, secret or origin, and the ends that the server gives them."""

import asyncio
import json
import re
import signal
from types import SimpleNamespace

import openai.types.realtime as sdk
import pytest
from pydantic import TypeAdapter

from tests.helpers.asgi import FakeEndpoint, call
from tests.helpers.live_stand_ins import Drivers, Socket, error_of, live
from tests.helpers.refusals import refused
from tests.test_server_admission import basic
from tests.test_server_metrics import read as metrics_of
from tests.test_server_metrics import values
from whosaid.live.settings import AudioFormat, TurnSettings
from whosaid.server.lifecycle import DrainingServer
from whosaid.server.realtime.client_secrets import ClientSecrets
from whosaid.server.realtime.places import MOST_SLOWED
from whosaid.server.realtime.session_config import SessionConfig

KEY = "the-right-key-of-this-test"
SECRETS = "/v1/realtime/client_secrets"


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def ask(app, body: object = None, token: str = KEY, raw: bytes | None = None):
    data = raw if raw is not None else json.dumps(body or {}).encode()
    headers = {**bearer(token), "content-type": "application/json", "content-length": len(data)}
    return call(app, "POST", SECRETS, headers=headers, parts=[data])


def outcome(**options) -> tuple[int, str]:
    """The status of a handshake, and the code of its refusal."""

    async def run():
        settings = options.pop("settings", {})
        app = live(Drivers(), **settings)
        async with Socket(app, **options) as socket:
            while not socket.status or (socket.status != 101 and not socket.body):
                await asyncio.sleep(0)
            code = "" if socket.status == 101 else json.loads(socket.body)["error"]["code"]
            if code:
                assert socket.headers["x-error-message"].startswith(code)
                assert socket.headers["x-content-type-options"] == "nosniff"
            return socket.status, code

    return asyncio.run(run())


def protocols(token: str) -> list[str]:
    return ["realtime", f"openai-insecure-api-key.{token}"]


@pytest.mark.parametrize(
    ("options", "status", "code"),
    [
        ({"headers": bearer(KEY)}, 101, ""),
        ({"headers": {"authorization": basic(KEY)}}, 101, ""),
        ({"protocols": protocols(KEY)}, 101, ""),
        ({"protocols": protocols("wrong")}, 401, "UNAUTHORIZED"),
        ({"protocols": protocols("ek_wrong")}, 401, "UNAUTHORIZED"),
        ({"protocols": ["realtime"]}, 401, "UNAUTHORIZED"),
        ({"headers": bearer("wrong")}, 401, "UNAUTHORIZED"),
        ({"headers": bearer("ek_wrong")}, 401, "UNAUTHORIZED"),
        ({"headers": bearer("ek_\u00e9")}, 401, "UNAUTHORIZED"),
        ({}, 401, "UNAUTHORIZED"),
    ],
)  # fmt: skip
def test_only_the_key_opens_a_session(options, status, code):
    assert outcome(settings={"api_key": KEY}, **options) == (status, code)


@pytest.mark.parametrize(
    ("headers", "settings", "code"),
    [
        ({"host": "localhost:8000", "origin": "http://localhost:8000"}, {}, ""),
        ({"origin": "https://evil.example"}, {}, "ORIGIN_NOT_ALLOWED"),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "websocket"}, {}, "ORIGIN_NOT_ALLOWED"),
        ({"origin": "https://a.b"}, {"allowed_origins": frozenset({"https://a.b"})}, ""),
        ({"host": "evil.example"}, {}, "HOST_NOT_ALLOWED"),
        ({"origin": "https://evil.example", **bearer(KEY)}, {"api_key": KEY}, "ORIGIN_NOT_ALLOWED"),
    ],
)  # fmt: skip
def test_foreign_origins_and_hosts_open_no_session(headers, settings, code):
    status = 403 if code else 101
    assert outcome(headers=headers, settings=settings) == (status, code)


@pytest.mark.parametrize(
    ("query", "warnings"),
    [
        ("intent=transcription&model=gpt-realtime-mini", None),
        ("model=", None),
        ("intent=conversation", ["intent: is transcription here"]),
        ("model=parakeet", ["model: parakeet is not loaded; this server has org/whisper alone"]),
        (
            "api-version=2025-04-01-preview&call_id=1&%C3%A4=1",
            ["unknown parameters of the URL are ignored: api-version, call_id, \\xe4"],
        ),
    ],
)
async def test_unknown_query_parameters_are_ignored_with_a_warning(query, warnings):
    async with Socket(live(Drivers()), query=query) as socket:
        created = await socket.read()
    assert (created["type"], created.get("warnings")) == ("session.created", warnings)


def test_a_server_without_sessions_has_no_such_route():
    assert outcome(settings={"max_live_sessions": 0}) == (404, "NOT_FOUND")


async def test_sessions_beyond_the_limit_are_refused_until_one_ends():
    app = live(Drivers(), max_live_sessions=2)
    async with Socket(app) as first, Socket(app) as second:
        assert (await first.read())["type"] == (await second.read())["type"]
        async with Socket(app) as third:
            refused = await third.refused()
        assert (third.status, refused["code"]) == (429, "BUSY")
        assert int(third.headers["retry-after"]) > 0
        first.leave()
        await first.running
        async with Socket(app) as fourth:
            assert (await fourth.read())["type"] == "session.created"
    found = await metrics_of(app)
    assert values(found["asr_live_sessions_open"])["asr_live_sessions_open",] == 0
    assert values(found["asr_live_sessions"])["asr_live_sessions_total",] == 3
    requests = values(found["asr_requests"])
    assert requests["asr_requests_total", "/v1/realtime", "101", "OK"] == 3
    assert requests["asr_requests_total", "/v1/realtime", "429", "BUSY"] == 1
    assert values(found["asr_refused"])["asr_refused_total", "BUSY"] == 1


async def test_the_accepted_subprotocol_is_never_the_key():
    app = live(Drivers(), api_key=KEY)
    async with Socket(app, protocols=protocols(KEY)) as socket:
        await socket.read()
    async with Socket(app, headers=bearer(KEY)) as other:
        await other.read()
    first, second = socket.accepted, other.accepted
    assert (first["subprotocol"], second["subprotocol"]) == ("realtime", None)
    assert re.fullmatch(rb"\w+", dict(first["headers"])[b"x-request-id"])


async def test_a_secret_opens_sessions_with_its_settings():
    audio = {"format": {"type": "audio/pcma"}}
    audio["transcription"] = {"model": "gpt-4o-transcribe", "language": "en"}
    audio["turn_detection"] = {"type": "server_vad", "threshold": 0.25}
    include = ["item.input_audio_transcription.logprobs"]
    wanted = {"type": "transcription", "audio": {"input": audio}, "include": include}

    drivers = Drivers()
    app = live(drivers, api_key=KEY)
    reply = await ask(app, {"expires_after": {"seconds": 60}, "session": wanted})
    assert (reply.status, reply.headers["cache-control"]) == (200, "no-store")
    told = reply.json
    created = []
    for _ in range(2):
        async with Socket(app, protocols=protocols(told["value"])) as socket:
            created.append((await socket.read())["session"])
    read = TypeAdapter(sdk.ClientSecretCreateResponse).validate_python(told, strict=True)
    assert read.session.audio.input.transcription.language == "en"
    assert read.value.startswith("ek_")
    assert len(read.value) > 40
    for each in created:
        assert each["audio"] == told["session"]["audio"]
        assert each["include"] == wanted["include"]
    assert created[0]["id"] != created[1]["id"]
    (_, settings, audio_format) = drivers.opened[0].calls[0]
    assert (settings.language, settings.turn_detection) == ("en", TurnSettings(0.25))
    assert audio_format is AudioFormat.PCMA


async def test_a_key_may_begin_as_secrets_do():
    """The key opens sessions, and so do secrets; other values with that prefix are wrong keys."""
    key = "ek_the-right-key-of-this-test"

    app = live(Drivers(), api_key=key)
    value = (await ask(app, token=key)).json["value"]
    for token in (key, value):
        for given in ({"headers": bearer(token)}, {"protocols": protocols(token)}):
            async with Socket(app, **given) as socket:
                assert (await socket.read())["type"] == "session.created"
    async with Socket(app, protocols=protocols("ek_wrong")) as socket:
        assert (await socket.refused())["code"] == "UNAUTHORIZED"


async def test_no_secret_is_made_while_sessions_are_refused():
    """The refusal tells a browser the reason and Retry-After, which a refused WebSocket hides."""
    drivers = Drivers()
    app = live(drivers, api_key=KEY, max_live_sessions=2)
    replies = []
    async with Socket(app, headers=bearer(KEY)) as first:
        await first.read()
        drivers.opened[0].slowed = MOST_SLOWED + 0.1
        replies.append(await ask(app))
        drivers.opened[0].slowed = 0.0
        async with Socket(app, headers=bearer(KEY)) as second:
            await second.read()
            replies.append(await ask(app))
        replies.append(await ask(app))
        app.admission.draining = True
        replies.append(await ask(app))
    told = [(each.status, each.code, each.headers.get("retry-after")) for each in replies]
    assert told == [(429, "BUSY", "10")] * 2 + [(200, "", None), (503, "DRAINING", "5")]


async def test_a_secret_is_no_key():
    app = live(Drivers(), api_key=KEY)
    value = (await ask(app)).json["value"]
    replies = [await ask(app, token=value), await ask(app, token="")]
    replies.append(await call(app, "GET", "/v1/models", headers=bearer(value)))
    assert [reply.status for reply in replies] == [401] * 3


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"expires_after": {"seconds": 9}}, "invalid_value", "expires_after.seconds"),
        ({"expires_after": {"seconds": 7201}}, "invalid_value", "expires_after.seconds"),
        ({"expires_after": {"seconds": "60"}}, "invalid_type", "expires_after.seconds"),
        ({"expires_after": {"anchor": "now"}}, "invalid_value", "expires_after.anchor"),
        ({"session": {"type": "translation"}}, "unsupported_value", "session.type"),
        ({"session": {"include": ["a"]}}, "invalid_value", "session.include[0]"),
        ({"model": "whisper-1"}, "unknown_parameter", "model"),
        ([], "invalid_json", None),
    ],
)
def test_a_wrong_request_for_a_secret_is_refused_by_name(body, code, param):
    app, content = live(Drivers(), api_key=KEY), json.dumps(body).encode()
    reply = asyncio.run(ask(app, body or None, raw=content))
    error = reply.json["error"]
    assert (reply.status, error["code"], error["param"]) == (400, code, param)


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [(b"", 200, ""), (b"\xff{}", 400, "INVALID_REQUEST"), (b" " * 70_000, 413, "BODY_TOO_LARGE")],
)
def test_a_request_for_a_secret_is_small_json(raw, status, code):
    reply = asyncio.run(ask(live(Drivers(), api_key=KEY), raw=raw))
    assert (reply.status, reply.code) == (status, code)


def test_secrets_expire_and_are_so_many_at_most(monkeypatch):
    most, now = 50, [1000.0]
    monkeypatch.setattr("whosaid.server.realtime.client_secrets.MOST_SECRETS", most)
    secrets = ClientSecrets(lambda: now[0])
    first = secrets.create(10, SessionConfig(), b"")
    assert (first.expires_at, secrets.find(first.value.encode())) == (1010, first)
    with refused("UNAUTHORIZED"):
        secrets.find(first.value.encode() + b"x")
    others = {secrets.create(600, SessionConfig(), b"").value for _ in range(most - 1)}
    assert len(others) == most - 1
    with refused("BUSY") as caught:
        secrets.create(10, SessionConfig(), b"")
    assert caught.value.retry_after == 10
    now[0] = 1010.0
    with refused("UNAUTHORIZED"):
        secrets.find(first.value.encode())
    assert secrets.create(10, SessionConfig(), b"").expires_at == 1020
    assert all(secrets.find(each.encode()) for each in list(others)[:3])


def test_a_secret_ends_with_its_key(tmp_path, monkeypatch):
    monkeypatch.setattr("whosaid.server.keys.LOOK_S", 0)
    file, of_bob = tmp_path / "keys.toml", "a-key-of-bob-alone"
    file.write_text(f'[bob]\nkeys = ["{of_bob}"]')
    app = live(Drivers(), api_keys_file=file)
    secret = asyncio.run(ask(app, token=of_bob)).json["value"].encode()
    app._open(SimpleNamespace(token=secret, scope={}))
    file.write_text('[bob]\nkeys = ["ek_another-key"]')
    with refused("UNAUTHORIZED"):
        app._open(SimpleNamespace(token=secret, scope={}))


async def test_a_session_is_one_log_line_without_its_text(caplog):
    caplog.set_level("INFO", "server")

    app = live(Drivers(), api_key=KEY)
    value = (await ask(app)).json["value"]
    caplog.clear()
    headers = {"x-request-id": "mine"}
    async with Socket(app, headers, "model=whisper-1", protocols(value)) as socket:
        await socket.read()
        update = {"audio": {"input": {"transcription": {"prompt": "canary"}}}}
        socket.send("session.update", session=update)
        socket.send("canary")
        socket.send_bytes(bytes(48_000))
        socket.send("input_audio_buffer.commit", final=True)
        await socket.read_until("closed")
    async with Socket(app, query="canary=1", protocols=protocols("canary")) as refused:
        await refused.refused()
    first, second = caplog.messages
    begin, took = "GET /v1/realtime", r"\d+\.\d\d s"
    audio = r"1\.0 s of audio, closed with 1000"
    assert re.fullmatch(rf"{begin} 101 OK in {took}, {audio}, by key:secret, id mine", first)
    assert re.fullmatch(rf"{begin} 401 UNAUTHORIZED in {took}, by anonymous, id \w+", second)
    for secret in ("canary", value, KEY):
        assert secret not in caplog.text


async def test_a_server_that_drains_completes_its_sessions():
    """Sessions get an event, complete the received audio, and close; the server waits for them."""
    drivers = Drivers(lambda driver: driver.done.clear())
    app = live(drivers)
    server = DrainingServer(app, FakeEndpoint(), 600)
    async with Socket(app) as socket:
        await socket.read()
        socket.send_bytes(bytes(4))
        socket.send("response.cancel")
        await socket.read()
        server.handle_exit(signal.SIGTERM, None)
        assert not await server.on_tick(1)
        told = await socket.read()
        assert server.busy
        socket.send_bytes(bytes(4))
        late = await socket.read()
        async with Socket(app) as other:
            refused = await other.refused()
            assert (other.status, refused["code"]) == (503, "DRAINING")
        drivers.opened[0].done.set()
        rest = await socket.read_until("closed")
        await socket.running
        assert not server.busy
        assert await server.on_tick(2)
    assert error_of(told) == ("DRAINING", None, None)
    assert error_of(late) == ("session_ending", None, None)
    assert rest[0]["type"] == "input_audio_buffer.committed"
    assert rest[-2]["type"] == "conversation.item.done"
    assert socket.closed == 1001


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize(("fails", "status"), [(False, 1001), (True, 1011)])
async def test_sessions_not_completed_in_time_are_closed(fails, status, final):
    """The client's last commit, too, has only the time that the drain has."""
    drivers = Drivers(lambda driver: driver.done.clear())
    app = live(drivers)
    server = DrainingServer(app, FakeEndpoint(), 0)
    async with Socket(app) as socket:
        await socket.read()
        if final:
            socket.send("input_audio_buffer.commit", final=True)
            while not drivers.opened[0].calls:
                await asyncio.sleep(0)
        server.exit_status = int(fails)
        server.handle_exit(signal.SIGTERM, None)
        assert await server.on_tick(1)
        events = await socket.read_until("closed")
        await socket.running
    code = "MODEL_ERROR" if fails else "DRAINING"
    assert error_of(events[-2])[0] == code
    assert {each["type"] for each in events} == {"error", "closed"}
    assert (socket.closed, drivers.opened[0].closed) == (status, 1)
