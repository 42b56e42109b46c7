"""Measures hot words: `scripts/bench words --data FOLDER --model MODEL`.

All clips of a set have one list, as the recordings of a meeting do: the phrases that are spoken in
some clip, and distractors. Systems take turns clip by clip, every other time in reverse order, so
that a slow minute of the machine affects all.
"""

import json
import random
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rapidfuzz.distance import Levenshtein

from benchmarks.apart import Apart
from benchmarks.harness import whisper_of
from benchmarks.options import OURS, SEQUENTIAL
from benchmarks.real.converted import convert
from benchmarks.real.engines import MAKERS, PRECISION, Setting, Spec
from benchmarks.real.manifest import Recording
from benchmarks.real.scoring import normalizer
from benchmarks.report import Results, Tables, settings
from config import MAX_PROMPT_CHARACTERS
from whosaid.payload.languages import ENGLISH

NONE, UNSPOKEN = "none", "1,000 distractors alone"
THEIRS, THEIR_LIST = "faster-whisper, none", "faster-whisper, spoken and 100 distractors"
PACKAGES = ("torch", "transformers", "ctranslate2", "faster-whisper", "rapidfuzz")


@dataclass(frozen=True)
class Clip:
    """A recording and its phrases of the set's list."""

    recording: Recording
    phrases: tuple[str, ...]


def read_clips(data: Path, name: str) -> list[Clip]:
    """Read the clips of a set. Raises OSError and ValueError."""
    entries = json.loads((data / f"{name}.json").read_text(encoding="utf-8"))
    return [
        Clip(
            Recording(
                data / each.get("audio", f"{name}/{each.get('key')}.opus"), ENGLISH, each["text"]
            ),
            tuple(each["rare"] if "rare" in each else each["phrases"]),
        )
        for each in entries
    ]


class Engine:
    """An engine in its own process, whose list changes from clip to clip."""

    def __init__(self, form: str, setting: Setting) -> None:
        self.form, self.engine = form, MAKERS[form](Spec.parse(form), setting)

    def transcribe(self, recording: Recording, wanted: Mapping[str, Any]) -> tuple[str, float]:
        """Return the text and the processor seconds, on which other processes have less effect."""
        engine, started = self.engine, time.process_time()
        own = "parameters" if self.form == OURS else "options"
        before = getattr(engine, own)
        setattr(engine, own, {**before, **wanted})
        text = engine.transcribe(recording)
        setattr(engine, own, before)
        return text, time.process_time() - started


def systems(spoken: Sequence[str], others: Sequence[str]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return each system's engine and parameters; prompts have phrases in random order."""
    mixed = [*spoken, *others[:100]]
    random.Random(0).shuffle(mixed)
    prompt = ", ".join(mixed)
    short = prompt[:MAX_PROMPT_CHARACTERS].rpartition(",")[0]
    return {
        NONE: (OURS, {}),
        "as prompt: spoken and 100 distractors": (OURS, {"prompt": short}),
        "spoken and 1,000 distractors": (OURS, {"hotwords": [*spoken, *others[:1000]]}),
        UNSPOKEN: (OURS, {"hotwords": [*others[:1000]]}),
        THEIRS: (SEQUENTIAL, {}),
        THEIR_LIST: (SEQUENTIAL, {"hotwords": prompt}),
    }


def measure(options: Namespace, path: Path) -> None:
    """Transcribe every clip by every system; `path` is written after each clip.

    Raises ValueError and OSError if the data is not as expected.
    """
    model = whisper_of(options)
    facts = {"model": model.name, "precision": PRECISION, **settings(PACKAGES)}
    results = Results(path, facts, {"clips": {}, "answers": {}}, options.fresh)
    setting = Setting(model, convert(model), "cpu")
    distractors = json.loads((options.data / "distractors.json").read_text(encoding="utf-8"))
    engines = {form: Apart(form, Engine, form, setting) for form in (OURS, SEQUENTIAL)}
    try:
        for name in options.sets:
            clips = read_clips(options.data, name)
            spoken = [*dict.fromkeys(phrase for clip in clips for phrase in clip.phrases)]
            others = [each for each in dict.fromkeys(distractors[name]) if each not in spoken]
            chosen = systems(spoken, others)
            phrases = [list(clip.phrases) for clip in clips]
            results.content["clips"][name] = {
                "texts": [clip.recording.text for clip in clips],
                "phrases": phrases,
                "others": others[:1000],
            }
            answers = {each: list[dict[str, Any]]() for each in chosen}
            for turn, clip in enumerate(clips):
                for each in chosen if turn % 2 == 0 else reversed([*chosen]):
                    form, wanted = chosen[each]
                    text, seconds = engines[form].call("transcribe", clip.recording, wanted)
                    answers[each].append({"text": text, "seconds": round(seconds, 3)})
                results.content["answers"][name] = answers
                results.save(f"{name} {turn + 1} of {len(clips)}")
    finally:
        for engine in engines.values():
            engine.close()


# The page, from results alone


def count_errors(
    expected: str, found: str, own: Sequence[str], every: Sequence[str]
) -> Counter[str]:
    """Count the errors of a text whose phrases are `own`, under a list with the words `every`.

    Counts are of words of the phrases (`listed`) and those missed among them, of the others and
    errors of them (`other`), with inserted words, and of words of the list in place of another word
    or of none (`false`).
    """
    normalize = normalizer(ENGLISH)
    words, written = normalize(expected).split(), normalize(found).split()
    wanted, known = ({w for one in some for w in normalize(one).split()} for some in (own, every))
    errors = Counter("listed" if word in wanted else "others" for word in words)
    for edit in Levenshtein.opcodes(words, written):
        if edit.tag == "equal":
            continue
        before = words[edit.src_start : edit.src_end]
        after = written[edit.dest_start : edit.dest_end]
        missed = sum(word in wanted for word in before)
        false = sum(word in known and word not in wanted for word in after)
        other = max(len(before), len(after)) - missed
        errors.update(missed=missed, other=other, false=false)
    return errors


def figures(results: dict[str, Any]) -> Tables:
    """Return a row for each set and system, about the clips that all systems have transcribed."""
    rows = list[dict[str, str]]()
    for name, answers in results["answers"].items():
        facts, count = results["clips"][name], min(map(len, answers.values()))
        spoken = [phrase for own in facts["phrases"] for phrase in own]
        for system, found in answers.items():
            base = answers[THEIRS if system in (THEIRS, THEIR_LIST) else NONE][:count]
            total, every = Counter[str](), [*spoken, *facts["others"]]
            for place, answer in enumerate(found[:count]):
                own = facts["phrases"][place]
                total += count_errors(facts["texts"][place], answer["text"], own, every)
            pairs = [*zip(found, base, strict=False)]
            same = sum(answer["text"] == plain["text"] for answer, plain in pairs)
            seconds = [sum(each["seconds"] for each in some) for some in zip(*pairs, strict=True)]
            rows.append(
                {
                    "clips": f"{name}, {count}",
                    "list": system,
                    "missed": f"{total['missed']} of {total['listed']}",
                    "other": f"{total['other'] / max(1, total['others']):.2%}",
                    "false": str(total["false"]),
                    "same texts": str(same),
                    "time": f"{seconds[0] / seconds[1]:.2f}",
                }
            )
    return {"words": rows}
