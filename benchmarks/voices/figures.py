"""Makes the tables of the page about real conversations from the results.

Rates are over all recordings together: seconds and words are added before they are divided.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from statistics import median
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
    words = [
        {
            "number of speakers": known,
            "rule": rule,
            "wrong speaker": _rate(recordings, known, "found turns", rule),
            "on true turns": _rate(recordings, known, "true turns", rule),
        }
        for known, rule in product(NUMBERS, RULES)
    ]
    names = [_names(kind, tally) for kind, tally in results.get("names", {}).items()]
    return {"turns": list(_turns(recordings)), "words": words, "names": names}


def _turns(recordings: Sequence[Results]) -> Iterator[dict[str, str]]:
    for known, system in product(NUMBERS, SYSTEMS):
        scores = [each["turns"][known][system] for each in recordings]
        strict, lenient = (
            {part: sum(score[kind][part] for score in scores) for part in PARTS}
            for kind in ("strict", "lenient")
        )
        right = sum(
            score["speakers"] == each["speakers"]
            for score, each in zip(scores, recordings, strict=True)
        )
        seconds = [median(each["seconds"].get(system, [0.0])) for each in recordings]
        timed = known == ESTIMATED and system != ENDPOINT
        yield {
            "number of speakers": known,
            "": system,
            "DER": f"{errors_of(strict).rate:.1%}",
            "missed": f"{strict['missed'] / strict['total']:.1%}",
            "false alarm": f"{strict['false_alarm'] / strict['total']:.1%}",
            "confusion": f"{strict['confusion'] / strict['total']:.1%}",
            "DER, lenient": f"{errors_of(lenient).rate:.1%}",
            "right number": f"{right}/{len(recordings)}",
            "seconds": f"{sum(seconds):.1f}" if timed else "",
        }


def _rate(recordings: Sequence[Results], known: str, turns: str, rule: str) -> str:
    count = pooled([Count(**each["words"][known][turns][rule]) for each in recordings])
    return f"{count.rate:.1%} ({count.errors:.0f} of {count.total:.0f})" if count.total else ""


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
