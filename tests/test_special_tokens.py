"""Special tokens as published checkpoints have them, complete or not, and prompts made of them."""

from dataclasses import replace

import pytest
from transformers import GenerationConfig

from tests.support.tiny_whispers import (
    LARGE_V3,
    PUBLISHED,
    SMALL,
    SMALL_ENGLISH,
    generation_config_of,
    model_of,
    tokenizer_of,
)
from whosaid.asr.checkpoint.special_tokens import SpecialTokens, read_special_tokens
from whosaid.errors import StartError


def read(shape, generation_config: GenerationConfig | None = None) -> SpecialTokens:
    config, generation = model_of(shape).config, generation_config or generation_config_of(shape)
    return read_special_tokens("tiny", config, generation, tokenizer_of(shape))


def test_large_v3_as_published():
    special_tokens = read(LARGE_V3)
    assert special_tokens.start_of_transcript == 50_258
    assert special_tokens.no_speech == 50_363
    assert special_tokens.timestamp_begin == 50_365
    assert special_tokens.languages["yue"] == 50_358
    expected = (50_258, 50_261, 50_359, 50_364)
    assert special_tokens.prompt("de", "translate", timestamps=False) == expected


def test_an_english_only_checkpoint_has_no_languages_or_tasks():
    assert read(SMALL_ENGLISH).languages == {}
    special_tokens = read(PUBLISHED["tiny.en"])
    assert special_tokens.prompt("en", "transcribe", timestamps=True) == (50_257,)
    assert special_tokens.prompt("en", "transcribe", timestamps=False) == (50_257, 50_362)


@pytest.mark.parametrize("missing", ["lang_to_id", "task_to_id", "no_timestamps_token_id"])
def test_fields_missing_in_a_checkpoint_come_from_its_tokenizer(missing):
    generation_config = generation_config_of(SMALL)
    delattr(generation_config, missing)
    assert read(SMALL, generation_config) == read(SMALL)


@pytest.mark.parametrize(
    ("shape", "multilingual"), [(PUBLISHED["tiny"], True), (PUBLISHED["tiny.en"], False)]
)
def test_an_old_checkpoint_is_multilingual_by_vocabulary_size(shape, multilingual):
    generation_config = generation_config_of(shape)
    for field in ("is_multilingual", "lang_to_id", "task_to_id"):
        if hasattr(generation_config, field):
            delattr(generation_config, field)
    assert read(shape, generation_config) == read(shape)
    assert read(shape, generation_config).multilingual is multilingual


def test_a_list_of_end_tokens_means_the_first():
    generation_config = generation_config_of(SMALL)
    generation_config.eos_token_id = [400, 3]
    assert read(SMALL, generation_config).end_of_text == 400


@pytest.mark.parametrize(
    ("languages", "field", "value", "said"),
    [
        (0, "no_timestamps_token_id", None, r"no <\|notimestamps\|> token"),
        (SMALL.languages, "lang_to_id", {}, "names no languages"),
    ],
)
def test_missing_timestamps_or_languages_are_refused(languages, field, value, said):
    shape = replace(SMALL, languages=languages)
    generation_config, tokenizer = generation_config_of(SMALL), tokenizer_of(shape)
    setattr(generation_config, field, value)
    tokenizer.get_vocab = dict
    with pytest.raises(StartError, match=f"tiny: .* {said}"):
        read_special_tokens("tiny", model_of(SMALL).config, generation_config, tokenizer)
