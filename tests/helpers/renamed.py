"""Answers with renamed speakers."""

from collections.abc import Mapping
from dataclasses import replace

from whosaid.answer.response import Answer


def renamed(answer: Answer, names: Mapping[str, str]) -> Answer:
    def each(items):
        return tuple(replace(item, speaker=names.get(item.speaker, item.speaker)) for item in items)

    def with_words(items):
        return tuple(replace(item, words=each(item.words)) for item in items)

    transcript = replace(answer.transcript, chunks=with_words(answer.transcript.chunks))
    segments = answer.segments and each(with_words(answer.segments))
    return replace(
        answer, transcript=transcript, segments=segments, turns=answer.turns and each(answer.turns)
    )
