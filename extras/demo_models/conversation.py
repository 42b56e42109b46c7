"""The bundled conversation: two minutes at a ticket desk with three voices, and its reference.

It is written by hand instead of generated, so that it resembles a real conversation. Each line is
still a sentence of the grammar, because the demo models know no other words.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from tests.support.audio_files import encoded, wav_file
from tests.support.dialogue import Placed, Scene, compose
from tests.support.speech import Samples, Voice, speak
from whosaid.timebase import SAMPLE_RATE

BIT_RATE = "32k"
LEVEL, NOISE = 0.4, 5e-4
MAX_PAUSE_IN_TURN = 1.0  # seconds; a longer pause ends a turn
CAST = {
    "SPEAKER_00": Voice("espeak", "belinda", "en-gb", 35, 160),
    "SPEAKER_01": Voice("espeak", "Mario", "en-us", 40, 150),
    "SPEAKER_02": Voice("espeak", "f5", "en-us", 65, 165),
}
# Lines of a speaker (an index into CAST), seconds since the last line ended (negative: overlapping
# it), and text.
LINES = Path(__file__).with_suffix(".txt")


def build(folder: Path) -> None:
    """Write `conversation.ogg` (Opus) and `conversation.json` (words, turns, cast) to `folder`."""
    scene = speak_conversation()
    (folder / "conversation.ogg").write_bytes(encode_opus(scene.samples))
    reference = {
        "duration": round(scene.duration, 3),
        "cast": {name: asdict(voice) for name, voice in CAST.items()},
        "turns": [_rounded(asdict(turn)) for turn in scene.turns],
        "words": [_rounded(asdict(word)) for word in scene.words],
    }
    (folder / "conversation.json").write_text(json.dumps(reference, indent=1) + "\n")


def speak_conversation() -> Scene:
    """Synthesise the lines with their pauses and overlaps, over a little white noise."""
    placed: list[Placed] = []
    names, end, turn = list(CAST), 0.0, 0
    for line in LINES.read_text(encoding="utf-8").splitlines():
        number, seconds, sentence = line.split(" ", 2)
        speaker, pause = names[int(number)], float(seconds)
        spoken = speak(CAST[speaker], sentence)
        clip = replace(spoken, samples=LEVEL * spoken.samples)
        other = not placed or placed[-1].speaker != speaker
        turn += other or pause > MAX_PAUSE_IN_TURN
        placed.append(Placed(clip, speaker, end + pause, turn))
        end = placed[-1].end
    return compose(placed, end + 1.0, NOISE, np.random.default_rng(0))


def encode_opus(samples: Samples) -> bytes:
    """Encode mono 16 kHz samples as Opus in Ogg."""
    source = wav_file(samples, SAMPLE_RATE, "f32")
    return encoded(source, "speech.ogg", "-c:a", "libopus", "-b:a", BIT_RATE)


def _rounded(entry: dict[str, object]) -> dict[str, object]:
    return {
        key: round(value, 3) if isinstance(value, float) else value for key, value in entry.items()
    }
