"""Measures live sessions in real time: `scripts/bench live`.

A server in its own process gets recordings in real time, first from one client, then from several,
alone and beside a ten-minute file that is sent repeatedly. In the first round faster-whisper
transcribes each recording too, after the server.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import torch

from benchmarks.apart import Apart, EngineFailed
from benchmarks.harness import whisper_of
from benchmarks.live import speech
from benchmarks.live.figures import figures
from benchmarks.live.local_agreement import Rival
from benchmarks.live.sessions import Plays
from benchmarks.load.clients import body_of
from benchmarks.load.servers import OURS, started
from benchmarks.real.converted import convert
from benchmarks.report import Results, settings
from config import DEMO_MODELS

__all__ = ["figures", "measure"]

PACKAGES = ("torch", "transformers", "faster-whisper", "ctranslate2", "websockets")
# For full and quick runs: concurrent clients, seconds with several clients, seconds of the file.
WHOLE = ((1, 4, 16), 60.0, 600.0)
QUICK = ((1, 2), 3.0, 30.0)


def measure(options: Namespace, path: Path) -> None:
    """Measure; `path` is written after each measurement.

    Raises ValueError if recordings or the model are missing, and OSError if the server does not
    start.
    """
    clients, seconds, file = QUICK if options.quick else WHOLE
    if options.quick:
        model, recordings = DEMO_MODELS / "asr", speech.quick()
    elif options.recordings:
        model, recordings = whisper_of(options), speech.real(options.recordings)
    else:
        raise ValueError("--recordings is needed without --quick")
    rival_precision = options.rival_precision or options.precision
    facts: dict[str, Any] = {
        **settings(PACKAGES),
        "model": model.name,
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
        plays = Plays(url, recordings)
        for each in recordings:
            file_text, _ = plays.known[each.recording.name]
            results.content["recordings"][each.recording.name] = {
                **each.recording.facts(each.seconds),
                "file": file_text,
            }
        beside = body_of(speech.joined(recordings, file), diarize=False)
        _alone(plays, rival, results)
        for count in clients:
            most = None if count == 1 else seconds
            for other in (None, beside):
                if count > 1 or other:
                    row = asyncio.run(plays.together(count, most, other))
                    results.put("ours", row, "clients", "beside")


def _alone(plays: Plays, rival: Apart | None, results: Results) -> None:
    """Measure one client, and the other engine, recording by recording."""
    sessions = []
    for each in plays.speech:
        sessions.append(asyncio.run(plays.session(each)))
        if rival is not None:
            results.put("theirs", plays.theirs(rival, each), "recording")
    row = {"clients": 1, "beside": False, "sessions": sessions}
    results.put("ours", row, "clients", "beside")


def _rival(model: Path, precision: str) -> Apart | None:
    """Return the other engine. If it cannot be loaded, print why and return None."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return Apart(
            "faster-whisper", Rival, convert(model), device, precision, torch.get_num_threads()
        )
    except EngineFailed as error:
        print(f"left out: {error}", file=sys.stderr, flush=True)
        return None
