"""The figures and the picture of the page about accuracy, from the results alone.

Rates are of all dialogues of a condition together. A rule is called better or worse only where the
interval over dialogues says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.accuracy.answers import (
    INSANELY_FAST,
    INSANELY_FAST_ON_WORDS,
    OTHERS,
    OURS,
    RULES,
    WHISPERX,
)
from benchmarks.accuracy.intervals import difference, points, pooled
from benchmarks.accuracy.metrics import Count
from benchmarks.accuracy.scenes import ALONE, DIALOGUES, GAPS
from benchmarks.charts import Chart
from benchmarks.report import listed, table, table_of

# The targets, set before any result: of clean dialogues; of rules, where theirs is above WORTH.
MAX_WER, MAX_CP_OVER_WER, MAX_DER, MAX_BOUNDARY = 0.05, 0.02, 0.10, 0.060
WORTH, OF_WHISPERX, OF_INSANELY_FAST = 0.02, 1 / 2, 1 / 3
WORST = 10
# Conditions as the picture names them.
NAMES = {
    "clean": "clean",
    "overlap": "voices overlap",
    "noise": "noise",
    "overlap and noise": "overlap and noise",
}

Results = dict[str, Any]
Scenes = Sequence[Results]
Target = tuple[str, str, bool]


def figures(results: Results) -> dict[str, str]:
    """What was heard, the targets, the rates of each condition and rule, and what went wrong."""
    scenes: Scenes = results["scenes"]
    minutes = sum(scene["duration"] for scene in scenes) / 60
    answered = sum(scene["seconds to answer"] for scene in scenes) / 60
    verdicts = [
        (name, found, "met" if met else "**missed**") for name, found, met in targets(scenes)
    ]
    heard = {
        "voices": results["split"],
        "audio": f"{minutes:.0f} minutes in {len(scenes)} scenes",
        "answered in": f"{answered:.1f} minutes",
    }
    return {
        "heard": listed(heard),
        "targets": table(("target", "measured", ""), verdicts),
        "recognition": _recognition(scenes),
        "attribution": _attribution(scenes),
        "silence": _speechless(scenes),
        "causes": _causes(scenes),
        "incidents": _worst(scenes),
    }


def chart(scenes: Scenes) -> Chart:
    """The word-speaker error of three rules on the turns found, for each condition."""
    conditions = [condition for condition in DIALOGUES if _of(scenes, condition)]
    rules = {
        "this project": OURS,
        "WhisperX": WHISPERX,
        "insanely-fast-whisper": INSANELY_FAST,
    }
    bars = {}
    for name, rule in rules.items():
        rates = [pooled(_counts(_of(scenes, each), rule, "speakers")).rate for each in conditions]
        bars[name] = tuple(100 * rate for rate in rates)
    minutes = sum(scene["duration"] for scene in _of(scenes, conditions[0])) / 60
    return Chart(
        question="Words given to the wrong speaker",
        unit="%",
        groups=tuple(NAMES[condition] for condition in conditions),
        bars=bars,
        note="Share of the correctly recognised words. All three rules get the same words and the "
        f"same speaker turns. {minutes:.0f} minutes of synthetic dialogue in each group, the "
        "demo's models.",
    )


def targets(scenes: Scenes) -> Iterator[Target]:
    """Every target with what was measured and whether it is met, of the scenes that were run."""
    if clean := _of(scenes, "clean"):
        yield from _clean_targets(clean)
    for condition in DIALOGUES[1:]:
        for rule in OTHERS if _of(scenes, condition) else ():
            yield from _rule_targets(scenes, condition, rule)
    for condition in (*ALONE, *GAPS):
        if some := _of(scenes, condition):
            words = sum(scene["words in silence"] for scene in some)
            yield f"{condition}: no words", str(words), words == 0


def _clean_targets(clean: Scenes) -> Iterator[Target]:
    wer, der = _pooled(clean, "words").rate, _pooled(clean, "diarization").rate
    over = pooled(_counts(clean, OURS, "cp")).rate - wer
    boundary = float(np.median(_boundaries(clean)))
    yield f"clean: WER at most {MAX_WER:.0%}", f"{wer:.1%}", wer <= MAX_WER
    yield (
        f"clean: cpWER at most WER + {MAX_CP_OVER_WER:.0%}",
        f"+{over:.1%}",
        over <= MAX_CP_OVER_WER,
    )
    yield f"clean: DER at most {MAX_DER:.0%}", f"{der:.1%}", der <= MAX_DER
    wanted = f"clean: word boundaries, median at most {_ms(MAX_BOUNDARY)}"
    yield wanted, _ms(boundary), boundary <= MAX_BOUNDARY


def _rule_targets(scenes: Scenes, condition: str, rule: str) -> Iterator[Target]:
    some = _of(scenes, condition)
    ours, theirs = (_counts(some, each, "speakers") for each in (OURS, rule))
    between = difference(ours, theirs)
    yield f"{condition}: never worse than {rule}", points(between), between.low <= 0
    rate, other = pooled(ours).rate, pooled(theirs).rate
    if other > WORTH:
        fast = rule in (INSANELY_FAST, INSANELY_FAST_ON_WORDS)
        share = OF_INSANELY_FAST if fast else OF_WHISPERX
        wanted = f"{condition}: at most {share:.2f} of {rule}"
        yield wanted, f"{rate / other:.2f}", rate <= share * other


def _recognition(scenes: Scenes) -> str:
    rows = []
    for condition in DIALOGUES:
        for seconds in sorted({scene["seconds"] for scene in _of(scenes, condition)}):
            some = [scene for scene in _of(scenes, condition) if scene["seconds"] == seconds]
            rows.append(_recognition_row(f"{condition}, {seconds:.0f} s ({len(some)})", some))
    return table_of(rows)


def _recognition_row(name: str, scenes: Scenes) -> dict[str, str]:
    words, off = _pooled(scenes, "words"), _boundaries(scenes)
    medians, tails = np.median(off, axis=0), np.percentile(off, 90, axis=0)
    overlapped = sum(scene["overlapped words"] for scene in scenes) / words.total
    right = sum(scene["speakers"][0] == scene["speakers"][1] for scene in scenes)
    return {
        "condition (dialogues)": name,
        "overlapped words": f"{overlapped:.0%}",
        "WER": f"{words.rate:.1%}",
        "cpWER": f"{pooled(_counts(scenes, OURS, 'cp')).rate:.1%}",
        "word-speaker error": f"{pooled(_counts(scenes, OURS, 'speakers')).rate:.1%}",
        "DER": f"{_pooled(scenes, 'diarization').rate:.1%}",
        "starts / ends off, median": " / ".join(_ms(each) for each in medians),
        "90th percentile": " / ".join(_ms(each) for each in tails),
        "right count of speakers": f"{right}/{len(scenes)}",
    }


def _attribution(scenes: Scenes) -> str:
    rows = []
    for condition in DIALOGUES:
        some = _of(scenes, condition)
        for rule in RULES if some else ():
            rates = {
                f"{name}{where}": f"{pooled(_counts(some, rule, measure, turns)).rate:.1%}"
                for turns, where in (("found turns", ""), ("true turns", " on true turns"))
                for measure, name in (("speakers", "word-speaker error"), ("cp", "cpWER"))
            }
            ours, theirs = (_counts(some, each, "speakers") for each in (OURS, rule))
            between = "" if rule == OURS else points(difference(ours, theirs))
            less = {"ours less theirs, points (95%)": between}
            rows.append({"condition": condition, "rule": rule, **rates, **less})
    return table_of(rows)


def _speechless(scenes: Scenes) -> str:
    rows = []
    for condition in (*ALONE, *GAPS):
        some = _of(scenes, condition)
        if not some:
            continue
        minutes = sum(scene["duration"] for scene in some) / 60
        words = sum(scene["words in silence"] for scene in some)
        rates = ["", ""]
        if condition in GAPS:
            rates = [f"{_pooled(some, part).rate:.1%}" for part in ("words", "diarization")]
        rows.append((condition, f"{minutes:.1f}", str(words), *rates))
    return table(("scenes", "minutes", "words where nobody speaks", "WER", "DER"), rows)


def _causes(scenes: Scenes) -> str:
    """How many wrong words have which cause."""
    causes = Counter[str]()
    for scene in scenes:
        for incident in scene["incidents"]:
            causes[incident["cause"]] += incident["errors"]
    rows = [(cause, str(n), f"{n / causes.total():.0%}") for cause, n in causes.most_common()]
    return table(("cause", "wrong words", "share"), rows)


def _worst(scenes: Scenes) -> str:
    found = [(scene, incident) for scene in scenes for incident in scene["incidents"]]
    worst = sorted(found, key=lambda pair: -pair[1]["errors"])[:WORST]
    return "\n\n".join(_incident(scene, incident) for scene, incident in worst)


def _incident(scene: Results, incident: Results) -> str:
    voices = "two voices at once" if incident["overlap"] else "one voice at a time"
    return (
        f"**{scene['name']}, {incident['start']:.1f}-{incident['end']:.1f} s: "
        f"{incident['cause']}**, {incident['errors']} words; {voices}, "
        f"{incident['turn_distance']:.1f} s from a turn's end, "
        f"{incident['window_distance']:.1f} s from a boundary of windows, "
        f"turns wrong for {incident['wrong_turns']:.0%} of the time\n"
        f"- spoken: {incident['expected'] or '(nothing)'}\n"
        f"- recognised: {incident['found'] or '(nothing)'}"
    )


def _of(scenes: Scenes, condition: str) -> list[Results]:
    return [scene for scene in scenes if scene["condition"] == condition]


def _pooled(scenes: Scenes, part: str) -> Count:
    return pooled([Count(**scene[part]) for scene in scenes])


def _counts(scenes: Scenes, rule: str, measure: str, turns: str = "found turns") -> list[Count]:
    return [Count(**scene[turns][rule][measure]) for scene in scenes]


def _boundaries(scenes: Scenes) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(words, 2): seconds by which starts and ends are off, without sign."""
    errors = [np.reshape(scene["boundary errors"], (-1, 2)) for scene in scenes]
    return np.abs(np.concatenate(errors))


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
