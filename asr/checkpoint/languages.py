"""Which language a client means, in Whisper's own codes.

The one decision: codes, names and aliases come from the table that ships with the tokenizer, so
nothing is listed twice; which of them a checkpoint knows is the vocabulary's matter.
"""

from __future__ import annotations

from transformers.models.whisper.tokenization_whisper import LANGUAGES, TO_LANGUAGE_CODE

ENGLISH = "en"
CODES = tuple(LANGUAGES)


def language_code(text: str) -> str | None:
    """Whisper's code for a code or an English name ("DE", "German", "castilian"); None where there
    is no such.
    """
    wanted = text.strip().lower()
    if wanted in LANGUAGES:
        return wanted
    code: str | None = TO_LANGUAGE_CODE.get(wanted)
    return code


def language_name(code: str) -> str:
    """The English name of a code, capitalised, for messages."""
    return str(LANGUAGES.get(code, code)).title()
