"""Names of languages that a client may send."""

import pytest
from pydantic_core import PydanticCustomError
from transformers.models.whisper.tokenization_whisper import LANGUAGES, TO_LANGUAGE_CODE

from config import InferenceConfig
from whosaid.endpoint.request import read_body
from whosaid.payload import languages


def test_whispers_languages_are_those_of_transformers():
    assert tuple(LANGUAGES) == languages.CODES
    assert {code: languages.language_name(code).lower() for code in languages.CODES} == LANGUAGES
    for name, code in TO_LANGUAGE_CODE.items():
        assert languages.language_code(name) == languages.language_code(code) == code


# Codes and English names; tags and locales; ISO 639-2, 639-3 and old codes; own names.
FORMS = {
    "en": "en EN en-US en_US en_US.UTF-8 eng", "de": "de_DE@euro de-DE-1996 deu ger Deutsch",
    "es": "castilian es-419", "fr": "français FRANCAIS", "he": "iw", "hi": "हिन्दी",
    "ht": "haitian_creole", "id": "in", "ja": "日本語", "jw": "jv", "nn": "nno",
    "no": "no nb nb-NO", "pt": "pt-BR", "ru": "русский", "sr": "sh", "tl": "fil", "tr": "Türkçe",
    "uz": "O\u2018zbek", "yi": "ji", "yue": "Cantonese zh-yue-HK",
    "zh": "zh-TW zh_CN zh-Hans zh-cmn-Hans-CN cmn 中文",
}  # fmt: skip
OF_WORDS = {" German ": "de", "haitian creole": "ht", "Português (Brasil)": "pt"}
OF_WORDS |= {"Chinese (Traditional)": "zh", "norsk bokmål": "no"}


@pytest.mark.parametrize(
    ("text", "code"),
    [*((text, code) for code, texts in FORMS.items() for text in texts.split()), *OF_WORDS.items()],
)
def test_a_language_is_read_in_every_form(text, code):
    assert languages.language_code(text) == code
    assert InferenceConfig.read({"language": text}).language == code
    assert InferenceConfig.read({"language": text}, as_text=True).language == code


@pytest.mark.parametrize(
    "text",
    ["auto", "AUTO", "detect", "Auto Detect", "", " ", "null", "None", "undefined", "multi", None],
)
def test_no_language_is_asked_for_in_many_words(text):
    assert InferenceConfig.read({"language": text}).language is None


@pytest.mark.parametrize(
    "text", ["xx", "klingon", "e", "<|en|>", "en US!", "eo", "gsw", "1", "x" * 10_000]
)
def test_other_text_is_no_language(text):
    assert languages.language_code(text) is None
    with pytest.raises(ValueError, match=r"^language: should be a language that Whisper knows"):
        InferenceConfig.read({"language": text})


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("germn", "German (de)"),
        ("englisch", "English (en)"),
        ("Deutch", "German (de)"),
        ("jp", "Japanese (ja)"),
    ],
)
def test_misspelt_name_is_refused_with_the_nearest(text, near):
    with pytest.raises(PydanticCustomError) as refused:
        languages.parse_language(text)
    assert str(refused.value).endswith(f"did you mean {near}?")
    assert text not in str(refused.value).split("did you mean")[0]


@pytest.mark.parametrize(
    ("text", "script"),
    [
        *((each, "Hant") for each in ("zh-TW", "zh_HK", "zh-Hant", "繁體中文")),
        ("Chinese (Traditional)", "Hant"),
        *((each, "Latn") for each in ("sr-Latn-RS", "ja-Latn")),
    ],
)
def test_a_script_that_whisper_may_not_write_is_warned_of(text, script):
    _, _, (warning,) = read_body({"inputs": "", "parameters": {"language": text}})
    assert warning == languages.script_warning(text)
    assert warning.startswith("language: Whisper chooses the script of ")
    assert warning.endswith(f"may not write {script}")


@pytest.mark.parametrize(
    "text", ["zh", "zh-CN", "zh-Hans", "zh-Hans-SG", "yue-HK", "yue-Hant", "en-US", "de-Latn", None]
)
def test_region_or_script_without_effect_gives_no_warning(text):
    assert read_body({"inputs": "", "parameters": {"language": text}})[2] == ()


def test_languages_are_the_same_in_every_form():
    assert languages.distinct_languages(["de", "auto", "deu", "German", "", "de-AT"]) == ["de"]
    assert languages.distinct_languages(["zh-TW", "zh", "en"]) == ["zh-TW", "en"]
