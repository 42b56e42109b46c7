"""Live sessions in real time: `scripts/bench live`.

A server in a process of its own gets recordings in real time, first from one client, then from
several, alone and beside a file of ten minutes that is sent again and again. In the first round
faster-whisper transcribes each recording too, after the server.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.apart import EngineFailed
from benchmarks.live.figures import figures, summary
from benchmarks.live.local_agreement import Rival, RivalProcess
from benchmarks.live.sessions import Plays, body_of
from benchmarks.live.speech import Speech, joined, real, synthetic, without_words
from benchmarks.load.servers import OURS, started
from benchmarks.real.converted import convert
from benchmarks.report import put, read_kept, save, settings
from config import DEMO_MODELS
from whosaid.models import whisper_base
from whosaid.runtime.environment import cache_folder

__all__ = ["figures", "measure"]

PACKAGES = ("torch", "transformers", "faster-whisper", "ctranslate2", "websockets")
# Of whole and quick runs: clients at once, seconds of several, seconds of the file beside.
CLIENTS, QUICK_CLIENTS = (1, 4, 16), (1, 2)
SECONDS, QUICK_SECONDS = 180.0, 3.0
FILE, QUICK_FILE = 600.0, 30.0
DEMO = "demo model"


def measure(options: Namespace, path: Path) -> None:
    """Measure; `path` is written after each measurement.

    Raises ValueError if recordings or the model are missing, and OSError if the server does not
    start.
    """
    began = time.perf_counter()
    model, speech = _chosen(options)
    clients = options.clients or (QUICK_CLIENTS if options.quick else CLIENTS)
    seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    file = QUICK_FILE if options.quick else FILE
    rival_precision = (options.rival_precision or options.precision) if options.rival else "none"
    facts: dict[str, Any] = {
        **settings(PACKAGES),
        "model": DEMO if model.is_relative_to(DEMO_MODELS) else model.name,
        "precision": options.precision,
        "precision of faster-whisper": rival_precision,
        "seconds of several clients": seconds,
        "seconds of the file beside": file,
    }
    empty: dict[str, Any] = {"recordings": {}, "ours": [], "theirs": []}
    results = read_kept(path, facts, empty, options.fresh or options.quick)
    environment = {
        "ASR_MODEL": str(model.resolve()),
        "DTYPE": options.precision,
        "MAX_LIVE_SESSIONS": str(max(clients)),
    }
    rival = _rival(model, rival_precision if options.rival else None)
    with started(OURS, environment) as server, rival as theirs:
        plays = Plays(server, speech)
        for each in speech:
            results["recordings"][each.recording.name] = {
                "language": each.recording.language,
                "text": each.recording.text,
                "reference": each.recording.reference,
                "seconds": round(each.seconds, 2),
                "file": plays.known[each.recording.name].text,
            }
        beside = body_of(joined(speech, file), None)
        for part, measured in _measured(plays, theirs, clients, seconds, beside):
            put(results[part], measured, *KEYS[part])
            minutes = round((time.perf_counter() - began) / 60, 1)
            results["settings"]["minutes"] = minutes
            save(path, results)
            print(f"{minutes:5.1f} min  {summary(measured)}", file=sys.stderr, flush=True)


# What a measurement replaces an earlier one by.
KEYS = {"ours": ("clients", "beside"), "theirs": ("recording",)}


def _measured(
    plays: Plays, rival: RivalProcess | None, clients: Sequence[int], seconds: float, file: bytes
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every measurement with its part of the results."""
    sessions = []
    for each in plays.speech:
        sessions.append(plays.one(each))
        if rival is not None:
            yield "theirs", plays.theirs(rival, each)
    yield "ours", {"clients": 1, "beside": False, "sessions": sessions, "files": []}
    for count in clients:
        most = None if count == 1 else seconds
        for beside in (None, file):
            if count > 1 or beside:
                yield "ours", plays.together(count, most, beside)


@contextmanager
def _rival(model: Path, precision: str | None) -> Iterator[RivalProcess | None]:
    """Yield the other engine. If it cannot be loaded, print its name and yield None."""
    rival = None
    if precision is not None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        about = Rival(convert(model), device, precision, torch.get_num_threads())
        try:
            rival = RivalProcess(about)
        except EngineFailed as error:
            print(f"left out: {error}", file=sys.stderr, flush=True)
    try:
        yield rival
    finally:
        if rival is not None:
            rival.close()


def _chosen(options: Namespace) -> tuple[Path, list[Speech]]:
    """Return model and recordings. Raises ValueError if they are missing."""
    if not options.recordings:
        speech = [*synthetic(options.quick), *without_words(options.quick)]
        return options.model or DEMO_MODELS / "asr", speech
    model = options.model or whisper_base.cached(cache_folder())
    if model is None:
        raise ValueError("--model is needed: scripts/demo has fetched no Whisper base yet")
    return model, [*real(options.recordings, options.only), *without_words(options.quick)]
