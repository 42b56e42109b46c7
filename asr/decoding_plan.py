"""How a recording is decoded once its languages are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from asr.engine.request import DecodeOptions
from asr.output.chunks import ChunkReader


@dataclass(frozen=True, slots=True)
class InLanguage:
    """How windows of one language are decoded and read."""

    prompt: tuple[int, ...]
    reader: ChunkReader


@dataclass(frozen=True, slots=True)
class DecodingPlan:
    """How a recording is decoded whose languages are known: each of its languages in its own way.

    With `expects_one_language` a second one is warned of, between `warnings` and those `of_prompt`.
    """

    options: DecodeOptions
    languages: Mapping[str | None, InLanguage]
    expects_one_language: bool
    warnings: tuple[str, ...] = ()
    of_prompt: tuple[str, ...] = ()
