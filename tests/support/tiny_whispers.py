"""Whisper checkpoints with random weights, small enough to make in a test, and their vocabularies.

Width and depth shrink; all that steers decoding stays as published: the numbers of the special
tokens, mel bins, the flags and lists of the generation configuration. Nothing is downloaded."""

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers.models.whisper.tokenization_whisper import LANGUAGES

from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.asr.checkpoint.special_tokens import read_special_tokens
from whosaid.asr.checkpoint.weights import WhisperModel, below
from whosaid.asr.frontend.vad import STEP, find_speech
from whosaid.asr.frontend.windows import SampleSpan

END_OF_TEXT = "<|endoftext|>"
TIMESTAMPS = [f"<|{0.02 * step:.2f}|>" for step in range(1501)]
TASKS = ("translate", "transcribe", "startoflm", "startofprev")
AFTER_LANGUAGES = (*TASKS, "nospeech", "notimestamps")
SUPPRESSED = (1, 2, 7, 8, 9, 10, 14, 25, 26, 27, 28, 29, 31, 58, 59, 60, 61, 62, 63, 90, 91, 92, 93)
SPACE = 220


@dataclass(frozen=True)
class Published:
    """The features that distinguish published checkpoints for decoding."""

    text_entries: int = 50_257
    languages: int = 99
    multilingual: bool = True
    mel_bins: int = 80
    encoder_layers: int = 2
    decoder_layers: int = 2
    seconds: int = 30
    positions: int = 448
    endings: float = 3.0
    """How readily a random model ends its text; a larger vocabulary needs more."""
    legacy: bool = False
    """Whether the generation configuration still forces tokens, as older uploads do."""


LARGE_V3 = Published(languages=100, mel_bins=128, encoder_layers=3, decoder_layers=3)
PUBLISHED = {
    "large-v3": LARGE_V3,
    "large-v3-turbo": Published(languages=100, mel_bins=128, encoder_layers=3, decoder_layers=1),
    "distil-large-v3": Published(languages=100, mel_bins=128, encoder_layers=3, decoder_layers=2),
    "distil-medium.en": Published(
        text_entries=50_256, multilingual=False, decoder_layers=2, legacy=True
    ),
    "tiny": Published(decoder_layers=2, legacy=True),
    "tiny.en": Published(text_entries=50_256, multilingual=False, legacy=True),
}
VOCABULARY_SIZES = dict.fromkeys(("large-v3", "large-v3-turbo", "distil-large-v3"), 51_866)
VOCABULARY_SIZES |= {"distil-medium.en": 51_864, "tiny.en": 51_864, "tiny": 51_865}
SMALL = Published(text_entries=400, languages=4, seconds=3, positions=96, endings=2.0)
ENDLESS = replace(SMALL, positions=48, endings=0.0)
SMALL_ENGLISH = replace(SMALL, multilingual=False)


def whisper_tokenizer(
    vocabulary: dict[str, int], merges: list[tuple[str, str]], special: list[str]
) -> transformers.WhisperTokenizer:
    """A byte-level BPE with the end of text, `special` tokens and timestamps behind it.

    Made the one way that transformers 4 and 5 share."""
    bpe = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in (END_OF_TEXT, *special)]
    )
    names = ("unk_token", "bos_token", "eos_token", "pad_token")
    fast: Any = transformers.WhisperTokenizerFast  # type: ignore[attr-defined]  # an alias in 5
    tokenizer: transformers.WhisperTokenizer = fast(
        tokenizer_object=bpe, additional_special_tokens=special, **dict.fromkeys(names, END_OF_TEXT)
    )
    tokenizer.add_tokens(TIMESTAMPS)
    return tokenizer


def tokenizer_of(shape: Published) -> transformers.WhisperTokenizer:
    """Bytes, made-up words, then Whisper's special tokens in its order; pad is end of text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [f"Ġword{index}" for index in range(shape.text_entries - len(alphabet))]
    languages = list(LANGUAGES)[: shape.languages]
    special = ["<|startoftranscript|>", *(f"<|{code}|>" for code in languages)]
    special += [f"<|{name}|>" for name in AFTER_LANGUAGES]
    vocabulary = {entry: index for index, entry in enumerate([*alphabet, *words])}
    return whisper_tokenizer(vocabulary, [], special)


def generation_config_of(shape: Published) -> transformers.GenerationConfig:
    """The fields that published generation configurations have, with this vocabulary's numbers."""
    end = shape.text_entries
    transcribe = end + shape.languages + 3
    fields: dict[str, Any] = {
        "alignment_heads": [[0, 0], [0, 1]],
        "begin_suppress_tokens": [SPACE, end],
        "suppress_tokens": [*SUPPRESSED, end + 1, *range(transcribe - 1, transcribe + 4)],
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), end),
        "decoder_start_token_id": end + 1,
        "is_multilingual": shape.multilingual,
        "max_initial_timestamp_index": 50,
        "max_length": 448,
        "no_timestamps_token_id": transcribe + 4,
        "prev_sot_token_id": transcribe + 2,
        "return_timestamps": False,
    }
    if shape.multilingual:
        codes = list(LANGUAGES)[: shape.languages]
        fields["lang_to_id"] = {f"<|{code}|>": end + 2 + index for index, code in enumerate(codes)}
        fields["task_to_id"] = {"transcribe": transcribe, "translate": transcribe - 1}
    if shape.legacy:
        fields["forced_decoder_ids"] = (
            [[1, None], [2, transcribe]] if shape.multilingual else [[1, transcribe + 4]]
        )
    return transformers.GenerationConfig(**fields)


def model_of(
    shape: Published, seed: int = 0, width: int = 32, dtype: torch.dtype = torch.float32
) -> transformers.PreTrainedModel:
    """Random weights, large enough that the text depends on the audio and on the tokens before."""
    end = shape.text_entries
    config = transformers.WhisperConfig(
        vocab_size=end + 1 + 1 + shape.languages + len(AFTER_LANGUAGES) + 1501,
        num_mel_bins=shape.mel_bins, encoder_layers=shape.encoder_layers,
        decoder_layers=shape.decoder_layers, encoder_attention_heads=2, decoder_attention_heads=2,
        d_model=width, encoder_ffn_dim=2 * width, decoder_ffn_dim=2 * width,
        max_source_positions=50 * shape.seconds, max_target_positions=shape.positions,
        init_std=0.15, bos_token_id=end, eos_token_id=end, pad_token_id=end,
        decoder_start_token_id=end + 1, begin_suppress_tokens=None, suppress_tokens=None,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = _initialise(config, dtype)
    with torch.no_grad():
        _make_talkative(model.model.decoder, end, shape.endings)
    model.generation_config = generation_config_of(shape)
    return model


def _initialise(config: Any, dtype: torch.dtype) -> transformers.PreTrainedModel:
    model: Any = transformers.WhisperForConditionalGeneration(config)
    initialised: transformers.PreTrainedModel = model.to(dtype).eval()
    return initialised


def _make_talkative(decoder: Any, end: int, endings: float) -> None:
    """Give position and audio more weight, and the end of text a chance.

    Random decoders repeat their last token for ever, and the embedding of the end, which as padding
    starts at zero, never wins."""
    decoder.embed_positions.weight.mul_(10)
    decoder.embed_tokens.weight[end] = endings * decoder.embed_tokens.weight[end - 1]
    for layer in decoder.layers:
        layer.encoder_attn.q_proj.weight.mul_(10)


def feature_extractor_of(shape: Published) -> transformers.WhisperFeatureExtractor:
    """Whisper's log-mel features, for windows as long as the encoder's."""
    return transformers.WhisperFeatureExtractor(
        feature_size=shape.mel_bins, chunk_length=shape.seconds
    )


def without_layers(model: WhisperModel, kept: tuple[int, ...]) -> transformers.PreTrainedModel:
    """The model with some of its decoder's layers, as Distil-Whisper's training starts."""
    config = copy.deepcopy(model.config)
    config.decoder_layers = len(kept)
    smaller = _initialise(config, model.dtype)
    weights = dict(model.named_parameters())
    layers = {
        f"model.decoder.layers.{new}.{name}": weight
        for new, old in enumerate(kept)
        for name, weight in below(weights, f"model.decoder.layers.{old}.").items()
    }
    with torch.no_grad():
        for name, weight in smaller.named_parameters():
            weight.copy_(layers.get(name, weights[name]))
    smaller.generation_config = copy.deepcopy(model.generation_config)
    return smaller


def save(folder: Path, shape: Published, model: transformers.PreTrainedModel | None = None) -> Path:
    """Write a checkpoint that the Auto classes load, and return its folder."""
    (model or model_of(shape)).save_pretrained(folder)
    tokenizer_of(shape).save_pretrained(folder)
    feature_extractor_of(shape).save_pretrained(folder)
    return folder


def loaded(shape: Published, seed: int = 1, dtype: torch.dtype = torch.float64) -> WhisperModels:
    """Return what `load_whisper` returns for such a checkpoint, without writing a file."""
    model, tokenizer = model_of(shape, seed, dtype=dtype), tokenizer_of(shape)
    vocabulary = read_special_tokens("tiny", model.config, model.generation_config, tokenizer)
    return WhisperModels("tiny", model, tokenizer, feature_extractor_of(shape), vocabulary)


def noise(seconds: float, seed: int = 0) -> NDArray[np.float32]:
    """Gaussian noise (n,), mono at 16 kHz."""
    return np.random.default_rng(seed).normal(0, 0.1, int(seconds * 16_000)).astype(np.float32)


def hears_sound(samples: NDArray[np.float32]) -> tuple[SampleSpan, ...]:
    """A speech detector for tests: all but digital silence is speech, noise too."""
    steps = np.pad(samples, (0, -len(samples) % STEP)).reshape(-1, STEP)
    return find_speech(steps.any(axis=1).astype(np.float32), len(samples))
