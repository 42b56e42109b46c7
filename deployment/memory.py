"""The memory that a Whisper needs on a device, by arithmetic on its dimensions alone.

Tests hold it against the engine's own decoder, built without data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

GB = 10**9
# Positions of self-attention that a row caches: 448 of a text, 11 of drafts, a multiple of 16.
POSITIONS, TEXT_POSITIONS, FRAMES = 464, 448, 1500
# Left free for encoders, diarization and CUDA itself: asr/engine/state.py.
HEADROOM_SHARE, HEADROOM = 0.1, 2**30
# Bytes of a number, and from how many a weight may be in int8: asr/model/cpu_kernels.py.
FLOAT32, ROUNDED, INT8_FROM_ELEMENTS = 4, 2, 1 << 19
MULTILINGUAL, ENGLISH, LARGE = 51_865, 51_864, 51_866  # sizes of the published vocabularies
# Of a checkpoint that does not tell: most have so many alignment heads.
ALIGNED = 10


@dataclass(frozen=True)
class Dimensions:
    """A published checkpoint, from its `config.json` on the Hub.

    `aligned` is the number of its alignment heads, of openai/whisper's `_ALIGNMENT_HEADS`.
    """

    name: str
    d_model: int
    heads: int
    encoder_layers: int
    decoder_layers: int
    vocabulary: int
    aligned: int
    mel_bins: int = 80

    @classmethod
    def read(cls, name: str, config: Mapping[str, Any]) -> Self:
        """Those in a `config.json`. Raises KeyError, TypeError or ValueError where it is none of a
        Whisper's.
        """
        return cls(
            name,
            d_model=int(config["d_model"]),
            heads=int(config["decoder_attention_heads"]),
            encoder_layers=int(config["encoder_layers"]),
            decoder_layers=int(config["decoder_layers"]),
            vocabulary=int(config["vocab_size"]),
            aligned=ALIGNED,
            mel_bins=int(config["num_mel_bins"]),
        )

    @property
    def encoder(self) -> tuple[int, ...]:
        """Those of the encoder, which an assistant shares where they are equal."""
        return self.d_model, self.heads, self.encoder_layers, self.mel_bins


TINY = Dimensions("tiny", 384, 6, 4, 4, MULTILINGUAL, 6)
TINY_EN = Dimensions("tiny.en", 384, 6, 4, 4, ENGLISH, 8)
BASE = Dimensions("base", 512, 8, 6, 6, MULTILINGUAL, 8)
BASE_EN = Dimensions("base.en", 512, 8, 6, 6, ENGLISH, 5)
SMALL = Dimensions("small", 768, 12, 12, 12, MULTILINGUAL, 10)
SMALL_EN = Dimensions("small.en", 768, 12, 12, 12, ENGLISH, 19)
MEDIUM = Dimensions("medium", 1024, 16, 24, 24, MULTILINGUAL, 6)
MEDIUM_EN = Dimensions("medium.en", 1024, 16, 24, 24, ENGLISH, 18)
LARGE_V1 = Dimensions("large", 1280, 20, 32, 32, MULTILINGUAL, 9)
LARGE_V2 = Dimensions("large-v2", 1280, 20, 32, 32, MULTILINGUAL, 23)
LARGE_V3 = Dimensions("large-v3", 1280, 20, 32, 32, LARGE, 10, mel_bins=128)
TURBO = Dimensions("large-v3-turbo", 1280, 20, 32, 4, LARGE, 6, mel_bins=128)
DISTIL_SMALL_EN = Dimensions("distil-small.en", 768, 12, 12, 4, ENGLISH, 0)
DISTIL_MEDIUM_EN = Dimensions("distil-medium.en", 1024, 16, 24, 2, ENGLISH, 0)
DISTIL_LARGE_V2 = Dimensions("distil-large-v2", 1280, 20, 32, 2, MULTILINGUAL, 0)
DISTIL_LARGE_V3 = Dimensions("distil-large-v3", 1280, 20, 32, 2, LARGE, 0, mel_bins=128)
OPENAI = (
    *(TINY, TINY_EN, BASE, BASE_EN, SMALL, SMALL_EN, MEDIUM, MEDIUM_EN),
    *(LARGE_V1, LARGE_V2, LARGE_V3, TURBO),
)
DISTIL = (DISTIL_SMALL_EN, DISTIL_MEDIUM_EN, DISTIL_LARGE_V2, DISTIL_LARGE_V3)
PUBLISHED = {
    **{f"openai/whisper-{each.name}": each for each in OPENAI},
    **{f"distil-whisper/{each.name}": each for each in DISTIL},
    "distil-whisper/distil-large-v3.5": DISTIL_LARGE_V3,
}


@dataclass(frozen=True)
class Need:
    """Bytes of models and of one row, which is one window of a batch."""

    models: int
    per_row: int

    def rows_in(self, device: int) -> int:
        """How many rows a device of so many bytes has memory for; 0 or fewer: not even one."""
        headroom = max(HEADROOM, int(device * HEADROOM_SHARE))
        return (device - self.models - headroom) // self.per_row

    @property
    def smallest(self) -> int:
        """Bytes of the smallest device that has memory for one row."""
        one = self.models + self.per_row
        return max(one + HEADROOM, round(one / (1 - HEADROOM_SHARE)))


def need_of(main: Dimensions, assistant: Dimensions | None, width: int = 2) -> Need:
    """The memory of checkpoints on a GPU, at `width` bytes a weight. An assistant with the main
    model's encoder is taken to share it.
    """
    encoders, decoders = _loaded(main, assistant)
    weights = sum(map(_encoder, encoders)) + sum(map(_decoder, decoders))
    joined = sum(5 * each.decoder_layers * each.d_model * (each.d_model + 1) for each in decoders)
    return Need(width * (weights + joined), width * sum(map(_row, decoders)))


def need_on_cpu(main: Dimensions, assistant: Dimensions | None, width: int) -> Need:
    """The memory of checkpoints on a CPU, whose products are of numbers of `width` bytes.

    Weights are float32 there, and beside them lie copies for the products: of the decoder's, and
    below float32 of the encoder's too (asr/model/cpu_kernels.py). Rows are float32, but below it
    for the keys and values of the audio.
    """
    encoders, decoders = _loaded(main, assistant)
    weights = sum(map(_encoder, encoders)) + sum(map(_decoder, decoders))
    copies = sum(_decoder_copies(each, width) for each in decoders)
    if width < FLOAT32:
        copies += sum(ROUNDED * 12 * each.encoder_layers * each.d_model**2 for each in encoders)
    narrower = FLOAT32 - max(width, ROUNDED)
    rows = sum(FLOAT32 * _row(each) - narrower * _audio(each) for each in decoders)
    return Need(FLOAT32 * weights + copies, rows)


def _loaded(
    main: Dimensions, assistant: Dimensions | None
) -> tuple[list[Dimensions], list[Dimensions]]:
    """Whose encoders are in memory, and whose decoders."""
    decoders = [main] if assistant is None else [main, assistant]
    own = assistant is not None and assistant.encoder != main.encoder
    return decoders if own else [main], decoders


def _encoder(model: Dimensions) -> int:
    """Weights of the encoder: two convolutions, positions, and attention and two products a layer,
    with their norms.
    """
    d = model.d_model
    convolutions = 3 * model.mel_bins * d + 3 * d * d + 2 * d
    return model.encoder_layers * (12 * d * d + 12 * d) + convolutions + FRAMES * d + 2 * d


def _decoder(model: Dimensions) -> int:
    """Weights of the decoder with its embeddings: two attentions, two products, three norms."""
    d = model.d_model
    layer = 16 * d * d + 17 * d
    return model.decoder_layers * layer + (model.vocabulary + TEXT_POSITIONS + 2) * d


def _decoder_copies(model: Dimensions, width: int) -> int:
    """Bytes of the decoder's weights packed for products; of those in int8 only the largest are,
    and none that the audio's keys and values are made with.
    """
    square = model.d_model**2
    joined, single, wide = 3 * square, square, 4 * square
    products = [joined, *[single] * 3, *[wide] * 2] * model.decoder_layers
    products.append(model.vocabulary * model.d_model)
    audio = 2 * square * model.decoder_layers
    small = max(width, ROUNDED)
    return small * audio + sum(
        each * (width if each >= INT8_FROM_ELEMENTS else small) for each in products
    )


def _row(model: Dimensions) -> int:
    """Values that a row caches: keys and values of both attentions, the aligned heads' queries."""
    text = 2 * model.decoder_layers * model.d_model * POSITIONS
    return text + _audio(model) + model.aligned * model.d_model // model.heads * POSITIONS


def _audio(model: Dimensions) -> int:
    """Of those the audio's keys and values."""
    return 2 * model.decoder_layers * model.d_model * FRAMES
