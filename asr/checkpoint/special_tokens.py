"""The special tokens of one checkpoint: what steers Whisper and what its timestamps are called.

The one decision: these facts are read once, when a checkpoint is loaded, from its generation
configuration and, where an older or distilled checkpoint leaves a field out, from its tokenizer.
Nothing downstream asks again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import GenerationConfig, PretrainedConfig, PreTrainedTokenizerBase

from asr.checkpoint.languages import CODES
from errors import StartError

MULTILINGUAL_VOCABULARY = (
    51_865  # openai/whisper's own test for published checkpoints that do not say
)


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Ids of Whisper's special tokens; text tokens lie below `end_of_text`, timestamps from
    `timestamp_begin` on.
    """

    size: int
    end_of_text: int
    start_of_transcript: int
    no_speech: int
    no_timestamps: int
    multilingual: bool
    languages: dict[str, int]
    tasks: dict[str, int]
    suppress: tuple[int, ...]
    begin_suppress: tuple[int, ...]
    max_initial_timestamp_index: int | None
    max_length: int
    start_of_previous: int | None

    @property
    def timestamp_begin(self) -> int:
        """The id of <|0.00|>; ids rise by one every 20 ms."""
        return self.no_timestamps + 1

    @property
    def longest_previous(self) -> int:
        """How many tokens may be said to have come before: half of all, as openai/whisper, less the
        one announcing.
        """
        return self.max_length // 2 - 1

    def prompt(
        self, language: str | None, task: str, timestamps: bool, previous: tuple[int, ...] = ()
    ) -> tuple[int, ...]:
        """The tokens a window's decoding starts from; an English-only checkpoint takes neither
        language nor task.

        `previous` are tokens of text said before, at most `longest_previous` of them.
        """
        before = (
            (self.start_of_previous, *previous)
            if previous and self.start_of_previous is not None
            else ()
        )
        steering = (
            (self.languages[language], self.tasks[task]) if self.multilingual and language else ()
        )
        closing = () if timestamps else (self.no_timestamps,)
        return (*before, self.start_of_transcript, *steering, *closing)


def read_special_tokens(
    name: str,
    config: PretrainedConfig,
    generation_config: GenerationConfig,
    tokenizer: PreTrainedTokenizerBase,
) -> SpecialTokens:
    """Gather the facts of a checkpoint. StartError where it has no timestamps or, multilingual, no
    languages.
    """
    declared, entries = generation_config.to_dict(), tokenizer.get_vocab()
    no_timestamps = declared.get("no_timestamps_token_id") or entries.get("<|notimestamps|>")
    if no_timestamps is None:
        raise StartError(f"{name}: its vocabulary has no <|notimestamps|> token")
    multilingual = _is_multilingual(config, declared)
    languages = _languages(declared, entries) if multilingual else {}
    if multilingual and not languages:
        raise StartError(f"{name}: it is multilingual but names no languages")
    return SpecialTokens(
        size=config.vocab_size,
        end_of_text=_first(declared.get("eos_token_id"), config.eos_token_id),
        start_of_transcript=_first(
            declared.get("decoder_start_token_id"), config.decoder_start_token_id
        ),
        no_speech=no_timestamps - 1,
        no_timestamps=no_timestamps,
        multilingual=multilingual,
        languages=languages,
        tasks=_tasks(declared, entries) if multilingual else {},
        suppress=tuple(declared.get("suppress_tokens") or ()),
        begin_suppress=tuple(declared.get("begin_suppress_tokens") or ()),
        max_initial_timestamp_index=declared.get("max_initial_timestamp_index"),
        max_length=config.max_target_positions,
        start_of_previous=declared.get("prev_sot_token_id") or entries.get("<|startofprev|>"),
    )


def _is_multilingual(config: PretrainedConfig, declared: dict[str, Any]) -> bool:
    if declared.get("is_multilingual") is not None:
        return bool(declared["is_multilingual"])
    return bool(declared.get("lang_to_id")) or config.vocab_size >= MULTILINGUAL_VOCABULARY


def _languages(declared: dict[str, Any], entries: dict[str, int]) -> dict[str, int]:
    if declared.get("lang_to_id"):
        return {token.strip("<|>"): index for token, index in declared["lang_to_id"].items()}
    return {code: entries[f"<|{code}|>"] for code in CODES if f"<|{code}|>" in entries}


def _tasks(declared: dict[str, Any], entries: dict[str, int]) -> dict[str, int]:
    if declared.get("task_to_id"):
        return dict(declared["task_to_id"])
    return {
        task: entries[f"<|{task}|>"]
        for task in ("transcribe", "translate")
        if f"<|{task}|>" in entries
    }


def _first(*values: int | list[int] | None) -> int:
    """The first value that is set; a list of end tokens means its first."""
    value = next(value for value in values if value is not None)
    return value[0] if isinstance(value, list) else value
