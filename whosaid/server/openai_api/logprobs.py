"""Log-probabilities of the text's tokens, with the tokens' bytes.

Bytes come from the vocabulary and not from decoded text, because a token may hold only a part of a
character.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from transformers import PreTrainedTokenizerBase

from whosaid.live.events import Delta
from whosaid.transcript import Chunk


def token_logprobs(
    parts: Iterable[Chunk | Delta], tokenizer: PreTrainedTokenizerBase
) -> list[dict[str, Any]]:
    """Return an entry for each token of the parts, in order; their joined bytes are the text's."""
    entries = []
    for part in parts:
        written = tokenizer.convert_ids_to_tokens(list(part.tokens))
        for each, logprob in zip(written, part.log_probs, strict=True):
            raw = bytes(_bytes_by_letter()[letter] for letter in each)
            text = raw.decode(errors="replace")
            entries.append({"token": text, "bytes": list(raw), "logprob": logprob})
    return entries


@cache
def _bytes_by_letter() -> dict[str, int]:
    """Return the byte that each letter of a byte-level vocabulary stands for (OpenAI's GPT-2)."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {letter: byte for byte, letter in bytes_to_unicode().items()}
