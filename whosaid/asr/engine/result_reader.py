"""Reads the result of a finished row: its text, cut if it loops, and the attention for word times.

A result is read from the device once, when its row has finished, and holds plain values. The row
may then be moved or overwritten.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from whosaid.asr.checkpoint.special_tokens import SpecialTokens
from whosaid.asr.engine.beam_search import Text, best_text, likeliest_text
from whosaid.asr.engine.fallback import (
    START_TOKENS,
    Attend,
    Loop,
    ends_in_repetition,
    read_repetitions,
)
from whosaid.asr.engine.rescoring import rescore
from whosaid.asr.engine.result import DecodeResult
from whosaid.asr.engine.sequence import DecodeSequence
from whosaid.asr.engine.state import DecodeState
from whosaid.asr.model.decoder import upcast
from whosaid.asr.model.token_tree import CachedRow, read_text
from whosaid.errors import ModelError
from whosaid.timebase import SAMPLES_PER_TOKEN


@dataclass(frozen=True)
class ResultReader:
    """Reads finished rows of one checkpoint."""

    special_tokens: SpecialTokens
    tokenizer: PreTrainedTokenizerBase

    def read(
        self, state: DecodeState, row: int, length: int, sequence: DecodeSequence
    ) -> DecodeResult:
        """Return the result of a row of `length` tokens, or a rejected first attempt that wrote
        much more. With a proposer the text is rescored, unless it will be rejected. Raises
        ModelError if the model's scores are not numbers, because such a text would be empty.
        """
        result = self._read(state, row, length, sequence)
        proposer, fallback = sequence.options.proposer, sequence.options.fallback
        rejected = sequence.may_retry and fallback is not None and fallback.rejects(result)
        if proposer is None or rejected or not result.tokens:
            return result
        special = self.special_tokens
        prompt = special.with_timestamps(sequence.request.prompt, result.timestamps)
        cached = CachedRow(state.decoder, state.cache, row)
        has_text = sequence.rejected is None and state.beams is None
        return rescore(cached, prompt, result, proposer, special.end_of_text, has_text)

    def _read(
        self, state: DecodeState, row: int, length: int, sequence: DecodeSequence
    ) -> DecodeResult:
        text = self._text(state, row, length, sequence)
        if any(map(math.isnan, text.log_probs)):
            raise ModelError("the model's scores are not numbers: its precision may be too low")
        sequence.session.stats.tokens += len(text.tokens)
        annotation = self._annotation_prob(state, row, sequence)
        decoded = replace(self._cut(state, row, sequence, text), annotation_prob=annotation)
        if first := self._preferred_first(sequence, decoded):
            return replace(first, annotation_prob=annotation)
        if not decoded.tokens:
            return decoded
        beams = text.beams[: len(decoded.log_probs)]
        return replace(decoded, attention=_attention(state, row, sequence, beams))

    def _annotation_prob(self, state: DecodeState, row: int, sequence: DecodeSequence) -> float:
        """Return the probability that the text begins with an annotation, without previous text:
        brackets in that make annotations likely, and other words make them unlikely.
        """
        begin = sequence.prompt.index(self.special_tokens.start_of_transcript)
        if not (begin and sequence.annotation_prob):
            return sequence.annotation_prob
        cached = CachedRow(state.decoder, state.cache, row)
        hidden, _ = read_text(cached, sequence.prompt[begin:], 0)
        likely = upcast(state.decoder.logits(hidden[None, -1:])[0, 0]).softmax(dim=0)
        return float(likely[list(self.special_tokens.annotations)].sum())

    def _preferred_first(
        self, sequence: DecodeSequence, second: DecodeResult
    ) -> DecodeResult | None:
        """Return the rejected first attempt if it wrote much more than the `second`, but none with
        a rejected start, which a check may have stopped.
        """
        first, fallback = sequence.rejected, sequence.options.fallback
        if first is None or fallback is None:
            return None
        if fallback.rejects_start(first.start_logprob, first.no_speech_prob):
            return None
        return first if writes_more(first, second, self.special_tokens) else None

    def stop_rejected(
        self, state: DecodeState, sequences: list[DecodeSequence], longest: int
    ) -> None:
        """Stop rows whose text, of at most `longest` tokens, loops or has a start to reject. The
        rest would be dropped, so the result does not depend on when rows are checked.
        """
        rows, live = state.rows, len(sequences)
        tokens, lengths = rows.tokens[:live, :longest].tolist(), rows.length[:live].tolist()
        log_probs = rows.log_probs[:live, :longest].tolist()
        for row, sequence in enumerate(sequences):
            fallback, written = sequence.options.fallback, slice(len(sequence.prompt), lengths[row])
            if fallback is None:
                continue
            text = tokens[row][written]
            start = self._start_logprob(sequence, text, log_probs[row][written])
            dropped = sequence.may_retry or sequence.request.once
            hopeless = dropped and fallback.rejects_start(start, sequence.no_speech_prob)
            if hopeless or (
                ends_in_repetition(self.special_tokens.text_tokens(text))
                and self._loops(state, row, sequence, Text(tuple(text), (), (0,) * len(text)))
            ):
                rows.finished[row] = True

    def stop_looping_beams(self, state: DecodeState, row: int, sequence: DecodeSequence) -> None:
        """Stop a row whose likeliest beam loops, which only makes that beam likelier. Other beams
        go on meanwhile, so check each row after a fixed number of its own steps.
        """
        assert state.beams is not None
        begin, length = len(sequence.prompt), int(state.rows.length[row])
        likeliest = state.beams.sums[row].argmax()
        words = self.special_tokens.text_tokens(
            state.beams.tokens[row, likeliest, begin:length].tolist()
        )
        if ends_in_repetition(words):
            text = likeliest_text(state.beams, row, begin, length)
            if self._loops(state, row, sequence, text):
                state.rows.finished[row] = True

    def _text(self, state: DecodeState, row: int, length: int, sequence: DecodeSequence) -> Text:
        begin = len(sequence.prompt)
        if state.beams is not None:
            return best_text(state.beams, row, begin, length, sequence.options.length_penalty)
        tokens = state.rows.tokens[row, begin:length].tolist()
        log_probs = state.rows.log_probs[row, begin:length].tolist()
        if tokens and tokens[-1] == self.special_tokens.end_of_text:
            tokens.pop()
        return Text(tuple(tokens), tuple(log_probs), (0,) * len(log_probs))

    def _loops(self, state: DecodeState, row: int, sequence: DecodeSequence, text: Text) -> bool:
        attend = self._attend(state, row, sequence, text)
        return read_repetitions(self.special_tokens.text_tokens(text.tokens), attend)[0] is not None

    def _attend(self, state: DecodeState, row: int, sequence: DecodeSequence, text: Text) -> Attend:
        places = self._places(text.tokens)

        def attend(count: int) -> NDArray[np.float32]:
            stop = places[count - 1] + 1
            of_all_heads = _attention(state, row, sequence, text.beams[:stop], sharpest=False)
            return of_all_heads[places[:count]]

        return attend

    def _places(self, tokens: Sequence[int]) -> list[int]:
        end_of_text = self.special_tokens.end_of_text
        return [place for place, token in enumerate(tokens) if token < end_of_text]

    def _cut(
        self, state: DecodeState, row: int, sequence: DecodeSequence, text: Text
    ) -> DecodeResult:
        """Return the result without attention; with fallback, cut at a loop."""
        fallback, end = sequence.options.fallback, len(text.log_probs)
        loop: Loop | None = None
        repetitive = False
        if fallback is not None:
            attend = self._attend(state, row, sequence, text)
            loop, once = read_repetitions(self.special_tokens.text_tokens(text.tokens), attend)
            written_once = str(self.tokenizer.decode(once))
            repetitive = not loop.spoken if loop else fallback.repeats_itself(written_once)
        if loop is not None:
            end = self._places(text.tokens)[loop.kept - 1] + 1
        tokens, log_probs = text.tokens[:end], text.log_probs[:end]
        return DecodeResult(
            tokens,
            sequence.no_speech_prob,
            log_probs,
            sequence.options.temperature,
            timestamps=sequence.timestamps,
            repetitive=repetitive,
            cut=loop is not None,
            language=sequence.language,
            language_probability=sequence.language_probability,
            text_logprob=_mean(self._text_log_probs(tokens, log_probs)),
            start_logprob=self._start_logprob(sequence, tokens, log_probs),
        )

    def _start_logprob(
        self, sequence: DecodeSequence, tokens: Sequence[int], log_probs: Sequence[float]
    ) -> float:
        """Return the mean of the text's start; 0 if it is shorter or may still change."""
        start = self._text_log_probs(tokens, log_probs)[:START_TOKENS]
        return _mean(start) if len(start) == START_TOKENS and sequence.is_greedy else 0.0

    def _text_log_probs(self, tokens: Sequence[int], log_probs: Sequence[float]) -> list[float]:
        """Return the log-probabilities of text tokens and of the end of text."""
        of_text = [log_probs[place] for place in self._places(tokens)]
        return [*of_text, *log_probs[len(tokens) :]]


def writes_more(first: DecodeResult, second: DecodeResult, special_tokens: SpecialTokens) -> bool:
    """Return whether the first text is complete, does not loop, and is twice as long."""
    lengths = [len(special_tokens.text_tokens(each.tokens)) for each in (first, second)]
    return first.ended and not first.repetitive and lengths[0] >= 2 * lengths[1]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))


def _attention(
    state: DecodeState,
    row: int,
    sequence: DecodeSequence,
    beams: tuple[int, ...],
    sharpest: bool = True,
) -> NDArray[np.float32]:
    """Return the normalized attention of a row's first tokens, (tokens, frames of 20 ms); `beams`
    chose them. A token's attention is read at the position that chose it, one before its own. Word
    times need the `sharpest` heads; a loop shows in the mean of all.
    """
    decoder, first = state.decoder, len(sequence.prompt) - 1
    frames = min(-(-len(sequence.request.samples) // SAMPLES_PER_TOKEN), decoder.frames)
    return decoder.alignment_attention(state.cache, row, first, beams, frames, sharpest)
