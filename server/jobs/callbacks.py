"""Tells the hosts of `CALLBACK_HOSTS` that a job has ended, signed as Standard Webhooks says
(standardwebhooks.com, 1.0.0); nothing else of the server calls anybody.

A callback has the job's status and no word of its answer, which only the key opens. It goes to the
host that the client named and the deployer allowed, over TLS unless that is this machine: no proxy
of the environment is asked and no redirect is followed. It comes at least once, under the same
`webhook-id` each time, until the receiver answers with a status of 2xx, or the PAUSES are over.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import ssl
import time
from base64 import b64encode
from collections.abc import Collection
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from pydantic import SecretStr

from errors import EndpointError, InvalidParameter
from runtime.errors import endpoint_errors
from server.errors import CallbackNotAllowed
from server.jobs.store import Job, JobStore
from server.jobs.wire import callback_json
from server.origin_policy import is_loopback
from server.settings import PORT, callback_key

logger = logging.getLogger("server")

LONGEST_URL = 2000
URL = re.compile(
    rf"(?P<scheme>https?)://(?P<name>[a-z0-9._-]+|\[[0-9a-f:.]+\])(:(?P<port>{PORT}))?"
    r"(?P<target>[/?][!-~]*)?",
    re.ASCII | re.IGNORECASE,
)
PORTS = {"http": 80, "https": 443}
# Seconds from one try to the next; after the last there is none.
PAUSES = (5, 30, 120, 600, 3600)
SECONDS_TO_ANSWER = 10
# Between two looks where nothing is due.
TICK_S = 60.0


class Target(NamedTuple):
    """Where a callback goes: `target` is the path and the query."""

    scheme: str
    name: str
    port: int
    target: str


def read_target(url: str, allowed: Collection[str]) -> Target:
    """Where `url` leads, if that is one of the hosts `allowed`, each a name, or a name and a port.

    Raises InvalidParameter for what is no such address, CallbackNotAllowed for other hosts.
    """
    found = URL.fullmatch(url)
    if found is None or len(url) > LONGEST_URL or "#" in url:
        raise InvalidParameter("callback_url: should be https://host/path, without a user")
    scheme, name = found["scheme"].lower(), found["name"].lower()
    port = int(found["port"] or PORTS[scheme])
    named = {f"{name}:{port}", *([name] if port == PORTS[scheme] else [])}
    if named.isdisjoint(allowed):
        raise CallbackNotAllowed("callback_url: CALLBACK_HOSTS of this server does not name it")
    if scheme == "http" and not is_loopback(name.strip("[]")):
        raise InvalidParameter("callback_url: should be https")
    target = found["target"] or "/"
    return Target(scheme, name, port, target if target[0] == "/" else f"/{target}")


def signed_headers(secret: bytes, name: str, now: int, body: bytes) -> dict[str, str]:
    """The headers of a message that is called `name`, sent `now`."""
    signature = hmac.digest(secret, f"{name}.{now}.".encode() + body, "sha256")
    return {
        "webhook-id": name,
        "webhook-timestamp": str(now),
        "webhook-signature": f"v1,{b64encode(signature).decode()}",
    }


@cache
def _tls() -> ssl.SSLContext:
    """Trusts whom this machine trusts, of whom it reads the list once."""
    return ssl.create_default_context()


async def post(target: Target, headers: dict[str, str], body: bytes) -> int:
    """The status that the receiver answers with; what else it says is not read.

    Raises OSError, ValueError for what is no HTTP, and whatever a strange address makes of it.
    """
    tls = await asyncio.to_thread(_tls) if target.scheme == "https" else None
    name = target.name.strip("[]")
    reader, writer = await asyncio.open_connection(name, target.port, ssl=tls)
    try:
        port = "" if target.port == PORTS[target.scheme] else f":{target.port}"
        lines = [
            f"POST {target.target} HTTP/1.1",
            f"Host: {target.name}{port}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "Connection: close",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()
        protocol, status = (await reader.readline()).split()[:2]
        if not protocol.startswith(b"HTTP/1.") or not re.fullmatch(rb"[1-5]\d\d", status):
            raise ValueError("no HTTP")
        return int(status)
    finally:
        writer.close()


class Callbacks:
    """Sends what is due of a store: to each host one after the other, and to all hosts side by
    side, so that one that does not answer holds up no other. CALLBACK_HOSTS names how many.
    """

    def __init__(self, store: JobStore, hosts: Collection[str], secret: SecretStr | None) -> None:
        self._store, self._hosts = store, hosts
        self._secret = callback_key(secret) if secret else b""
        self._woken = asyncio.Event()
        self._called: set[str] = set()  # hosts

    def wake(self) -> None:
        """A job has ended."""
        self._woken.set()

    async def run(self) -> None:
        """Send them, until this is cancelled."""
        async with asyncio.TaskGroup() as calls:
            while True:
                self._woken.clear()
                seconds = TICK_S
                # What goes wrong with the disk is logged, and tried again.
                with suppress(EndpointError), endpoint_errors():
                    seconds = await self._begin_due(calls)
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(seconds, TICK_S)):
                        await self._woken.wait()

    async def _begin_due(self, calls: asyncio.TaskGroup) -> float:
        """Begin to send what is due to hosts that are not called now; the seconds until more is."""
        # What was being sent while the store was read may look due there when it has been sent.
        busy = set(self._called)
        waiting = await asyncio.to_thread(self._store.callbacks)
        now = time.time()
        for job, due in waiting:
            if due > now:
                return due - now
            host = self._host(job)
            if host not in busy:
                busy.add(host)
                self._called.add(host)
                calls.create_task(self._call(host, job))
        return TICK_S

    def _host(self, job: Job) -> str:
        """Whom a callback goes to; "" where nobody may be called, as under other settings."""
        with suppress(EndpointError):
            target = read_target(job.callback_url or "", self._hosts)
            return f"{target.name}:{target.port}"
        return ""

    async def _call(self, host: str, job: Job) -> None:
        try:
            await self._send(job)
        finally:
            self._called.discard(host)
            self.wake()

    async def _send(self, job: Job) -> None:
        """Send a callback, and note how it went, as often as the disk asks for."""
        delivered = await self._is_delivered(job)
        left = PAUSES[job.callback_tries :]
        again = time.time() + left[0] if left and not delivered else None
        while True:
            with suppress(EndpointError), endpoint_errors():
                await asyncio.to_thread(self._store.called_back, job.id, delivered, again)
                break
            await asyncio.sleep(TICK_S)
        told = "delivered" if delivered else "not delivered"
        logger.info("callback of %s %s at try %d", job.id, told, job.callback_tries + 1)

    async def _is_delivered(self, job: Job) -> bool:
        body, now = callback_json(job), int(time.time())
        headers = signed_headers(self._secret, job.id, now, body)
        try:
            target = read_target(job.callback_url or "", self._hosts)
            async with asyncio.timeout(SECONDS_TO_ANSWER):
                return 200 <= await post(target, headers, body) < 300
        except Exception:  # whatever it is, others wait; and the settings may be others now
            return False
