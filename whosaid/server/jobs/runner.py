"""Runs the jobs of a store, a few at a time.

A job is scheduled like a request: shorter recordings go before it. It has no time limit, because no
connection waits for it.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, get_args

from config import InferenceConfig, OutputFormat
from whosaid.answer.response import Answer, response
from whosaid.asr import Transcribed
from whosaid.endpoint import Decoded, Finished
from whosaid.endpoint.request import TranscriptionRequest
from whosaid.errors import EndpointError
from whosaid.runtime.errors import endpoint_errors, process_ends
from whosaid.server.clock import now
from whosaid.server.jobs.callbacks import Callbacks
from whosaid.server.jobs.store import TICK_S, Job, JobStore, Result, Status, until_written
from whosaid.server.keys import Account, ApiKeys, Principal
from whosaid.server.native import encode
from whosaid.server.service import Service
from whosaid.server.settings import ServerSettings

logger = logging.getLogger("server")

FORMATS: tuple[OutputFormat, ...] = get_args(OutputFormat)


class JobRunner:
    """Answers a store's jobs, and sends their callbacks; `progress` is of running jobs by id."""

    def __init__(
        self, service: Service, store: JobStore, settings: ServerSettings, keys: ApiKeys
    ) -> None:
        self.store, self.kept_seconds = store, settings.job_seconds
        self.progress: dict[str, Transcribed] = {}
        self._service, self._most = service, settings.max_running_jobs
        self._keys = keys
        self._callbacks = Callbacks(store, settings.callback_hosts, settings.callback_secret)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._woken = asyncio.Event()
        self._stopped = False

    @asynccontextmanager
    async def running(self, _: object = None) -> AsyncGenerator[None]:
        """Run jobs during the block. At its end, unfinished jobs are left to the next process."""
        calling = asyncio.create_task(self._callbacks.run())
        running = asyncio.create_task(self._run())
        try:
            yield
        finally:
            self.stop()
            calling.cancel()
            await asyncio.wait({running, calling})
            self.store.close()

    def accept(
        self,
        sender: Principal,
        files: Sequence[bytes],
        request: TranscriptionRequest,
        callback_url: str | None,
        key: str | None,
    ) -> Job:
        """Return a new job, or the sender's with the same idempotency `key`. Raises Refusal."""
        kept = write_request(request, [*map(len, files)], sender.account)
        audio = b"".join(files)  # one file is not copied
        return self.store.add(sender.owner, audio, kept, callback_url, now(), key)

    def wake(self) -> None:
        self._woken.set()

    def stop(self) -> None:
        """Stop the running jobs, and start no others."""
        self._stopped = True
        for task in self._tasks.values():
            task.cancel()
        self.wake()

    def cancel(self, job: str) -> None:
        if task := self._tasks.get(job):
            task.cancel()

    @property
    def _may_run(self) -> bool:
        return self._service.endpoint.alive and not self._stopped and not process_ends()

    async def _run(self) -> None:
        while not self._stopped:
            self._woken.clear()
            # Errors of the disk are logged, and the work is tried again.
            with suppress(EndpointError), endpoint_errors():
                await asyncio.to_thread(self.store.expire, now() - self.kept_seconds)
                await self._begin_jobs()
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._woken.wait()
        if self._tasks:
            await asyncio.wait(self._tasks.values())
        if self._service.endpoint.alive:
            with suppress(EndpointError), endpoint_errors():
                await asyncio.to_thread(self.store.put_back)

    async def _begin_jobs(self) -> None:
        while self._may_run:
            claimed = await asyncio.to_thread(self.store.claim, self._most, now())
            if claimed is None:
                return
            job, request = claimed
            task = asyncio.create_task(self._answer(job, request))
            self._tasks[job] = task
            task.add_done_callback(partial(self._left, job))
            if self._stopped:
                task.cancel()

    def _left(self, job: str, _: asyncio.Task[None]) -> None:
        del self._tasks[job]
        self.progress.pop(job, None)
        self.wake()
        self._callbacks.wake()

    async def _answer(self, job: str, kept: bytes) -> None:
        """Run a job to its end, which is kept; if the server fails, the job is queued again."""
        began, told = time.monotonic(), "OK"
        try:
            async with self._service.endpoint.use_models():
                with endpoint_errors():
                    result = await self._result(job, kept)
            end = partial(self.store.end, job, Status.SUCCEEDED, result=result)
        except EndpointError as error:
            if not self._may_run or (error.status >= 500 and await self._put_back(job)):
                return
            told = error.code
            end = partial(self.store.end, job, Status.FAILED, error=str(error))
        seconds = time.monotonic() - began
        # A job counts as running until its end is written.
        if await until_written(lambda: end(now())):
            logger.info("%s %s in %.2f s", job, told, seconds)

    async def _put_back(self, job: str) -> bool:
        """Queue a job again after TICK_S, for the machine to recover; False if it failed before."""
        await asyncio.sleep(TICK_S)
        queued = await until_written(self.store.put_back_failed, job)
        if queued:
            logger.warning("%s is queued again: the server failed", job)
        return queued

    async def _result(self, job: str, kept: bytes) -> Result:
        """Transcribe a job's recording. Raises EndpointError, OSError."""
        request, key = await asyncio.to_thread(self._read_request, job, kept)
        if account := self._keys.account(key):
            account.check_audio()  # other jobs may have used it since this one was accepted
        events = self._service.stream(request, account=account)
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Decoded):
                    self.progress[job] = Transcribed(0.0, event.duration, ())
                elif isinstance(event, Transcribed):
                    self.progress[job] = replace(event, chunks=())
                elif isinstance(event, Finished):
                    return await asyncio.to_thread(render, event.answer, request.config)
        raise AssertionError("a request ends with its answer")

    def _read_request(self, job: str, kept: bytes) -> tuple[TranscriptionRequest, str | None]:
        """Return the request with both parses' warnings, and the name of its key."""
        given: dict[str, Any] = json.loads(kept)
        config = InferenceConfig.read(given["parameters"])
        audio, sizes = self.store.audio(job), given.get("sizes") or []
        ends = [*accumulate(sizes)] if len(sizes) > 1 else [len(audio)]
        files = [audio[start:end] for start, end in pairwise([0, *ends])]
        request = self._service.endpoint.request_of(files, config)
        warnings = dict.fromkeys((*given["warnings"], *request.warnings))
        return request._replace(warnings=tuple(warnings)), given.get("key")


def write_request(
    request: TranscriptionRequest, sizes: Sequence[int], account: Account | None = None
) -> bytes:
    """Return a request without its audio as JSON, with the `sizes` of its files, which are kept as
    one, and its clips. Only sent parameters are written, for newer servers.
    """
    parameters = request.config.model_dump(mode="json", exclude_unset=True)
    key = None if account is None else account.name
    kept = {"parameters": parameters, "warnings": request.warnings, "key": key, "sizes": sizes}
    return json.dumps(kept).encode()


def render(answer: Answer, config: InferenceConfig) -> Result:
    """Return the body that `/` would return, and every file that can be made from it."""
    body = response(answer, config)
    files = response(answer, config.model_copy(update={"output": [*FORMATS]}))["output"]
    return Result(encode(body), encode(files))
