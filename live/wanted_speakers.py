"""Whether the client of a live session wants to know who speaks, and who finds it then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Executor

import numpy as np
from numpy.typing import NDArray

from errors import InvalidParameter
from live.events import LiveEvent
from live.settings import LiveSettings
from live.speakers import LiveSpeakers, OpenSpeakers


class WantedSpeakers:
    """The speakers of one session, of whom nothing is told until its settings ask for them.

    They are found by what `open_speakers` returns; `workers` and `tell` are as in `LiveSpeakers`.
    """

    def __init__(
        self, open_speakers: OpenSpeakers, workers: Executor, tell: Callable[[], Awaitable[None]]
    ) -> None:
        self._open, self._workers, self._tell = open_speakers, workers, tell
        self._settings = _about_speakers(LiveSettings())
        self._found: LiveSpeakers | None = None

    async def change(self, settings: LiveSettings, begun: bool) -> None:
        """Look for those that the settings ask for, who are heard from the first sample on. Raises
        InvalidParameter once the session's audio has begun, or what `open_speakers` raises.
        """
        wanted = _about_speakers(settings)
        if wanted == self._settings:
            return
        if settings.speakers and begun:
            text = "should be asked for, with known ones and their threshold, before audio comes"
            raise InvalidParameter(f"speakers: {text}")
        found: LiveSpeakers | None = None
        if settings.speakers:
            finder = await self._open(settings.known_speakers, settings.known_speaker_threshold)
            found = LiveSpeakers(finder, self._workers, self._tell)
        await self.close()
        self._found, self._settings = found, wanted

    def hear(self, samples: NDArray[np.float32]) -> None:
        """More audio (n,) at 16 kHz."""
        if self._found is not None:
            self._found.hear(samples)

    def passing(self, events: list[LiveEvent]) -> list[LiveEvent]:
        """The events on their way to the client, with speakers where they are wanted."""
        return events if self._found is None else self._found.passing(events)

    async def finish(self) -> list[LiveEvent]:
        """The last events, when no more audio and no more text will come. Raises EndpointError."""
        return [] if self._found is None else await self._found.finish()

    async def close(self) -> None:
        """Forget the audio and what is under way."""
        if self._found is not None:
            await self._found.close()


def _about_speakers(settings: LiveSettings) -> tuple[object, ...]:
    """What should stay as it is once audio came."""
    return settings.speakers, settings.known_speakers, settings.known_speaker_threshold
