"""Rescores a finished text: writes an alternative in place of a part of it if the audio allows.

    prompt | it was | she van| who called me|
                    | Siob|han| who called me|      an alternative and the text's next tokens

One pass scores the first tokens of a window's alternatives, and another those that are not too
unlikely already, as branches of the text (`asr.model.token_tree`) in the cache of its row. The text
is read again only if the row had several beams or holds a second attempt. The passes run while a
finished row is read: steps, drafts, beams and graphs stay as they are.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple, Protocol

from whosaid.asr.engine.result import DecodeResult, Replacement
from whosaid.asr.model.token_tree import CachedRow, log_probs_of, read_text, score_branches

NEXT_TOKENS = 4  # of the text, scored after an alternative
# An alternative may be less likely than the text by this natural logarithm for each of its tokens,
# because Whisper prefers frequent words (docs/benchmarks/words.md).
HANDICAP = 2.5


class Alternative(NamedTuple):
    """Tokens that may replace the tokens `start` to `stop` of a text."""

    start: int
    stop: int
    tokens: tuple[int, ...]


class Proposer(Protocol):
    """Proposes alternatives for parts of the `tokens` that were decoded after a `prompt`."""

    def propose(
        self, prompt: Sequence[int], tokens: Sequence[int], log_probs: Sequence[float]
    ) -> list[Alternative]: ...


def rescore(
    row: CachedRow,
    prompt: tuple[int, ...],
    result: DecodeResult,
    proposer: Proposer,
    end_of_text: int,
    has_text: bool,
) -> DecodeResult:
    """Return the `result` of a row with every alternative that its audio allows, and then with new
    attention. `has_text`: the row has one beam, which has read this text. The replaced tokens'
    log-probabilities are unfiltered; `text_logprob` stays.
    """
    proposed = proposer.propose(prompt, result.tokens, result.log_probs)
    if not proposed:
        return result
    written, first = (*result.tokens, *(end_of_text,) * result.ended), len(prompt)
    if not has_text:
        row = read_text(row, prompt + written, 0)[1]

    def margins(some: Sequence[Alternative], count: int | None) -> list[float]:
        """Return how much likelier than needed the first `count` tokens of each of `some` are."""
        branches = [
            (first + start, (new + written[stop : stop + NEXT_TOKENS])[:count])
            for start, stop, new in some
        ]
        scored = score_branches(row, prompt + written, branches) if some else ()
        allowed = (HANDICAP * len(each.tokens) for each in some)
        decoded = (sum(result.log_probs[each.start : each.stop + NEXT_TOKENS]) for each in some)
        compared = zip(scored, decoded, allowed, strict=True)
        return [sum(likely) - before + behind for likely, before, behind in compared]

    # Most alternatives fail by their first token alone.
    ahead = margins(proposed, 1)
    hopeful = [each for each, margin in zip(proposed, ahead, strict=True) if margin > 0]
    accepted = accept_alternatives(hopeful, margins(hopeful, None))
    return _written(row, prompt, result, accepted) if accepted else result


def _written(
    row: CachedRow, prompt: tuple[int, ...], result: DecodeResult, accepted: Sequence[Alternative]
) -> DecodeResult:
    tokens, replaced = [*result.tokens], list[Replacement]()
    for start, stop, new in accepted:
        begin = start + len(tokens) - len(result.tokens)
        tokens[begin : begin + stop - start] = new
        replaced.append(Replacement(begin, begin + len(new), result.tokens[start:stop]))
    first, log_probs = accepted[0].start, [*result.log_probs]
    hidden, (decoder, cache, _) = read_text(row, (*prompt, *tokens), len(prompt) + first - 1)
    places = [place for start, stop, _ in replaced for place in range(start, stop)]
    states = hidden[[place - first for place in places]]
    likely = iter(log_probs_of(decoder, states, [tokens[place] for place in places]))
    for start, stop, decoded in replaced:
        log_probs[start : start + len(decoded)] = islice(likely, stop - start)
    assert result.attention is not None
    columns, frames = (0,) * len(log_probs), result.attention.shape[1]
    attention = decoder.alignment_attention(cache, 0, len(prompt) - 1, columns, frames)
    return replace(
        result,
        tokens=tuple(tokens),
        log_probs=tuple(log_probs),
        attention=attention,
        replaced=tuple(replaced),
    )


def accept_alternatives(
    proposed: Sequence[Alternative], margins: Sequence[float]
) -> list[Alternative]:
    """Return the alternatives with positive margins, in order, and of overlapping ones the best."""
    accepted: list[Alternative] = []
    for each, margin in sorted(zip(proposed, margins, strict=True), key=lambda pair: -pair[1]):
        apart = all(each.stop <= other.start or other.stop <= each.start for other in accepted)
        if margin > 0 and apart:
            accepted.append(each)
    return sorted(accepted)
