"""Measures word errors when people talk at once: `scripts/bench overlap --voices FOLDER`.

Recordings with each speaker's words, and mixtures of single voices, are diarized once and
transcribed with every set of request parameters.
"""

import json
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
from rapidfuzz.distance import Levenshtein

from benchmarks.counts import Count, difference, points, pooled
from benchmarks.real.scoring import normalizer
from benchmarks.report import Results, Tables
from benchmarks.voices.answers import Answer, ask, whisperx_rule
from benchmarks.voices.bench import load
from benchmarks.voices.conversations import load_conversations
from benchmarks.voices.mixtures import conversation, mixtures
from benchmarks.voices.overlap_errors import BY_SPEAKER, IN_TIME, INSIDE, PARTS, TEXT, word_errors
from handler import EndpointHandler
from tests.support.audio_files import wav_file
from tests.support.dialogue import Scene
from tests.support.speech import Samples
from whosaid.diarization.diarizer import Diarization, Diarizer, SpeakerHints
from whosaid.payload.languages import ENGLISH
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import SpeakerTurn, Word

OURS, WHISPERX = RULES = ("this project", "WhisperX's rule")
CASTS, QUICK_CASTS = {2: 6, 3: 2}, {2: 1}  # mixtures at each degree by number of voices
REAL, MIXED, CONVERSATION = "real", "mixed", "conversation"
CHANGE = "change, points"


def measure(options: Namespace, path: Path) -> None:
    """Measure all scenes with all sets of parameters; `path` is written after each scene.

    Raises ValueError or OSError if recordings, voices or the model are missing.
    """
    handler, facts = load(options)
    facts |= {"split": options.split}
    results = Results(path, facts, {"overlap": []}, options.fresh or options.quick)
    with closing(handler.endpoint):
        bench = OverlapBench(handler)
        for name, scene in bench.scenes(options):
            bench.diarize(scene)
            for parameters in options.parameters or [{}]:
                row: dict[str, Any] = {"name": name, "parameters": json.dumps(parameters)}
                row |= {"duration": round(scene.duration, 2), **bench.measure(scene, parameters)}
                results.put("overlap", row, "name", "parameters")


@dataclass
class GivenTurns:
    """A diarizer that returns the result `found`, if it is set."""

    diarizer: Diarizer
    found: Diarization | None = None

    def diarize(self, *arguments: Any, **named: Any) -> Diarization:  # noqa: ANN401
        return self.found or self.diarizer.diarize(*arguments, **named)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self.diarizer, name)


class OverlapBench:
    """The endpoint, with a diarizer that can return a kept result."""

    def __init__(self, handler: EndpointHandler) -> None:
        self.handler = handler
        diarizer = handler.endpoint.diarizer
        assert diarizer is not None
        self.diarizer = GivenTurns(diarizer)
        self._seconds = 0.0  # of the diarization
        handler.endpoint.models.diarizer = cast(Diarizer, self.diarizer)

    def scenes(self, options: Namespace) -> Iterator[tuple[str, Scene]]:
        """Yield the recordings whose words are known, then the mixtures, by name."""
        for each in load_conversations(options.recordings) if options.recordings else ():
            if each.words and options.only in each.name:
                samples = each.recording.samples()
                words = [
                    word
                    for speaker, text in each.words.items()
                    for word in self.words_of(samples, each.turns, speaker, text)
                ]
                in_time = tuple(sorted(words, key=lambda word: word.start))
                yield f"{REAL}, {each.name}", Scene(samples, in_time, each.turns)
        casts = QUICK_CASTS if options.quick else CASTS
        if options.only in MIXED:
            yield from mixtures(options.voices, options.split, casts, self.recognise)
        if options.conversation and options.only in CONVERSATION:
            yield CONVERSATION, conversation(options.conversation, self.recognise)

    def diarize(self, scene: Scene) -> None:
        """Keep the diarization of a scene, and its seconds, for `measure`."""
        self.diarizer.found = None
        began = time.process_time()
        self.diarizer.found = self.diarizer.diarize(scene.samples, SpeakerHints())
        self._seconds = time.process_time() - began

    def measure(self, scene: Scene, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return the errors, the found words, and the work: windows, and processors' seconds."""
        counts = self.handler.endpoint.recogniser.counts
        windows, began = counts.windows, time.process_time()
        answer = self._ask(scene.samples, **parameters)
        seconds = time.process_time() - began + self._seconds
        found = {OURS: answer.words, WHISPERX: whisperx_rule(answer.words, answer.turns)}
        normalize = normalizer(ENGLISH)
        return {
            "seconds": round(seconds, 3),
            "windows": counts.windows - windows,
            "errors": {
                rule: word_errors(scene.words, scene.turns, words, normalize)
                for rule, words in found.items()
            },
            "words": _written(answer.words),
            "expected": _written(scene.words),
        }

    def recognise(self, samples: Samples) -> tuple[Word, ...]:
        return self._ask(samples, diarize=False).words

    def words_of(
        self, samples: Samples, turns: Sequence[SpeakerTurn], speaker: str, text: str
    ) -> list[Word]:
        """Return the words of a speaker's text, timed by the endpoint in samples that keep only the
        turns of that speaker.
        """
        own = [turn for turn in turns if turn.speaker == speaker]
        alone = np.zeros_like(samples)
        for turn in own:
            part = slice(round(turn.start * SAMPLE_RATE), round(turn.end * SAMPLE_RATE))
            alone[part] = samples[part]
        found = self._ask(alone, text=text, diarize=False).words
        first, last = min(turn.start for turn in own), max(turn.end for turn in own)
        words = timed(text.split(), found, first, last)
        return [replace(word, speaker=speaker) for word in words]

    def _ask(self, samples: Samples, **parameters: Any) -> Answer:  # noqa: ANN401
        audio = wav_file(samples.astype(float), SAMPLE_RATE)
        return ask(self.handler, audio, **{"language": ENGLISH, **parameters})


def timed(texts: Sequence[str], found: Sequence[Word], first: float, last: float) -> list[Word]:
    """Return all words of a text, spoken from `first` to `last` seconds. `found` words have known
    times; the others are placed between them.
    """
    times: dict[int, Word] = {}
    for each in Levenshtein.opcodes(texts, [word.text.strip() for word in found]):
        if each.tag == "equal":
            places = range(each.src_start, each.src_end)
            times |= zip(places, found[each.dest_start : each.dest_end], strict=True)
    times |= {-1: Word("", first, first), len(texts): Word("", last, last)}
    known = sorted(times)
    starts = np.interp(range(len(texts)), known, [times[each].start for each in known])
    ends = np.interp(range(len(texts)), known, [times[each].end for each in known])
    return list(map(Word, texts, starts.tolist(), ends.tolist()))


def figures(results: dict[str, Any]) -> Tables:
    """Return errors by degree of overlap. If there are several sets of parameters, also their
    errors and work compared with the first set's.
    """
    rows: defaultdict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in results["overlap"]:
        rows[_kind(row), row["parameters"]].append(row)
    kinds, sets = (list(dict.fromkeys(each)) for each in zip(*rows, strict=True))
    table = []
    for kind, parameters in product(kinds, sets):
        if some := rows.get((kind, parameters)):
            cells = {"speech": kind, "parameters": parameters, **_cells(some)}
            if len(sets) == 1:
                del cells["parameters"]
            else:
                cells |= _compared(some, rows.get((kind, sets[0]), []))
            table.append(cells)
    return {"overlap": table}


def _compared(ours: Sequence[dict[str, Any]], first: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the work of rows by the `first` set's, and the difference of the errors."""
    names = [each["name"] for each in first]
    if names != [each["name"] for each in ours]:
        return dict.fromkeys((CHANGE, "windows", "time"), "")
    errors = ([_count([each], OURS, BY_SPEAKER, *PARTS) for each in rows] for rows in (ours, first))
    works = ("windows", "seconds")
    totals = ([sum(row[work] for row in rows) for rows in (ours, first)] for work in works)
    windows, seconds = (f"{own / other:.2f}" for own, other in totals)
    # One recording has no interval.
    change = "" if ours is first or len(ours) == 1 else points(difference(*errors))
    return {CHANGE: change, "windows": windows, "time": seconds}


def _count(rows: Sequence[dict[str, Any]], rule: str, measure: str, *parts: str) -> Count:
    counts = (each["errors"][rule][measure] for each in rows)
    return pooled([Count(**each[part]) for each in counts for part in parts])


def _kind(row: dict[str, Any]) -> str:
    """Return "real", "conversation", or the degree of overlap of a mixture."""
    first, *others = str(row["name"]).split(", ")
    return first if first in (REAL, CONVERSATION) else others[0]


def _cells(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return rates of errors inside overlapped speech / in all speech."""

    def shown(rule: str, measure: str) -> str:
        found = (_count(rows, rule, measure, INSIDE), _count(rows, rule, measure, *PARTS))
        return " / ".join(f"{each.rate:.1%}" for each in found if each.total)

    words = (_count(rows, OURS, TEXT, *parts).total for parts in ((INSIDE,), PARTS))
    return {
        "words": " / ".join(f"{each:.0f}" for each in words),
        TEXT: shown(OURS, TEXT),
        BY_SPEAKER: shown(OURS, BY_SPEAKER),
        f"{BY_SPEAKER}, {WHISPERX}": shown(WHISPERX, BY_SPEAKER),
        IN_TIME: shown(OURS, IN_TIME),
    }


def _written(words: Sequence[Word]) -> list[list[Any]]:
    return [[word.text, round(word.start, 2), round(word.end, 2), word.speaker] for word in words]
