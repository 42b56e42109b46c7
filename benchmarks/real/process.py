"""An engine that transcribes recordings in a process of its own."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.apart import Apart
from benchmarks.real.engines import MAKERS, Engine, Setting, Spec
from benchmarks.real.manifest import Recording
from benchmarks.timing import reset_peak, resident_peak

# The engine of this process.
_loaded: list[Engine] = []


@dataclass(frozen=True)
class Heard:
    """A recording's text by one engine, wall seconds, and the process's peak memory in MiB."""

    text: str
    seconds: float
    peak: float


class EngineProcess:
    """A running engine. Raises EngineFailed if it cannot be loaded."""

    def __init__(self, spec: Spec, setting: Setting) -> None:
        self.spec = spec
        self._apart = Apart(spec.name)
        self._apart.call(_load, spec, setting)

    def transcribe(self, recording: Recording) -> Heard:
        """Let the engine transcribe a recording. Raises EngineFailed."""
        heard = self._apart.call(_transcribe, recording)
        assert isinstance(heard, Heard)
        return heard

    def close(self) -> None:
        """End the process."""
        self._apart.close()


def _load(spec: Spec, setting: Setting) -> None:
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(setting.threads)
    _loaded.append(MAKERS[spec.form](spec, setting))


def _transcribe(recording: Recording) -> Heard:
    reset_peak()
    started = time.perf_counter()
    text = _loaded[0].transcribe(recording)
    return Heard(text, time.perf_counter() - started, resident_peak())
