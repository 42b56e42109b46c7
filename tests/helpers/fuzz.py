"""Broken audio files and nonsensical bodies. Each depends on a seed and its number alone, so that a
failure can be reproduced."""

import base64
import random
from collections.abc import Callable
from typing import Any

from config import InferenceConfig
from tests.support.audio_files import FORMATS, amr_file, chirp, encoded, mutated, wav_file

SOUND = base64.b64encode(wav_file(chirp(16_000, 0.2), 16_000)).decode()
WHOLE = [0, 1, 2, -1, 24, 16_000, 2**63, 10**400, True, False]
BROKEN = [0.5, -0.0, 1e308, float("nan"), float("inf")]
TEXTS = [
    *("", "0", "24", "true", "en", "english", "fr", "transcribe", "translate", "word", "\0"),
    *("\ud800", "x" * 10_000),
]
OTHERS: list[Any] = [None, b"", b"\xff", [], [1], [[[[[]]]]], {}, {"a": None}, {1: 2}]
# Much of something: each is refused, or ignored, before anything looks into it.
MUCH: list[Any] = [
    *(["srt"] * 20_000, ["srt", "srt"], [1] * 20_000, [{}] * 20_000),
    *("a," * 20_000, "[" * 20_000, "[" + "[]," * 10_000 + "[]]"),
    dict.fromkeys(map(str, range(20_000))),
]
VALUES = [*WHOLE, *BROKEN, *TEXTS, *OTHERS, *MUCH]
SPOILT = [SOUND[:-3], SOUND + "!", "https://a.example/b.wav", "/etc/passwd"]
INPUTS = [*[SOUND] * 4, "data:audio/wav;base64," + SOUND, base64.b64decode(SOUND), *SPOILT]


def file_bodies(seed: int) -> Callable[[int], Any]:
    """Bodies that hold a second of sound in some format, mutated once or twice."""
    source = wav_file(chirp(22_050, 1.0), 22_050)
    whole = [*(encoded(source, name) for name in FORMATS), amr_file(50)]

    def body(number: int) -> dict[str, Any]:
        generator = random.Random(f"{seed} file {number}")
        data = mutated(generator.choice(whole), whole, generator)
        if data and generator.random() < 0.3:
            data = mutated(data, whole, generator)
        return {"inputs": base64.b64encode(data).decode(), "parameters": {"diarize": False}}

    return body


def nonsense_bodies(seed: int) -> Callable[[int], Any]:
    """Bodies of any shape: wrong types, extremes, unknown names, invalid text."""
    others = ("generate_kwargs", "", "\ud800", "__class__", "x" * 1_000)
    names = [*InferenceConfig.model_fields, *others]

    def body(number: int) -> Any:
        generator = random.Random(f"{seed} body {number}")
        if generator.random() < 0.02:
            return generator.choice(VALUES)
        content: dict[Any, Any] = {
            "inputs": generator.choice(INPUTS if generator.random() < 0.9 else VALUES)
        }
        content["parameters"] = {
            generator.choice(names): generator.choice(VALUES) for _ in range(generator.randrange(5))
        }
        if generator.random() < 0.1:
            content[generator.choice(["parameters", "inputs", "extra", "\ud800", 7])] = (
                generator.choice(VALUES)
            )
        return content

    return body
