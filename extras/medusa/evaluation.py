"""The gain from heads on recordings: seconds and accepted drafts beside the plain engine.

Both sides are the endpoint's own transcriber on one loaded model, recording by recording and
interleaved, so that a slow minute of the machine is slow for both. Texts must come out equal; a
recording where they do not is named.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from benchmarks.real.manifest import Recording
from benchmarks.report import table
from benchmarks.timing import Action, ratio, time_interleaved
from extras.medusa.recordings import load_samples
from whosaid.asr import DecodeOptions, Transcriber, TranscriptionOptions
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import Transcript

PLAIN, ASSISTED = "plain", "with heads"


@dataclass
class Evaluated:
    """One recording of `duration` seconds by both sides: what they wrote, and wall seconds of every
    repeat.
    """

    name: str
    duration: float
    transcripts: dict[str, Transcript] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)

    @property
    def same_text(self) -> bool:
        """Return True if both sides' texts are equal; drafts must not change the text."""
        return self.transcripts[PLAIN].text == self.transcripts[ASSISTED].text


def transcribe_both(
    transcriber: Transcriber, recording: Recording, batch_size: int, repeats: int
) -> Evaluated:
    """Transcribe a recording without and with what drafts for the transcriber's models."""
    samples = load_samples(recording)
    options = transcriber.validate(
        TranscriptionOptions(
            language=recording.language, decode=DecodeOptions(batch_size=batch_size)
        )
    )
    found = Evaluated(recording.name, len(samples) / SAMPLE_RATE)

    def transcribe(side: str) -> None:
        decode = replace(options.decode, assisted=side == ASSISTED)
        chosen = replace(options, decode=decode)
        found.transcripts[side] = transcriber.transcribe(samples, chosen)

    actions: dict[str, Action] = {side: partial(transcribe, side) for side in (PLAIN, ASSISTED)}
    found.seconds = time_interleaved(actions, repeats, transcriber.models.device)
    return found


def summary(results: Sequence[Evaluated]) -> str:
    """Return a Markdown table of both sides, and whether their texts are equal."""
    differing = [each.name for each in results if not each.same_text]
    same = f"Texts that differ: {', '.join(differing)}" if differing else "All texts are equal."
    header = ["", "seconds", "x real time", "speed-up", "tokens a drafting pass"]
    rows = [_summary_row(results, side) for side in (PLAIN, ASSISTED)]
    return f"{table(header, rows)}\n\n{same}"


def _summary_row(results: Sequence[Evaluated], side: str) -> list[str]:
    plain, seconds = _seconds(results, PLAIN), _seconds(results, side)
    stats = [each.transcripts[side].stats for each in results]
    accepted = sum(each.accepted for each in stats)
    passes = sum(each.drafted_rows for each in stats)
    return [
        side,
        f"{statistics.median(seconds):.2f}",
        f"{sum(each.duration for each in results) / statistics.median(seconds):.1f}",
        str(ratio(plain, seconds)),
        f"{1 + accepted / max(1, passes):.2f}",
    ]


def _seconds(results: Sequence[Evaluated], side: str) -> list[float]:
    """Return the seconds of all recordings together, in each repeat."""
    return [sum(times) for times in zip(*(each.seconds[side] for each in results), strict=True)]
