"""Options beside the point, silence and channels change no word, on the embedded models.

Of Whisper base and real recordings `tests/reliability/test_real_speech.py` asks the same, and more.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from invariance import (
    PLACES,
    Answer,
    Options,
    Samples,
    body,
    check_files,
    class_of,
    differences,
    moved_words,
    table_of_options,
)

from tests.support.audio_files import conversation
from whosaid.timebase import SAMPLE_RATE

# Between two pauses of the demo's conversation, in seconds; two people speak.
START, STOP = 32.8, 40.3
TABLE = table_of_options(14)


@pytest.fixture(scope="module")
def passage() -> Samples:
    samples = conversation()[round(START * SAMPLE_RATE) : round(STOP * SAMPLE_RATE)]
    return samples.astype(np.float64)


@pytest.fixture(scope="module")
def answers(demo_handler, passage) -> list[tuple[Options, Answer]]:
    return [(options, demo_handler(body(passage, options))) for options in TABLE]


def test_the_table_has_classes_of_several_combinations():
    sizes = Counter(map(class_of, TABLE)).values()
    assert len(sizes) >= 4
    assert sum(size for size in sizes if size > 1) >= 12


@pytest.mark.slow
def test_answers_of_one_class_of_options_are_equal(answers):
    assert differences(answers) == []
    assert all(len(answer["text"].split()) > 10 for _, answer in answers)


@pytest.mark.slow
def test_every_file_is_what_the_answer_says(answers):
    assert sum(len(options["output"]) for options in TABLE) > 30
    for _, answer in answers:
        check_files(answer)


WORDS: Options = {"return_timestamps": "word", "diarize": False}


@pytest.fixture(scope="module")
def plain(demo_handler, passage) -> Answer:
    answer: Answer = demo_handler(body(passage, WORDS))
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("name", PLACES)
def test_silence_and_channels_change_no_word(demo_handler, passage, plain, name):
    samples, later = PLACES[name](passage)
    answer = demo_handler(body(samples, WORDS))
    assert len(moved_words(plain, answer, later)) <= 1
