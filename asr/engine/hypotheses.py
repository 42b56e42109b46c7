"""What a finished row says: its text, or the best of those that its beams have found.

Nothing follows the beams while they run but what the next step reads. Which token was put where,
and which beam it continued, stays where it was written; a text is read back from its end once it is
known to be the best. So are the places that hold its alignment queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from asr.engine.state import BeamState, SequenceState


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A text that has ended, or met the limit (`end_log_prob` is None then).

    `beam` is the place of its last token, or of what chose the end of text; `length` counts its
    tokens with the prompt.
    """

    beam: int
    length: int
    sum: float
    end_log_prob: float | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """Tokens after the prompt, without the end of text.

    `log_probs` has one more where the text has ended; `beams` says which beam chose each of them.
    """

    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    beams: tuple[int, ...]


def best_text(
    beams: BeamState, row: int, begin: int, length: int, length_penalty: float | None
) -> Text:
    """The best of what a finished row of `length` tokens has found after `begin` of a prompt."""
    found = _ended(beams, row) + _live(beams, row, length)
    return _read_back(beams, row, begin, rank(found[: beams.num_beams], begin, length_penalty))


def likeliest_text(beams: BeamState, row: int, begin: int, length: int) -> Text:
    """The likeliest of those that go on in a row of `length` tokens with `begin` of a prompt."""
    return _read_back(beams, row, begin, _live(beams, row, length)[0])


def only_text(rows: SequenceState, row: int, begin: int, length: int, end_of_text: int) -> Text:
    """What a finished row without beams says: `length` tokens with `begin` of a prompt."""
    tokens = rows.tokens[row, begin:length].tolist()
    log_probs = rows.log_probs[row, begin:length].tolist()
    if tokens and tokens[-1] == end_of_text:
        tokens.pop()
    return Text(tuple(tokens), tuple(log_probs), (0,) * len(log_probs))


def rank(found: Sequence[Hypothesis], begin: int, length_penalty: float | None) -> Hypothesis:
    """The best by the mean log-probability, or under Google's length penalty alpha (Wu et al. 2016,
    "Google's neural machine translation system"); openai/whisper's MaximumLikelihoodRanker.

    The sum counts the end of text, the length does not.
    """

    def score(each: Hypothesis) -> float:
        tokens = each.length - begin
        if length_penalty is None:
            return each.sum / max(1, tokens)
        return float(each.sum / ((5 + tokens) / 6) ** length_penalty)

    return max(found, key=score)


def _ended(beams: BeamState, row: int) -> list[Hypothesis]:
    """In the order in which they ended."""
    columns = (beams.end_beam, beams.end_length, beams.end_sum, beams.end_log_prob)
    count = int(beams.ended[row])
    return [
        Hypothesis(*each)
        for each in zip(*(column[row, :count].tolist() for column in columns), strict=True)
    ]


def _live(beams: BeamState, row: int, length: int) -> list[Hypothesis]:
    """Those that go on, best first."""
    sums: list[float] = beams.sums[row].tolist()
    live = [Hypothesis(beam, length, each) for beam, each in enumerate(sums)]
    return sorted(live, key=lambda each: each.sum, reverse=True)


def _read_back(beams: BeamState, row: int, begin: int, best: Hypothesis) -> Text:
    """The tokens on the way back from the best text's end."""

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
