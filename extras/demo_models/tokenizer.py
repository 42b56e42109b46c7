"""The demo's tokenizer: Whisper's special tokens over a small vocabulary.

The special tokens are all of Whisper large-v3's, in its order, so that any program for Whisper can
read the tokenizer. Only the text tokens before them are fewer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import WhisperTokenizer
from transformers.models.whisper.tokenization_whisper import LANGUAGES

from tests.support.tiny_whispers import whisper_tokenizer

TEXT_ENTRIES = 800
SPACE = "Ġ"  # how byte-level BPE writes it
AFTER_LANGUAGES = [
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
]


def language_tokens() -> list[str]:
    """Return the language tokens of Whisper large-v3, in its order."""
    return [f"<|{code}|>" for code in LANGUAGES]


def token_id(tokenizer: WhisperTokenizer, token: str) -> int:
    """Return the id of `token`. Raises ValueError if the tokenizer has no such token."""
    number = tokenizer.convert_tokens_to_ids(token)
    if not isinstance(number, int) or tokenizer.convert_ids_to_tokens(number) != token:
        raise ValueError(f"the tokenizer has no token {token}")
    return number


def train_tokenizer(sentences: Iterable[str]) -> WhisperTokenizer:
    """Train byte-level BPE on the sentences and append Whisper's special tokens.

    Every word is trained with its leading space.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=TEXT_ENTRIES, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator((f" {sentence}" for sentence in sentences), trainer)
    state = json.loads(bpe.to_str())["model"]
    merges = [(left, right) for left, right in state["merges"]]
    special = ["<|startoftranscript|>", *language_tokens(), *AFTER_LANGUAGES]
    return whisper_tokenizer(state["vocab"], merges, special)
