"""Does any file or body bring the endpoint down?

    python -m tests.fuzz [--files 2000] [--bodies 10000] [--seed 0]

Broken audio files and nonsensical bodies go through `EndpointHandler` with a tiny untrained
Whisper. Every answer must be JSON and every refusal one of the documented codes; anything else is
printed with its number and fails the run. A case depends on the seed and its number alone, so that
a failure can be reproduced.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from config import InferenceConfig, ModelReference, ModelSettings
from handler import EndpointHandler
from tests.support.audio_files import FORMATS, amr_file, chirp, encoded, mutated, wav_file
from tests.support.tiny_whispers import SMALL, save
from whosaid.errors import ClientError

MIB = 2**20
SOUND = base64.b64encode(wav_file(chirp(16_000, 0.2), 16_000)).decode()
WHOLE = [0, 1, 2, -1, 24, 16_000, 2**63, 10**400, True, False]
BROKEN = [0.5, -0.0, 1e308, float("nan"), float("inf")]
TEXTS = [
    "",
    "0",
    "24",
    "true",
    "en",
    "english",
    "fr",
    "transcribe",
    "translate",
    "word",
    "\0",
    "\ud800",
    "x" * 10_000,
]
OTHERS: list[Any] = [None, b"", b"\xff", [], [1], [[[[[]]]]], {}, {"a": None}, {1: 2}]
# Much of something: each is refused, or ignored, before anything looks into it.
MUCH: list[Any] = [
    ["srt"] * 20_000,
    ["srt", "srt"],
    [1] * 20_000,
    [{}] * 20_000,
    "a," * 20_000,
    "[" * 20_000,
    "[" + "[]," * 10_000 + "[]]",
    dict.fromkeys(map(str, range(20_000))),
]
VALUES = [*WHOLE, *BROKEN, *TEXTS, *OTHERS, *MUCH]
SPOILT = [SOUND[:-3], SOUND + "!", "https://a.example/b.wav", "/etc/passwd"]
INPUTS = [*[SOUND] * 4, "data:audio/wav;base64," + SOUND, base64.b64decode(SOUND), *SPOILT]


@dataclass
class Outcomes:
    """How many cases had which outcome, the slowest of them, and the faults."""

    counts: Counter[str] = field(default_factory=Counter)
    slowest: tuple[float, int] = (0.0, -1)
    faults: list[str] = field(default_factory=list)

    def add(self, number: int, handler: EndpointHandler, body: Any) -> None:
        """Send one body and note its outcome."""
        started = time.perf_counter()
        try:
            json.dumps(handler(body), allow_nan=False)
            outcome = "answered"
        except ClientError as error:
            outcome = error.code
            if not (
                str(error).isascii()
                and str(error).startswith(f"{error.code}: ")
                and len(str(error)) <= 500
            ):
                self.faults.append(f"case {number}: a message against the rules")
        except Exception as error:
            outcome = f"FAULT {type(error).__name__}"
            self.faults.append(f"case {number}: {error!r}"[:200])
        self.counts[outcome] += 1
        self.slowest = max(self.slowest, (time.perf_counter() - started, number))


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
    names = [
        *InferenceConfig.model_fields,
        "generate_kwargs",
        "",
        "\ud800",
        "__class__",
        "x" * 1_000,
    ]

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


def run(name: str, handler: EndpointHandler, bodies: Callable[[int], Any], count: int) -> bool:
    """Send `count` bodies and print their outcomes; whether there was no fault."""
    process, outcomes = psutil.Process(), Outcomes()
    for number in range(min(50, count)):  # to fill caches before memory is measured
        Outcomes().add(number, handler, bodies(number))
    before = process.memory_info().rss, process.num_fds(), process.num_threads()
    for number in range(count):
        outcomes.add(number, handler, bodies(number))
    after = process.memory_info().rss, process.num_fds(), process.num_threads()
    counts = [f"{outcome} {times}" for outcome, times in outcomes.counts.most_common()]
    print(f"{count} {name}: {', '.join(counts)}")
    seconds, slowest = outcomes.slowest
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    memory, descriptors, threads = (now - then for now, then in zip(after, before, strict=True))
    print(f"  slowest {seconds:.2f} s (case {slowest})")
    print(f"  RSS {memory / MIB:+.1f} MiB (peak {peak} MiB)")
    print(f"  descriptors {descriptors:+d}, threads {threads:+d}", *outcomes.faults, sep="\n  ")
    return not outcomes.faults


def main() -> int:
    """Run both kinds and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Send broken files and nonsensical bodies."
    )
    parser.add_argument("--files", type=int, default=2_000)
    parser.add_argument("--bodies", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = save(Path(folder), SMALL)
        settings = ModelSettings(
            asr_model=ModelReference(str(model)), max_audio_seconds=60, max_audio_bytes=MIB
        )
        handler = EndpointHandler(settings=settings)
    files = run("broken files", handler, file_bodies(options.seed), options.files)
    bodies = run("nonsensical bodies", handler, nonsense_bodies(options.seed), options.bodies)
    return 0 if files and bodies else 1


if __name__ == "__main__":
    raise SystemExit(main())
