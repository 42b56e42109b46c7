"""The demo's Whisper: a small model with the configuration and files of published checkpoints.

Only width and depth are small. Special tokens, generation settings and files are those of Whisper
large-v3, so that transformers, faster-whisper and this endpoint load the folder like any other.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)

from extras.demo_models.corpus import MELS
from extras.demo_models.tokenizer import (
    AFTER_LANGUAGES,
    SPACE,
    language_tokens,
    token_id,
)
from tests.support.tiny_whispers import END_OF_TEXT

ALIGNMENT_HEADS = ((2, 0), (2, 1), (3, 0), (3, 1))
TIMESTAMP_SCALE = 0.05


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
    first = token_id(tokenizer, "<|0.00|>")
    positions = model.model.encoder.embed_positions.weight
    with torch.no_grad():
        model.model.decoder.embed_tokens.weight[first : first + len(positions)] = (
            positions * TIMESTAMP_SCALE
        )
    return model


def generation_config(tokenizer: WhisperTokenizer) -> GenerationConfig:
    """Whisper's generation settings, without its bound on the first timestamp.

    Windows here may begin with any length of silence.
    """
    return GenerationConfig(
        **_token_ids(tokenizer),
        alignment_heads=[list(head) for head in ALIGNMENT_HEADS],
        is_multilingual=True,
        lang_to_id={name: token_id(tokenizer, name) for name in language_tokens()},
        task_to_id={
            task: token_id(tokenizer, f"<|{task}|>") for task in ("transcribe", "translate")
        },
        no_timestamps_token_id=token_id(tokenizer, "<|notimestamps|>"),
        prev_sot_token_id=token_id(tokenizer, "<|startofprev|>"),
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
    end, start = token_id(tokenizer, END_OF_TEXT), token_id(tokenizer, "<|startoftranscript|>")
    suppressed = (
        start,
        *(token_id(tokenizer, token) for token in AFTER_LANGUAGES if token != "<|notimestamps|>"),
    )
    return {
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "decoder_start_token_id": start,
        "suppress_tokens": sorted(suppressed),
        "begin_suppress_tokens": [token_id(tokenizer, SPACE), end],
    }
