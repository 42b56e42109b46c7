"""API_KEYS_FILE: names, limits and weights of keys, which change while the server runs."""

import asyncio
import os
from unittest.mock import AsyncMock, Mock

import pytest
from pydantic import SecretStr

from tests.helpers.asgi import HELLO, JSON, call, served
from tests.helpers.plain_batches import Clock
from tests.test_server_jobs import ask, becoming, jobs, send
from whosaid.asr import Share, Transcribed
from whosaid.errors import InvalidAudio, ModelError
from whosaid.server import keys
from whosaid.server.errors import Kind, Refusal
from whosaid.server.keys import ApiKeys, read_keys
from whosaid.server.service import Service
from whosaid.server.settings import ServerSettings

FILE = """
[alice]
keys = ["alice-key-one-long", "alice-key-two-long"]
max_requests = 1
audio_seconds_per_day = 2
weight = 3

[bob]
keys = ["bob-key-of-his-own"]
"""
ALICE, SECOND, BOB = "alice-key-one-long", "alice-key-two-long", "bob-key-of-his-own"


@pytest.fixture
def file(tmp_path):
    written = tmp_path / "keys.toml"
    written.write_text(FILE)
    return written


def with_key(key):
    return {**JSON, "authorization": f"Bearer {key}"}


def replace_file(file, text):
    """Replace the file, as a secret's mount does."""
    new = file.with_suffix(".new")
    new.write_text(text)
    os.replace(new, file)


def refused(kept, token):
    with pytest.raises(Refusal) as caught:
        kept.authorize(token.encode())
    assert token not in str(caught.value) or not token
    return caught.value.kind


def test_keys_of_a_name_have_one_owner_and_account(file):
    kept = ApiKeys(SecretStr("the-plain-api-key"), file, b"owners")
    first, second = (kept.authorize(key.encode()) for key in (ALICE, SECOND))
    assert first == second
    assert (first.name, first.account.limits.weight) == ("alice", 3)
    assert first.owner != kept.authorize(BOB.encode()).owner
    plain = ApiKeys(SecretStr("the-plain-api-key"), owner_key=b"owners")
    assert kept.authorize(b"the-plain-api-key") == plain.authorize(b"the-plain-api-key")
    assert {refused(kept, key) for key in ("", "alice", "alice-key-one-lon")} == {Kind.UNAUTHORIZED}


def test_a_changed_file_counts_and_a_wrong_one_does_not(file, caplog):
    clock = Clock()
    kept = ApiKeys(None, file, b"owners", clock)
    before = kept.authorize(ALICE.encode())
    before.account.charge(1.5)
    replace_file(file, '[alice]\nkeys = ["alice-key-three-new"]\n')
    assert kept.authorize(ALICE.encode()) == before  # the file is not read for every request
    clock.now += 2
    after = kept.authorize(b"alice-key-three-new")
    assert (after.owner, after.account) == (before.owner, before.account)
    assert after.account.limits.max_requests is None
    assert {refused(kept, key) for key in (ALICE, BOB)} == {Kind.UNAUTHORIZED}
    for wrong in ("[alice]\nkeys = []", "no toml", None):
        clock.now += 2
        file.unlink() if wrong is None else replace_file(file, wrong)
        assert kept.authorize(b"alice-key-three-new") == after
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 3
    assert warnings[0].startswith("API_KEYS_FILE alice.keys: List should have at least 1 item")
    assert "alice-key" not in caplog.text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[a]\nkeys = ['secret-key']\nlimit = 1", "a.limit: Extra inputs are not permitted"),
        ("[a]\nkeys = ['secret-key', 'secret-key']", "has a key twice"),
        ("[a]\nkeys = ['secret-key']\nweight = 0", "a.weight: should be greater than 0"),
        ("['a b']\nkeys = ['secret-key']", "a b.[key]: String should match pattern"),
        ("[a]\nkeys = 'secret-key'", "a.keys: should be a valid list"),
        ("keys = secret-key", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused_at_the_start_without_its_keys(tmp_path, text, says):
    file = tmp_path / "keys.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match="API_KEYS_FILE: ") as caught:
        ServerSettings.from_environment(api_keys_file=file)
    assert says in str(caught.value)
    assert "secret-key" not in str(caught.value)
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        read_keys(tmp_path / "nothing")


def test_short_keys_of_the_file_are_warned_of(tmp_path):
    file = tmp_path / "keys.toml"
    file.write_text('[carol]\nkeys = ["short"]')
    warning = ServerSettings(api_keys_file=file).warning
    assert warning == "a key of carol has less than 16 characters and can be guessed"


async def test_a_keys_requests_and_audio_are_limited(file, monkeypatch):
    clock = Clock(86_400.0 * 9 + 86_000)
    monkeypatch.setattr(keys, "now", clock)
    endpoint, app = served(api_keys_file=file, max_queue=9)
    first = asyncio.ensure_future(call(app, headers=with_key(ALICE), parts=HELLO))
    await endpoint.began.wait()
    busy = await call(app, headers=with_key(SECOND), parts=HELLO)
    assert (busy.status, busy.code, busy.headers["retry-after"]) == (429, "BUSY", "5")
    endpoint.release.set()
    for each in (await first, await call(app, headers=with_key(SECOND), parts=HELLO)):
        assert each.status == 200  # each has 1.5 s of audio
    spent = await call(app, headers=with_key(ALICE), parts=HELLO)
    assert (spent.status, spent.code) == (429, "QUOTA_EXCEEDED")
    assert spent.headers["retry-after"] == "400"
    assert (await call(app, headers=with_key(BOB), parts=HELLO)).status == 200
    clock.now += 400  # midnight
    assert (await call(app, headers=with_key(ALICE), parts=HELLO)).status == 200
    shares = [each.options.decode.share for each in endpoint.seen]
    assert shares == [*[Share("alice", 3)] * 2, Share("bob", 1), Share("alice", 3)]
    text = (await call(app, "GET", "/metrics", headers=with_key(BOB))).body.decode()
    assert 'asr_key_audio_seconds_total{key="alice"} 4.5' in text
    assert 'asr_key_requests_total{code="QUOTA_EXCEEDED",key="alice"} 1.0' in text
    assert 'asr_key_requests_total{code="QUOTA_EXCEEDED",key="bob"} 0.0' in text
    assert app.admission.permits.taken == 0


async def test_a_stream_left_early_is_charged_for_its_text(file):
    endpoint, app = served(api_keys_file=file)
    text = Transcribed(0.5, 1.5, (Mock(end=1.0), Mock(end=0.8)))
    endpoint.stream = Mock(return_value=AsyncMock(**{"__aiter__.return_value": [text]}))
    account = app._keys.authorize(ALICE.encode()).account
    leaving = Service(endpoint, app._metrics).stream(Mock(), account=account)
    await anext(leaving)
    await leaving.aclose()
    assert account._today() == 1.0


@pytest.mark.parametrize(
    ("error", "seconds"), [(ModelError("x"), 0), (RuntimeError(), 0), (InvalidAudio("x"), 1)]
)
async def test_failures_of_the_server_are_not_charged(file, error, seconds):
    endpoint, app = served(api_keys_file=file)

    async def broken(_):
        yield Transcribed(0.5, 1.5, (Mock(end=1.0),))
        raise error

    endpoint.stream = broken
    account = app._keys.authorize(ALICE.encode()).account
    with pytest.raises(type(error)):
        await Service(endpoint, app._metrics).answer(Mock(), Mock(account=account))
    assert account._today() == seconds


async def test_jobs_outlast_their_key_and_are_charged(file, tmp_path):
    replace_file(file, FILE.replace("audio_seconds_per_day = 2", "audio_seconds_per_day = 1"))
    async with jobs(tmp_path / "jobs", api_keys_file=file) as (endpoint, app):
        job, other, last = [(await send(app, key=ALICE)).json["id"] for _ in range(3)]
        while endpoint.outstanding < 2:  # two run at once, the last after either, which has 1.5 s
            await asyncio.sleep(0)
        endpoint.release.set()
        told = await becoming(app, last, "failed", key=SECOND)
        assert told["error"]["code"] == "QUOTA_EXCEEDED"
        for ended in (job, other):
            await becoming(app, ended, "succeeded", key=SECOND)
        assert (await ask(app, job, key=BOB)).status == 404
        assert endpoint.seen[-1].options.decode.share == Share("alice", 3)
        text = (await call(app, "GET", "/metrics", with_key(BOB))).body.decode()
    assert 'asr_key_audio_seconds_total{key="alice"} 3.0' in text
