"""Whisper's language codes for what a client writes, and their English names.

Codes, names and aliases come from the table that ships with transformers' Whisper tokenizer, so
that nothing is listed twice. Which of them a checkpoint knows is a fact of its `SpecialTokens`.
"""

from __future__ import annotations

from transformers.models.whisper.tokenization_whisper import LANGUAGES, TO_LANGUAGE_CODE

ENGLISH = "en"
CODES = tuple(LANGUAGES)


def language_code(text: str) -> str | None:
    """Whisper's code for a code or an English name ("DE", "German", "castilian"); None for any
    other text.
    """
    wanted = text.strip().lower()
    if wanted in LANGUAGES:
        return wanted
    code: str | None = TO_LANGUAGE_CODE.get(wanted)
    return code


def language_name(code: str) -> str:
    """The English name of a code, capitalised, for messages; the code itself if it is unknown."""
    return str(LANGUAGES.get(code, code)).title()
