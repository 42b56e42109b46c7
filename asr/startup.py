"""The first start of a transcriber, and a second one without CUDA graphs where that one, with them,
failed.

Most failures leave the device usable, and the same models are started again here. Where the device
is lost only a new process can try without graphs (`runtime/restart.py`).
"""

from __future__ import annotations

import gc
import logging

import torch

from asr.checkpoint.loading import WhisperModels
from asr.engine.scheduler import DEFAULT_LIMITS, Limits
from asr.transcriber import Transcriber
from runtime.errors import is_device_lost
from runtime.restart import ADVICE

logger = logging.getLogger("endpoint")


def start(models: WhisperModels, cuda_graphs: bool, limits: Limits = DEFAULT_LIMITS) -> Transcriber:
    """A transcriber that has run once; without CUDA graphs where it does not run with them."""
    if cuda_graphs and models.device.type == "cuda":
        try:
            return _warmed(models, limits, cuda_graphs=True)
        except Exception as error:
            if is_device_lost(error):
                raise
            reason = " ".join(f"{type(error).__name__}: {error}".split())
        # Outside the except block: until here the exception held on to the device's memory.
        logger.critical("the start failed (%s): it is tried %s", reason, ADVICE)
        gc.collect()
        torch.cuda.empty_cache()
    return _warmed(models, limits, cuda_graphs=False)


def _warmed(models: WhisperModels, limits: Limits, cuda_graphs: bool) -> Transcriber:
    transcriber = Transcriber(models, cuda_graphs=cuda_graphs, limits=limits)
    transcriber.warm_up()
    return transcriber
