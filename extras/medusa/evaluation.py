"""Measures the gain from heads on recordings: seconds and accepted drafts, compared with the plain
engine.

Both sides are the endpoint's transcriber on one loaded model, interleaved recording by recording,
so that a slow minute of the machine affects both. Different texts are listed.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from benchmarks.real.manifest import Recording
from benchmarks.report import table
from benchmarks.timing import ratio, time_interleaved
from whosaid.asr import DecodeOptions, Transcriber, TranscriptionOptions
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import Transcript

PLAIN, ASSISTED = "plain", "with heads"


@dataclass
class Evaluated:
    """Both sides' texts of a recording of `duration` seconds; wall seconds of every repeat."""

    name: str
    duration: float
    transcripts: dict[str, Transcript] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)


def transcribe_both(
    transcriber: Transcriber, recording: Recording, batch_size: int, repeats: int
) -> Evaluated:
    """Transcribe a recording without and with drafts."""
    samples = recording.samples()
    decode = DecodeOptions(batch_size=batch_size)
    options = transcriber.validate(TranscriptionOptions(language=recording.language, decode=decode))
    found = Evaluated(recording.name, len(samples) / SAMPLE_RATE)

    def transcribe(side: str) -> None:
        chosen = replace(options, decode=replace(options.decode, assisted=side == ASSISTED))
        found.transcripts[side] = transcriber.transcribe(samples, chosen)

    actions = {side: partial(transcribe, side) for side in (PLAIN, ASSISTED)}
    found.seconds = time_interleaved(actions, repeats, transcriber.models.device)
    return found


def summary(results: Sequence[Evaluated]) -> str:
    """Return a Markdown table of both sides, and whether their texts are equal."""
    header = ["", "seconds", "x real time", "speed-up", "tokens a drafting pass"]
    rows: list[list[str]] = []
    plain = _seconds(results, PLAIN)
    for side in (PLAIN, ASSISTED):
        seconds = _seconds(results, side)
        median = statistics.median(seconds)
        stats = [each.transcripts[side].stats for each in results]
        passes = max(1, sum(each.drafted_rows for each in stats))
        gained = 1 + sum(each.accepted for each in stats) / passes
        speed = sum(each.duration for each in results) / median
        gain = str(ratio(plain, seconds))
        rows.append([side, f"{median:.2f}", f"{speed:.1f}", gain, f"{gained:.2f}"])
    differing = [
        each.name
        for each in results
        if each.transcripts[PLAIN].text != each.transcripts[ASSISTED].text
    ]
    same = f"Texts that differ: {', '.join(differing)}" if differing else "All texts are equal."
    return f"{table(header, rows)}\n\n{same}"


def _seconds(results: Sequence[Evaluated], side: str) -> list[float]:
    """Return the seconds of all recordings together, in each repeat."""
    return [sum(times) for times in zip(*(each.seconds[side] for each in results), strict=True)]
