"""Runs the measurements: concurrent clients, with and without a file."""

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import httpx2

from benchmarks.apart import Apart
from benchmarks.live.replay import replay
from benchmarks.live.scoring import Session, Timed, delays, session_of
from benchmarks.live.speech import Speech
from benchmarks.load.clients import HEADERS, TIMEOUT_S, body_of, busy

# A measurement, as JSON has it.
Cell = dict[str, Any]


def ask(url: str, each: Speech) -> tuple[str, list[Timed]]:
    """Return the endpoint's own answer for a recording: its text, and where its words end."""
    wanted = {"language": each.recording.language, "return_timestamps": "word"}
    body = body_of(each.samples, diarize=False, **wanted)
    with httpx2.Client(timeout=TIMEOUT_S, trust_env=False) as client:
        answer = client.post(url, content=body, headers=HEADERS).raise_for_status().json()
    return answer["text"], [(word["word"], word["timestamp"][1]) for word in answer["words"]]


class Plays:
    """Plays recordings to the server at `url`; `known` are its answers for the whole files."""

    def __init__(self, url: str, speech: Sequence[Speech]) -> None:
        self.url, self.speech = url, speech
        self.known = {each.recording.name: ask(url, each) for each in speech}

    def theirs(self, rival: Apart, each: Speech) -> Cell:
        """Measure a recording with the other engine. Raises EngineFailed."""
        words = rival.call("listen", each.with_pause, each.recording.language)
        text = "".join(word for word, _ in words)
        return self._kept(each, Session(words, text, text), each.seconds)

    async def together(self, clients: int, most: float | None, beside: bytes | None) -> Cell:
        """Measure several clients at once, each starting with a different recording.

        They speak for `most` seconds, or each recording once if it is None. Meanwhile the body
        `beside` is sent repeatedly.
        """
        async with busy(self.url, beside) if beside else nullcontext():
            played = (self._client(number, clients, most) for number in range(clients))
            sessions = await asyncio.gather(*played)
        every = [each for client in sessions for each in client]
        return {"clients": clients, "beside": beside is not None, "sessions": every}

    async def _client(self, number: int, clients: int, most: float | None) -> list[Cell]:
        """Return one client's sessions. Clients begin at different times within the first second,
        so that their pieces are not all sent at once.
        """
        await asyncio.sleep(number / clients)
        loop = asyncio.get_running_loop()
        end = None if most is None else loop.time() + most
        sessions: list[Cell] = []
        while len(sessions) < len(self.speech) if end is None else loop.time() < end:
            each = self.speech[(number + len(sessions)) % len(self.speech)]
            left = None if end is None else end - loop.time()
            sessions.append(await self.session(each, left))
            if sessions[-1]["failure"]:
                break
        return sessions

    async def session(self, each: Speech, most: float | None = None) -> Cell:
        """Measure a recording, or at most `most` seconds of it."""
        done = await replay(self.url, each.with_pause, each.recording.language, most)
        return self._kept(each, session_of(done), done.spoken)

    def _kept(self, each: Speech, session: Session, spoken: float) -> Cell:
        """Return a session's figures; an interrupted recording is not `whole`."""
        _, ends = self.known[each.recording.name]
        return {
            "recording": each.recording.name,
            "whole": spoken >= each.seconds and not session.failure,
            "deltas": session.deltas,
            "completed": session.completed,
            "told": _rounded(delays(session.words, ends)),
            "waits": _rounded(session.waits),
            "failure": session.failure,
        }


def _rounded(seconds: Sequence[float]) -> list[float]:
    return [round(each, 3) for each in seconds]
