"""How often the key may be guessed, by whom, and that nobody waits for what others guess."""

from __future__ import annotations

import asyncio

import httpx2
import pytest
from asgi import call, client, served
from pydantic import SecretStr
from starlette.datastructures import Headers
from test_server_lifecycle import listening

from server.api_key import (
    ALL_FREE_GUESSES,
    FREE_GUESSES,
    MOST_GUESSERS,
    MOST_KNOWN,
    SECONDS_PER_GUESS,
    ApiKey,
    network,
)
from server.errors import TooManyGuesses, Unauthorized
from server.lifecycle import DrainingServer

KEY = "the-right-key"


class Clock:
    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def key(clock) -> ApiKey:
    return ApiKey(SecretStr(KEY), clock)


def tries(key: ApiKey, token: str = "wrong", address: str = "192.0.2.1") -> str:
    """What becomes of a key: right, wrong, or not looked at."""
    try:
        key.authorize(Headers({"authorization": f"Bearer {token}"}), address)
    except TooManyGuesses as refusal:
        in_bounds = 0 < refusal.retry_after <= FREE_GUESSES * SECONDS_PER_GUESS
        return "wait" if in_bounds else f"wait for {refusal.retry_after} s"
    except Unauthorized:
        return "wrong"
    return "right"


def test_a_typing_error_locks_nobody_out(key):
    told = [tries(key) for _ in range(FREE_GUESSES - 1)]
    assert told == ["wrong"] * len(told)
    assert tries(key, KEY) == "right"


def test_a_client_that_guesses_is_told_to_wait_and_its_key_is_not_looked_at(key, clock):
    """Else a right guess would be answered at once, and so be told from wrong ones."""
    told = [tries(key, f"guess {number}") for number in range(1000)]
    assert told == ["wrong"] * FREE_GUESSES + ["wait"] * (1000 - FREE_GUESSES)
    assert tries(key, KEY) == "wait"
    clock.seconds += SECONDS_PER_GUESS
    assert [tries(key), tries(key)] == ["wrong", "wait"]


def test_an_hour_of_guessing_is_as_many_guesses_as_are_paid_for(key, clock):
    looked_at = 0
    for _ in range(3600):
        clock.seconds += 1
        looked_at += sum(tries(key) == "wrong" for _ in range(20))
    assert looked_at <= FREE_GUESSES + 3600 / SECONDS_PER_GUESS


def test_who_waits_as_told_may_try_again(key, clock):
    while tries(key) == "wrong":
        pass
    with pytest.raises(TooManyGuesses) as caught:
        key.authorize(Headers({"authorization": "Bearer x"}), "192.0.2.1")
    clock.seconds += caught.value.retry_after
    assert tries(key, KEY) == "right"


def test_a_right_key_never_waits_for_what_others_guess(key):
    """From 20,000 addresses, more than are remembered, each until it is told to wait."""
    for number in range(2 * MOST_GUESSERS):
        address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        while tries(key, address=address) == "wrong":
            pass
        if number % 100 == 0:
            assert tries(key, KEY, f"198.51.{number // 100}.1") == "right"


def test_what_is_remembered_is_bounded(key):
    for number in range(MOST_GUESSERS + 50):
        tries(key, address=f"10.0.{number >> 8}.{number & 255}")
    for number in range(MOST_KNOWN + 50):
        tries(key, KEY, f"10.1.{number >> 8}.{number & 255}")
    assert len(key._guesses._paid_at) == MOST_GUESSERS
    assert len(key._guesses._known) == MOST_KNOWN


def test_where_many_guess_each_has_one_guess(key, clock):
    for number in range(ALL_FREE_GUESSES):
        tries(key, address=f"192.0.2.{number}")
    assert [tries(key, address="late"), tries(key, address="late")] == ["wrong", "wait"]
    clock.seconds += SECONDS_PER_GUESS
    assert tries(key, KEY, "late") == "right"


def test_an_address_that_gave_the_right_key_is_not_told_to_wait(key):
    """It may be a proxy's or an office's, where somebody else guesses."""
    assert tries(key, KEY) == "right"
    assert [tries(key) for _ in range(100)] == ["wrong"] * 100
    assert tries(key, KEY) == "right"


def test_what_is_no_guess_counts_as_none(key):
    for given in ("", "Bearer", "Bearer ", "Digest x", "Basic !", "Basic dXNlcjo="):
        for _ in range(100):
            with pytest.raises(Unauthorized):
                key.authorize(Headers({"authorization": given}), "192.0.2.1")
    assert tries(key, KEY) == "right"


def test_a_client_is_its_address_or_its_network():
    assert network("::ffff:192.0.2.1") == network("192.0.2.1") == "192.0.2.1"
    assert network("2001:db8::1%eth0") == network("2001:db8::ffff:2")
    assert network("2001:db8::1") != network("2001:db8:0:1::1")
    # A proxy's X-Forwarded-For may hold anything, of any length.
    assert network("") == network("x" * 60_000) == network("10.0.0.1, 10.0.0.2") == ""


def test_the_refusal_says_when_to_come_again():
    async def run():
        _, app = served(api_key=KEY)
        guess = {"authorization": "Bearer guess"}
        replies = [await call(app, "GET", "/metrics", headers=guess) for _ in range(20)]
        other = client(app, "GET", "/metrics", headers={"authorization": f"Bearer {KEY}"})
        other.scope["client"] = ("192.0.2.7", 1)
        return replies, await other.run()

    replies, other = asyncio.run(run())
    told = [(reply.status, reply.code) for reply in replies]
    assert told[:10] == [(401, "UNAUTHORIZED")] * 10
    assert told[10:] == [(429, "TOO_MANY_GUESSES")] * 10
    assert int(replies[-1].headers["retry-after"]) == SECONDS_PER_GUESS
    assert replies[-1].headers["x-should-retry"] == "false"
    assert other.status == 200


def test_probes_and_who_comes_without_a_network_address_are_served():
    async def run():
        _, app = served(api_key=KEY)
        on_unix_socket = client(app, "GET", "/metrics", headers={"authorization": f"Bearer {KEY}"})
        on_unix_socket.scope["client"] = None
        for _ in range(50):
            guess = client(app, "GET", "/metrics", headers={"authorization": "Bearer guess"})
            guess.scope["client"] = ("192.0.2.7", 1)
            await guess.run()
        return [await on_unix_socket.run(), await call(app, "GET", "/health")]

    assert [reply.status for reply in asyncio.run(run())] == [200, 200]


@pytest.mark.parametrize(("proxies", "statuses"), [(None, {401, 429}), ("127.0.0.1", {401})])
def test_a_client_is_whom_a_named_proxy_names_and_nobody_else_can_say(proxies, statuses):
    endpoint, gate = served(api_key=KEY)
    with listening(DrainingServer(gate, endpoint, 600, proxies)) as (host, port):
        told = [
            httpx2.get(
                f"http://{host}:{port}/metrics",
                headers={"authorization": "Bearer x", "x-forwarded-for": f"192.0.2.{number}"},
            ).status_code
            for number in range(FREE_GUESSES + 5)
        ]
    assert set(told) == statuses
