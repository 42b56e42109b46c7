"""What a client may write for a language."""

from __future__ import annotations

import pytest

from asr.checkpoint.languages import language_code, language_name


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("en", "en"),
        ("EN", "en"),
        (" German ", "de"),
        ("castilian", "es"),
        ("Cantonese", "yue"),
        ("haitian creole", "ht"),
    ],
)
def test_codes_names_and_aliases_in_any_case(text, code):
    assert language_code(text) == code


@pytest.mark.parametrize("text", ["", "klingon", "e", "<|en|>", "en-US"])
def test_other_text_is_no_language(text):
    assert language_code(text) is None


def test_a_name_for_messages():
    assert language_name("en") == "English"
