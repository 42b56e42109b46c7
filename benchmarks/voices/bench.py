"""Measures diarization, words' speakers and names in real conversations: `scripts/bench voices`.

Recordings and weights are not part of the repository. Ours runs interleaved with pyannote's
pipeline from the same folder, so that a slow minute of the machine affects both.
"""

import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from copy import deepcopy
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.counts import Count, percent, pooled
from benchmarks.harness import whisper_of
from benchmarks.report import Results, Tables, settings
from benchmarks.timing import time_once
from benchmarks.voices.answers import RULES, ask
from benchmarks.voices.conversations import Conversation, load_conversations
from benchmarks.voices.mixtures import mixtures
from benchmarks.voices.naming import Heard, embed_clips, name_everybody
from benchmarks.voices.scoring import (
    PARTS,
    count_voices,
    diarization_parts,
    errors_of,
    score_words,
)
from config import REPOSITORY, SPEAKERS_MODEL, ModelSettings
from handler import EndpointHandler
from tests.support.dialogue import Scene
from tests.support.speech import Samples
from whosaid.diarization.diarizer import Diarization, Diarizer, SpeakerHints
from whosaid.diarization.pyannote import load_stock_pipeline
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import SpeakerTurn

PACKAGES = ("torch", "pyannote.audio", "pyannote.metrics", "meeteval", "transformers")
# The compared systems: pyannote's pipeline, the endpoint's diarizer, and the endpoint's answer,
# without turns in which no speech was detected.
STOCK, OURS, ENDPOINT = SYSTEMS = ("pyannote.audio", "diarizer", "endpoint")
ESTIMATED, TOLD = NUMBERS = ("estimated", "told")
CASTS, QUICK_CASTS = {2: 4, 3: 2}, {2: 1}  # mixtures at each degree of overlap by number of voices

Turns = tuple[SpeakerTurn, ...]
Counts = dict[str, Any]  # of results


def measure(options: Namespace, path: Path) -> None:
    """Diarize, transcribe and name every recording; `path` is written after each.

    Raises ValueError or OSError if recordings or the model are missing.
    """
    handler, facts = load(options)
    conversations = load_conversations(options.recordings)[: 1 if options.quick else None]
    if not conversations:
        raise ValueError(f"{options.recordings}: no recording has turns")
    fresh = options.fresh or options.quick
    results = Results(path, facts, {"recordings": [], "mixtures": []}, fresh)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    bench = Bench(handler, StockPipeline(Path(options.pipeline), device), device)
    with closing(handler.endpoint):
        for conversation in conversations:
            results.put("recordings", bench.measure(conversation), "name")
        for name, scene in _mixed(options):
            results.put("mixtures", bench.measure_turns(name, scene.samples, scene.turns), "name")
        # People are named across all conversations together.
        results.content["names"] = bench.name(conversations)
        results.save("names")


def _mixed(options: Namespace) -> Iterator[tuple[str, Scene]]:
    """Yield mixtures of the test speakers; none if there are no single voices."""
    if options.voices:
        casts = QUICK_CASTS if options.quick else CASTS
        yield from mixtures(options.voices, "test", casts, lambda _: ())


def load(options: Namespace) -> tuple[EndpointHandler, dict[str, Any]]:
    """Return the endpoint on the options' models, and the settings that figures depend on.

    Raises ValueError if there is no model.
    """
    options.pipeline = options.pipeline or str(REPOSITORY / SPEAKERS_MODEL)
    model = whisper_of(options)
    facts = settings(PACKAGES) | {"pipeline": Path(options.pipeline).name, "model": model.name}
    facts["dtype"] = "float32"
    chosen = ModelSettings.for_models(str(model), diarization_model=options.pipeline)
    return EndpointHandler(settings=chosen.model_copy(update={"dtype": "float32"})), facts


class StockPipeline:
    """A folder's pipeline, with its batch sizes. Its networks run once for an array."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pipeline = load_stock_pipeline(str(folder), None, None)
        self._pipeline = pipeline.to(device)
        self._samples: Samples | None = None
        self._kept: dict[str, Any] = {}
        for stage in ("get_segmentations", "get_embeddings"):
            setattr(pipeline, stage, partial(self._once, stage, getattr(pipeline, stage)))

    def _once(self, stage: str, run: Callable[..., Any], *given: Any, **named: Any) -> Any:  # noqa: ANN401
        if stage not in self._kept:
            self._kept[stage] = run(*given, **named)
        return deepcopy(self._kept[stage])

    def __call__(self, samples: Samples, hints: SpeakerHints) -> Turns:
        """Return the turns of `samples`, (n,) at 16 kHz; they may extend a little past the end."""
        if samples is not self._samples:
            self._samples, self._kept = samples, {}
        file = {"waveform": torch.from_numpy(samples)[None], "sample_rate": SAMPLE_RATE}
        try:
            found = self._pipeline(file, num_speakers=hints.num_speakers)
        except ValueError:  # k-means has fewer embeddings than speakers
            found = self._pipeline(file)
        annotation = getattr(found, "speaker_diarization", found)
        return tuple(
            SpeakerTurn(str(label), float(segment.start), float(segment.end))
            for segment, _, label in annotation.itertracks(yield_label=True)
        )


class Bench:
    """The endpoint, and pyannote's pipeline on the same weights."""

    def __init__(
        self, handler: EndpointHandler, stock: StockPipeline, device: torch.device
    ) -> None:
        self.handler, self.stock, self.device = handler, stock, device
        diarizer = handler.endpoint.diarizer
        assert diarizer is not None
        self.diarizer: Diarizer = diarizer

    def measure(self, conversation: Conversation) -> dict[str, Any]:
        """Return all counts of one conversation, and the seconds of its diarization."""
        recording = conversation.recording
        measured = self.measure_turns(conversation.name, recording.samples(), conversation.turns)
        measured["words"] = {}
        for known, number in ((ESTIMATED, None), (TOLD, conversation.speakers)):
            wanted = {"language": recording.language, "num_speakers": number}
            answer = ask(self.handler, recording.audio.read_bytes(), **wanted)
            scored = _score_turns(conversation.turns, answer.turns, measured["duration"])
            measured["turns"][known][ENDPOINT] = scored
            measured["words"][known] = score_words(conversation, answer)
        return measured

    def measure_turns(self, name: str, samples: Samples, turns: Turns) -> dict[str, Any]:
        """Return the counts of both diarizers, and their seconds."""
        duration, speakers = len(samples) / SAMPLE_RATE, len({turn.speaker for turn in turns})
        measured: dict[str, Any] = {"name": name, "duration": duration, "speakers": speakers}
        measured["turns"] = {}
        for known, number in ((ESTIMATED, None), (TOLD, speakers)):
            found, seconds = self._diarize(samples, SpeakerHints(number))
            measured.setdefault("seconds", seconds)
            measured["turns"][known] = {
                system: _score_turns(turns, each, duration) for system, each in found.items()
            }
        return measured

    def _diarize(
        self, samples: Samples, hints: SpeakerHints
    ) -> tuple[dict[str, Turns], dict[str, float]]:
        """Return the turns and the seconds of each system."""
        found, seconds = dict[str, Turns](), dict[str, float]()

        def ours() -> None:
            found[OURS] = self.diarizer.diarize(samples, hints).turns

        def stock() -> None:
            found[STOCK] = self.stock(samples, hints)

        for system, run in ((OURS, ours), (STOCK, stock)):
            seconds[system] = round(time_once(run, self.device), 3)
        return found, seconds

    def name(self, conversations: list[Conversation]) -> dict[str, dict[str, float]]:
        """Return the results of naming people by clips of the conversations."""
        same_voice = self.diarizer.capabilities.same_voice
        if same_voice is None:
            return {}
        find_speech = self.handler.endpoint.recogniser.transcriber.find_speech
        heard = [Heard.of(each) for each in conversations]
        vectors = {
            (each.conversation.name, person): vector
            for each in heard
            for person, vector in embed_clips(self.diarizer, find_speech, each)
        }

        def diarize(samples: Samples) -> Diarization:
            return self.diarizer.diarize(samples, SpeakerHints()).touching(find_speech(samples))

        return name_everybody(heard, vectors, diarize, same_voice)


def _score_turns(true: Turns, found: Turns, duration: float) -> dict[str, Any]:
    return {"strict": diarization_parts(true, found, duration), "speakers": count_voices(found)}


# The page, from results alone. Seconds and words are added before they are divided.


def figures(results: Counts) -> Tables:
    """Return errors of turns, of words and of names."""
    recordings = results["recordings"]
    words = []
    for known, rule in product(NUMBERS, RULES):
        count = pooled([Count(**each["words"][known][rule]) for each in recordings])
        wrong = f"{count.rate:.1%} ({count.errors:.0f} of {count.total:.0f})"
        words.append({"number of speakers": known, "rule": rule, "wrong speaker": wrong})
    names = [_names(kind, tally) for kind, tally in results.get("names", {}).items()]
    mixed = list(_turns(results.get("mixtures", []), SYSTEMS[:2]))
    return {"turns": list(_turns(recordings)), "mixtures": mixed, "words": words, "names": names}


def _turns(
    recordings: Sequence[Counts], systems: Sequence[str] = SYSTEMS
) -> Iterator[dict[str, str]]:
    for known, system in product(NUMBERS, systems) if recordings else ():
        scores = [each["turns"][known][system] for each in recordings]
        parts = {part: sum(score["strict"][part] for score in scores) for part in PARTS}
        right = sum(
            score["speakers"] == each["speakers"]
            for score, each in zip(scores, recordings, strict=True)
        )
        seconds = sum(each["seconds"].get(system, 0.0) for each in recordings)
        timed = known == ESTIMATED and system != ENDPOINT
        yield {
            "number of speakers": known,
            "": system,
            "DER": percent([errors_of(score["strict"]) for score in scores]),
            "missed": f"{parts['missed'] / parts['total']:.1%}",
            "false alarm": f"{parts['false_alarm'] / parts['total']:.1%}",
            "confusion": f"{parts['confusion'] / parts['total']:.1%}",
            "right number": f"{right}/{len(recordings)}",
            "seconds": f"{seconds:.1f}" if timed else "",
        }


def _names(kind: str, tally: dict[str, float]) -> dict[str, str]:
    def share(of: str, total: str) -> str:
        return f"{tally[of] / tally[total]:.1%}" if tally[total] else ""

    return {
        "known by": kind,
        "rightly": share("right", "known"),
        "wrongly": share("wrong", "known"),
        "of seconds": f"{tally['known']:.0f}",
        "strangers named": share("strangers_named", "strangers"),
        "of strangers' seconds": f"{tally['strangers']:.0f}",
    }
