"""Loads a Whisper checkpoint: weights, tokenizer, feature extractor, special tokens.

A checkpoint's generation configuration (forced tokens, beams, languages, thresholds) has no effect,
except for the few entries that `SpecialTokens` holds.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedTokenizerBase,
    WhisperFeatureExtractor,
)

from whosaid.asr.checkpoint.conditioning import DICOW, ENCODER, Conditioning, read_dicow
from whosaid.asr.checkpoint.ctranslate2 import generation_entries
from whosaid.asr.checkpoint.medusa import WHISPER_KEYS, MedusaHeads, is_medusa, read_heads
from whosaid.asr.checkpoint.opening import Opened, open_checkpoint, read_config
from whosaid.asr.checkpoint.quantised import unknown_tensor
from whosaid.asr.checkpoint.special_tokens import SpecialTokens, read_special_tokens
from whosaid.asr.checkpoint.weights import (
    PROJECTION,
    Tensors,
    Whisper,
    WhisperModel,
    find_file,
    hub_options,
    whisper_shapes,
)
from whosaid.errors import StartError
from whosaid.runtime.versions import tokenizer_arguments
from whosaid.timebase import SAMPLE_RATE, SAMPLES_PER_TOKEN, TOKENS_PER_SECOND

# Precisions of a CPU's large products; the weights stay float32.
PRODUCT_DTYPES = (torch.bfloat16, torch.int8)
FRAMES_PER_POSITION = 2  # the encoder's second convolution halves the mel frames
HOP_LENGTH = SAMPLES_PER_TOKEN // FRAMES_PER_POSITION
# The features of a checkpoint that states none.
WHISPERS_FEATURES = {"feature_size": 80, "chunk_length": 30, "n_fft": 400}
WHISPERS_FEATURES |= {"hop_length": HOP_LENGTH, "sampling_rate": SAMPLE_RATE}
LARGEST_N_FFT = 4096


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The source of a model: an absolute path, or a Hub id and a revision (None is the newest)."""

    name: str
    revision: str | None = None
    token: str | None = field(default=None, repr=False)

    @property
    def source(self) -> dict[str, Any]:
        """Return the arguments that every `from_pretrained` needs."""
        return {
            "pretrained_model_name_or_path": self.name,
            "revision": self.revision,
            "token": self.token,
        }


@dataclass(frozen=True, slots=True)
class Assistant:
    """A draft model.

    If `shares_encoder`, the model is a decoder alone and reads the main model's encoder output.
    `only_language` is the model's single language, None if it is multilingual.
    """

    name: str
    model: WhisperModel
    shares_encoder: bool
    only_language: str | None


@dataclass(frozen=True, slots=True)
class WhisperModels:
    """A main model and its drafter, if any: an assistant or Medusa heads. Shared by threads.

    `product_dtype` is the precision of a CPU's large products, bfloat16 or int8; None stands for
    the precision of the weights. `checkpoint` is the source of the main model, if it was loaded.
    With `conditioning`, the encoder can follow one speaker.
    """

    name: str
    model: WhisperModel
    tokenizer: PreTrainedTokenizerBase
    feature_extractor: WhisperFeatureExtractor
    special_tokens: SpecialTokens
    assistant: Assistant | None = None
    product_dtype: torch.dtype | None = None
    medusa: MedusaHeads | None = None
    checkpoint: Checkpoint | None = None
    conditioning: Conditioning | None = None

    @property
    def device(self) -> torch.device:
        return torch.device(self.model.device)

    @property
    def window_seconds(self) -> float:
        """Return the length of a window: 30 seconds in every published checkpoint."""
        return float(self.feature_extractor.chunk_length)

    @property
    def timestamps(self) -> range:
        """Return the ids of the timestamp tokens, the last of the vocabulary."""
        return range(self.special_tokens.timestamp_begin, self.model.config.vocab_size)

    def text_of(self, tokens: Iterable[int]) -> str:
        return str(self.tokenizer.decode(list(tokens)))

    def tokens_of(self, text: str) -> list[int]:
        """Tokenize a client's text; names of special tokens in it are plain text."""
        tokens = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return self.special_tokens.text_tokens(tokens)

    def bytes_of(self, tokens: Iterable[int]) -> list[bytes]:
        """Return the UTF-8 of each text token, which may be only a part of a character."""
        written = self.tokenizer.convert_ids_to_tokens(list(tokens))
        return [bytes(map(_bytes_by_letter().__getitem__, each)) for each in written]


@cache
def _bytes_by_letter() -> dict[str, int]:
    """Return the byte that each letter of a byte-level vocabulary stands for (OpenAI's GPT-2)."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {letter: byte for byte, letter in bytes_to_unicode().items()}


def load_whisper(checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> WhisperModels:
    """Load the main model in `dtype`; on a CPU, bfloat16 or int8 applies to large products alone.

    Raises StartError if the checkpoint is not a usable Whisper, and errors of transformers.
    """
    opened = open_checkpoint(checkpoint.source)
    config = read_config(opened)
    feature_extractor = read_feature_extractor(opened, config)
    tokenizer = read_tokenizer(opened, config)
    product_dtype = dtype if device.type == "cpu" and dtype in PRODUCT_DTYPES else None
    stored = dtype if product_dtype is None else torch.float32
    with_heads = is_medusa(config)
    prefix = WHISPER_KEYS if with_heads else ""
    model = load_model(opened, config, tokenizer, device, stored, prefix=prefix)
    medusa = read_heads(opened.tensors, opened.entries, model) if with_heads else None
    special = read_special_tokens(checkpoint.name, config, model.generation_config, tokenizer)
    return WhisperModels(
        checkpoint.name,
        model,
        tokenizer,
        feature_extractor,
        special,
        product_dtype=product_dtype,
        medusa=medusa,
        checkpoint=checkpoint,
        conditioning=read_dicow(opened.tensors, model),
    )


def load_model(
    opened: Opened,
    config: PretrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    device: torch.device,
    dtype: torch.dtype,
    encoder: bool = True,
    prefix: str = "",
) -> Whisper:
    """Load a checkpoint's weights, the decoder's alone if not `encoder`.

    Names in the files begin with `prefix`, after which "model." may be missing. Raises StartError
    if a weight is missing, unknown, damaged or of another shape.
    """
    expected = whisper_shapes(config, encoder)
    names = _names_by_key(expected, opened.tensors, prefix, DICOW in (config.architectures or ()))
    shapes = {key: expected[name] for key, name in names.items()}
    weights = {
        names[key]: weight.to(device, dtype, copy=True)
        for key, weight in opened.tensors.read(shapes)
    }
    return Whisper(config, _generation_config(opened, config, tokenizer), weights)


def _names_by_key(
    expected: Iterable[str], files: Tensors, prefix: str, dicow: bool
) -> dict[str, str]:
    """Return a model's weight names by their keys in the files. Raises StartError if a weight is
    missing, or if there is another: such a model computes something else. A bias of keys is left
    out, because attention does not depend on it.
    """
    names = {}
    for name in expected:
        keys = prefix + name, prefix + name.removeprefix("model.")
        names[next((key for key in keys if key in files.keys), keys[0])] = name
    has_encoder = any(name.startswith(ENCODER) for name in names.values())
    for key in sorted(set(files.keys) - names.keys() - {prefix + PROJECTION}):
        name = f"model.{key.removeprefix(prefix).removeprefix('model.')}"
        of_dicow = dicow and not name.startswith(f"{ENCODER}layers.")  # `read_dicow` checks these
        unread = name.startswith(ENCODER) and (of_dicow or not has_encoder)
        part = name.startswith((ENCODER, "model.decoder.", "model.proj_out."))
        known = unread or name.endswith("k_proj.bias")
        if key.startswith(prefix) and not known and (prefix or part):
            raise unknown_tensor(files.name, key)
    if missing := [key for key in names if key not in files.keys]:
        raise StartError(f"{files.name} lacks {missing[0]}")
    return names


def _generation_config(
    opened: Opened, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase
) -> GenerationConfig:
    """Read generation_config.json, or derive it from config.json if there is none."""
    try:
        return GenerationConfig.from_pretrained(
            opened.source["pretrained_model_name_or_path"], **hub_options(opened.source)
        )
    except OSError:
        entries = generation_entries(opened.entries, tokenizer.get_vocab())
        if entries is not None:
            return GenerationConfig.from_dict(entries)
        return GenerationConfig.from_model_config(config)


def read_tokenizer(opened: Opened, config: PretrainedConfig) -> PreTrainedTokenizerBase:
    """Load a checkpoint's tokenizer, without clean-up, of which Whisper's warns. Raises StartError
    if its files are missing. Without the `config`, a DiCoW's own code would have to run.
    """
    if not any(find_file(opened.source, file) for file in ("tokenizer.json", "vocab.json")):
        raise StartError(
            f"{opened.name} lacks tokenizer.json: copy it from the model that this one was made "
            "from, such as openai/whisper-base"
        )
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        **opened.source, **tokenizer_arguments(), clean_up_tokenization_spaces=False, config=config
    )
    return tokenizer


def read_feature_extractor(opened: Opened, config: PretrainedConfig) -> WhisperFeatureExtractor:
    """Return the extractor that a checkpoint states, or `config` implies; its entries are checked
    before its filters take memory. Raises StartError if its features are not the encoder's.
    """
    entries: Mapping[str, Any] = {
        "feature_size": config.num_mel_bins,
        "chunk_length": config.max_source_positions // TOKENS_PER_SECOND,
    }
    for file in ("processor_config.json", "preprocessor_config.json"):
        if path := find_file(opened.source, file):
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            whole = content if file == "preprocessor_config.json" else entries
            entries = content.get("feature_extractor", whole)
    stated = {**WHISPERS_FEATURES, **entries}
    n_fft, time = stated["n_fft"], (stated["hop_length"], stated["sampling_rate"])
    if type(n_fft) is not int or not 1 < n_fft <= LARGEST_N_FFT:
        raise StartError(f"{opened.name}: n_fft is {n_fft!r}, not a number to {LARGEST_N_FFT}")
    if time != (HOP_LENGTH, SAMPLE_RATE):
        raise StartError(f"{opened.name}: hop_length and sampling_rate are {time}, not Whisper's")
    bins, frames = stated["feature_size"], stated["chunk_length"] * SAMPLE_RATE // HOP_LENGTH
    expected_frames = config.max_source_positions * FRAMES_PER_POSITION
    if (bins, frames) != (config.num_mel_bins, expected_frames):
        raise StartError(
            f"{opened.name}: its feature extractor makes {bins} mel bins by {frames} frames, "
            f"its encoder reads {config.num_mel_bins} by {expected_frames}"
        )
    return WhisperFeatureExtractor(**entries)
