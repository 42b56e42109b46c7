"""An engine in a process of its own, asked over a pipe.

Engines never share a process. The OpenMP threads of one would put those of the next to sleep (see
`benchmarks.speed.engines.CTranslate2`), and a process's resident memory could not be told apart.
One that waits for its turn sleeps and takes no time from the others.
"""

from __future__ import annotations

import time
import warnings
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection

from benchmarks.real.engines import MAKERS, Setting, Spec
from benchmarks.real.manifest import Recording
from benchmarks.timing import reset_peak, resident_peak


@dataclass(frozen=True)
class Heard:
    """One recording by one engine: its text, wall seconds, and the process's resident memory at
    its peak meanwhile, in MiB.
    """

    text: str
    seconds: float
    peak: float


class EngineFailed(Exception):
    """An engine cannot be loaded or does not take its options; one line."""


class EngineProcess:
    """A running engine. Raises EngineFailed where it cannot be loaded."""

    def __init__(self, spec: Spec, setting: Setting) -> None:
        self.spec = spec
        context = get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, spec, setting), daemon=True)
        self.process.start()
        other.close()
        self._receive()

    def transcribe(self, recording: Recording) -> Heard:
        """Let the engine hear a recording. Raises EngineFailed."""
        self.connection.send(recording)
        heard = self._receive()
        assert isinstance(heard, Heard)
        return heard

    def close(self) -> None:
        """End the process."""
        self.connection.close()
        self.process.join()

    def _receive(self) -> object:
        try:
            answer = self.connection.recv()
        except EOFError:
            self.process.join()
            reason = f"its process ended with status {self.process.exitcode}"
            raise EngineFailed(f"{self.spec.name}: {reason}") from None
        if isinstance(answer, EngineFailed):
            self.close()
            raise answer
        return answer


def _serve(connection: Connection, spec: Spec, setting: Setting) -> None:
    """The engine's process: an answer for every recording until the other end is closed."""
    warnings.simplefilter("ignore")
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(setting.threads)
    with suppress(EOFError, BrokenPipeError):
        try:
            engine = MAKERS[spec.form](spec, setting)
            connection.send(None)
            while True:
                recording = connection.recv()
                reset_peak()
                started = time.perf_counter()
                text = engine.transcribe(recording)
                connection.send(Heard(text, time.perf_counter() - started, resident_peak()))
        except (EOFError, BrokenPipeError):
            raise
        except (Exception, SystemExit) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            connection.send(EngineFailed(f"{spec.name}: {reason}"))
