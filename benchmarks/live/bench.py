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
from dataclasses import dataclass
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

PACKAGES = ("torch", "transformers", "faster-whisper", "ctranslate2", "websockets")
CLIENTS, QUICK_CLIENTS = (1, 4, 16), (1, 2)
FILE, QUICK_FILE = 600.0, 30.0  # seconds of the file beside
DEMO = "demo model"

__all__ = ["figures", "measure"]


def measure(options: Namespace, path: Path) -> None:
    """Measure; `path` is written after each measurement.

    Raises ValueError if recordings or the model are missing, and OSError if the server does not
    start.
    """
    began = time.perf_counter()
    plan = _plan(options)
    facts: dict[str, Any] = {
        **settings(PACKAGES),
        "model": DEMO if plan.model.is_relative_to(DEMO_MODELS) else plan.model.name,
        "precision": plan.precision,
        "seconds of several clients": plan.seconds,
        "seconds of the file beside": plan.file,
    }
    if plan.rival is not None:
        facts["precision of faster-whisper"] = plan.rival
    empty: dict[str, Any] = {"recordings": {}, "ours": [], "theirs": []}
    results = read_kept(path, facts, empty, options.fresh or options.quick)
    environment = {
        "ASR_MODEL": str(plan.model.resolve()),
        "DTYPE": plan.precision,
        "MAX_LIVE_SESSIONS": str(max(plan.clients)),
    }
    with started(OURS, environment) as server, _rival(plan) as rival:
        plays = Plays(server, plan.speech)
        for each in plan.speech:
            results["recordings"][each.recording.name] = {
                "language": each.recording.language,
                "text": each.recording.text,
                "reference": each.recording.reference,
                "seconds": round(each.seconds, 2),
                "file": plays.known[each.recording.name].text,
            }
        for part, measured in _measured(plays, plan, rival):
            add(results, part, measured)
            minutes = round((time.perf_counter() - began) / 60, 1)
            results["settings"]["minutes"] = minutes
            save(path, results)
            line = f"{minutes:5.1f} min  {summary(measured)}"
            print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Plan:
    """The measurements: `clients` at once, several of them for `seconds`, beside a file of `file`
    seconds. `rival` is faster-whisper's precision, None without it.
    """

    model: Path
    precision: str
    speech: Sequence[Speech]
    clients: Sequence[int]
    seconds: float
    file: float
    rival: str | None


def add(results: dict[str, Any], part: str, measured: dict[str, Any]) -> None:
    """Replace an earlier measurement of the same kind.

    For one client alone, and for faster-whisper, only sessions of the same recordings are replaced.
    """
    if part == "theirs":
        put(results[part], measured, "recording")
    else:
        earlier = [each for each in results[part] if each["clients"] == 1 and not each["beside"]]
        if earlier and measured["clients"] == 1 and not measured["beside"]:
            sessions = list(earlier[0]["sessions"])
            for session in measured["sessions"]:
                put(sessions, session, "recording")
            measured = {**measured, "sessions": sessions}
        put(results[part], measured, "clients", "beside")


def _measured(
    plays: Plays, plan: Plan, rival: RivalProcess | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every measurement with its part of the results."""
    sessions = []
    for each in plan.speech:
        sessions.append(plays.one(each))
        if rival is not None:
            yield "theirs", plays.theirs(rival, each)
    yield "ours", {"clients": 1, "beside": False, "sessions": sessions, "files": []}
    file = body_of(joined(plan.speech, plan.file), None)
    for clients in plan.clients:
        most = None if clients == 1 else plan.seconds
        for beside in (None, file):
            if clients > 1 or beside:
                yield "ours", plays.together(clients, most, beside)


@contextmanager
def _rival(plan: Plan) -> Iterator[RivalProcess | None]:
    """Yield the other engine. If it cannot be loaded, print its name and yield None."""
    rival = None
    if plan.rival is not None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        about = Rival(convert(plan.model), device, plan.rival, torch.get_num_threads())
        try:
            rival = RivalProcess(about)
        except EngineFailed as error:
            print(f"left out: {error}", file=sys.stderr, flush=True)
    try:
        yield rival
    finally:
        if rival is not None:
            rival.close()


def _plan(options: Namespace) -> Plan:
    """Raises ValueError if recordings or the model are missing."""
    quick: bool = options.quick
    model = options.model or DEMO_MODELS / "asr"
    if options.recordings:
        model = options.model or whisper_base.cached(cache_folder())
        if model is None:
            raise ValueError("--model is needed: scripts/demo has fetched no Whisper base yet")
        speech = real(options.recordings, options.only)
    else:
        speech = synthetic(quick)
    return Plan(
        model=model,
        precision=options.precision,
        speech=[*speech, *without_words(quick)],
        clients=options.clients or (QUICK_CLIENTS if quick else CLIENTS),
        seconds=options.seconds or (3.0 if quick else 180.0),
        file=QUICK_FILE if quick else FILE,
        rival=(options.rival_precision or options.precision) if options.rival else None,
    )
