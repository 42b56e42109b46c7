"""Measures live sessions in real time: `scripts/bench live`.

A server in its own process gets recordings in real time, first from one client, then from several,
alone and beside a ten-minute file that is sent repeatedly. In the first round faster-whisper
transcribes each recording too, after the server.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import torch

from benchmarks.apart import Apart, EngineFailed
from benchmarks.live.figures import figures
from benchmarks.live.local_agreement import Rival
from benchmarks.live.sessions import Plays
from benchmarks.live.speech import Speech, joined, real, synthetic, without_words
from benchmarks.load.clients import body_of
from benchmarks.load.servers import OURS, started
from benchmarks.real.converted import convert
from benchmarks.report import Results, settings
from config import DEMO_MODELS
from whosaid.models import whisper_base
from whosaid.runtime.environment import cache_folder

__all__ = ["figures", "measure"]

PACKAGES = ("torch", "transformers", "faster-whisper", "ctranslate2", "websockets")
# For full and quick runs: concurrent clients, seconds with several clients, seconds of the file.
CLIENTS, QUICK_CLIENTS = (1, 4, 16), (1, 2)
SECONDS, QUICK_SECONDS = 180.0, 3.0
FILE, QUICK_FILE = 600.0, 30.0


def measure(options: Namespace, path: Path) -> None:
    """Measure; `path` is written after each measurement.

    Raises ValueError if recordings or the model are missing, and OSError if the server does not
    start.
    """
    model, speech = _chosen(options)
    clients = options.clients or (QUICK_CLIENTS if options.quick else CLIENTS)
    seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    file = QUICK_FILE if options.quick else FILE
    rival_precision = options.rival_precision or options.precision
    facts: dict[str, Any] = {
        **settings(PACKAGES),
        "model": "demo model" if model.is_relative_to(DEMO_MODELS) else model.name,
        "precision": options.precision,
        "precision of faster-whisper": rival_precision,
        "seconds of several clients": seconds,
        "seconds of the file beside": file,
    }
    empty: dict[str, Any] = {"recordings": {}, "ours": [], "theirs": []}
    results = Results(path, facts, empty, options.fresh or options.quick)
    environment = {
        "ASR_MODEL": str(model.resolve()),
        "DTYPE": options.precision,
        "MAX_LIVE_SESSIONS": str(max(clients)),
    }
    rival = _rival(model, rival_precision)
    with started(OURS, environment) as url, closing(rival) if rival else nullcontext():
        plays = Plays(url, speech)
        for each in speech:
            file_text, _ = plays.known[each.recording.name]
            results.content["recordings"][each.recording.name] = {
                **each.recording.facts(each.seconds),
                "file": file_text,
            }
        beside = body_of(joined(speech, file), diarize=False)
        for part, measured in _measured(plays, rival, clients, seconds, beside):
            results.put(part, measured, "clients", "beside", "recording")


def _measured(
    plays: Plays, rival: Apart | None, clients: Sequence[int], seconds: float, file: bytes
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every measurement with its part of the results."""
    sessions = []
    for each in plays.speech:
        sessions.append(asyncio.run(plays.session(each)))
        if rival is not None:
            yield "theirs", plays.theirs(rival, each)
    yield "ours", {"clients": 1, "beside": False, "sessions": sessions, "files": []}
    for count in clients:
        most = None if count == 1 else seconds
        for beside in (None, file):
            if count > 1 or beside:
                yield "ours", asyncio.run(plays.together(count, most, beside))


def _rival(model: Path, precision: str) -> Apart | None:
    """Return the other engine. If it cannot be loaded, print why and return None."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = (convert(model), device, precision, torch.get_num_threads())
    try:
        return Apart("faster-whisper", Rival, *settings)
    except EngineFailed as error:
        print(f"left out: {error}", file=sys.stderr, flush=True)
        return None


def _chosen(options: Namespace) -> tuple[Path, list[Speech]]:
    """Return model and recordings. Raises ValueError if they are missing."""
    if not options.recordings:
        speech = [*synthetic(options.quick), *without_words(options.quick)]
        return options.model or DEMO_MODELS / "asr", speech
    model = options.model or whisper_base.cached(cache_folder())
    if model is None:
        raise ValueError(
            "--model is needed, because scripts/demo has not downloaded Whisper base yet"
        )
    return model, [*real(options.recordings, options.only), *without_words(options.quick)]
