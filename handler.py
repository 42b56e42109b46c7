"""What Hugging Face's containers import, by its path: `EndpointHandler` loads the models once, and
every call answers one request.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

# hf-serve leaves the repository's folder off the import path.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from config import ModelSettings
from runtime import modules_that_stay
from runtime.event_loop import EventLoopThread

with modules_that_stay():
    from loading import load_endpoint
    from transcription_request import TranscriptionRequest


class EndpointHandler:
    """Speech recognition with speakers, as the servers call it; safe to call from several
    threads, whose requests share the batch.
    """

    def __init__(
        self, path: str = "", settings: ModelSettings | None = None, serves: bool = True
    ) -> None:
        """Load the models that `settings`, by default the environment, name; see `load_endpoint`.

        `path` is where the server found this repository; models are looked for beside this file,
        which is there.
        """
        self.endpoint = load_endpoint(settings, serves)
        self._event_loop = EventLoopThread("endpoint")

    def parse(self, data: object) -> TranscriptionRequest:
        """Check a request's body without answering it; raises as a call would."""
        return self.endpoint.parse(data)

    def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        """Answer one request body with text, timed chunks and speakers.

        Raises ClientError, which the servers answer with 400, or ServerError (500), and nothing
        else.
        """
        return self._event_loop.run(self.endpoint.respond(data))
