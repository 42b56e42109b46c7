"""A check at load that CUDA graphs give what the same steps give eagerly; also the warm-up.

The one decision: noise goes through the whole path, in both ways and in the same shapes. The same
kernels run then, so equal tokens are to be expected to the last one; where any differs, graphs are
not to be trusted on this device and stay off.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from asr.engine.cuda_graphs import CudaGraphRunner
from asr.engine.engine import DecodeEngine
from asr.engine.fallback import Attempt, Fallback
from asr.engine.request import DecodeOptions, Request
from timebase import SAMPLE_RATE

logger = logging.getLogger("endpoint")

WINDOWS, SECONDS, MAX_TOKENS = 2, 1.0, 24
# Rejects every text, so that the second attempt samples.
ALWAYS = Fallback((Attempt(0.4),), logprob_threshold=0.0, no_speech_threshold=1.0)

Tokens = dict[int, tuple[int, ...]]


def run_self_test(engine: DecodeEngine) -> bool:
    """Whether graphs and eager steps gave the same tokens; where not, graphs are off from now on.

    Runs on CUDA alone; elsewhere there is nothing to compare.
    """
    runner = engine.runner
    if not isinstance(runner, CudaGraphRunner):
        return True
    if engine.models.special_tokens.languages:
        engine.detect_language(noise_windows()[0])
    for options in step_kinds(engine):
        with runner.paused():
            expected = decode_noise(engine, options)
        if decode_noise(engine, options) != expected:
            runner.disable("at load they gave other tokens than eager steps")
            return False
    return True


def step_kinds(engine: DecodeEngine) -> list[DecodeOptions]:
    """Every kind of step: with timestamps and without, sampled, with words, beams, drafted."""
    plain = DecodeOptions(batch_size=WINDOWS)
    options = [
        replace(plain, words=True),
        replace(plain, timestamps=False),
        replace(plain, fallback=ALWAYS),
        replace(plain, num_beams=5, timestamps=False),  # as every request's beams
    ]
    if engine.draft_model is not None:
        options.append(replace(plain, assisted=True, drafts=engine.runner.draft_lengths[0]))
    return options


def noise_windows() -> list[NDArray[np.float32]]:
    """Windows of noise, the same ones at every call."""
    random = np.random.default_rng(0)
    samples = random.normal(0, 0.1, (WINDOWS, int(SECONDS * SAMPLE_RATE)))
    return list(samples.astype(np.float32))


def decode_noise(engine: DecodeEngine, options: DecodeOptions) -> Tokens:
    """The tokens that the engine gives for windows of noise, by number."""
    special_tokens = engine.models.special_tokens
    language = next(iter(special_tokens.languages), None)
    prompt = special_tokens.prompt(language, "transcribe", options.timestamps)
    tokens: Tokens = {}
    with engine.session(options) as session:
        session.add(
            [Request(n, each, prompt, MAX_TOKENS) for n, each in enumerate(noise_windows())]
        )
        while not session.done:
            tokens |= {request.key: result.tokens for request, result in session.step()}
    return tokens
