"""Log-probabilities of the text's tokens, with the tokens' bytes."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from whosaid.live.events import Delta
from whosaid.transcript import Chunk

TokenBytes = Callable[[Sequence[int]], list[bytes]]  # of `Transcriber`


def token_logprobs(parts: Iterable[Chunk | Delta], token_bytes: TokenBytes) -> list[dict[str, Any]]:
    """Return an entry for each token of the parts, in order; their joined bytes are the text's."""
    return [
        {"token": raw.decode(errors="replace"), "bytes": list(raw), "logprob": logprob}
        for part in parts
        for raw, logprob in zip(token_bytes(part.tokens), part.log_probs, strict=True)
    ]
