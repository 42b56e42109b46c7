"""The demo's Whisper: a small model with the configuration and files of published checkpoints.

Only width, depth and the text vocabulary are small. Special tokens, generation settings and files
are those of Whisper large-v3, so that transformers, faster-whisper and this endpoint load the
folder like any other.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import WhisperConfig, WhisperForConditionalGeneration, WhisperTokenizer
from transformers.models.whisper.tokenization_whisper import LANGUAGES

from extras.demo_models.corpus import MELS, WHISPER
from tests.support.speech import draw_sentence
from tests.support.tiny_whispers import (
    AFTER_LANGUAGES,
    Published,
    generation_config_of,
    whisper_tokenizer,
)

ALIGNMENT_HEADS = ((2, 0), (2, 1), (3, 0), (3, 1))
TIMESTAMP_SCALE = 0.05
SENTENCES, TEXT_ENTRIES = 3000, 800
SPACE = "Ġ"  # how byte-level BPE writes it
SPECIAL = [f"<|{name}|>" for name in ("startoftranscript", *LANGUAGES, *AFTER_LANGUAGES)]
# Settings of the generation that the model's configuration repeats.
SHARED_SETTINGS = (
    *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"),
    *("suppress_tokens", "begin_suppress_tokens"),
)
LISTING = "SHA256SUMS"


def demo_tokenizer() -> WhisperTokenizer:
    """Return byte-level BPE of sentences of the grammar, with Whisper's special tokens; always the
    same one. Every word is trained with its leading space.
    """
    generator = np.random.default_rng(0)
    sentences = (f" {draw_sentence(generator)}" for _ in range(SENTENCES))
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=TEXT_ENTRIES, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(sentences, trainer)
    state = json.loads(bpe.to_str())["model"]
    merges = [(left, right) for left, right in state["merges"]]
    return whisper_tokenizer(state["vocab"], merges, SPECIAL)


def new_model(tokenizer: WhisperTokenizer) -> WhisperForConditionalGeneration:
    """Return a model with random weights, except the embeddings of timestamps.

    These start as the encoder's sinusoids: both stand for a position in the window. Any length of
    silence may precede the first timestamp, and no symbol is suppressed.
    """
    end = tokenizer.eos_token_id
    generation: Any = generation_config_of(Published(text_entries=end, languages=len(LANGUAGES)))
    generation.alignment_heads = [list(head) for head in ALIGNMENT_HEADS]
    generation.max_initial_timestamp_index = None
    generation.suppress_tokens = [token for token in generation.suppress_tokens if token > end]
    config = WhisperConfig(
        vocab_size=len(tokenizer),
        num_mel_bins=MELS,
        d_model=160,
        encoder_layers=3,
        decoder_layers=4,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=640,
        decoder_ffn_dim=640,
        **{name: getattr(generation, name) for name in SHARED_SETTINGS},
    )
    model = WhisperForConditionalGeneration(config)
    model.generation_config = generation
    first = tokenizer.get_vocab()["<|0.00|>"]
    positions = model.model.encoder.embed_positions.weight
    with torch.no_grad():
        model.model.decoder.embed_tokens.weight[first : first + len(positions)] = (
            positions * TIMESTAMP_SCALE
        )
    return model


def save_checkpoint(
    model: WhisperForConditionalGeneration, tokenizer: WhisperTokenizer, folder: Path
) -> None:
    """Write a folder that `from_pretrained` loads: float16 safetensors, settings, processor."""
    half = WhisperForConditionalGeneration(model.config)
    half.load_state_dict(model.state_dict())
    half.generation_config = model.generation_config
    half.half().save_pretrained(folder)
    WHISPER.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _save_for_transformers_4(folder)
    write_checksums(folder)


def _save_for_transformers_4(folder: Path) -> None:
    """Add the tokenizer files that transformers 4 reads to transformers 5's in `folder`: the
    vocabulary in separate files, and the special tokens under their old name.
    """
    saved = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    added = {token["content"]: token["id"] for token in saved["added_tokens"]}
    _write_json(folder / "vocab.json", saved["model"]["vocab"])
    _write_json(folder / "added_tokens.json", added)
    merges = "".join(f"{left} {right}\n" for left, right in saved["model"]["merges"])
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}", encoding="utf-8")
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text(encoding="utf-8"))
    settings["additional_special_tokens"] = settings.pop("extra_special_tokens")
    _write_json(file, dict(sorted(settings.items())))


def write_checksums(folder: Path) -> None:
    """List every file below `folder` but Markdown in its SHA256SUMS, as sha256sum does. The
    endpoint checks the list before it loads the folder.
    """
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".md")
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n"
        for path in files
        if path.name != LISTING
    ]
    (folder / LISTING).write_text("".join(lines), encoding="utf-8")


def _write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(f"{json.dumps(value, indent=2, ensure_ascii=False)}\n", encoding="utf-8")
