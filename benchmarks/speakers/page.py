"""The page about known speakers and its picture, from the results alone."""

from __future__ import annotations

from typing import Any

from benchmarks.charts import Curves, publish_page
from benchmarks.report import listed, table

Results = dict[str, Any]
# Set before any result, of clean dialogues with clean clips of 3 s.
MAX_STRANGERS, MIN_RIGHT, TARGET_SECONDS = 0.01, 0.90, 3.0
INTRODUCTION = """\
- Open set: three people talk for a minute, three names come with clips, and none, one, two or all \
three of the people are among them, in turn; the other names belong to people who are silent.
- Shares of seconds in which one person speaks alone. **Rightly**: known people's seconds under \
their own name; **wrongly**: under another one; the rest stays unnamed. **Strangers**: seconds of \
people who are not known, under any name; in brackets, speakers found who were mostly a stranger \
and got a name, which leaves out what diarization mixed up.
- **IER** is pyannote.metrics' identification error rate, where strangers and unnamed speakers are \
all called unknown, so that two strangers taken for one are no error as they are in **DER**, the \
diarization error rate. Collar 0.25 s, overlapped speech scored.
- **Nearest** gives every speaker the name that sounds most like it, as speaches does.
- The default threshold was chosen on these figures.
- Clips are from the dialogue's channel, if not said otherwise. Noise is white, 10 dB below \
speech; telephone is 300 to 3400 Hz at 8 kHz in mu-law."""


def write_page(results: Results) -> None:
    """The page and its picture into docs/benchmarks."""
    publish_page("speakers", page(results), {"known-speakers": chart(results)}, "## Named")


def page(results: Results) -> str:
    """The whole page as Markdown, without the picture."""
    threshold = f"{results['threshold']:.2f}"
    header = ("dialogue, clips", "rightly", "wrongly", "strangers", "IER", "DER", "refused clips")
    nearest = ("dialogue, clips", "rightly", "wrongly", "strangers", "IER")
    taken = [
        f"{one} ({cosine:.2f} to {other})" for one, other, cosine in results["taken for another"]
    ]
    people = f"People: {', '.join(results['people'])}. Left out, because the diarization takes "
    people += f"them for another: {', '.join(taken) or 'nobody'}."
    parts = [
        "# Known speakers",
        "Written by `scripts/bench speakers --publish`; the code is in `benchmarks/speakers`. "
        "Synthetic voices that no demo model was trained on, and the demo's diarization: what "
        "behaves how, not which threshold real voices need.",
        INTRODUCTION,
        people,
        "## Targets",
        table(("target", "measured", ""), _targets(results)),
        f"## Named, at the default threshold of {threshold}",
        table(header, [_row(row, threshold, results) for row in results["rows"]]),
        "## Named, always by the nearest name",
        table(nearest, [_nearest(row) for row in results["rows"]]),
        "## Over thresholds, clean, clips of 3 s",
        table(("threshold", "rightly", "wrongly", "strangers"), _over_thresholds(results)),
        "## Settings",
        listed(results["settings"]),
    ]
    return "\n\n".join(parts) + "\n"


def chart(results: Results) -> Curves:
    """Known people's seconds named rightly and strangers' named, over thresholds, clips of 3 s."""
    lines: dict[str, tuple[float, ...]] = {}
    for row in results["rows"]:
        if row["seconds"] == TARGET_SECONDS and row["dialogue"] == row["clips"]:
            for rate, what in (("right", "known, rightly"), ("strangers", "strangers")):
                values = [100 * rates[rate] for rates in row["by threshold"].values()]
                lines[f"{row['dialogue']}: {what}"] = tuple(round(value, 2) for value in values)
    return Curves(
        question="Seconds that get a name",
        unit="% of the seconds of known people, of strangers",
        axis="threshold of similarity; the line is the default",
        places=tuple(map(float, _clean(results)["by threshold"])),
        lines=lines,
        chosen=results["threshold"],
        note="Clips of 3 s from the same channel as the dialogue. Synthetic voices, the demo's "
        "diarization.",
    )


def _targets(results: Results) -> list[tuple[str, str, str]]:
    rates = _clean(results)["by threshold"][f"{results['threshold']:.2f}"]
    strangers, right = rates["strangers"], rates["right"]
    return [
        (
            f"clean, clips of 3 s: strangers' seconds named, at most {MAX_STRANGERS:.0%}",
            f"{strangers:.1%}",
            _verdict(strangers <= MAX_STRANGERS),
        ),
        (
            f"clean, clips of 3 s: known people's seconds named rightly, at least {MIN_RIGHT:.0%}",
            f"{right:.1%}",
            _verdict(right >= MIN_RIGHT),
        ),
    ]


def _verdict(met: bool) -> str:
    return "met" if met else "**missed**"


def _clean(results: Results) -> Results:
    """The row that the targets are about."""
    rows: list[Results] = results["rows"]
    wanted = ("clean", "clean", TARGET_SECONDS)
    return next(row for row in rows if (row["dialogue"], row["clips"], row["seconds"]) == wanted)


def _row(row: Results, threshold: str, results: Results) -> list[str]:
    rates = row["by threshold"][threshold]
    return [
        _name(row),
        *_shares(rates),
        f"{row['error']:.1%}",
        f"{results['diarization error'][row['dialogue']]:.1%}",
        str(row["refused"]),
    ]


def _nearest(row: Results) -> list[str]:
    return [_name(row), *_shares(row["nearest"]), f"{row['nearest']['error']:.1%}"]


def _over_thresholds(results: Results) -> list[list[str]]:
    by_threshold = _clean(results)["by threshold"]
    return [
        [name, *_shares(by_threshold[name])]
        for name in by_threshold
        if round(100 * float(name)) % 10 == 0
    ]


def _shares(rates: dict[str, float]) -> list[str]:
    strangers = f"{rates['strangers']:.1%} ({rates['stranger speakers']:.1%})"
    return [f"{rates['right']:.1%}", f"{rates['wrong']:.1%}", strangers]


def _name(row: Results) -> str:
    clips = "" if row["clips"] == row["dialogue"] else f" {row['clips']}"
    return f"{row['dialogue']},{clips} {row['seconds']:g} s"
