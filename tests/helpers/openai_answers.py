"""Known answers behind the server, and OpenAI's client in front of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import openai

from tests.helpers.live_app import serving
from tests.helpers.recogniser_stand_ins import CAN_DIARIZE, StandInRecogniser, resident
from whosaid.answer.response import Answer
from whosaid.asr import Transcribed
from whosaid.audio.decode import AudioLimits
from whosaid.endpoint import Decoded, Endpoint, Finished
from whosaid.errors import EndpointError
from whosaid.transcript import Chunk, SpeakerSegment, SpeakerTurn, Transcript, Word

WORDS = (
    Word(" Good", 0.1, 0.4, "SPEAKER_01", 0.9),
    Word(" morning.", 0.4, 1.0, "SPEAKER_01", 0.8),
    Word(" Yes!", 1.5, 2.0, "SPEAKER_00", 0.7),
    Word(" Hm.", 30.5, 31.0, None, 0.6),
)
GOOD = Chunk(" Good morning.", 0.0, 1.1, -0.25, 0.125, WORDS[:2], tokens=(301, 302))
HM = Chunk(" Hm.", 30.5, 31.2, -0.5, 0.25, WORDS[3:], tokens=(304,), log_probs=(-2.0,))
CHUNKS = (
    replace(GOOD, log_probs=(-0.5, -0.25), compression_ratio=0.75),
    Chunk(" Yes!", 1.5, 2.1, -0.25, 0.125, WORDS[2:3], tokens=(303,), log_probs=(-1.0,)),
    replace(HM, temperature=0.5, window_start=30.02),
)
TURNS = (SpeakerTurn("SPEAKER_01", 0.0, 1.2), SpeakerTurn("SPEAKER_00", 1.4, 2.2))
FIRST = SpeakerSegment("SPEAKER_01", " Good morning.", 0.1, 1.0, WORDS[:2])
SECOND = SpeakerSegment("SPEAKER_00", " Yes!", 1.5, 2.0, WORDS[2:3])
SEGMENTS = (FIRST, SECOND, SpeakerSegment(None, " Hm.", 30.5, 31.0, WORDS[3:]))
TRANSCRIPT = Transcript(CHUNKS, "en", language_probability=0.98)
SPOKEN = Answer(31.5, TRANSCRIPT, SEGMENTS, TURNS)
SILENT = Answer(2.0, Transcript((), None))


class KnownAnswers(Endpoint):
    """An endpoint that computes nothing: it gives `result`, and an `error` before or after audio
    was decoded. `asked` is the newest request, and `closed` counts streams that were closed."""

    def __init__(self, speakers=False) -> None:
        self.limits = AudioLimits(7200, 2**29)
        self._models = resident(StandInRecogniser(), CAN_DIARIZE if speakers else None)
        self.outstanding, self.closed = 0, 0
        self.result, self.error, self.decodes = SPOKEN, None, True
        self.asked = None

    def give(self, result: Answer = SPOKEN, error: EndpointError | None = None, decodes=True):
        self.result, self.error, self.decodes = result, error, decodes

    async def stream(self, request, _place=None):
        self.asked = request
        try:
            if not self.decodes:
                raise self.error
            yield Decoded(self.result.duration)
            chunks = self.result.transcript.chunks
            for chunk in chunks[: 1 if self.error else None]:
                yield Transcribed(chunk.end, self.result.duration, (chunk,))
            if self.error:
                raise self.error
            yield Finished(self.result)
        finally:
            self.closed += 1


@contextmanager
def openai_client(endpoint) -> Iterator[openai.OpenAI]:
    """Yield the SDK's client, without retries, of a server on loopback."""
    with (
        serving(endpoint, page=False) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client
