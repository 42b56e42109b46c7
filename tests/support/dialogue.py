"""Mixes clips of one to four voices into a scene whose words, times and speakers are known.

Mixing only adds samples and shifts times, drawn from a seeded generator. So the reference of a
scene is exactly that of its clips."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from pyannote.core import Annotation, Segment

from tests.support.speech import Clip, Samples, Voice, draw_clip, draw_voice, shift
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import SpeakerTurn, Word


@dataclass(frozen=True)
class Style:
    """The distributions that dialogues are drawn from; all ranges are uniform.

    `sentences` a turn; `breath` and `pause`, seconds between sentences and between turns;
    `overlap_share`, the probability that a turn overlaps the last one, by `overlap` seconds;
    `noise`, the standard deviation of white noise; `level_db`, the level of each voice."""

    sentences: tuple[int, int] = (1, 3)
    breath: tuple[float, float] = (0.1, 0.4)
    pause: tuple[float, float] = (0.2, 1.5)
    overlap_share: float = 0.0
    overlap: tuple[float, float] = (0.2, 1.2)
    noise: float = 0.0
    level_db: tuple[float, float] = (-6.0, 0.0)


OVERLAPPING = Style(overlap_share=0.2, noise=1e-3)


@dataclass(frozen=True)
class Scene:
    """Samples (float32 mono 16 kHz), words with speakers in order of time, and speaker turns."""

    samples: Samples
    words: tuple[Word, ...]
    turns: tuple[SpeakerTurn, ...]

    @property
    def duration(self) -> float:
        return len(self.samples) / SAMPLE_RATE


@dataclass(frozen=True)
class Placed:
    """A clip that starts `start` seconds into the scene; a turn is all clips of one `turn`."""

    clip: Clip
    speaker: str
    start: float
    turn: int

    @property
    def end(self) -> float:
        return self.start + self.clip.duration


def draw_dialogue(
    voices: Sequence[Voice], duration: float, style: Style, generator: np.random.Generator
) -> Scene:
    """A dialogue of `duration` seconds; voice i is SPEAKER_0i, and speakers always alternate."""
    levels = 10 ** (generator.uniform(*style.level_db, size=len(voices)) / 20)
    placed: list[Placed] = []
    speaker, turn, end = int(generator.integers(len(voices))), 0, generator.uniform(*style.breath)
    while True:
        start = _turn_start(placed, end, style, generator)
        for _ in range(generator.integers(style.sentences[0], style.sentences[1] + 1)):
            clip = draw_clip(voices[speaker], generator)
            clip = replace(clip, samples=(clip.samples * levels[speaker]).astype(np.float32))
            if start + clip.duration > duration:
                return compose(placed, duration, style.noise, generator)
            placed.append(Placed(clip, f"SPEAKER_{speaker:02d}", start, turn))
            start = placed[-1].end + generator.uniform(*style.breath)
        end, turn = placed[-1].end, turn + 1
        if len(voices) > 1:
            speaker = (speaker + int(generator.integers(1, len(voices)))) % len(voices)


def compose(
    placed: Sequence[Placed], duration: float, noise: float, generator: np.random.Generator
) -> Scene:
    """Add the clips and white `noise` into a scene of `duration` seconds."""
    samples = noise * generator.standard_normal(round(duration * SAMPLE_RATE))
    for item in placed:
        first = round(item.start * SAMPLE_RATE)
        samples[first : first + len(item.clip.samples)] += item.clip.samples[: len(samples) - first]
    spoken = [(item, word) for item in placed for word in item.clip.words]
    words = [replace(shift(word, item.start), speaker=item.speaker) for item, word in spoken]
    in_time = tuple(sorted(words, key=lambda word: word.start))
    return Scene(np.clip(samples, -1, 1).astype(np.float32), in_time, _turns(placed))


def _turn_start(
    placed: Sequence[Placed], end: float, style: Style, generator: np.random.Generator
) -> float:
    """Start of the next turn: after a pause, or overlapping the end of the last sentence.

    It overlaps at most half of that sentence and never an earlier turn."""
    if not placed or generator.random() >= style.overlap_share:
        return float(end + generator.uniform(*style.pause))
    last = placed[-1]
    others = [item.end for item in placed if item.turn != last.turn]
    start = end - min(float(generator.uniform(*style.overlap)), last.clip.duration / 2)
    return max(start, *others) if others else start


def _turns(placed: Sequence[Placed]) -> tuple[SpeakerTurn, ...]:
    """A turn lasts from the first to the last word of what one speaker says in a row."""
    turns: dict[int, SpeakerTurn] = {}
    for item in placed:
        start, end = item.start + item.clip.words[0].start, item.start + item.clip.words[-1].end
        known = turns.get(item.turn)
        turns[item.turn] = SpeakerTurn(item.speaker, known.start if known else start, end)
    return tuple(turns.values())


def draw_dialogues(casts: Sequence[Sequence[str]], seed: int, seconds: float = 60.0) -> list[Scene]:
    """Draw one dialogue for each cast of voice names, with pauses, overlaps and noise."""
    scenes = []
    for number, cast in enumerate(casts):
        rng = np.random.default_rng([seed, number])
        voices = [draw_voice(name, rng) for name in cast]
        scenes.append(draw_dialogue(voices, seconds, OVERLAPPING, rng))
    return scenes


def annotation(turns: Sequence[SpeakerTurn]) -> Annotation:
    result = Annotation()
    for track, turn in enumerate(turns):
        result[Segment(turn.start, turn.end), track] = turn.speaker
    return result
