"""Log-probabilities of the text's tokens, with the tokens' bytes.

Bytes come from the vocabulary and not from decoded text, because a token may hold only a part of a
character.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from transformers import PreTrainedTokenizerBase

from whosaid.transcript import Chunk


def token_logprobs(
    chunks: Iterable[Chunk], tokenizer: PreTrainedTokenizerBase
) -> list[dict[str, Any]]:
    """Return an entry for each token of the chunks, in order; their joined bytes are the text's."""
    return [
        entry
        for chunk in chunks
        for entry in logprob_entries(chunk.tokens, chunk.log_probs, tokenizer)
    ]


def logprob_entries(
    tokens: Sequence[int], log_probs: Sequence[float], tokenizer: PreTrainedTokenizerBase
) -> list[dict[str, Any]]:
    entries = []
    written = tokenizer.convert_ids_to_tokens(list(tokens))
    for each, logprob in zip(written, log_probs, strict=True):
        raw = bytes(_bytes_by_letter()[letter] for letter in each)
        text = raw.decode(errors="replace")
        entries.append({"token": text, "bytes": list(raw), "logprob": logprob})
    return entries


@cache
def _bytes_by_letter() -> dict[str, int]:
    """Return the byte that each letter of a byte-level vocabulary stands for (OpenAI's GPT-2)."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {letter: byte for byte, letter in bytes_to_unicode().items()}
