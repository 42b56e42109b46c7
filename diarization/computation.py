"""How diarizers compute: on which stream, what their failures become, and when others go first."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import numpy as np
import torch

from diarization.diarizer import DiarizationCancelled, Diarizer, SpeakerHints
from errors import ModelError, OutOfMemory
from runtime.errors import is_out_of_memory
from timebase import SAMPLE_RATE

WARM_UP_SECONDS = 10  # one window of pyannote's published pipelines


@contextlib.contextmanager
def computing(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """On `stream`, or where the device has none; what the models raise becomes ours."""
    with torch.cuda.stream(stream):
        try:
            yield
        except DiarizationCancelled:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise OutOfMemory(
                    "speaker diarization does not fit, even one window at a time"
                ) from error
            raise ModelError(f"speaker diarization failed ({type(error).__name__})") from error


def pause(cancelled: threading.Event | None, between: Callable[[], None] | None) -> None:
    """What happens between two batches of work. Raises DiarizationCancelled."""
    if cancelled is not None and cancelled.is_set():
        raise DiarizationCancelled
    if between is not None:
        between()


def create_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A CUDA stream, after all work queued on the default one is done; None on other devices."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def warm_up(diarizer: Diarizer) -> None:
    """Run once on noise: no request waits for what is set up at first use.

    Raises what `diarize` raises, where the models do not run at all.
    """
    noise = np.random.default_rng(0).normal(0, 0.1, WARM_UP_SECONDS * SAMPLE_RATE)
    diarizer.diarize(noise.astype(np.float32), SpeakerHints())
