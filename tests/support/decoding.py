"""Windows decoded by this project's engine alone, without PyAV and silero-vad."""

from collections.abc import Hashable, Sequence

from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.request import DecodeOptions, Request
from whosaid.asr.engine.result import DecodeResult
from whosaid.asr.engine.session import Session
from whosaid.transcript import DecodeStats


def decode(
    engine: DecodeEngine, windows: Sequence[Request], options: DecodeOptions
) -> tuple[dict[Hashable, DecodeResult], DecodeStats]:
    """Return the results of windows by key, and the statistics of decoding them."""
    with engine.session(options) as session:
        session.add(windows)
        return drained(session), session.stats


def drained(session: Session) -> dict[Hashable, DecodeResult]:
    """Return the results of a session's remaining steps, by key."""
    results: dict[Hashable, DecodeResult] = {}
    while not session.done:
        results |= {request.key: result for request, result in session.step()}
    return results
