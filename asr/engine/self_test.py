"""A check at load that CUDA graphs give what the same steps give eagerly; also the warm-up.

Noise goes through the whole path, in both ways and in the same shapes. The same kernels run then,
so equal tokens are to be expected to the last one, and their probabilities with them; where any
differs, graphs are not to be trusted on this device and stay off.

Texts of noise end after a token or two, so that few replays would be compared: no text ends
meanwhile. Prompts are long enough that each length of the caches is reached, and passed, within a
few steps: a graph that was captured for another length attends to too little, which the
probabilities tell before the tokens do.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asr.engine.cuda_graphs import CudaGraphRunner
from asr.engine.drafting import draft_lengths
from asr.engine.engine import DecodeEngine
from asr.engine.request import DecodeOptions, DecodeResult, Request
from errors import ModelError
from timebase import SAMPLE_RATE

logger = logging.getLogger("endpoint")

SECONDS = 1.0  # of each window
MAX_ROWS, BEAM_ROWS, NUM_BEAMS = 24, 2, 5
# Tokens before a text, so that the caches' lengths 64, 128, 256 and the longest are used; where
# beams share 64 positions of their prompt, a graph leaves those out.
PROMPTS, BEAM_PROMPTS = (58, 250), (66, 56, 250)
MAX_TOKENS, BEAM_TOKENS = 12, 24  # beams change places only now and then
GIVEN = 4  # tokens, of those
MAX_SECONDS = 60.0  # after which nothing more is compared
# Between log-probabilities; a float16 of the size of a logit is as coarse.
TOLERANCE = 0.02


class Said(NamedTuple):
    """Texts by number, and what the session counted: steps, drafts accepted and made."""

    texts: dict[int, DecodeResult]
    counts: tuple[int, int, int]


class Case(NamedTuple):
    """A kind of step, or of prefill, over `options.batch_size` rows, behind prompts of so many
    tokens.
    """

    options: DecodeOptions
    prompt: int
    given: int = 0  # tokens that texts begin with


def run_self_test(engine: DecodeEngine) -> bool:
    """Whether graphs and eager steps gave the same texts; where not, graphs are off from now on.

    Runs on CUDA alone; elsewhere there is nothing to compare. No graph is given up for it: what
    finds no memory beside what was prepared is not compared, and the log says so.
    """
    runner = engine.runner
    if not isinstance(runner, CudaGraphRunner):
        return True
    if engine.models.special_tokens.languages:
        engine.detect_language(noise_windows(1)[0])
    started, tested = time.perf_counter(), cases(engine)
    with engine.endless_texts():
        for number, case in enumerate(tested):
            if time.perf_counter() - started > MAX_SECONDS:
                logger.warning("the self-test was slow: %d of %d parts", number, len(tested))
                break
            with runner.paused():
                expected = _decoded(engine, case)
            if expected is None:
                logger.error("the self-test: the model's scores for noise are not numbers")
                break
            found = _decoded(engine, case)
            if found is None or not equal(found, expected):
                runner.disable("at load they gave other texts than eager steps")
                return False
    return True


def cases(engine: DecodeEngine) -> list[Case]:
    """Every kind of step, for one row and for as many as were prepared; beams as far as they fit.

    Without timestamps and with them, sampled, with few drafts and many, with words: what does more
    follows what does less, whose graph must not serve it. And texts that begin with given tokens.
    """
    rows = sorted({1, min(MAX_ROWS, max(1, engine.memory.capacity))})
    plain = DecodeOptions()
    kinds = [replace(plain, timestamps=False), plain, replace(plain, temperature=0.6)]
    if engine.draft_model is not None:
        lengths = draft_lengths(engine.memory, engine.context)
        drafted = replace(plain, assisted=True)
        kinds += [replace(drafted, drafts=k) for k in sorted({lengths[0], lengths[-1]})]
    found = [
        Case(replace(kind, batch_size=count), prompt)
        for count in rows
        for kind in kinds
        for prompt in PROMPTS
    ]
    found += [Case(replace(plain, batch_size=count), PROMPTS[0], GIVEN) for count in rows]
    count = engine.batch(NUM_BEAMS).memory.rows_beside(BEAM_ROWS)
    if count < 1:
        logger.warning("the self-test leaves out beams: memory is short")
        return found
    beams = DecodeOptions(num_beams=NUM_BEAMS, timestamps=False, batch_size=count)
    return found + [Case(beams, prompt) for prompt in BEAM_PROMPTS]


def noise_windows(count: int) -> list[NDArray[np.float32]]:
    """Windows of noise, the same ones at every call."""
    random = np.random.default_rng(0)
    samples = random.normal(0, 0.1, (count, int(SECONDS * SAMPLE_RATE)))
    return list(samples.astype(np.float32))


def decode_noise(engine: DecodeEngine, case: Case) -> Said:
    """What the engine gives for windows of noise, one a row; every other text is shorter."""
    special_tokens = engine.models.special_tokens
    language = next(iter(special_tokens.languages), None)
    prompt = special_tokens.prompt(language, "transcribe", case.options.timestamps)
    before = range(max(0, case.prompt - len(prompt)))
    prompt = (*(each % special_tokens.end_of_text for each in before), *prompt)
    windows = noise_windows(case.options.batch_size)
    most = MAX_TOKENS if case.options.num_beams == 1 else BEAM_TOKENS
    given = tuple(range(case.given))
    requests = [
        Request(number, each, prompt, most - number % 2, prefix=given)
        for number, each in enumerate(windows)
    ]
    texts: dict[int, DecodeResult] = {}
    with engine.session(case.options) as session:
        session.add(requests)
        while not session.done:
            texts |= {request.key: result for request, result in session.step()}
    stats = session.stats
    return Said(texts, (stats.steps, stats.accepted, stats.drafted))


def _decoded(engine: DecodeEngine, case: Case) -> Said | None:
    """None where scores are not numbers."""
    try:
        return decode_noise(engine, case)
    except ModelError:
        return None


def equal(found: Said, expected: Said) -> bool:
    """Whether all counts and tokens are equal, and log-probabilities but for rounding."""
    if found.counts != expected.counts or found.texts.keys() != expected.texts.keys():
        return False
    return all(
        found.texts[key].tokens == each.tokens
        and len(found.texts[key].log_probs) == len(each.log_probs)
        and np.allclose(found.texts[key].log_probs, each.log_probs, 0, TOLERANCE)
        for key, each in expected.texts.items()
    )
