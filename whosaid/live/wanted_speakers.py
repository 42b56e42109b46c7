"""Turns speaker detection of a live session on and off, by its settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Executor

import numpy as np
from numpy.typing import NDArray

from whosaid.errors import InvalidParameter
from whosaid.live.events import LiveEvent
from whosaid.live.settings import LiveSettings
from whosaid.live.speakers import LiveSpeakers, OpenSpeakers


class WantedSpeakers:
    """The speakers of one session, if its settings ask for them. `open_speakers` opens diarization.
    `workers` and `tell` are passed to `LiveSpeakers`.
    """

    def __init__(
        self, open_speakers: OpenSpeakers, workers: Executor, tell: Callable[[], Awaitable[None]]
    ) -> None:
        self._open, self._workers, self._tell = open_speakers, workers, tell
        self._settings = _about_speakers(LiveSettings())
        self._found: LiveSpeakers | None = None

    async def change(self, settings: LiveSettings, begun: bool) -> None:
        """Apply the speaker settings. Raises InvalidParameter after the first audio, because
        speakers are found from the first sample on, and the errors of `open_speakers`.
        """
        wanted = _about_speakers(settings)
        if wanted == self._settings:
            return
        if settings.speakers and begun:
            text = "must be set, with known ones and their threshold, before the first audio"
            raise InvalidParameter(text, "speakers")
        found: LiveSpeakers | None = None
        if settings.speakers:
            finder = await self._open(settings.known_speakers, settings.known_speaker_threshold)
            found = LiveSpeakers(finder, self._workers, self._tell)
        await self.close()
        self._found, self._settings = found, wanted

    def push(self, samples: NDArray[np.float32]) -> None:
        """Add audio (n,) at 16 kHz."""
        if self._found is not None:
            self._found.push(samples)

    def with_speakers(self, events: list[LiveEvent]) -> list[LiveEvent]:
        return events if self._found is None else self._found.with_speakers(events)

    async def finish(self) -> list[LiveEvent]:
        """Return the last events, after the last audio and text. Raises EndpointError."""
        return [] if self._found is None else await self._found.finish()

    async def close(self) -> None:
        if self._found is not None:
            await self._found.close()


def _about_speakers(settings: LiveSettings) -> tuple[object, ...]:
    """Return the settings that may not change after the first audio."""
    return settings.speakers, settings.known_speakers, settings.known_speaker_threshold
