"""Times steps with drafts once, at load.

Too little memory at load is no reason not to start: without measured costs nothing is drafted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from asr.engine.batch import DecodeContext
from asr.engine.draft_length import AcceptanceRate, DraftLength, StepCosts
from asr.engine.drafters import follows, most_drafts
from asr.engine.state import StateMemory, StepShape
from runtime.device_errors import is_out_of_memory
from timebase import SAMPLE_RATE

logger = logging.getLogger("endpoint")

TIMED_ROWS = (1, 4, 12)
TIMED_KV_LEN = 64
TIMED_PROMPT = 4  # tokens
TIMED_SECONDS = 0.02  # of steps of one shape
UNTIMED_STEPS = 2


def measure_costs(memory: StateMemory, context: DecodeContext) -> StepCosts | None:
    """Time steps over rows that are finished, which cost the same and change nothing, and what
    preparing a window takes.

    None if the device's memory does not suffice.
    """
    try:
        capacity = memory.ensure_capacity(TIMED_ROWS[-1]).capacity
        if memory.ensure_drafter():
            rows = [count for count in TIMED_ROWS if count <= capacity]
            costs = StepCosts.least_of(_rounds(memory, context, rows))
            prepared = _time_preparing(memory, context)
            return replace(costs, preparing=max(0.0, prepared - costs.step(1, 0)))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    finally:
        if not context.runner.pipelined:
            memory.release()
    logger.warning("memory ran out while timing steps: nothing will be drafted")
    memory.release()
    return None


def measured_drafting(memory: StateMemory, context: DecodeContext) -> DraftLength | None:
    """How many tokens to draft, by this drafter's costs; None where they were not measured."""
    assert memory.draft_model is not None
    costs = measure_costs(memory, context)
    if costs is None:
        return None
    lengths = draft_lengths(memory, context)
    if follows(memory.draft_model):
        return DraftLength(costs, lengths, AcceptanceRate.by_depth(lengths[-1]))
    return DraftLength(costs, lengths)


def draft_lengths(memory: StateMemory, context: DecodeContext) -> list[int]:
    """The numbers of drafts worth trying that the drafter can make."""
    assert memory.draft_model is not None
    most = most_drafts(memory.draft_model)
    return [each for each in context.runner.draft_lengths if each <= most] or [most]


def _timed_drafts(memory: StateMemory, context: DecodeContext) -> list[int]:
    """None, few and many, of which the latter two are alike where one alone can be made."""
    longest = draft_lengths(memory, context)[-1]
    return sorted({min(each, longest) for each in context.runner.timed_drafts})


def _drafted_by(memory: StateMemory, shape: StepShape) -> StepShape:
    """The shape as it is where the drafter reads tokens, else with its state kept up."""
    if not (shape.drafts and follows(memory.draft_model)):
        return shape
    return shape._replace(assistant_lag=1, followed=True)


def _rounds(
    memory: StateMemory, context: DecodeContext, rows: Sequence[int]
) -> Iterator[dict[tuple[int, int], float]]:
    """Seconds of a step of every shape, again and again."""
    shapes = [(count, k) for count in rows for k in _timed_drafts(memory, context)]
    while True:
        yield {shape: _time_step(memory, context, *shape) for shape in shapes}


@torch.inference_mode()
def _time_preparing(memory: StateMemory, context: DecodeContext) -> float:
    """Return the least seconds in which the drafter hears a silent window and reads a prompt, and
    a step without drafts follows, for whose result the host waits.
    """
    encoder, view = context.encoder, memory.ensure_capacity(1).view(0, 1)
    assert view.drafter is not None
    heard = encoder.main.positions.new_zeros((1, *encoder.main.positions.shape))
    tokens = torch.zeros(1, TIMED_PROMPT, dtype=torch.long, device=heard.device)
    positions = torch.arange(TIMED_PROMPT, device=heard.device)[None]
    hidden, silence = heard[:, :TIMED_PROMPT], np.zeros(SAMPLE_RATE, np.float32)
    least = float("inf")
    for _ in range(UNTIMED_STEPS + 1):
        started = time.perf_counter()
        view.drafter.listen(encoder.encode([silence], drafted=True, known=[heard]))
        view.drafter.read_prompt(tokens, positions, hidden, tokens[:, 0])
        kv_len = context.runner.padded("positions", TIMED_KV_LEN)
        context.runner.launch(view, context.filters, StepShape(0, 1, kv_len))()
        least = min(least, time.perf_counter() - started)
    return least


@torch.inference_mode()
def _time_step(memory: StateMemory, context: DecodeContext, rows: int, drafts: int) -> float:
    """The least of the steps that fit into TIMED_SECONDS, one at least.

    The untimed steps bring the weights into the processor's caches, where a running batch has them.
    Cold caches made draft-free steps of small models look 1.5 times too slow; hence the minimum.
    """
    if context.encoder.threads is not None:
        context.encoder.threads.adjust()
    state, padded = memory.ensure_capacity(rows), context.runner.padded
    view = state.view(0, min(padded("rows", rows), state.capacity))
    kv_len = min(padded("positions", TIMED_KV_LEN), state.main.cache.max_len)
    shape = _drafted_by(memory, StepShape(drafts, 2 if drafts else 1, kv_len))
    if context.runner.pipelined:
        for _ in range(UNTIMED_STEPS):
            context.runner.launch(view, context.filters, shape)()
    least, spent = float("inf"), 0.0
    while spent < TIMED_SECONDS:
        started = time.perf_counter()
        context.runner.launch(view, context.filters, shape)()
        took = time.perf_counter() - started
        least, spent = min(least, took), spent + took
    return least
