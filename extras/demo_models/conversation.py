"""The bundled conversation: two minutes at a ticket desk with three voices, and its reference.

It is written by hand, not drawn at random, so that it reads like people talking. Each line is still
a sentence of the grammar, because the demo models know no other words.
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
# Speaker (an index into CAST), seconds since the last line ended (negative: overlapping it), text.
LINES: tuple[tuple[int, float, str], ...] = (
    (0, 0.6, "good morning how can i help you"),
    (1, 0.7, "my name is david and i live in london"),
    (1, 0.4, "i would like to book a ticket for two people on friday at nine"),
    (0, 0.5, "yes please wait a moment"),
    (0, 2.6, "the train to paris leaves at nine fifteen"),
    (1, -0.4, "thank you that is fine"),
    (1, 0.6, "how much is the train to paris"),
    (0, 0.5, "it costs eleven euros for each person"),
    (2, 0.8, "sorry how much is the bus to paris"),
    (0, 0.7, "it costs seven euros for each person"),
    (2, 0.3, "of course i need it on friday"),
    (1, -0.5, "no i need it on saturday"),
    (0, 0.9, "the bus to paris leaves at ten thirty"),
    (2, 0.6, "thank you that is fine"),
    (0, 0.5, "your number is four one seven nine"),
    (1, 0.7, "is there a hotel near the station"),
    (0, 0.4, "yes we are open until eleven"),
    (2, 3.0, "good morning how can i help you"),
    (1, 0.6, "i would like to book a room for two people on friday at eight"),
    (2, 0.5, "of course please wait a moment"),
    (2, 2.2, "it costs twelve euros for each night"),
    (1, -0.4, "yes that is fine"),
    (2, 0.6, "your number is two two eight five one"),
    (1, 0.8, "is there a market near the hotel"),
    (2, 0.4, "yes we are open until nine"),
    (0, 0.9, "the weather in paris will be sunny on friday"),
    (1, -0.5, "thank you that is fine"),
    (2, 0.7, "the weather in paris will be rainy on saturday"),
    (1, 0.6, "could i have coffee and bread please"),
    (2, 0.5, "of course please wait a moment"),
    (2, 2.5, "it costs three euros for each person"),
    (0, 0.5, "could i have soup and salad please"),
    (2, -0.4, "yes that is fine"),
    (1, 0.8, "maria will meet peter at the museum on sunday"),
    (0, 0.6, "is there a museum near the river"),
    (2, 0.5, "yes we are open until five"),
    (1, 0.9, "how much is the boat to dublin"),
    (0, 0.5, "it costs nine euros for each bag"),
    (0, 0.3, "the boat to dublin leaves at six forty"),
    (1, -0.4, "thank you that is fine"),
    (2, 0.9, "good evening how can i help you"),
    (0, 0.5, "my name is julia and i live in paris"),
    (0, 0.3, "i would like to book a table for three people on sunday at six"),
    (2, 0.5, "your number is five two one eight"),
    (0, -0.3, "thank you that is fine"),
)


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
    for speaker, pause, sentence in LINES:
        spoken = speak(CAST[names[speaker]], sentence)
        clip = replace(spoken, samples=LEVEL * spoken.samples)
        turn += pause > MAX_PAUSE_IN_TURN or not placed or placed[-1].speaker != names[speaker]
        placed.append(Placed(clip, names[speaker], end + pause, turn))
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
