"""Measures errors of word times against TextGrids: `scripts/bench word-times --recordings FOLDER`.

A TextGrid (Praat's, as forced aligners write them) stands beside a sound file of the same name.
The words of a TextGrid are the intervals with text of all tiers with "word" in their names. The
TextGrids of one folder are one row of the table.
"""

import re
from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.apart import Apart
from benchmarks.real.bench import PACKAGES, setting_of
from benchmarks.real.engines import MAKERS, PRECISION, Spec
from benchmarks.real.manifest import Recording
from benchmarks.real.scoring import plain
from benchmarks.report import Results, Tables, settings
from whosaid.asr.given_text import NONE, pair_items
from whosaid.transcript import Word

# Texts, and numbers that stand alone; a long TextGrid has names and [indexes] between them.
VALUE = re.compile(r'"((?:[^"]|"")*)"|(?<!\S)(-?\d+(?:\.\d+)?(?:e-?\d+)?)(?!\S)', re.IGNORECASE)
FARTHEST = 3.0  # seconds; equal words farther apart are two times of a repeated word
WITHIN = 0.1005  # seconds; answers have two decimals


def measure(options: Namespace, path: Path) -> None:
    """Transcribe every recording by every engine; `path` is written after each recording.

    Raises ValueError if a recording, its text grid or the model is wrong.
    """
    grids = sorted(options.recordings.rglob("*.TextGrid"))
    if not grids:
        raise ValueError(f"{options.recordings}: has no TextGrid")
    jobs = [(grid, _sound_of(grid), read_words(grid)) for grid in grids]
    facts = {"model": Path(options.model).name, "precision": PRECISION, **settings(PACKAGES)}
    results = Results(path, facts, {"recordings": []}, options.fresh)
    setting = setting_of(options)
    for spec in map(Spec.parse, options.engines):
        engine = Apart(spec.name, MAKERS[spec.form], spec, setting)
        for grid, audio, truth in jobs:
            found = engine.call("words", Recording(audio, options.language))
            row = {"set": grid.parent.name, "engine": spec.name, "name": audio.name}
            row |= {"words": len(truth), "errors": errors_of(found, truth)}
            results.put("recordings", row, "set", "engine", "name")
        engine.close()


def _sound_of(grid: Path) -> Path:
    for file in sorted(grid.parent.glob("*")):
        if file.stem == grid.stem and file != grid:
            return file
    raise ValueError(f"{grid}: has no sound file of its name beside it")


def read_words(grid: Path) -> list[Word]:
    """Return the words of a TextGrid, long or short, in UTF-8 or UTF-16, in order of time.

    Raises ValueError if the file is no text grid or has no tier of words.
    """
    content = grid.read_bytes()
    utf16 = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    text = content.decode("utf-16" if utf16 else "utf-8-sig", "replace")
    values = (float(found[2]) if found[2] else found[1] for found in VALUE.finditer(text))
    try:
        words = list(_words(values))
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{grid}: is no TextGrid") from error
    if not words:
        raise ValueError(f"{grid}: has no words in a tier called words")
    return sorted(words, key=lambda word: word.start)


def _words(values: Iterator[Any]) -> Iterator[Word]:
    """Yield the words of all tiers: class, name, two times, a number, and so many intervals."""
    for value in values:
        if value in ("IntervalTier", "TextTier"):
            name, _, _, count = (next(values) for _ in range(4))
            for _ in range(int(count)):
                start, *end, text = (next(values) for _ in range(3 if value[0] == "I" else 2))
                if end and "word" in name.lower() and text.strip():
                    yield Word(text.replace('""', '"'), start, end[0])


def errors_of(found: Sequence[Word], truth: Sequence[Word]) -> list[tuple[float, float]]:
    """Return how much later, in seconds, each recognised word starts and ends than in truth."""
    texts = [[plain(word.text) for word in words] for words in (found, truth)]
    pairs = [
        (found[place], truth[partner])
        for place, partner in enumerate(pair_items(*texts).tolist())
        if partner != NONE and texts[0][place] == texts[1][partner] != ""
    ]
    return [
        (round(ours.start - true.start, 4), round(ours.end - true.end, 4))
        for ours, true in pairs
        if abs(ours.start - true.start) < FARTHEST
    ]


def figures(results: dict[str, Any]) -> Tables:
    """Return a row for each set and engine."""
    kept = results["recordings"]
    rows = []
    for name, engine in dict.fromkeys((each["set"], each["engine"]) for each in kept):
        of_row = [each for each in kept if (each["set"], each["engine"]) == (name, engine)]
        errors = np.abs(list(chain.from_iterable(each["errors"] for each in of_row))).reshape(-1, 2)
        words = sum(each["words"] for each in of_row)
        row = {"speech": name, "engine": engine, "words": f"{len(errors)} of {words}"}
        for kind, values in zip(("start", "end"), errors.T, strict=True):
            row[f"{kind}: median"] = f"{1000 * np.median(values):.0f} ms"
            row[f"{kind}: mean"] = f"{1000 * np.mean(values):.0f} ms"
            row[f"{kind}: within 0.1 s"] = f"{np.mean(values <= WITHIN):.0%}"
        rows.append(row)
    return {"word times": rows}
