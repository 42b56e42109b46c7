"""The tables of the page about real conversations, from the results alone.

Rates are of all recordings together: seconds and words are added before they are divided.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from benchmarks.counts import Count, pooled
from benchmarks.report import Tables
from benchmarks.voices.answers import RULES
from benchmarks.voices.scoring import DiarizationParts

# What is compared: pyannote's pipeline, the endpoint's diarizer, and the endpoint's answer, without
# turns where no speech was detected.
STOCK, OURS, ENDPOINT = SYSTEMS = ("pyannote.audio", "diarizer", "endpoint")
ESTIMATED, TOLD = "estimated", "told"

Results = dict[str, Any]


def figures(results: Results) -> Tables:
    """Return errors of turns, of words and of names."""
    recordings = results["recordings"]
    return {
        "turns": list(_turns(recordings)),
        "words": list(_words(recordings)),
        "names": [_names(kind, tally) for kind, tally in results.get("names", {}).items()],
    }


def _turns(recordings: Sequence[Results]) -> Iterator[dict[str, str]]:
    seconds = {
        system: sum(median(each["seconds"].get(system, [0.0])) for each in recordings)
        for system in (STOCK, OURS)
    }
    for known in (ESTIMATED, TOLD):
        for system in _measured(recordings):
            scores = [each["turns"][known][system] for each in recordings]
            strict, lenient = (_added(scores, kind) for kind in ("strict", "lenient"))
            right = sum(
                score["speakers"] == each["speakers"]
                for score, each in zip(scores, recordings, strict=True)
            )
            timed = known == ESTIMATED and system in seconds
            yield {
                "number of speakers": known,
                "": system,
                "DER": f"{strict.count.rate:.1%}",
                "missed": f"{strict.missed / strict.total:.1%}",
                "false alarm": f"{strict.false_alarm / strict.total:.1%}",
                "confusion": f"{strict.confusion / strict.total:.1%}",
                "DER, lenient": f"{lenient.count.rate:.1%}",
                "right number": f"{right}/{len(recordings)}",
                "seconds": f"{seconds[system]:.1f}" if timed else "",
            }


def _measured(recordings: Sequence[Results]) -> list[str]:
    """Return the systems that were measured with every recording."""
    return [
        each
        for each in SYSTEMS
        if all(each in recording["turns"][ESTIMATED] for recording in recordings)
    ]


def _words(recordings: Sequence[Results]) -> Iterator[dict[str, str]]:
    for known in (ESTIMATED, TOLD):
        for rule in RULES:
            found, true = (
                [each["words"][known][turns][rule] for each in recordings]
                for turns in ("found turns", "true turns")
            )
            yield {
                "number of speakers": known,
                "rule": rule,
                "wrong speaker": _rate(found),
                "on true turns": _rate(true),
            }


def _rate(counted: Sequence[Results]) -> str:
    count = pooled([Count(**each) for each in counted])
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


def _added(scores: Sequence[Results], kind: str) -> DiarizationParts:
    """Return the parts of all recordings together."""
    keys = ("missed", "false_alarm", "confusion", "total")
    return DiarizationParts(*(sum(score[kind][key] for score in scores) for key in keys))
