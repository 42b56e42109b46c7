"""An endpoint that stops in the middle of each recording, for tests of the page."""

import asyncio
from dataclasses import replace
from threading import Event

from config import InferenceConfig
from tests.helpers.asgi import FakeEndpoint
from whosaid.answer.response import Answer
from whosaid.asr import Transcribed
from whosaid.endpoint import Decoded, Finished
from whosaid.transcript import Chunk, Transcript, Unspoken, Word

WORD = Word(" hello", 0.0, 1.0, None, 0.5)
ANSWER = Answer(9.0, Transcript((Chunk(WORD.text, 0.0, 1.0, words=(WORD,)),), "en"))

LEFT = Unspoken((" Who", " is", " there?"), 1)
TOLD = replace(ANSWER, transcript=replace(ANSWER.transcript, unspoken=(LEFT,)))


class Slow(FakeEndpoint):
    """Transcribes a third of each recording, and the rest once `let` is set."""

    def __init__(self, endpoint) -> None:
        super().__init__()
        self.models.recogniser, self.limits = endpoint.recogniser, endpoint.limits
        self.let = Event()
        self.asked: list[InferenceConfig] = []

    async def stream(self, request):
        self.asked.append(request.config)
        self.outstanding += 1
        try:
            yield Decoded(9.0)
            yield Transcribed(3.0, 9.0, ())
            while not self.let.is_set():
                await asyncio.sleep(0.01)
            if self.error:
                raise self.error
            yield Finished(ANSWER if request.config.text is None else TOLD)
        finally:
            self.outstanding -= 1
