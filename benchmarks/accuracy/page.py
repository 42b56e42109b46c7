"""The page about accuracy: targets met and missed, tables, a plot and what went wrong, from the
results file alone.

The one decision: rates are of all dialogues of a condition together, and a rule is called better or
worse only where the interval over dialogues says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot

from benchmarks.accuracy.answers import INSANELY_FAST, INSANELY_FAST_ON_WORDS, OURS, RULES, SYSTEMS
from benchmarks.accuracy.intervals import Interval, difference, pooled
from benchmarks.accuracy.metrics import COLLAR, Count
from benchmarks.accuracy.scenes import ALONE, DIALOGUES, GAPS
from benchmarks.report import listed, read, table

# The bars of the evaluation, set before any result: clean dialogues; then rules, where theirs is
# above WORTH.
MOST_WER, MOST_CP_OVER_WER, MOST_DER, MOST_LATE = 0.05, 0.02, 0.10, 0.060
WORTH, OF_WHISPERX, OF_INSANELY_FAST = 0.02, 1 / 2, 1 / 3
WORST = 10

Judged = dict[str, Any]
Scenes = Sequence[Judged]
Target = tuple[str, str, bool]


def write(results: Path, folder: Path) -> str:
    """Write `results`' page (.md) and plot (.svg) into `folder`; returns the page."""
    content = read(results)
    scenes: Scenes = content["scenes"]
    folder.mkdir(parents=True, exist_ok=True)
    plot = folder / f"{results.stem}.svg"
    _plot(scenes, plot)
    page = "\n\n".join(
        [
            "# How right the answers are",
            f"Voices: {content['split']}. {sum(each['duration'] for each in scenes) / 60:.0f} minutes of audio in "
            f"{len(scenes)} scenes, answered in {sum(each['wall'] for each in scenes) / 60:.1f} minutes. "
            f"DER: collar {COLLAR} s, overlapped speech scored. Word-speaker error: correctly recognised words given "
            "to another speaker, or to nobody, under the best mapping. WER takes all words in order of their starts, "
            "so sentences spoken at once are mixed; cpWER leaves out words given to nobody. All rules get the same "
            "words and turns; true turns are the synthesis' own, for all rules. Intervals: 95%, bootstrap over "
            "dialogues.",
            "## Targets\n\n" + _targets_table(scenes),
            "## Words, times and turns\n\n" + _recognition(scenes),
            f"## Who said it\n\n![word-speaker error of each rule]({plot.name})\n\n"
            + _attribution(scenes),
            "## Where nobody speaks\n\n" + _speechless(scenes),
            "## What went wrong\n\n" + _incidents(scenes),
            "## Settings\n\n" + listed(content["settings"]),
        ]
    )
    (folder / f"{results.stem}.md").write_text(page + "\n", encoding="utf-8")
    return page


def targets(scenes: Scenes) -> Iterator[Target]:
    """Every target with what was measured and whether it is met; those of scenes that were not run
    are left out.
    """
    if clean := _of(scenes, "clean"):
        words, given = _pooled(clean, "recognition"), pooled(_given(clean, OURS, "cp"))
        turns, late = _pooled(clean, "diarization"), np.median(_late(clean))
        yield f"clean: WER at most {MOST_WER:.0%}", f"{words.rate:.1%}", words.rate <= MOST_WER
        over = given.rate - words.rate
        yield (
            f"clean: cpWER at most WER + {MOST_CP_OVER_WER:.0%}",
            f"+{over:.1%}",
            over <= MOST_CP_OVER_WER,
        )
        yield f"clean: DER at most {MOST_DER:.0%}", f"{turns.rate:.1%}", turns.rate <= MOST_DER
        yield (
            f"clean: word boundaries, median at most {MOST_LATE * 1000:.0f} ms",
            _ms(late),
            bool(late <= MOST_LATE),
        )
    for condition in DIALOGUES[1:]:
        for rule in RULES if _of(scenes, condition) else ():
            yield from _against(scenes, condition, rule)
    for condition in (*ALONE, *GAPS):
        if some := _of(scenes, condition):
            heard = sum(each["in silence"] for each in some)
            yield f"{condition}: no words", str(heard), heard == 0


def _against(scenes: Scenes, condition: str, rule: str) -> Iterator[Target]:
    some = _of(scenes, condition)
    ours, theirs = (_given(some, each, "speakers") for each in (OURS, rule))
    between = difference(ours, theirs)
    yield f"{condition}: never worse than {rule}", _points(between), between.low <= 0
    mine, other = pooled(ours).rate, pooled(theirs).rate
    if other > WORTH:
        most = OF_INSANELY_FAST if rule in (INSANELY_FAST, INSANELY_FAST_ON_WORDS) else OF_WHISPERX
        yield (
            f"{condition}: at most {most:.2f} of {rule}",
            f"{mine / other:.2f}",
            mine <= most * other,
        )


def _targets_table(scenes: Scenes) -> str:
    rows = [(name, found, "met" if met else "**missed**") for name, found, met in targets(scenes)]
    return table(("target", "measured", ""), rows)


def _recognition(scenes: Scenes) -> str:
    rows = []
    for condition in DIALOGUES:
        for seconds in sorted({each["seconds"] for each in _of(scenes, condition)}):
            some = [each for each in _of(scenes, condition) if each["seconds"] == seconds]
            words, late = _pooled(some, "recognition"), _late(some)
            rows.append(
                (
                    f"{condition}, {seconds:.0f} s ({len(some)})",
                    f"{sum(each['talked over'] for each in some) / words.total:.0%}",
                    f"{words.rate:.1%}",
                    f"{pooled(_given(some, OURS, 'cp')).rate:.1%}",
                    f"{pooled(_given(some, OURS, 'speakers')).rate:.1%}",
                    f"{_pooled(some, 'diarization').rate:.1%}",
                    f"{_ms(np.median(late[:, 0]))} / {_ms(np.median(late[:, 1]))}",
                    f"{_ms(np.percentile(late[:, 0], 90))} / {_ms(np.percentile(late[:, 1], 90))}",
                    f"{sum(each['speakers'][0] == each['speakers'][1] for each in some)}/{len(some)}",
                )
            )
    header = (
        "condition (dialogues)",
        "words talked over",
        "WER",
        "cpWER",
        "word-speaker error",
        "DER",
    )
    return table(
        (*header, "starts / ends off, median", "90th percentile", "right count of speakers"), rows
    )


def _attribution(scenes: Scenes) -> str:
    rows = []
    for condition in DIALOGUES:
        some = _of(scenes, condition)
        for system in SYSTEMS if some else ():
            between = difference(_given(some, OURS, "speakers"), _given(some, system, "speakers"))
            cells = [
                f"{pooled(_given(some, system, measure, turns)).rate:.1%}"
                for turns in ("found turns", "true turns")
                for measure in ("speakers", "cp")
            ]
            rows.append((condition, system, *cells, "" if system == OURS else _points(between)))
    header = (
        "condition",
        "rule",
        "word-speaker error",
        "cpWER",
        "the same on true turns",
        "cpWER on true turns",
    )
    return table((*header, "ours less theirs, points (95%)"), rows)


def _speechless(scenes: Scenes) -> str:
    rows = [
        (
            condition,
            f"{sum(each['duration'] for each in some) / 60:.1f}",
            str(sum(each["in silence"] for each in some)),
            f"{_pooled(some, 'recognition').rate:.1%}" if condition in GAPS else "",
            f"{_pooled(some, 'diarization').rate:.1%}" if condition in GAPS else "",
        )
        for condition in (*ALONE, *GAPS)
        if (some := _of(scenes, condition))
    ]
    return table(("scenes", "minutes", "words heard where nobody speaks", "WER", "DER"), rows)


def _incidents(scenes: Scenes) -> str:
    """What the words lost went to, and the worst incidents."""
    found = [(each, incident) for each in scenes for incident in each["incidents"]]
    causes = Counter[str]()
    for _, incident in found:
        causes[incident["cause"]] += incident["errors"]
    worst = sorted(found, key=lambda pair: -pair[1]["errors"])[:WORST]
    total = sum(causes.values()) or 1
    shares = table(
        ("cause", "wrong words", "share"),
        [(c, str(n), f"{n / total:.0%}") for c, n in causes.most_common()],
    )
    return "\n\n".join([shares, *(_incident(each, incident) for each, incident in worst)])


def _incident(judged: Judged, incident: Judged) -> str:
    return (
        f"**{judged['name']}, {incident['start']:.1f}-{incident['end']:.1f} s: {incident['cause']}**, "
        f"{incident['errors']} words; {'two voices at once' if incident['overlap'] else 'one voice at a time'}, "
        f"{incident['boundary']:.1f} s from a turn's end, {incident['seam']:.1f} s from a seam of windows, "
        f"turns wrong for {incident['turns_wrong']:.0%} of the time\n"
        f"- said: {incident['said'] or '(nothing)'}\n- heard: {incident['heard'] or '(nothing)'}"
    )


def _plot(scenes: Scenes, path: Path) -> None:
    """Bars of the word-speaker error, a group for each condition: on the turns found, and on the
    true ones.
    """
    conditions = [condition for condition in DIALOGUES if _of(scenes, condition)]
    figure, axes = pyplot.subplots(1, 2, sharey=True, figsize=(10, 3.4))
    for axis, turns in zip(axes, ("found turns", "true turns"), strict=True):
        for place, system in enumerate(SYSTEMS):
            rates = [
                pooled(_given(_of(scenes, each), system, "speakers", turns)).rate
                for each in conditions
            ]
            at = np.arange(len(conditions)) + (place - len(SYSTEMS) / 2 + 0.5) * 0.16
            axis.bar(at, np.multiply(rates, 100), 0.15, label=system)
        axis.set_xticks(range(len(conditions)), conditions)
        axis.set_title(turns)
    axes[0].set_ylabel("word-speaker error, %")
    axes[0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _of(scenes: Scenes, condition: str) -> list[Judged]:
    return [each for each in scenes if each["condition"] == condition]


def _pooled(scenes: Scenes, part: str) -> Count:
    return pooled([Count(**each[part]) for each in scenes])


def _given(scenes: Scenes, system: str, measure: str, turns: str = "found turns") -> list[Count]:
    return [Count(**each[turns][system][measure]) for each in scenes]


def _late(scenes: Scenes) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(words, 2): seconds by which starts and ends are off, without sign."""
    return np.abs(np.concatenate([np.reshape(each["late"], (-1, 2)) for each in scenes]))


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


def _points(interval: Interval) -> str:
    """Percentage points with the ends of the interval, and what it says."""
    verdict = (
        "better" if interval.high < 0 else "worse" if interval.low > 0 else "no difference shown"
    )
    value, low, high = (100 * number for number in (interval.value, interval.low, interval.high))
    return f"{value:+.1f} ({low:+.1f} to {high:+.1f}): {verdict}"
