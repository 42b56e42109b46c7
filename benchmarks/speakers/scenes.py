"""People, clips of them and dialogues among them, over three channels.

A person is one voice with one pitch, speed and accent, in the clip as in the dialogue, and texts
are drawn apart. Voices that the diarization itself takes for one are left out, since nobody could
name them; the page says which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.signal import butter, sosfilt

from benchmarks.speakers.clips import encode_clip
from tests.support.dialogue import Scene, Style, draw_dialogue
from tests.support.speech import Samples, Voice, draw_clip, draw_voice, speakers, through_codec
from whosaid.diarization.diarizer import Diarizer, Vector
from whosaid.diarization.known_speakers import similarities, unit
from whosaid.timebase import SAMPLE_RATE

# espeak-ng's, in no list of the grammar and no kin of a voice that is: nobody was trained on them.
UNTOUCHED = ("quincy", "grandpa", "grandma", "Nguyen", "Storm", "announcer", "kaukovalta")
# Cosine from which the demo's clustering makes two voices one: its Euclidean 0.75 on unit vectors.
TOO_ALIKE = 0.72
SPEAKERS, NAMES = 3, 3  # in a dialogue; names given with it
SECONDS = 60.0
STYLE = Style(overlap_share=0.1, noise=1e-3)
EDGE = 0.3  # seconds of a clip before and after its speech
NOISE_DB = 10.0  # speech above white noise
BAND = (300.0, 3400.0)  # Hz, of a telephone

Channel = Callable[[Samples, np.random.Generator], Samples]


@dataclass(frozen=True)
class Dialogue:
    """A scene whose speakers are called by their voices' names."""

    scene: Scene
    cast: tuple[str, ...]
    strangers: tuple[str, ...]  # voices that are not in it


def _noisy(samples: Samples, generator: np.random.Generator) -> Samples:
    loud = samples[np.abs(samples) > 0.02]
    level = float(np.sqrt(np.mean(np.square(loud)))) * 10 ** (-NOISE_DB / 20)
    return (samples + level * generator.standard_normal(len(samples))).astype(np.float32)


def _telephone(samples: Samples, _generator: np.random.Generator) -> Samples:
    """8 kHz, mu-law, without what a telephone leaves out."""
    filtered = sosfilt(butter(4, BAND, "bandpass", fs=SAMPLE_RATE, output="sos"), samples)
    return through_codec(filtered.astype(np.float32), "wav", "pcm_mulaw", 8_000, 64_000)


CHANNELS: dict[str, Channel] = {
    "clean": lambda samples, _generator: samples,
    "noisy": _noisy,
    "telephone": _telephone,
}


def draw_people(seed: int) -> dict[str, Voice]:
    """The voices that nobody was trained on or tuned to, with pitch, speed and accent."""
    names = [*speakers("reserved"), *UNTOUCHED]
    return {
        name: draw_voice(name, np.random.default_rng([seed, 0, place]))
        for place, name in enumerate(names)
    }


def tell_apart(
    people: dict[str, Voice], diarizer: Diarizer, seed: int
) -> tuple[dict[str, Voice], list[tuple[str, str, float]]]:
    """The people who are told apart, and of each other one the person taken for it."""
    vectors: dict[str, Vector | None] = {}
    taken: list[tuple[str, str, float]] = []
    for place, (name, voice) in enumerate(people.items()):
        samples = say(voice, 10.0, np.random.default_rng([seed, 1, place]))
        vector = unit(diarizer.embed(samples, [(0.0, 10.0)]))
        cosines = dict(zip(vectors, similarities([vector], list(vectors.values()))[0], strict=True))
        nearest = max(cosines, key=lambda other: cosines[other], default="")
        if nearest and cosines[nearest] >= TOO_ALIKE:
            taken.append((name, nearest, float(cosines[nearest])))
        else:
            vectors[name] = vector
    return {name: people[name] for name in vectors}, taken


def say(voice: Voice, seconds: float, generator: np.random.Generator) -> Samples:
    """`seconds` of speech, sentence after sentence."""
    parts: list[Samples] = []
    while sum(map(len, parts)) < seconds * SAMPLE_RATE:
        parts.append(draw_clip(voice, generator).samples)
    return (0.5 * np.concatenate(parts)[: round(seconds * SAMPLE_RATE)]).astype(np.float32)


def draw_dialogues(people: dict[str, Voice], count: int, seed: int) -> list[Dialogue]:
    """Dialogues among people drawn anew for each."""
    dialogues = []
    for number in range(count):
        generator = np.random.default_rng([seed, 2, number])
        order = [str(name) for name in generator.permutation(list(people))]
        cast, strangers = tuple(order[:SPEAKERS]), tuple(order[SPEAKERS:])
        scene = draw_dialogue([people[name] for name in cast], SECONDS, STYLE, generator)
        turns = tuple(
            replace(turn, speaker=cast[int(turn.speaker.removeprefix("SPEAKER_"))])
            for turn in scene.turns
        )
        dialogues.append(Dialogue(replace(scene, turns=turns), cast, strangers))
    return dialogues


def draw_reference(voice: Voice, seconds: float, channel: Channel, seed: list[int]) -> str:
    """A clip with `seconds` of speech, as WAV in base64."""
    generator = np.random.default_rng(seed)
    edge = np.zeros(round(EDGE * SAMPLE_RATE), np.float32)
    samples = np.concatenate([edge, say(voice, seconds, generator), edge])
    samples += np.float32(STYLE.noise) * generator.standard_normal(len(samples)).astype(np.float32)
    return encode_clip(channel(samples, generator))
