"""The gain from heads on recordings: errors, seconds and accepted drafts beside the plain engine.

Both sides are the endpoint's own transcriber on one loaded model, recording by recording and
interleaved, so that a slow minute of the machine is slow for both. Texts must come out equal; a
recording where they do not is named.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import jiwer

from benchmarks.counts import Count
from benchmarks.real.manifest import Recording
from benchmarks.real.scoring import normalizer, score
from benchmarks.report import table
from benchmarks.timing import Action, ratio, time_interleaved
from extras.medusa.acceptance import Acceptance
from extras.medusa.card import acceptance_table
from extras.medusa.recordings import load_samples
from whosaid.asr import DecodeOptions, Transcriber, TranscriptionOptions
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import Transcript

PLAIN, ASSISTED = "plain", "with heads"
SIDES = (PLAIN, ASSISTED)


@dataclass(frozen=True)
class Evaluated:
    """One recording of `duration` seconds by both sides: what they wrote, and wall seconds of every
    repeat.
    """

    recording: Recording
    duration: float
    transcripts: dict[str, Transcript]
    seconds: dict[str, list[float]]

    def text(self, side: str) -> str:
        """Return a side's text."""
        return self.transcripts[side].text.strip()

    @property
    def same_text(self) -> bool:
        """Return True if both sides' texts are equal; drafts must not change the text."""
        return self.text(PLAIN) == self.text(ASSISTED)

    def words(self, side: str) -> Count:
        """Wrong words of the reference's, by Whisper's normaliser."""
        return score(self.recording, self.text(side)).count

    def characters(self, side: str) -> Count:
        """Wrong characters of the reference's, normalised as the words are."""
        normalize = normalizer(self.recording.language)
        expected, found = normalize(self.recording.text), normalize(self.text(side))
        if not expected or not found:
            return Count(len(expected or found), len(expected))
        aligned = jiwer.process_characters(expected, found)
        errors = aligned.substitutions + aligned.deletions + aligned.insertions
        return Count(errors, len(expected))


def transcribe_both(
    transcriber: Transcriber, recordings: Sequence[Recording], batch_size: int, repeats: int
) -> Iterator[Evaluated]:
    """Transcribe each recording without and with what drafts for the transcriber's models."""
    for recording in recordings:
        samples = load_samples(recording)
        options = transcriber.validate(
            TranscriptionOptions(
                language=recording.language, decode=DecodeOptions(batch_size=batch_size)
            )
        )
        transcripts: dict[str, Transcript] = {}
        actions: dict[str, Action] = {}
        for side in SIDES:
            decode = replace(options.decode, assisted=side == ASSISTED)
            chosen = replace(options, decode=decode)
            transcribe = partial(transcriber.transcribe, samples, chosen)
            actions[side] = partial(_keep, transcripts, side, transcribe)
        seconds = time_interleaved(actions, repeats, transcriber.models.device)
        yield Evaluated(recording, len(samples) / SAMPLE_RATE, transcripts, seconds)


def _keep(
    transcripts: dict[str, Transcript], side: str, transcribe: Callable[[], Transcript]
) -> None:
    transcripts[side] = transcribe()


def summary(results: Sequence[Evaluated], acceptance: dict[str, Acceptance]) -> str:
    """Return two Markdown tables: both sides, and the accepted drafts at each depth."""
    differing = [each.recording.name for each in results if not each.same_text]
    same = f"Texts that differ: {', '.join(differing)}" if differing else "All texts are equal."
    header = ["", "WER", "CER", "seconds", "x real time", "speed-up", "tokens a drafting pass"]
    rows = [_summary_row(results, side) for side in SIDES]
    depths = [acceptance_table(acceptance)] if acceptance else []
    return "\n\n".join((table(header, rows), same, *depths))


def _summary_row(results: Sequence[Evaluated], side: str) -> list[str]:
    """Return one side's figures over all recordings; errors over those with a reference."""
    scored = [each for each in results if each.recording.text]
    words = _total([each.words(side) for each in scored])
    characters = _total([each.characters(side) for each in scored])
    plain, seconds = _seconds(results, PLAIN), _seconds(results, side)
    stats = [each.transcripts[side].stats for each in results]
    accepted, passes = (
        sum(each.accepted for each in stats),
        sum(each.drafted_rows for each in stats),
    )
    return [
        side,
        f"{words.rate:.2%}" if scored else "",
        f"{characters.rate:.2%}" if scored else "",
        f"{statistics.median(seconds):.2f}",
        f"{sum(each.duration for each in results) / statistics.median(seconds):.1f}",
        str(ratio(plain, seconds)),
        f"{1 + accepted / max(1, passes):.2f}",
    ]


def write_csv(path: Path, results: Sequence[Evaluated]) -> None:
    """Write a row for each recording."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer: csv.DictWriter[str] | None = None
        for each in results:
            row = _row(each)
            if writer is None:
                writer = csv.DictWriter(file, list(row))
                writer.writeheader()
            writer.writerow(row)


def _row(each: Evaluated) -> dict[str, object]:
    plain, assisted = (statistics.median(each.seconds[side]) for side in SIDES)
    scored = bool(each.recording.text)
    return {
        "audio": each.recording.name,
        "language": each.recording.language or "",
        "seconds of audio": round(each.duration, 2),
        "WER": round(each.words(ASSISTED).rate, 4) if scored else "",
        "CER": round(each.characters(ASSISTED).rate, 4) if scored else "",
        "plain seconds": round(plain, 3),
        "seconds with heads": round(assisted, 3),
        "speed-up": round(plain / assisted, 3),
        "tokens a drafting pass": round(each.transcripts[ASSISTED].stats.tokens_per_step, 3),
        "same text": each.same_text,
        "reference": each.recording.text,
        "text": each.text(ASSISTED),
    }


def _seconds(results: Sequence[Evaluated], side: str) -> list[float]:
    """Return the seconds of all recordings together, in each repeat."""
    return [sum(times) for times in zip(*(each.seconds[side] for each in results), strict=True)]


def _total(counts: Sequence[Count]) -> Count:
    return Count(sum(each.errors for each in counts), sum(each.total for each in counts))
