"""The channels of one recording, recognised together and told of as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial

from asr.recogniser import Job, Progress, Recogniser
from asr.transcription import Transcription
from runtime.errors import endpoint_errors
from transcript import Transcript


async def recognise(
    recogniser: Recogniser, transcriptions: Mapping[int | None, Transcription]
) -> AsyncGenerator[Progress | list[Transcript]]:
    """The progress of all transcriptions together, which share the recogniser's rows, and at last
    their transcripts in order. Each belongs to a channel, to None where channels are mixed.

    Raises EndpointError; closing the iterator frees the rows.
    """
    loop = asyncio.get_running_loop()
    told: asyncio.Queue[tuple[int | None, Progress | None]] = asyncio.Queue()

    def tell(channel: int | None, progress: Progress | None) -> None:
        with suppress(RuntimeError):  # the event loop has ended
            loop.call_soon_threadsafe(told.put_nowait, (channel, progress))

    def end(channel: int | None, _: Future[Transcript]) -> None:
        tell(channel, None)

    seconds = {channel: each.seconds for channel, each in transcriptions.items()}
    jobs: dict[int | None, Job[Transcript]] = {}
    try:
        for channel, transcription in transcriptions.items():
            jobs[channel] = recogniser.submit(transcription, partial(tell, channel))
            jobs[channel].result.add_done_callback(partial(end, channel))
        left = len(jobs)
        while left:
            channel, progress = await told.get()
            if progress is None:
                with endpoint_errors():
                    jobs[channel].result.result()
                left -= 1
            else:
                seconds[channel] = progress.done, progress.total
                done, total = map(sum, zip(*seconds.values(), strict=True))
                chunks = [replace(chunk, channel=channel) for chunk in progress.chunks]
                yield Progress(done, total, tuple(chunks))
        yield [job.result.result() for job in jobs.values()]
    finally:
        for job in jobs.values():
            job.cancel()
