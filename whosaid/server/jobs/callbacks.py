"""Notifies hosts of `CALLBACK_HOSTS` that a job has ended, signed by Standard Webhooks 1.0.0
(standardwebhooks.com). The server sends no other requests.

A callback has the job's status but not its answer, which needs the key. It goes to the host that
the client named and the deployer allowed, over TLS unless the host is this machine, without proxies
of the environment and without redirects. It is sent at least once, and again under the same
`webhook-id` until the receiver answers with a status of 2xx or the PAUSES are used up.
"""

import asyncio
import hmac
import logging
import re
import ssl
import time
from base64 import b64encode
from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache

import httpx2
from pydantic import SecretStr
from pydantic_core import to_json

from whosaid.errors import EndpointError, InvalidParameter
from whosaid.runtime.errors import endpoint_errors
from whosaid.server.admission import is_loopback
from whosaid.server.clock import now
from whosaid.server.errors import Kind, Refusal
from whosaid.server.jobs.store import TICK_S, Job, JobStore, until_written
from whosaid.server.settings import PORT, callback_key

logger = logging.getLogger("server")

LONGEST_URL = 2000
URL = re.compile(
    rf"(?P<scheme>https?)://(?P<name>[a-z0-9._-]+|\[[0-9a-f:.]+\])(:(?P<port>{PORT}))?"
    r"([/?][!-~]*)?",
    re.ASCII | re.IGNORECASE,
)
PORTS = {"http": 80, "https": 443}
# Seconds between tries; after the last pause comes the last try.
PAUSES = (5, 30, 120, 600, 3600)
SECONDS_TO_ANSWER = 10
# This machine's trusted certificates are read once.
_tls = cache(ssl.create_default_context)


def read_target(url: str, allowed: Collection[str]) -> str:
    """Return the host and port of `url`, among `allowed` (names, or names with ports). Raises
    InvalidParameter for a malformed URL, Refusal for another host.
    """
    found = URL.fullmatch(url)
    if found is None or len(url) > LONGEST_URL or "#" in url:
        raise InvalidParameter("should be https://host/path, without a user", "callback_url")
    scheme, name = found["scheme"].lower(), found["name"].lower()
    port = int(found["port"] or PORTS[scheme])
    named = {f"{name}:{port}", *([name] if port == PORTS[scheme] else [])}
    if named.isdisjoint(allowed):
        text = "is not in this server's CALLBACK_HOSTS"
        raise Refusal(Kind.CALLBACK_NOT_ALLOWED, text, "callback_url")
    if scheme == "http" and not is_loopback(name.strip("[]")):
        raise InvalidParameter("should be https", "callback_url")
    return f"{name}:{port}"


def signed_headers(secret: bytes, name: str, sent: int, body: bytes) -> dict[str, str]:
    signature = hmac.digest(secret, f"{name}.{sent}.".encode() + body, "sha256")
    return {
        "content-type": "application/json",
        "webhook-id": name,
        "webhook-timestamp": str(sent),
        "webhook-signature": f"v1,{b64encode(signature).decode()}",
    }


class Callbacks:
    """Sends a store's due callbacks, one at a time to each host and to all hosts in parallel, so
    that a host that does not answer delays no other. CALLBACK_HOSTS bounds their number.
    """

    def __init__(self, store: JobStore, hosts: Collection[str], secret: SecretStr | None) -> None:
        self._store, self._hosts = store, hosts
        self._secret = callback_key(secret) if secret else b""
        self._woken = asyncio.Event()
        self._called: set[str] = set()  # hosts

    def wake(self) -> None:
        """Look for due callbacks now, because a job has ended."""
        self._woken.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as calls:
            while True:
                self._woken.clear()
                seconds = TICK_S
                # Errors of the disk are logged, and the work is tried again.
                with suppress(EndpointError), endpoint_errors():
                    seconds = await self._begin_due(calls)
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(seconds, TICK_S)):
                        await self._woken.wait()

    async def _begin_due(self, calls: asyncio.TaskGroup) -> float:
        """Start due callbacks to hosts that are not being called. Return seconds to the next."""
        # A callback that was sent while the store was read may still look due in the result.
        busy = set(self._called)
        waiting = await asyncio.to_thread(self._store.callbacks)
        for job, due in waiting:
            if (seconds := due - now()) > 0:
                return seconds
            host = ""  # if the current settings do not allow it
            with suppress(EndpointError):
                host = read_target(job.callback_url or "", self._hosts)
            if host not in busy:
                busy.add(host)
                self._called.add(host)
                calls.create_task(self._call(host, job))
        return TICK_S

    async def _call(self, host: str, job: Job) -> None:
        try:
            delivered = bool(host) and await self._is_delivered(job)
            pauses = PAUSES[job.callback_tries :]
            again = now() + pauses[0] if pauses and not delivered else None
            await until_written(self._store.called_back, job.id, delivered, again)
            result = "delivered" if delivered else "not delivered"
            logger.info("callback of %s %s at try %d", job.id, result, job.callback_tries + 1)
        finally:
            self._called.discard(host)
            self.wake()

    async def _is_delivered(self, job: Job) -> bool:
        """Return whether the receiver answers with a status of 2xx; the rest is not read."""
        url, ended = job.callback_url or "", datetime.fromtimestamp(int(job.ended or 0), UTC)
        data = {"id": job.id, "status": job.status, "error": job.error_json}
        body = to_json({"type": f"job.{job.status}", "timestamp": ended, "data": data})
        headers = signed_headers(self._secret, job.id, int(time.time()), body)
        try:
            tls = await asyncio.to_thread(_tls)
            async with (
                asyncio.timeout(SECONDS_TO_ANSWER),
                httpx2.AsyncClient(verify=tls, trust_env=False, timeout=None) as client,
                client.stream("POST", url, content=body, headers=headers) as answer,
            ):
                return answer.is_success
        except Exception:  # other callbacks must go on
            return False
