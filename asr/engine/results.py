"""What a finished row says: its text, cut where it loops, and the attention that gives word times.

The one decision: a result is read from the device once, when its row has finished, and holds plain
values. The row may be moved or overwritten as soon as this is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Values
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from asr.checkpoint.special_tokens import SpecialTokens
from asr.engine.decode_state import DecodeState
from asr.engine.fallback import START_TOKENS
from asr.engine.hypotheses import Text, best_text, only_text
from asr.engine.repetition import ends_in_repetition, find_repetition
from asr.engine.request import DecodeResult
from asr.engine.row_state import SequenceState
from asr.engine.sequence import Sequence
from asr.model.alignment_heads import normalize_attention
from timebase import SAMPLES_PER_TOKEN


@dataclass(frozen=True)
class ResultReader:
    """Reads finished rows of one checkpoint; `decode_text` is its tokenizer's."""

    special_tokens: SpecialTokens
    decode_text: Callable[[list[int]], Any]

    def read(
        self, state: DecodeState | None, row: int, length: int, sequence: Sequence
    ) -> DecodeResult:
        """The current attempt's result of a row that has `length` tokens."""
        assert state is not None
        text = self._text(state, row, length, sequence)
        sequence.stats.tokens += len(text.tokens)
        return _with_attention(state, row, sequence, self._cut(sequence, text), text.beams)

    def stop_rejected(self, rows: SequenceState, sequences: list[Sequence], longest: int) -> None:
        """Stop the rows whose texts, of at most `longest` tokens, loop or have a start to reject.

        What they write beyond that is dropped in any case, so it does not matter when anybody
        looks.
        """
        live = len(sequences)
        tokens, lengths = rows.tokens[:live, :longest].tolist(), rows.length[:live].tolist()
        log_probs = rows.log_probs[:live, :longest].tolist()
        for row, sequence in enumerate(sequences):
            fallback, written = sequence.options.fallback, slice(len(sequence.prompt), lengths[row])
            if fallback is None:
                continue
            text = tokens[row][written]
            start = self._start_logprob(sequence, text, log_probs[row][written])
            hopeless = fallback.rejects_start(start, sequence.no_speech_prob)
            if ends_in_repetition(self.words(text)) or (hopeless and sequence.next_attempt()):
                rows.finished[row] = True

    def stop_looping_beams(self, state: DecodeState, row: int, sequence: Sequence) -> None:
        """Stop a row whose likeliest beam loops: it only gets likelier.

        The other beams go on, so it matters when one looks: after the same number of steps, always.
        """
        assert state.beams is not None
        likeliest = state.beams.sums[row].argmax()
        begin = len(sequence.prompt)
        text = state.beams.tokens[row, likeliest, begin : state.rows.length[row]].tolist()
        if ends_in_repetition(self.words(text)):
            state.rows.finished[row] = True

    def words(self, tokens: Iterable[int]) -> list[int]:
        """The text tokens among `tokens`."""
        return [token for token in tokens if token < self.special_tokens.end_of_text]

    def _text(self, state: DecodeState, row: int, length: int, sequence: Sequence) -> Text:
        begin = len(sequence.prompt)
        if state.beams is not None:
            return best_text(state.beams, row, begin, length, sequence.options.length_penalty)
        return only_text(state.rows, row, begin, length, self.special_tokens.end_of_text)

    def _cut(self, sequence: Sequence, text: Text) -> DecodeResult:
        """The result without attention; with fallback it is cut where the text loops."""
        fallback, words = sequence.options.fallback, self.words(text.tokens)
        repetition = find_repetition(words) if fallback else None
        end, repetitive = len(text.log_probs), repetition is not None
        if repetition is not None:
            end_of_text = self.special_tokens.end_of_text
            places = [place for place, each in enumerate(text.tokens) if each < end_of_text]
            end = places[repetition.kept - 1] + 1
        elif fallback is not None:
            repetitive = fallback.repeats_itself(str(self.decode_text(words)))
        tokens, log_probs = text.tokens[:end], text.log_probs[:end]
        return DecodeResult(
            tokens,
            sequence.no_speech_prob,
            log_probs,
            sequence.temperature,
            timestamps=sequence.timestamps,
            repetitive=repetitive,
            cut=repetition is not None,
            language=sequence.language,
            language_probability=sequence.language_probability,
            text_logprob=_mean(self._of_text(tokens, log_probs)),
            start_logprob=self._start_logprob(sequence, tokens, log_probs),
        )

    def _start_logprob(
        self, sequence: Sequence, tokens: Values[int], log_probs: Values[float]
    ) -> float:
        """The mean over the first text tokens; 0 where they are too few, or not final."""
        start = self._of_text(tokens, log_probs)[:START_TOKENS]
        return _mean(start) if len(start) == START_TOKENS and sequence.judged_by_start else 0.0

    def _of_text(self, tokens: Values[int], log_probs: Values[float]) -> list[float]:
        """Those of text tokens and of the end of text."""
        end_of_text = self.special_tokens.end_of_text
        return [
            log_prob
            for token, log_prob in zip_longest(tokens, log_probs)
            if token is None or token < end_of_text
        ]


def _mean(values: Values[float]) -> float:
    return sum(values) / max(1, len(values))


def _with_attention(
    state: DecodeState, row: int, sequence: Sequence, decoded: DecodeResult, beams: tuple[int, ...]
) -> DecodeResult:
    """With the alignment heads' attention, where words are wanted or it must give times.

    A token's is that of the position that chose it, one before its own, in the beam that did.
    """
    untimed = sequence.options.timestamps and not sequence.timestamps
    if not (sequence.options.words or untimed or decoded.cut) or not decoded.tokens:
        return decoded
    main, first, count = state.main, len(sequence.prompt) - 1, len(decoded.log_probs)
    positions = slice(first, first + count)
    frames = min(-(-len(sequence.request.samples) // SAMPLES_PER_TOKEN), main.decoder.frames)
    heads = main.decoder.alignment_attention(main.cache, row, positions, frames, beams[:count])
    return replace(decoded, attention=normalize_attention(heads).cpu().numpy())
