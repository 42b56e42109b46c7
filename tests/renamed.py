"""An answer whose speakers are called something else, before anything is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from whosaid.answer.response import Answer


def renamed(answer: Answer, names: Mapping[str, str]) -> Answer:
    """The answer with the speakers that `names` has called by those names."""

    def each(items):
        return tuple(replace(item, speaker=names.get(item.speaker, item.speaker)) for item in items)

    def with_words(items):
        return tuple(replace(item, words=each(item.words)) for item in items)

    transcript = replace(answer.transcript, chunks=with_words(answer.transcript.chunks))
    segments = answer.segments and each(with_words(answer.segments))
    return replace(
        answer,
        transcript=transcript,
        segments=segments,
        turns=answer.turns and each(answer.turns),
    )
