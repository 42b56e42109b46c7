"""Passes over noise, to compare CUDA graphs with the same passes run eagerly.

A graph runs the kernels of the eager pass in the same shapes, so equal results are expected. But
libraries may choose another kernel on another stream, which rounds differently; of two nearly tied
tokens the other may then win. So log-probabilities may differ by `TOLERANCE`, and in half of the
rows the tokens after a first token may differ. A wrong graph differs in most rows.

Noise is written again before each run, which restores
what the last run changed, including the order of beams in the caches.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from whosaid.asr.engine.prefill import PrefillBatch
from whosaid.asr.engine.rows import BeamState, SequenceState, StepShape
from whosaid.asr.engine.runner import StepRunner
from whosaid.asr.engine.state import DecodeState
from whosaid.asr.model.cuda_attention import noise
from whosaid.asr.model.encoder import AudioEncoder, Encoder, EncoderOutput
from whosaid.timebase import SAMPLE_RATE

# Between log-probabilities, and as a share of an encoder's largest output. A float16 of the size of
# a logit is as coarse.
TOLERANCE = 0.02
STEPS = 2  # of each shape; the second reads the first one's results
PROMPT = 4  # least tokens before a guess


class Outcome(NamedTuple):
    """Results of a pass by row; all fields are (rows, n)."""

    first: Tensor  # sorted log-probabilities of the first new token; other probabilities
    tokens: Tensor  # tokens and counts
    log_probs: Tensor


def agree(found: Outcome, expected: Outcome) -> bool:
    """Return whether two outcomes are equal but for rounding."""
    if not torch.allclose(found.first, expected.first, 0, TOLERANCE, equal_nan=True):
        return False
    close = torch.isclose(found.log_probs, expected.log_probs, 0, TOLERANCE, equal_nan=True)
    equal = (found.tokens == expected.tokens).all(dim=1) & close.all(dim=1)
    return 2 * int(equal.sum()) >= len(equal)


def run_steps(runner: StepRunner, state: DecodeState, shape: StepShape, seed: int) -> Outcome:
    """Run steps over texts that reach up to `shape.kv_len`.

    On such texts a graph that was captured for another length attends to too little or too much.
    """
    longest = min(shape.kv_len, state.decoder.max_positions)
    length = longest - STEPS * (shape.drafts + 1)
    fill_text(state, length, runner.filters.eos, seed)
    pending = [runner.launch(state, shape) for _ in range(STEPS)]
    counts = torch.tensor([column for each in pending for column in each()]).T
    return _outcome(state, length, counts.to(state.rows.tokens.device))


def run_prefill(
    runner: StepRunner,
    state: DecodeState,
    encoder: Encoder,
    sizes: tuple[int, int, int, bool],
    seed: int,
) -> Outcome:
    """Prefill rows with noise; `sizes` are rows, prompt_len, verified and drafted."""
    count, prompt_len, verified, drafted = sizes
    view = state.view(0, count)
    guessed = max(0, min(verified, prompt_len - PROMPT))
    length = prompt_len - guessed
    fill_text(view, length, runner.filters.eos, seed)
    numbers = torch.zeros(count, prompt_len + 8, dtype=torch.float64)
    numbers[:, :prompt_len] = view.rows.tokens[:, :prompt_len].cpu()
    numbers[:, 0] = runner.filters.special_tokens.start_of_transcript
    most = view.decoder.max_positions
    parameters = (length, length, most, drafted, True, 0, guessed, guessed // 2)
    numbers[:, prompt_len:] = torch.tensor(parameters, dtype=torch.float64)
    main = noise(encoder.main.positions, (count, *encoder.main.positions.shape), seed)
    own = encoder.assistant if drafted else None
    assistant = None
    if own is not None:
        same = own is encoder.main
        assistant = main if same else noise(own.positions, (count, *own.positions.shape), seed)
    batch = PrefillBatch(numbers, EncoderOutput(main, assistant), prompt_len, verified, drafted)
    starts = runner.prefill(state, range(count), batch)
    starts[:, 1] = 0  # the language's id: two languages may be nearly tied
    outcome = _outcome(view, length, view.rows.length[:, None])
    return outcome._replace(first=torch.cat((outcome.first, starts), dim=1))


def run_encoder(
    runner: StepRunner, encoder: Encoder, chosen: AudioEncoder, count: int, seed: int
) -> Outcome:
    samples = np.random.default_rng(seed).normal(0, 0.1, (count, SAMPLE_RATE)).astype(np.float32)
    output = runner.encode(chosen, encoder.log_mel(list(samples)).to(encoder.dtype)).flatten(1)
    none = output.new_zeros(count, 1)
    return Outcome(output / output.abs().amax(), none, none)


def fill_audio(state: DecodeState) -> None:
    for cache in state.caches:
        for number, each in enumerate((cache.cross_keys, cache.cross_values)):
            _, rows, _, frames, size = each.shape
            each.copy_(noise(each, (1, rows, 1, frames, size), number))


def fill_text(state: DecodeState, length: int, eos: int, seed: int) -> None:
    """Give every row an unfinished text of `length` tokens, and cached noise."""
    rows = state.rows
    parts: list[SequenceState | BeamState] = [rows] if state.beams is None else [rows, state.beams]
    for part in parts:
        for each in part.tensors:
            each.zero_()
    for each in (rows.prompt_len, rows.grammar_start):
        each.fill_(length - 1)
    rows.length.fill_(length)
    rows.max_length.fill_(rows.tokens.shape[1])
    rows.draftable.fill_(True)
    rows.timestamps[::2] = True
    for part in parts:
        like = part.log_probs
        part.tokens.copy_((noise(like, like.shape, seed).abs() * eos).long())
    for cache in state.caches:
        _, places, both, _, positions, size = cache.text.shape
        cache.text.copy_(noise(cache.text, (1, places, both, 1, positions, size), seed))
    for each in () if state.drafter is None else state.drafter.tensors:
        each.copy_(noise(each, each.shape, seed))


def end_texts(state: DecodeState) -> None:
    rows = state.rows
    for each in (rows.prompt_len, rows.length, rows.max_length, rows.finished):
        each.fill_(1)


def _outcome(state: DecodeState, length: int, counts: Tensor) -> Outcome:
    rows, beams = state.rows, state.beams
    if beams is None:
        first, log_probs = rows.log_probs[:, length, None], rows.log_probs
    else:
        first, log_probs = beams.log_probs[:, :, length].sort(dim=1).values, beams.sums
    texts = rows.tokens if beams is None else beams.tokens.flatten(1)
    return Outcome(first, torch.cat((counts, texts), dim=1), log_probs)
