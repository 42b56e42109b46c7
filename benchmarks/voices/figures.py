"""Makes the tables of the page about real conversations from the results.

Rates are over all recordings together: seconds and words are added before they are divided.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from benchmarks.counts import Count, pooled
from benchmarks.report import Tables
from benchmarks.voices.answers import RULES
from benchmarks.voices.scoring import PARTS, errors_of

# The compared systems: pyannote's pipeline, the endpoint's diarizer, and the endpoint's answer,
# without turns in which no speech was detected.
STOCK, OURS, ENDPOINT = SYSTEMS = ("pyannote.audio", "diarizer", "endpoint")
ESTIMATED, TOLD = NUMBERS = ("estimated", "told")

Results = dict[str, Any]


def figures(results: Results) -> Tables:
    """Return errors of turns, of words and of names."""
    recordings = results["recordings"]
    words = []
    for known, rule in product(NUMBERS, RULES):
        count = pooled([Count(**each["words"][known][rule]) for each in recordings])
        wrong = f"{count.rate:.1%} ({count.errors:.0f} of {count.total:.0f})"
        words.append({"number of speakers": known, "rule": rule, "wrong speaker": wrong})
    names = [_names(kind, tally) for kind, tally in results.get("names", {}).items()]
    return {"turns": list(_turns(recordings)), "words": words, "names": names}


def _turns(recordings: Sequence[Results]) -> Iterator[dict[str, str]]:
    for known, system in product(NUMBERS, SYSTEMS):
        scores = [each["turns"][known][system] for each in recordings]
        parts = {part: sum(score["strict"][part] for score in scores) for part in PARTS}
        right = sum(
            score["speakers"] == each["speakers"]
            for score, each in zip(scores, recordings, strict=True)
        )
        seconds = sum(each["seconds"].get(system, 0.0) for each in recordings)
        timed = known == ESTIMATED and system != ENDPOINT
        yield {
            "number of speakers": known,
            "": system,
            "DER": f"{errors_of(parts).rate:.1%}",
            "missed": f"{parts['missed'] / parts['total']:.1%}",
            "false alarm": f"{parts['false_alarm'] / parts['total']:.1%}",
            "confusion": f"{parts['confusion'] / parts['total']:.1%}",
            "right number": f"{right}/{len(recordings)}",
            "seconds": f"{seconds:.1f}" if timed else "",
        }


def _names(kind: str, tally: dict[str, float]) -> dict[str, str]:
    def share(of: str, total: str) -> str:
        return f"{tally[of] / tally[total]:.1%}" if tally[total] else ""

    return {
        "known by": kind,
        "rightly": share("right", "known"),
        "wrongly": share("wrong", "known"),
        "of seconds": f"{tally['known']:.0f}",
        "strangers named": share("strangers_named", "strangers"),
        "of strangers' seconds": f"{tally['strangers']:.0f}",
    }
