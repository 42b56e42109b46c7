"""The special tokens of a checkpoint, and the prompts made of them.

Special tokens are read when a checkpoint is loaded, from its generation configuration. Fields that
older and distilled checkpoints leave out are read from the tokenizer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import GenerationConfig, PretrainedConfig, PreTrainedTokenizerBase

from whosaid.errors import StartError
from whosaid.payload.languages import CODES, ENGLISH

# The smallest multilingual vocabulary (openai/whisper's test, `model.py`), for checkpoints whose
# configuration does not say.
MULTILINGUAL_SIZE = 51_865
CRISPER_MARK = "[verbatim_1]"
ANNOTATION_STARTS = ("[", "(", "{", "<", "*", "♪", "♩", "♫", "♬")


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Ids of Whisper's special tokens, and limits that depend on the vocabulary.

    Text tokens are below `end_of_text`, timestamps from `timestamp_begin` on; `size` counts all
    tokens. `suppress` are never sampled, `begin_suppress` are not sampled as the first token. The
    first timestamp is at most `max_initial_timestamp_index` steps of 20 ms. A sequence has at most
    `max_length` tokens. `start_of_previous` (<|startofprev|>) is None if the vocabulary lacks the
    token: such a model takes no prompt. `annotations` are the tokens of `suppress` that begin with
    a bracket, an asterisk or a note: captions mark laughter and music with them.
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
    annotations: tuple[int, ...] = ()

    @property
    def timestamp_begin(self) -> int:
        """Return the id of <|0.00|>; each further id is 20 ms later."""
        return self.no_timestamps + 1

    @property
    def longest_previous(self) -> int:
        """Return the largest number of tokens of previous text in a prompt.

        As in openai/whisper, the limit is half of `max_length` less <|startofprev|>.
        """
        return self.max_length // 2 - 1

    def text_tokens(self, tokens: Iterable[int]) -> list[int]:
        """Return `tokens` without special tokens and timestamps."""
        return [token for token in tokens if token < self.end_of_text]

    def prompt(
        self, language: str | None, task: str, timestamps: bool, previous: tuple[int, ...] = ()
    ) -> tuple[int, ...]:
        """Return the tokens that precede a window's text, `previous` ones of earlier text included;
        a prompt of an English-only checkpoint has neither language nor task.
        """
        tokens: list[int] = []
        if previous and self.start_of_previous is not None:
            tokens += [self.start_of_previous, *previous]
        tokens.append(self.start_of_transcript)
        if self.multilingual and language:
            tokens += [self.languages[language], self.tasks[task]]
        if not timestamps:
            tokens.append(self.no_timestamps)
        return tuple(tokens)

    def written_language(self, prompt: Sequence[int]) -> str | None:
        """Return the code of the language of a text after `prompt`; None without languages."""
        if self.tasks.get("translate") in prompt:
            return ENGLISH
        return next((code for code, token in self.languages.items() if token in prompt), None)

    def with_timestamps(self, prompt: tuple[int, ...], timestamps: bool) -> tuple[int, ...]:
        """Return `prompt`, changed to request a text with or without timestamps."""
        plain = prompt[:-1] if prompt[-1] == self.no_timestamps else prompt
        return plain if timestamps else (*plain, self.no_timestamps)


def read_special_tokens(
    name: str,
    config: PretrainedConfig,
    generation_config: GenerationConfig,
    tokenizer: PreTrainedTokenizerBase,
) -> SpecialTokens:
    """Read the special tokens of the checkpoint `name`. Raises StartError if it has no timestamps,
    or if it is multilingual and names no languages.
    """
    declared, entries = generation_config.to_dict(), tokenizer.get_vocab()
    no_timestamps = declared.get("no_timestamps_token_id") or entries.get("<|notimestamps|>")
    if no_timestamps is None:
        raise StartError(f"{name}: its vocabulary has no <|notimestamps|> token")
    multilingual = _is_multilingual(config, declared)
    languages = _languages(declared, entries) if multilingual else {}
    if multilingual and not languages:
        raise StartError(f"{name}: it is multilingual but names no languages")
    suppress = tuple(declared.get("suppress_tokens") or ())
    special = SpecialTokens(
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
        suppress=suppress,
        begin_suppress=tuple(declared.get("begin_suppress_tokens") or ()),
        max_initial_timestamp_index=declared.get("max_initial_timestamp_index"),
        max_length=config.max_target_positions,
        start_of_previous=declared.get("prev_sot_token_id") or entries.get("<|startofprev|>"),
        annotations=tuple(
            token
            for token in suppress
            if str(tokenizer.decode([token])).strip().startswith(ANNOTATION_STARTS)
        ),
    )
    _require_numbers(name, special, entries)
    return special


def _require_numbers(name: str, special: SpecialTokens, entries: dict[str, int]) -> None:
    """Raise StartError if a number is outside the vocabulary, or another one in the tokenizer.
    CrisperWhisper's tokenizer has other numbers.
    """
    if CRISPER_MARK in entries:
        raise StartError(f"{name} is a CrisperWhisper 2, whose prompts are not supported")
    numbers = {
        "<|endoftext|>": special.end_of_text,
        "<|startoftranscript|>": special.start_of_transcript,
        "<|notimestamps|>": special.no_timestamps,
        **{f"<|{each}|>": token for each, token in (special.languages | special.tasks).items()},
    }
    for token, number in numbers.items():
        if not 0 <= number < special.size:
            raise StartError(f"{name}: {token} has number {number} of {special.size} tokens")
        if (other := entries.get(token, number)) != number:
            raise StartError(
                f"{name}: its tokenizer numbers {token} {other}, its configuration {number}: "
                "use the tokenizer that it was trained with (CrisperWhisper's does not load)"
            )


def _is_multilingual(config: PretrainedConfig, declared: dict[str, Any]) -> bool:
    if declared.get("is_multilingual") is not None:
        return bool(declared["is_multilingual"])
    return bool(declared.get("lang_to_id")) or config.vocab_size >= MULTILINGUAL_SIZE


def _languages(declared: dict[str, Any], entries: dict[str, int]) -> dict[str, int]:
    if declared.get("lang_to_id"):
        return {token.strip("<|>"): index for token, index in declared["lang_to_id"].items()}
    return {code: entries[f"<|{code}|>"] for code in CODES if f"<|{code}|>" in entries}


def _tasks(declared: dict[str, Any], entries: dict[str, int]) -> dict[str, int]:
    if declared.get("task_to_id"):
        return dict(declared["task_to_id"])
    tasks = {task: entries.get(f"<|{task}|>") for task in ("transcribe", "translate")}
    return {task: token for task, token in tasks.items() if token is not None}


def _first(*values: int | list[int] | None) -> int:
    """Return the first value that is set, or its first token if it is a list."""
    value = next(value for value in values if value is not None)
    return value[0] if isinstance(value, list) else value
