"""Decodes windows with only this project's engine, without PyAV and silero-vad."""

from collections.abc import Hashable, Sequence

from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.request import DecodeOptions, Request
from whosaid.asr.engine.result import DecodeResult
from whosaid.transcript import DecodeStats


def decode(
    engine: DecodeEngine, windows: Sequence[Request], options: DecodeOptions
) -> tuple[dict[Hashable, DecodeResult], DecodeStats]:
    """Return the results of windows by key, and the statistics of decoding them."""
    results: dict[Hashable, DecodeResult] = {}
    with engine.session(options) as session:
        session.add(list(windows))
        while not session.done:
            results |= {request.key: result for request, result in session.step()}
    return results, session.stats
