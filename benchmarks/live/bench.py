"""Measures live sessions in real time: `scripts/bench live`.

A server in its own process gets recordings in real time, first from one client, then from several,
alone and beside a ten-minute file that is sent repeatedly. In the first round faster-whisper
transcribes each recording too, after the server.
"""

import asyncio
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import closing, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.apart import Apart, EngineFailed
from benchmarks.counts import pooled
from benchmarks.harness import whisper_of
from benchmarks.live import speech
from benchmarks.live.local_agreement import Rival
from benchmarks.live.sessions import Cell, Plays
from benchmarks.load.clients import body_of
from benchmarks.load.servers import OURS, started
from benchmarks.real.converted import convert
from benchmarks.real.manifest import recordings_of
from benchmarks.real.scoring import score
from benchmarks.report import Results, Tables, settings
from config import DEMO_MODELS

PACKAGES = ("torch", "transformers", "faster-whisper", "ctranslate2", "websockets")
# For full and quick runs: concurrent clients, seconds with several clients, seconds of the file.
WHOLE = ((1, 4, 16), 60.0, 600.0)
QUICK = ((1, 2), 3.0, 30.0)
THEIRS = "faster-whisper, LocalAgreement"


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
    facts = {**settings(PACKAGES), "model": model.name, "precision": options.precision}
    facts["precision of faster-whisper"] = rival_precision
    facts |= {"seconds of several clients": seconds, "seconds of the file beside": file}
    empty: dict[str, Any] = {"recordings": {}, "ours": [], "theirs": []}
    results = Results(path, facts, empty, options.fresh or options.quick)
    environment = {"ASR_MODEL": str(model.resolve()), "DTYPE": options.precision}
    environment["MAX_LIVE_SESSIONS"] = str(max(clients))
    rival = _rival(model, rival_precision)
    with started(OURS, environment) as server, closing(rival) if rival else nullcontext():
        plays = Plays(server.url, recordings)
        for each in recordings:
            name, known = each.recording.name, each.recording.facts(each.seconds)
            results.content["recordings"][name] = {**known, "file": plays.known[name][0]}
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
    given = "cuda" if torch.cuda.is_available() else "cpu", precision, torch.get_num_threads()
    try:
        return Apart("faster-whisper", Rival, convert(model), *given)
    except EngineFailed as error:
        print(f"left out: {error}", file=sys.stderr, flush=True)
        return None


def figures(results: Cell) -> Tables:
    """Return delays by number of clients, and word errors."""
    delays = [_delays(_name(cell), cell["sessions"]) for cell in results["ours"]]
    if results["theirs"]:
        delays.insert(1, _delays(THEIRS, results["theirs"]))
    return {"delays": delays, "errors": _errors(results)}


def _name(cell: Cell) -> str:
    beside = ", beside a file" if cell["beside"] else ""
    return f"{cell['clients']} client{'s' * (cell['clients'] > 1)}{beside}"


def _delays(name: str, sessions: Sequence[Cell]) -> dict[str, str]:
    failed = sum(bool(each["failure"]) for each in sessions)
    seconds = {"final": _quantiles(sessions, "told"), "completed": _quantiles(sessions, "waits")}
    return {"": name, **seconds, "sessions": str(len(sessions)), "failed": str(failed)}


def _quantiles(sessions: Sequence[Cell], column: str) -> str:
    """Return the median and p95 of a column's seconds."""
    seconds = list(chain.from_iterable(each[column] for each in sessions))
    if not seconds:
        return "-"
    return " / ".join(f"{each:.2f}" for each in np.percentile(seconds, [50, 95]))


def _errors(results: Cell) -> list[dict[str, str]]:
    """Return word errors of the recordings that one client sent to the end and every engine
    transcribed.
    """
    alone = (cell for cell in results["ours"] if cell["clients"] == 1 and not cell["beside"])
    ours = [each for cell in alone for each in cell["sessions"] if each["whole"]]
    texts = {
        "the file": {name: each["file"] for name, each in results["recordings"].items()},
        "completed": {each["recording"]: each["completed"] for each in ours},
        "deltas": {each["recording"]: each["deltas"] for each in ours},
    }
    if results["theirs"]:
        texts[THEIRS] = {each["recording"]: each["deltas"] for each in results["theirs"]}
    heard = recordings_of(results, texts)
    rows = []
    for who, known in texts.items() if heard else ():
        count = pooled([score(each, known[each.name]) for each in heard if each.text])
        silent = [score(each, known[each.name]).errors for each in heard if not each.text]
        row = {"": who, "word errors": f"{count.rate:.1%} of {count.total:.0f}"}
        rows.append(row | {"words where nobody speaks": f"{sum(silent):.0f}"})
    return rows
