"""Runs faster-whisper like whisper_streaming does: LocalAgreement with two passes (Machacek, Dabre
and Bojar 2023, arXiv 2307.14743).

Audio without final words is decoded again after each second of new audio. A word is final if two
passes in a row agree on it and on all words before it. Once the audio is longer than 15 s it is cut
at the end of the last segment whose words are final; the text before the cut, 200 letters of it, is
the prompt. Passes are greedy and decode the speech that faster-whisper's Silero finds.

The engine has a process of its own (`benchmarks.apart`) and gets audio in real time: a slow pass
delays the next one, which then gets all audio that has come since.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.live.scoring import Timed
from tests.support.speech import Samples
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import Word

CADENCE, LONGEST = 1.0, 15.0  # seconds
PROMPT = 200  # letters
# A new pass may repeat final words: words that begin up to so many seconds before the end of the
# final words are checked, and up to so many words are compared.
SLACK, NEAR, COPIES = 0.1, 1.0, 5


@dataclass
class Agreement:
    """The `final` words, in seconds of the recording, and the last pass's guess of the next."""

    final: list[Word] = field(default_factory=list)
    guess: list[Word] = field(default_factory=list)

    @property
    def until(self) -> float:
        """Return the end of the final words, in seconds."""
        return self.final[-1].end if self.final else 0.0

    def heard(self, words: Sequence[Word]) -> list[Word]:
        """Add the words of a pass; return the words that become final."""
        new = [word for word in words if word.start > self.until - SLACK]
        if new and self.final and abs(new[0].start - self.until) < NEAR:
            new = new[self._copied(new) :]
        pairs = zip(new, self.guess, strict=False)
        final = [word for word, _ in takewhile(lambda pair: pair[0].text == pair[1].text, pairs)]
        self.final += final
        self.guess = new[len(final) :]
        return final

    def finish(self) -> list[Word]:
        """Make the guess final, because no audio follows."""
        rest, self.guess = self.guess, []
        self.final += rest
        return rest

    def _copied(self, new: Sequence[Word]) -> int:
        """Return how many of the first words repeat the last final ones."""
        for count in range(1, min(len(self.final), len(new), COPIES) + 1):
            if _texts(self.final[-count:]) == _texts(new[:count]):
                return count
        return 0


def _texts(words: Sequence[Word]) -> list[str]:
    return [word.text for word in words]


@dataclass
class Listener:
    """The engine on one recording; `model` is faster-whisper's WhisperModel."""

    model: Any
    language: str | None
    found: Agreement = field(default_factory=Agreement)
    begin: float = 0.0  # start of the audio that is decoded again

    def listen(self, samples: Samples) -> list[Timed]:
        """Transcribe a recording in real time; return its words and when each was final."""
        started, heard, whole = time.perf_counter(), 0.0, len(samples) / SAMPLE_RATE
        told: list[Timed] = []

        def tell(final: Sequence[Word]) -> None:
            second = time.perf_counter() - started
            told.extend((word.text, second) for word in final)

        while heard < whole:
            wanted = min(heard + CADENCE, whole)
            time.sleep(max(0.0, started + wanted - time.perf_counter()))
            heard = min(max(wanted, time.perf_counter() - started), whole)
            start, stop = round(self.begin * SAMPLE_RATE), round(heard * SAMPLE_RATE)
            words, ends = self._pass(samples[start:stop])
            tell(self.found.heard(words))
            self._cut(heard, ends)
        tell(self.found.finish())
        return told

    def _pass(self, samples: Samples) -> tuple[list[Word], list[float]]:
        """Return the words of the audio, and its segments' ends in seconds of the recording."""
        before = [word.text for word in self.found.final if word.end <= self.begin]
        segments, _ = self.model.transcribe(
            samples,
            language=self.language,
            initial_prompt="".join(before)[-PROMPT:] or None,
            beam_size=1,
            word_timestamps=True,
            condition_on_previous_text=True,
            vad_filter=True,
        )
        kept = [each for each in segments if each.no_speech_prob <= 0.9]
        begin, words = self.begin, [word for each in kept for word in each.words]
        found = [Word(word.word, begin + word.start, begin + word.end) for word in words]
        return found, [begin + each.end for each in kept]

    def _cut(self, heard: float, ends: Sequence[float]) -> None:
        """If the audio is too long, begin after the last segment whose words are final."""
        if heard - self.begin > LONGEST:
            final = [end for end in ends[:-1] if end <= self.found.until]
            self.begin = max(final, default=self.begin)


class Rival:
    """The engine in its own process."""

    def __init__(self, model: Path, device: str, precision: str, threads: int) -> None:
        from faster_whisper import WhisperModel

        given = {"device": device, "compute_type": precision, "cpu_threads": threads}
        self.model = WhisperModel(str(model), **given)
        for filtered in (True, False):  # warm up detector and model
            silence = np.zeros(SAMPLE_RATE, np.float32)
            list(self.model.transcribe(silence, language="en", vad_filter=filtered)[0])

    def listen(self, samples: Samples, language: str | None) -> list[Timed]:
        """Return the words of a recording, played in real time."""
        return Listener(self.model, language).listen(samples)
