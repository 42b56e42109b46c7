"""Recognition without a model: what it says is known beforehand."""

import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from types import SimpleNamespace

import numpy as np

from whosaid.asr import (
    EngineCounts,
    Prior,
    RecognitionCapabilities,
    Transcriber,
    TranscriptionOptions,
)
from whosaid.asr.engine.scheduler import Part
from whosaid.asr.model.cpu_threads import CpuThreads
from whosaid.diarization.diarizer import Capabilities, Diarization, DiarizationCancelled, Pause
from whosaid.endpoint import Models
from whosaid.payload.languages import CODES
from whosaid.runtime.on_demand import OnDemand
from whosaid.scheduling.fair_shares import WorkClass
from whosaid.scheduling.steps import give_way
from whosaid.transcript import DecodeStats, SpeakerTurn, Transcript


class StandInEngine:
    """Counts its steps; `before` is called with the number of each.

    Callers have their turns before a step, as many as they want or `turns_a_step`. It is its own
    scheduler, and keeps what callers are charged."""

    def __init__(
        self,
        before: Callable[[int], None] = lambda _: None,
        turns_a_step: float = math.inf,
        rows: int = 2,
    ) -> None:
        self.steps, self.before, self.rows = 0, before, rows
        self.turns_a_step, self.turns = turns_a_step, 0
        self.scheduler, self.clock = self, time.monotonic
        self.threads = CpuThreads(1)
        self.busy = True
        self.charges: list[WorkClass] = []
        self.leavers: list[tuple[WorkClass, float]] = []

    def callers_turn(self, ready: Collection[WorkClass]) -> WorkClass | None:
        if not ready or self.turns == self.turns_a_step:
            return None
        self.turns += 1
        return max(ready, key=lambda each: each.value)

    def charge_caller(self, work: WorkClass, seconds: float) -> float:
        self.charges.append(work)
        return 1.0

    def charge_in_vain(self, work: WorkClass, part: Part, cost: float) -> None:
        self.leavers.append((work, cost))

    def step(self) -> int:
        self.before(self.steps)
        self.steps += 1
        self.turns = 0
        return self.rows


class StandInSession:
    stats = DecodeStats(tokens=10, drafted=4, accepted=3, retries=1)


class StandInTranscription:
    """A transcription of one step, which calls `say`; without a result it waits for the engine."""

    session, windows_left, windows_read, seconds = None, 1, 0, (0.0, 0.0)
    live = waiting = starved = False

    def __init__(self, say: Callable[[], Transcript]) -> None:
        self.say, self.result, self.closed = say, None, 0

    def step(self) -> None:
        self.result = self.say()
        self.waiting = self.result is None

    def take_chunks(self) -> tuple[()]:
        return ()

    def close(self) -> None:
        self.closed += 1


SILENCE = Transcript((), "en")
CAN_DIARIZE = SimpleNamespace(capabilities=Capabilities(hints=True, voices=True))


class StandInTranscriber:
    """A `Transcriber` that says what it was made with, or raises it, and remembers what it was
    asked. Every token is a letter."""

    capabilities = RecognitionCapabilities(
        "org/whisper", 30.0, True, tuple(CODES), ("transcribe", "translate"), prompts=True
    )
    validate = Transcriber.validate
    windows = (2, 3, 8)

    def __init__(
        self, answer: Transcript | Exception = SILENCE, engine: StandInEngine | None = None
    ) -> None:
        self.answer, self.engine = answer, engine or StandInEngine()
        self.asked: list[TranscriptionOptions] = []

    def token_bytes(self, tokens: Sequence[int]) -> list[bytes]:
        return [chr(each).encode() for each in tokens]

    def find_speech(self, samples: np.ndarray) -> tuple[tuple[float, float], ...]:
        return ((0.0, len(samples) / 16_000),)

    async def start(
        self, samples: np.ndarray, options: TranscriptionOptions, prior: Prior
    ) -> StandInTranscription:
        self.asked.append(options)
        await give_way()
        return StandInTranscription(self.say)

    def start_early(self, *_: object) -> None:
        return None

    def say(self) -> Transcript:
        """Called in the thread that computes."""
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class StandInRecogniser:
    """Recognises nothing; lives until a test says otherwise."""

    counts = EngineCounts(7, 9, 5, decoded=DecodeStats(tokens=11, drafted=6, accepted=4, retries=1))

    def __init__(self) -> None:
        self.transcriber, self.alive = StandInTranscriber(), True


class TurnsOfSeconds:
    """A diarizer that has two people take turns; `hear` is called with the pause."""

    capabilities = Capabilities(hints=True, voices=False)

    def __init__(self, hear: Callable[[Pause], None] = lambda pause: None) -> None:
        self.hear = hear

    def diarize(self, samples, hints, pause=lambda *_: None) -> Diarization:
        self.hear(pause)
        seconds = range(int(len(samples) / 16_000) + 1)
        turns = tuple(SpeakerTurn(f"SPEAKER_0{s % 2}", s, s + 1.0) for s in seconds)
        return Diarization(turns, turns, hints)


class EndlessDiarizer(TurnsOfSeconds):
    """Diarizes until it is cancelled."""

    def __init__(self) -> None:
        super().__init__(self._hear)
        self.begun, self.ended = threading.Event(), threading.Event()

    def _hear(self, pause: Pause) -> None:
        self.begun.set()
        with suppress(DiarizationCancelled):
            while True:
                pause()
        self.ended.set()
        raise DiarizationCancelled


def resident(recogniser, diarizer=None) -> OnDemand[Models]:
    models = Models(recogniser, diarizer)
    return OnDemand(models, lambda: models, Models.close)
