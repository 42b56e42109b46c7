"""Mixes single voices that talk at once, with the true words, speakers and turns.

A mixture has the same voices at every degree of overlap, so that degrees are compared on the same
words. A hash of the speaker's name splits speakers into training, development and test.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise, zip_longest
from pathlib import Path

import numpy as np

from benchmarks.real.manifest import Recording
from tests.support.dialogue import Scene
from tests.support.speech import Samples, shift
from whosaid.asr.frontend.vad import DetectSpeech, SpeechDetector
from whosaid.asr.frontend.windows import SampleSpan
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import SpeakerTurn, Word

SPLITS = ("train", "train", "train", "train", "train", "train", "dev", "dev", "test", "test")
DEGREES = (0.0, 0.25, 0.5, 1.0)  # of the shorter of two neighbours
GAP = 0.1  # seconds between voices that do not overlap
PAUSE = 0.5  # seconds; shorter pauses do not end a turn
MARGIN = 0.2  # seconds of silence before and after a mixture
LEVEL_DB = 3.0  # a voice is at most this much louder or quieter than it was recorded

# Returns the words of a single voice, with times.
Recognise = Callable[[Samples], Sequence[Word]]


@dataclass(frozen=True)
class SingleVoice:
    """A speaker's clip from the first to the last speech, its turns, and its words once known."""

    speaker: str
    samples: Samples
    turns: tuple[SpeakerTurn, ...]
    words: tuple[Word, ...] = ()


def split_of(speaker: str) -> str:
    """Return "train" for 60% of all speakers, "dev" and "test" for 20% each."""
    return SPLITS[int(sha256(speaker.encode()).hexdigest(), 16) % len(SPLITS)]


def files_of(folder: Path, split: str) -> list[Path]:
    """Return the clips of a split: files named SPEAKER-..., like LibriSpeech's."""
    files = sorted(folder.glob("*-*"))
    return [each for each in files if split_of(each.name.split("-")[0]) == split]


def load_voice(file: Path, detect: DetectSpeech) -> SingleVoice:
    """Return the voice of a clip, without words. Raises ValueError if it has no speech."""
    samples, speaker = Recording(file).samples(), file.name.split("-")[0]
    spans = detect(samples)
    if not spans:
        raise ValueError(f"{file}: has no speech")
    turns = tuple(_turns(speaker, spans))
    return SingleVoice(speaker, samples[spans[0].start : spans[-1].stop], turns)


def _turns(speaker: str, speech: Sequence[SampleSpan]) -> Iterator[SpeakerTurn]:
    """Yield the turns between pauses of at least PAUSE, in seconds from the first speech."""
    edges = [edge / SAMPLE_RATE for span in speech for edge in (span.start, span.stop)]
    starts, ends = edges[::2], edges[1::2]
    begin = 0.0
    for end, after in zip(ends, [*starts[1:], np.inf], strict=True):
        if after - end >= PAUSE:
            yield SpeakerTurn(speaker, begin, end - starts[0])
            begin = after - starts[0]


def mixtures(
    folder: Path, split: str, counts: dict[int, int], recognise: Recognise
) -> Iterator[tuple[str, Scene]]:
    """Yield names and scenes, for each number of voices `counts` casts at all DEGREES.

    No voice is in two casts. Raises ValueError if there are too few voices.
    """
    files, needed = files_of(folder, split), sum(size * count for size, count in counts.items())
    if len(files) < needed:
        raise ValueError(f"{folder}: has {len(files)} voices for {split}, {needed} are needed")
    order, detect = iter(np.random.default_rng(0).permutation(len(files))), SpeechDetector()
    for size, count in counts.items():
        for number in range(count):
            cast = [load_voice(files[next(order)], detect) for _ in range(size)]
            cast = [replace(each, words=tuple(recognise(each.samples))) for each in cast]
            for degree in DEGREES:
                name = f"{size} voices, {degree:.0%} overlap, {number}"
                yield name, mix(cast, degree, np.random.default_rng([size, number]))


def conversation(folder: Path, recognise: Recognise) -> Scene:
    """Let the voices of a folder's clips speak by turns. Each turn overlaps the one before by a
    quarter. Raises ValueError without clips.
    """
    detect, clips = SpeechDetector(), defaultdict[str, list[Path]](list)
    for file in sorted(folder.glob("*-*")):
        clips[file.name.split("-")[0]].append(file)
    rounds = zip_longest(*clips.values())
    turns = [load_voice(file, detect) for files in rounds for file in files if file]
    if not turns:
        raise ValueError(f"{folder}: has no clips in files named SPEAKER-...")
    cast = [replace(each, words=tuple(recognise(each.samples))) for each in turns]
    return mix(cast, DEGREES[1], np.random.default_rng(0))


def mix(cast: Sequence[SingleVoice], degree: float, rng: np.random.Generator) -> Scene:
    """Add voices at random levels. Each overlaps the one before by `degree` of the shorter; if
    `degree` is 1, all shorter ones are at random places within the longest.
    """
    gains = 10 ** (rng.uniform(-LEVEL_DB, LEVEL_DB, size=len(cast)) / 20)
    margin = round(MARGIN * SAMPLE_RATE)
    starts = [margin]
    if degree == 1:
        cast = sorted(cast, key=lambda voice: -len(voice.samples))
        longest = len(cast[0].samples)
        starts += [margin + int(rng.integers(longest - len(each.samples) + 1)) for each in cast[1:]]
    else:
        for before, each in pairwise(cast):
            shared = round(degree * min(len(before.samples), len(each.samples)))
            gap = 0 if degree else round(GAP * SAMPLE_RATE)
            starts.append(starts[-1] + len(before.samples) - shared + gap)
    ends = [start + len(each.samples) for start, each in zip(starts, cast, strict=True)]
    samples = np.zeros(max(ends) + margin, np.float32)
    words: list[Word] = []
    turns: list[SpeakerTurn] = []
    for each, start, end, gain in zip(cast, starts, ends, gains, strict=True):
        samples[start:end] += gain * each.samples
        begin = start / SAMPLE_RATE
        words += [replace(shift(word, begin), speaker=each.speaker) for word in each.words]
        turns += [replace(it, start=it.start + begin, end=it.end + begin) for it in each.turns]
    return Scene(
        np.clip(samples, -1, 1),
        tuple(sorted(words, key=lambda word: word.start)),
        tuple(sorted(turns, key=lambda turn: turn.start)),
    )
