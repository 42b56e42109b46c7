"""The demo's Whisper: a small model with the configuration and files of published checkpoints.

Only width, depth and the text vocabulary are small. Special tokens, generation settings and files
are those of Whisper large-v3, so that transformers, faster-whisper and this endpoint load the
folder like any other.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)
from transformers.models.whisper.tokenization_whisper import LANGUAGES

from extras.demo_models.corpus import MELS
from tests.support.speech import draw_sentence
from tests.support.tiny_whispers import END_OF_TEXT, whisper_tokenizer

ALIGNMENT_HEADS = ((2, 0), (2, 1), (3, 0), (3, 1))
TIMESTAMP_SCALE = 0.05
SENTENCES, TEXT_ENTRIES = 3000, 800
SPACE = "Ġ"  # how byte-level BPE writes it
LANGUAGE_TOKENS = [f"<|{code}|>" for code in LANGUAGES]
AFTER_LANGUAGES = [
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
]


def demo_tokenizer() -> WhisperTokenizer:
    """Return byte-level BPE of sentences of the grammar, with Whisper's special tokens; always the
    same one. Every word is trained with its leading space.
    """
    generator = np.random.default_rng(0)
    sentences = (f" {draw_sentence(generator)}" for _ in range(SENTENCES))
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=TEXT_ENTRIES, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(sentences, trainer)
    state = json.loads(bpe.to_str())["model"]
    merges = [(left, right) for left, right in state["merges"]]
    special = ["<|startoftranscript|>", *LANGUAGE_TOKENS, *AFTER_LANGUAGES]
    return whisper_tokenizer(state["vocab"], merges, special)


def new_model(tokenizer: WhisperTokenizer) -> WhisperForConditionalGeneration:
    """Return a model with random weights, except the embeddings of timestamps.

    These start as the encoder's sinusoids: both stand for a position in the window.
    """
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
        **_token_ids(tokenizer),
    )
    model = WhisperForConditionalGeneration(config)
    model.generation_config = generation_config(tokenizer)
    first = tokenizer.get_vocab()["<|0.00|>"]
    positions = model.model.encoder.embed_positions.weight
    with torch.no_grad():
        model.model.decoder.embed_tokens.weight[first : first + len(positions)] = (
            positions * TIMESTAMP_SCALE
        )
    return model


def generation_config(tokenizer: WhisperTokenizer) -> GenerationConfig:
    """Return Whisper's generation settings, without its bound on the first timestamp.

    Windows here may begin with any length of silence.
    """
    ids = tokenizer.get_vocab()
    return GenerationConfig(
        **_token_ids(tokenizer),
        alignment_heads=[list(head) for head in ALIGNMENT_HEADS],
        is_multilingual=True,
        lang_to_id={name: ids[name] for name in LANGUAGE_TOKENS},
        task_to_id={task: ids[f"<|{task}|>"] for task in ("transcribe", "translate")},
        no_timestamps_token_id=ids["<|notimestamps|>"],
        prev_sot_token_id=ids["<|startofprev|>"],
        max_initial_timestamp_index=None,
        max_length=448,
        return_timestamps=False,
    )


def save_checkpoint(
    model: WhisperForConditionalGeneration, tokenizer: WhisperTokenizer, folder: Path
) -> None:
    """Write a folder that `from_pretrained` loads: float16 safetensors, settings, processor."""
    half = WhisperForConditionalGeneration(model.config)
    half.load_state_dict(model.state_dict())
    half.generation_config = model.generation_config
    half.half().save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=MELS).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    save_for_transformers_4(folder)


def save_for_transformers_4(folder: Path) -> None:
    """Add to what transformers 5 wrote into `folder` what transformers 4 reads of a tokenizer: its
    vocabulary in files of their own, and its special tokens under their old name.
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


def _write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(f"{json.dumps(value, indent=2, ensure_ascii=False)}\n", encoding="utf-8")


def _token_ids(tokenizer: WhisperTokenizer) -> dict[str, Any]:
    """Return the settings that model and generation configurations share."""
    ids = tokenizer.get_vocab()
    end, start = ids[END_OF_TEXT], ids["<|startoftranscript|>"]
    suppressed = [ids[token] for token in AFTER_LANGUAGES if token != "<|notimestamps|>"]
    return {
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "decoder_start_token_id": start,
        "suppress_tokens": sorted([start, *suppressed]),
        "begin_suppress_tokens": [ids[SPACE], end],
    }
