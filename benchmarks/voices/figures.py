"""The figures and the picture of the page about real conversations, from the results alone.

Rates are of all recordings together: seconds, words and speakers are added before they are divided.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np

from benchmarks.accuracy.answers import INSANELY_FAST, RULES, WHISPERX
from benchmarks.accuracy.answers import OURS as OUR_RULE
from benchmarks.accuracy.intervals import pooled
from benchmarks.accuracy.metrics import Count, DiarizationParts
from benchmarks.charts import Chart
from benchmarks.report import listed, table, table_of

STOCK, OURS, ENDPOINT = "pyannote.audio", "this project", "this project, where speech is found"
SYSTEMS = (STOCK, OURS, ENDPOINT)
ESTIMATED, TOLD = "estimated", "told"
TEXT_ALONE, OF_TEXT = "the text alone", "times the text's own"

Results = dict[str, Any]
Recordings = Sequence[Results]


def figures(results: Results) -> dict[str, str]:
    """What was heard, errors of turns, of words and of names, and every recording."""
    recordings: Recordings = results["recordings"]
    heard = {
        "recordings": len(recordings),
        "minutes": f"{sum(each['duration'] for each in recordings) / 60:.1f}",
        "speakers, of each recording": ", ".join(str(each["speakers"]) for each in recordings),
    }
    names = results.get("names", {})
    return {
        "heard": listed(heard),
        "turns": table_of(list(_turns(recordings))),
        "words": table_of(list(_words(recordings))),
        "recordings": table_of([_recording(each, _heard_by(recordings)) for each in recordings]),
        "seconds": table_of(list(_seconds(recordings))),
        "names": table_of([_names(kind, row, results) for kind, row in names.items()]),
        "thresholds": _thresholds(names),
        "cosines": table_of([_cosines(kind, row["cosines"]) for kind, row in names.items()]),
        "clips": table_of([_clip(*row) for row in results.get("by clips beside", [])]),
    }


def chart(results: Results) -> Chart:
    """Words with a wrong speaker by three rules, with the number of speakers unknown and told."""
    recordings: Recordings = results["recordings"]
    rules = {
        "this project": OUR_RULE,
        "WhisperX": WHISPERX,
        "insanely-fast-whisper": INSANELY_FAST,
    }
    groups = {"number of speakers estimated": ESTIMATED, "told": TOLD}
    words = _speaker_errors(recordings, ESTIMATED, OUR_RULE).total
    minutes = sum(each["duration"] for each in recordings) / 60
    facts = results["settings"]
    return Chart(
        question="Words given to the wrong speaker, real speech",
        unit="%",
        groups=tuple(groups),
        bars={
            name: tuple(
                100 * _speaker_errors(recordings, known, rule).rate for known in groups.values()
            )
            for name, rule in rules.items()
        },
        note=f"{words:.0f} words, recognised by {facts['model']}, during which one person speaks; "
        f"{len(recordings)} conversations, {minutes:.0f} minutes. All rules get the same words and "
        f"the same speaker turns, of {facts['pipeline']}.",
    )


def _turns(recordings: Recordings) -> Iterator[dict[str, str]]:
    for known in (ESTIMATED, TOLD):
        for system in _heard_by(recordings):
            scores = [each["turns"][known][system] for each in recordings]
            strict, lenient = (_added(scores, kind) for kind in ("strict", "lenient"))
            total = strict.total
            right = sum(
                score["speakers"] == each["speakers"]
                for score, each in zip(scores, recordings, strict=True)
            )
            yield {
                "number of speakers": known,
                "": system,
                "DER": f"{strict.count.rate:.1%}",
                "missed": f"{strict.missed / total:.1%}",
                "false alarm": f"{strict.false_alarm / total:.1%}",
                "confusion": f"{strict.confusion / total:.1%}",
                "DER, lenient": f"{lenient.count.rate:.1%}",
                "JER": f"{pooled([Count(**score['jaccard']) for score in scores]).rate:.1%}",
                "right number": f"{right}/{len(recordings)}",
            }


def _words(recordings: Recordings) -> Iterator[dict[str, str]]:
    spelt = [each for each in recordings if "cp" in _rule(each, ESTIMATED, OUR_RULE)]
    for known in (ESTIMATED, TOLD):
        texts = [each["words"][known].get("text alone") for each in spelt]
        alone = pooled([Count(**text) for text in texts]) if texts and all(texts) else None
        for rule in RULES:
            errors = _speaker_errors(recordings, known, rule)
            truly = _speaker_errors(recordings, known, rule, "true turns")
            row = {
                "number of speakers": known,
                "rule": rule,
                "wrong speaker": f"{errors.rate:.1%} ({errors.errors:.0f} of {errors.total:.0f})",
                "on true turns": f"{truly.rate:.1%}",
            }
            cp = [Count(**_rule(each, known, rule)["cp"]) for each in spelt]
            if cp:
                both = pooled(cp)
                row["cpWER"] = f"{both.rate:.1%} ({both.errors:.0f} of {both.total:.0f})"
            if alone is not None:
                row[OF_TEXT] = f"{both.rate / alone.rate:.2f}" if alone.errors else ""
            yield row
        if alone is not None:
            rate = f"{alone.rate:.1%} ({alone.errors:.0f} of {alone.total:.0f})"
            yield dict(zip(row, (known, TEXT_ALONE, "", "", rate, ""), strict=True))


def _heard_by(recordings: Recordings) -> list[str]:
    """The systems that have heard every recording."""
    return [
        each
        for each in SYSTEMS
        if all(each in recording["turns"][ESTIMATED] for recording in recordings)
    ]


def _recording(each: Results, systems: Sequence[str]) -> dict[str, str]:
    """A recording with the errors of its turns, and what became of its words."""
    row = {"recording": f"{each['name']} ({each['duration']:.0f} s, {each['speakers']} speakers)"}
    for known in (ESTIMATED, TOLD):
        for system in systems:
            if system == OURS:
                continue
            score = each["turns"][known][system]
            strict, lenient = (
                DiarizationParts(**score[kind]).count.rate for kind in ("strict", "lenient")
            )
            name = f"{'ours' if system == ENDPOINT else system}, {known}"
            row[name] = f"{strict:.1%} / {lenient:.1%}, {score['speakers']}"
    for rule in (OUR_RULE, WHISPERX):
        count = Count(**_rule(each, ESTIMATED, rule)["speakers"])
        row[f"words, {rule}"] = f"{count.errors:.0f} of {count.total:.0f}"
    seconds = {
        f"seconds, {'ours' if system == OURS else system}": f"{median(each['seconds'][system]):.1f}"
        for system in systems
        if system != ENDPOINT
    }
    return row | seconds


def _seconds(recordings: Recordings) -> Iterator[dict[str, str]]:
    audio = sum(each["duration"] for each in recordings)
    totals = {
        system: sum(median(each["seconds"][system]) for each in recordings)
        for system in _heard_by(recordings)
        if system != ENDPOINT
    }
    for system, total in totals.items():
        yield {
            "": system,
            "seconds": f"{total:.1f}",
            "x real time": f"{audio / total:.1f}",
            "times as long as this project": f"{total / totals[OURS]:.2f}",
        }


def _names(kind: str, row: Results, results: Results) -> dict[str, str]:
    known, strangers = row["seconds"]
    rates = row["by threshold"][f"{results['threshold']:.2f}"]
    return {
        "known by": kind,
        "rightly": f"{rates['right']:.1%}" if known else "",
        "wrongly": f"{rates['wrong']:.1%}" if known else "",
        "of seconds": f"{known:.0f}",
        "strangers": f"{rates['strangers']:.1%} ({rates['stranger speakers']:.1%})",
        "of strangers' seconds": f"{strangers:.0f}",
    }


def _thresholds(names: Results) -> str:
    """Rightly, wrongly and strangers of each way to be known, over thresholds."""
    thresholds = list(next(iter(names.values()))["by threshold"]) if names else []
    rows = []
    for threshold in thresholds:
        if round(100 * float(threshold)) not in range(20, 90, 5):
            continue
        cells = [threshold]
        for row in names.values():
            rates = row["by threshold"][threshold]
            shares = [rates[each] for each in ("right", "wrong", "strangers")]
            cells.append(" / ".join(f"{share:.1%}" for share in shares))
        rows.append(cells)
    return table(("threshold", *names), rows)


def _cosines(kind: str, cosines: dict[str, list[float]]) -> dict[str, str]:
    row = {"known by": kind}
    for pair, percentiles in (("right", (0, 10, 50, 100)), ("wrong", (50, 99, 100))):
        found = cosines[pair]
        values = np.percentile(found, percentiles).tolist() if found else []
        named = ", ".join(f"{each:g}" for each in percentiles)
        row[f"{pair} pairs"] = str(len(found))
        row[f"cosine, percentiles {named}"] = " / ".join(f"{value:.2f}" for value in values)
    return row


def _clip(
    recording: str, name: str, label: str | None, similarity: float | None, matched: bool
) -> dict[str, str]:
    return {
        "recording": recording,
        "name": name,
        "most like": label or "nobody",
        "similarity": "" if similarity is None else f"{similarity:.2f}",
        "named": "yes" if matched else "no",
    }


def _added(scores: Sequence[Results], kind: str) -> DiarizationParts:
    """The parts of all recordings together."""
    keys = ("missed", "false_alarm", "confusion", "total")
    return DiarizationParts(*(sum(score[kind][key] for score in scores) for key in keys))


def _rule(recording: Results, known: str, rule: str, turns: str = "found turns") -> Results:
    counts: Results = recording["words"][known][turns][rule]
    return counts


def _speaker_errors(
    recordings: Recordings, known: str, rule: str, turns: str = "found turns"
) -> Count:
    return pooled([Count(**_rule(each, known, rule, turns)["speakers"]) for each in recordings])
