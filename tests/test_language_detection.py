"""Windows in which a recording's language is detected, and the encodings kept from that."""

import numpy as np
import pytest
import torch

from tests.helpers.stand_ins import StandInEngine, asking
from whosaid.asr.engine.fallback import Fallback
from whosaid.asr.engine.prefill import LanguagePosterior
from whosaid.asr.frontend.schedule import Schedule
from whosaid.asr.frontend.windows import SampleSpan
from whosaid.asr.transcription import MAX_KEPT_ENCODINGS, detect_languages
from whosaid.scheduling.steps import give_way
from whosaid.timebase import SAMPLE_RATE


class Listener(StandInEngine):
    """Hears German from the third window on; the two before probably hold no speech."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = 0

    def detect_language(self, _samples: np.ndarray) -> LanguagePosterior:
        self.heard += 1
        silent = self.heard < 3
        probabilities = {"en": 0.51, "de": 0.49} if silent else {"en": 0.1, "de": 0.9}
        encoded = torch.full((1, 1, 1), float(self.heard))
        return LanguagePosterior(probabilities, 0.7 if silent else 0.1, encoded)


def schedule_of(windows: int) -> Schedule:
    sound = np.ones(windows * 9 * SAMPLE_RATE, np.float32)
    speech = [SampleSpan(n * SAMPLE_RATE, (n + 6) * SAMPLE_RATE) for n in range(0, 9 * windows, 9)]
    return Schedule(sound, speech, 8 * SAMPLE_RATE)


def run(windows: int, any_speech: bool = True, **options):
    engine, encodings = Listener(), {}
    schedule = schedule_of(windows)
    steps = detect_languages(engine, schedule, asking(**options), any_speech, encodings, give_way)
    count = 0
    try:
        while steps.send(None) is None:
            count += 1
            assert count == engine.heard, "one window a step"
    except StopIteration as end:
        return engine, encodings, end.value


@pytest.mark.parametrize(
    ("no_speech_threshold", "heard", "language"), [(None, 3, "de"), (0.8, 1, "en")]
)
def test_requested_threshold_decides_silent_windows(no_speech_threshold, heard, language):
    asked = {}
    if no_speech_threshold is not None:
        asked["fallback"] = Fallback(no_speech_threshold=no_speech_threshold)
    engine, encodings, found = run(5, **asked)
    assert (engine.heard, found.language) == (heard, language)
    assert [float(each) for each in encodings.values()] == [*range(1, heard + 1)]


def test_first_encodings_of_a_long_recording_are_kept():
    engine, encodings, found = run(MAX_KEPT_ENCODINGS + 4, multilingual=True)
    assert engine.heard >= MAX_KEPT_ENCODINGS + 4
    assert found.languages == ("de",)
    first = schedule_of(MAX_KEPT_ENCODINGS + 4).planned()[:MAX_KEPT_ENCODINGS]
    assert list(encodings) == list(first)


def test_recording_without_speech_gets_one_language():
    engine, _, found = run(5, any_speech=False, multilingual=True)
    assert (engine.heard, found.cuts) == (3, ())
