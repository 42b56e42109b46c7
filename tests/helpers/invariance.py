"""Options and placements of speech that must not change a word.

A table of options is drawn by a seed. Options that `TEXTS` lists, and whether Whisper writes
timestamps, decide what is written; they make classes, in which all else must be equal."""

import base64
import random
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, get_args

import jiwer
import numpy as np
from numpy.typing import NDArray

from config import OutputFormat
from tests.helpers import readers
from tests.support.audio_files import request_body, wav_file
from whosaid.answer.subtitles import SRT_LOOKALIKES
from whosaid.timebase import SAMPLE_RATE

Options = dict[str, Any]
Answer = dict[str, Any]
Samples = NDArray[np.float64]

TEXTS: tuple[Options, ...] = (
    {}, {}, {"chunk_length_s": 8}, {"num_beams": 2}, {"num_beams": 3, "length_penalty": 0.5},
)  # fmt: skip
BESIDE_THE_POINT: dict[str, tuple[Any, ...]] = {
    "batch_size": (1, 2, 5, 24),
    "assisted": (False, None),
    "diarize": (False, False, True),
    "group_by_speaker": (False, True),
    "return_timestamps": (False, True, "segment", "word"),
}
# Files for which Whisper's own timestamps are needed (docs/api.md).
TIMED = {*get_args(OutputFormat)} - {"rttm"}


def table_of_options(count: int, seed: int = 0) -> list[Options]:
    """Return this many combinations, each with any number of files."""
    chance = random.Random(seed)
    formats = get_args(OutputFormat)
    return [
        chance.choice(TEXTS)
        | {name: chance.choice(values) for name, values in BESIDE_THE_POINT.items()}
        | {"output": chance.sample(formats, chance.randint(0, len(formats)))}
        for _ in range(count)
    ]


def class_of(options: Options) -> Hashable:
    """Return a key, equal for options under which the same text must be written."""
    timed = options["return_timestamps"] or options["diarize"] or TIMED & {*options["output"]}
    texts = {name: options[name] for text in TEXTS for name in text if name in options}
    return bool(timed), *sorted(texts.items())


def parts(options: Options, answer: Answer) -> Iterator[tuple[Hashable, object]]:
    """Return the parts of an answer, under names that tell which options may change them."""
    yield "text", (answer["text"], answer["language"], answer["duration"])
    if options["return_timestamps"]:
        yield "chunks", [(each["text"], each["timestamp"]) for each in answer["chunks"]]
    if options["return_timestamps"] == "word":
        yield "words", timed_words(answer)
    grouped = options["group_by_speaker"] if options["diarize"] else None
    speakers = [(each["speaker"], each["text"], each["timestamp"]) for each in answer["speakers"]]
    yield ("speakers", grouped), speakers
    for form in options["output"]:
        yield (form, grouped), answer["output"][form]


def differences(asked: Sequence[tuple[Options, Answer]]) -> list[str]:
    """Return the parts of answers that differ within their class, with the options of both."""
    seen: dict[Hashable, dict[Hashable, tuple[Options, object]]] = defaultdict(dict)
    found = []
    for options, answer in asked:
        for name, part in parts(options, answer):
            first, expected = seen[class_of(options)].setdefault(name, (options, part))
            if part != expected:
                found.append(f"{name}: {first} and {options}: {expected!r} and {part!r}")
    return found


def timed_words(answer: Answer) -> list[tuple[str, float, float]]:
    return [(word["word"], *word["timestamp"]) for word in answer["words"]]


def without_spaces(text: str) -> str:
    return "".join(text.split())


def check_files(answer: Answer) -> None:
    """Each file holds every word once, in order, at times within the audio, as its readers see."""
    for form, file in answer.get("output", {}).items():
        CHECKS[form](answer, file)


def _check_srt(answer: Answer, file: str) -> None:
    events = readers.read_srt(file)
    lines = [event.plaintext for event in events]
    text = answer["text"].translate(SRT_LOOKALIKES)
    assert without_spaces("".join(_unnamed(lines))) == without_spaces(text)
    _check_times([(event.start / 1000, event.end / 1000) for event in events], answer)


def _check_vtt(answer: Answer, file: str) -> None:
    captions = readers.read_vtt(file)
    shown = without_spaces("".join(caption.text for caption in captions))
    for escape, character in (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        shown = shown.replace(escape, character)
    assert shown == without_spaces(answer["text"])
    assert {caption.voice for caption in captions} >= _speakers(answer)
    _check_times([(each.start_in_seconds, each.end_in_seconds) for each in captions], answer)


def _check_tsv(answer: Answer, file: str) -> None:
    rows = readers.read_tsv(file)
    blocks = answer["speakers"] or answer["chunks"]
    if blocks:
        assert [(int(row["start"]), int(row["end"])) for row in rows] == [
            tuple(round(1000 * time) for time in block["timestamp"]) for block in blocks
        ]
    shown = "".join(row["text"].removeprefix("'") for row in rows)
    assert without_spaces(shown) == without_spaces(answer["text"])
    assert {row["speaker"] for row in rows} - {""} == _speakers(answer)


def _check_lines(answer: Answer, lines: Iterable[str]) -> None:
    """Check lines of plain text, perhaps with a time before the name."""
    said = (line.removeprefix(re.match(r"(\[[\d:]+\] )?", line)[0]) for line in lines)
    assert without_spaces("".join(_unnamed(said))) == without_spaces(answer["text"])


def _check_rttm(answer: Answer, file: str) -> None:
    turns = readers.read_rttm(file)
    assert {speaker for speaker, _, _ in turns} >= _speakers(answer)
    for _, start, end in turns:
        assert 0 <= start < end <= answer["duration"] + 1e-6


def _check_times(times: Sequence[tuple[float, float]], answer: Answer) -> None:
    assert all(start <= end <= answer["duration"] for start, end in times)
    assert all(before[1] <= after[0] for before, after in pairwise(times))


def _speakers(answer: Answer) -> set[str]:
    return {each["speaker"] for each in answer["speakers"]} - {None}


def _unnamed(lines: Iterable[str]) -> Iterator[str]:
    return (re.sub(r"^SPEAKER_\d\d: ", "", line) for line in lines)


CHECKS = {
    "srt": _check_srt,
    "vtt": _check_vtt,
    "tsv": _check_tsv,
    "txt": lambda answer, file: _check_lines(answer, file.splitlines()),
    "md": lambda answer, file: _check_lines(answer, readers.read_md(file)[1:]),
    "docx": lambda answer, file: _check_lines(
        answer, readers.read_docx(base64.b64decode(file))[1:]
    ),
    "html": lambda answer, file: _check_lines(answer, readers.read_html(file).texts.get("p", ())),
    "rttm": _check_rttm,
}


class Altered(NamedTuple):
    """The speech, altered or moved by so many seconds."""

    samples: Samples
    later: float = 0.0


def _peak_at(decibels: float) -> Callable[[Samples], Altered]:
    return lambda samples: Altered(samples / np.abs(samples).max() * 10 ** (decibels / 20))


def _silence(before: float, after: float) -> Callable[[Samples], Altered]:
    lengths = (round(before * SAMPLE_RATE), round(after * SAMPLE_RATE))
    return lambda samples: Altered(np.pad(samples, lengths), before)


def _channels(*shares: float) -> Callable[[Samples], Altered]:
    return lambda samples: Altered(np.stack([share * samples for share in shares], axis=1))


def _clipped(samples: Samples) -> Altered:
    peak = np.abs(samples).max()
    return Altered((2 * samples / peak).clip(-1, 1))


# What leaves the speech itself as it was. Silence is of whole steps of the detector of speech, 32
# ms, of Whisper's frames and of hundredths.
PLACES: dict[str, Callable[[Samples], Altered]] = {
    "silence before": _silence(3.2, 0),
    "silence after": _silence(0, 8),
    "silence before and after": _silence(9.6, 4.5),
    "two channels alike": _channels(1, 1),
    "opposite channels": _channels(1, -1),
}
# What Whisper reads otherwise: it may place a comma elsewhere, or hear one word differently.
LEVELS: dict[str, Callable[[Samples], Altered]] = {
    "peak at 0 dB": _peak_at(0), "peak at -40 dB": _peak_at(-40), "peak at -70 dB": _peak_at(-70),
    "DC": lambda samples: Altered(0.5 * samples + 0.25), "clipped": _clipped,
    "one channel of two": _channels(1, 0), "six channels": _channels(1, 0.5, 0, 0, 0.2, 0.2),
}  # fmt: skip


def moved_words(before: Answer, after: Answer, later: float) -> list[tuple[object, object]]:
    """Return words not moved by just so many seconds. Raises AssertionError if words differ."""
    first, second = timed_words(before), timed_words(after)
    assert [word for word, *_ in second] == [word for word, *_ in first]
    return [
        (old, new)
        for old, new in zip(first, second, strict=True)
        if not np.allclose(np.array(new[1:]) - old[1:], later, atol=1e-6)
    ]


def other_words(before: Answer, after: Answer) -> int:
    """Return how many words were added, left out or exchanged, whatever the punctuation."""
    said = [re.findall(r"\w+", answer["text"].lower()) for answer in (before, after)]
    heard = jiwer.process_words(*(" ".join(words) for words in said))
    return int(heard.insertions + heard.deletions + heard.substitutions)


def body(samples: Samples, options: Options) -> dict[str, Any]:
    """A request; its WAV file holds floats, in which nothing is too quiet."""
    file = wav_file(samples, SAMPLE_RATE, "f32")
    return request_body(file, **options)
