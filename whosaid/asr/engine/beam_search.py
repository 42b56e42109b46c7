"""Beam search over the rows of a batch: several texts per window, of which the likeliest is kept.

The rules are those of openai/whisper's BeamSearchDecoder (`decoding.py`) with a patience of 1: a
window is done when as many texts have ended as it has beams, or at its length limit.

A beam's first continuation stays in its place in memory; only a second one is copied, to the place
of a dead beam. On a CPU only the positions after the two texts diverge are copied. On CUDA a step
reads no value back to the host, so it is replayed as a graph; there all places are copied, from the
prompt's end on.

A step reorders only what the next step reads. Which token was written at which place, and which
beam it continued, stays in the state, from which the best text is read back.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from whosaid.asr.engine.rows import BeamState, SequenceState, StepShape
from whosaid.asr.engine.state import DecodeState
from whosaid.asr.model.kv_cache import KVCache
from whosaid.asr.model.logit_filters import NEVER, Choice, History, LogitFilter


class Candidates(NamedTuple):
    """Continuations of each row's beams by one token; all fields are (rows, candidates)."""

    token: Tensor
    beam: Tensor  # the beam that the text continues
    sum: Tensor  # of log-probabilities
    log_prob: Tensor  # of the new token


class BeamHypothesis(NamedTuple):
    """A text of `length` tokens, prompt included; `end_log_prob` is None if it has not ended.

    `beam` is the place that holds its last token, or that chose the end of text.
    """

    beam: int
    length: int
    sum: float
    end_log_prob: float | None = None


class Text(NamedTuple):
    """Tokens after the prompt, without the end of text. `log_probs` includes the end of text if the
    text has ended; `beams` holds the beam that chose each entry of `log_probs`.
    """

    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    beams: tuple[int, ...]


def beam_step(state: DecodeState, beams: BeamState, filters: LogitFilter, shape: StepShape) -> None:
    rows, width = state.rows, beams.num_beams
    texts, ends = beams.tokens.flatten(0, 1), _spread(rows.length, width)[:, None]
    tokens = texts.gather(1, ends - 1)
    hidden = state.decoder.forward(tokens, ends - 1, state.cache, shape.kv_len)
    logits = state.decoder.logits(hidden, filters.bias)
    timestamps, grammar_start = _spread(rows.timestamps, width), _spread(rows.grammar_start, width)
    history = History(texts, ends, timestamps, grammar_start)
    best = filters.best(logits, history, width + 1, shape.timestamps)
    parents = extend(beams, rows, best, filters.eos)
    if texts.device.type == "cpu":
        _copy_what_differs(state.cache, beams.tokens, parents, rows)
    else:
        _copy_all(state.cache, parents, shape.kv_len)
    _write_texts(beams, rows, parents)


def begin_beams(beams: BeamState, rows: SequenceState, best: Choice, eos: int) -> None:
    """Start every row's beams with different first tokens, `best` (rows, beams + 1)."""
    beams.sums.zero_()
    beams.ended.zero_()
    beams.tokens.copy_(rows.tokens[:, None].expand_as(beams.tokens))
    _write_texts(beams, rows, extend(beams, rows, best, eos))


def extend(beams: BeamState, rows: SequenceState, best: Choice, eos: int) -> Tensor:
    """Choose the candidates that continue, set aside those that end, and advance lengths.

    `best` (rows x beams, beams + 1) are each beam's candidates, best first; for the first tokens,
    (rows, beams + 1). Return the beam that each place continues, (rows, beams).
    """
    width, count = beams.num_beams, rows.length.shape[0]
    offered = best.log_probs.double().view(count, -1, width + 1)
    sums = (beams.sums[:, : offered.shape[1], None] + offered).flatten(1)
    # Each beam can end once, so of twice as many candidates as beams enough continue.
    ranked, index = sums.topk(min(2 * width, sums.shape[1]))
    tokens = best.tokens.view(count, -1).gather(1, index)
    log_probs = offered.flatten(1).gather(1, index)
    candidates = Candidates(tokens, index // (width + 1), ranked, log_probs)
    ends = tokens == eos
    _set_aside(beams, rows, candidates, ends)
    numbers = torch.arange(ends.shape[1], device=ends.device)
    going_on = (ends.long() * len(numbers) + numbers).argsort(dim=1)[:, :width]
    going_on = going_on.gather(1, _order(candidates.beam.gather(1, going_on)))
    survivors = Candidates(*(each.gather(1, going_on) for each in candidates))
    at = rows.length[:, None, None].expand(-1, width, 1)
    beams.written.scatter_(2, at, survivors.token[..., None])
    beams.parents.scatter_(2, at, survivors.beam[..., None])
    beams.log_probs.scatter_(2, at, survivors.log_prob[..., None])
    finished = rows.finished.clone()
    beams.sums.copy_(torch.where(finished[:, None], beams.sums, survivors.sum))
    rows.length.add_((~finished).long())
    rows.finished.logical_or_((beams.ended >= width) | (rows.length >= rows.max_length))
    return survivors.beam


def _set_aside(beams: BeamState, rows: SequenceState, all_: Candidates, ends: Tensor) -> None:
    """Keep the texts that end above the last that continues, in order, at most `num_beams`."""
    width = beams.num_beams
    going_on = (~ends).long().cumsum(dim=1)
    kept = ends & (going_on < width) & (all_.sum > NEVER) & ~rows.finished[:, None]
    place = beams.ended[:, None] + kept.long().cumsum(dim=1) - 1
    kept &= place < width
    place = torch.where(kept, place, width)
    beams.end_beam.scatter_(1, place, all_.beam)
    beams.end_length.scatter_(1, place, rows.length[:, None].expand_as(place))
    beams.end_sum.scatter_(1, place, all_.sum)
    beams.end_log_prob.scatter_(1, place, all_.log_prob)
    beams.ended.add_(kept.long().sum(dim=1))


def _order(parents: Tensor) -> Tensor:
    """Return the survivor that takes each place, given each survivor's parent; both (rows, beams).

    A beam's first continuation keeps the beam's place. Others take the places of dead beams.
    """
    places = torch.arange(parents.shape[1], device=parents.device)
    same = parents[:, :, None] == parents[:, None]
    repeated = (same & (places < places[:, None])).any(dim=2)
    taken = (parents[:, :, None] == places).any(dim=1)
    free = (taken.long() * len(places) + places).argsort(dim=1)
    number = (repeated.long().cumsum(dim=1) - 1).clamp(min=0)
    return torch.where(repeated, free.gather(1, number), parents).argsort(dim=1)


def _copy_what_differs(cache: KVCache, texts: Tensor, parents: Tensor, rows: SequenceState) -> None:
    """Copy the keys and values that differ to each place that continues another beam."""
    width = parents.shape[1]
    own = torch.arange(width)
    places = (parents != own).flatten().nonzero()[:, 0]
    if not len(places):
        return
    sources = places // width * width + parents.flatten()[places]
    every = texts.flatten(0, 1)
    start = int((every[places] != every[sources]).int().argmax(dim=1).min())
    span = slice(start, int(rows.length.max()) - 1)
    for each in cache.text:
        each[places, :, :, span] = each[sources, :, :, span]


def _copy_all(cache: KVCache, parents: Tensor, kv_len: int) -> None:
    """Copy to every place the keys and values of the beam that it continues."""
    count, width = parents.shape
    first = torch.arange(0, count * width, width, device=parents.device)[:, None]
    sources = (first + parents).flatten()
    for each in cache.text:
        span = each[..., :kv_len, :]
        span.copy_(span.index_select(0, sources))


def _write_texts(beams: BeamState, rows: SequenceState, parents: Tensor) -> None:
    newest = rows.length[:, None, None].expand(-1, beams.num_beams, 1) - 1
    texts = beams.tokens.gather(1, parents[..., None].expand_as(beams.tokens))
    beams.tokens.copy_(texts.scatter_(2, newest, beams.written.gather(2, newest)))


def _spread(values: Tensor, width: int) -> Tensor:
    """Repeat each row's value for each of its beams: (rows,) -> (rows x beams,)."""
    return values[:, None].expand(-1, width).flatten()


def best_text(
    beams: BeamState, row: int, begin: int, length: int, length_penalty: float | None
) -> Text:
    """Return the best text of a finished row; `begin` of its `length` tokens are the prompt."""
    found = _ended(beams, row) + _live(beams, row, length)
    return _read_back(beams, row, begin, rank(found[: beams.num_beams], begin, length_penalty))


def likeliest_text(beams: BeamState, row: int, begin: int, length: int) -> Text:
    """Return a running row's likeliest text; `begin` of its `length` tokens are the prompt."""
    return _read_back(beams, row, begin, _live(beams, row, length)[0])


def rank(found: list[BeamHypothesis], begin: int, penalty: float | None) -> BeamHypothesis:
    """Return the best hypothesis, as openai/whisper's MaximumLikelihoodRanker: by mean
    log-probability or with Google's length penalty alpha (Wu et al. 2016, "Google's neural machine
    translation system"). The sum includes the end of text, the length does not.
    """

    def score(each: BeamHypothesis) -> float:
        tokens = each.length - begin
        if penalty is None:
            return each.sum / max(1, tokens)
        return float(each.sum / ((5 + tokens) / 6) ** penalty)

    return max(found, key=score)


def _ended(beams: BeamState, row: int) -> list[BeamHypothesis]:
    columns = (beams.end_beam, beams.end_length, beams.end_sum, beams.end_log_prob)
    count = int(beams.ended[row])
    values = zip(*(column[row, :count].tolist() for column in columns), strict=True)
    return [BeamHypothesis(*each) for each in values]


def _live(beams: BeamState, row: int, length: int) -> list[BeamHypothesis]:
    """Return the continuing texts, best first."""
    sums = enumerate(beams.sums[row].tolist())
    live = [BeamHypothesis(beam, length, each) for beam, each in sums]
    return sorted(live, key=lambda each: each.sum, reverse=True)


def _read_back(beams: BeamState, row: int, begin: int, best: BeamHypothesis) -> Text:
    def table(each: Tensor) -> list[list[float]]:
        return each[row, :, begin : best.length].tolist()

    written, parents, log_probs = map(table, (beams.written, beams.parents, beams.log_probs))
    tokens, chosen, places, place = [], [], [], best.beam
    if best.end_log_prob is not None:
        chosen, places = [best.end_log_prob], [place]
    for step in reversed(range(best.length - begin)):
        tokens.append(int(written[place][step]))
        chosen.append(log_probs[place][step])
        place = int(parents[place][step])
        places.append(place)
    return Text(tuple(reversed(tokens)), tuple(reversed(chosen)), tuple(reversed(places)))
