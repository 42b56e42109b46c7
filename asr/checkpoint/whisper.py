"""A Whisper's weights as modules, by the names that transformers gives them.

They only hold weights: `asr.model` computes. transformers' own modules serve as well, but to import
them takes longer than to load a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import GenerationConfig, PretrainedConfig


class WhisperModel(Protocol):
    """What is asked of a model: of a `Whisper`, or a WhisperForConditionalGeneration or
    WhisperForCausalLM of transformers.
    """

    config: Any
    generation_config: Any

    @property
    def device(self) -> torch.device:
        """That of the weights."""

    @property
    def dtype(self) -> torch.dtype:
        """That of the weights."""

    def get_encoder(self) -> Any:  # noqa: ANN401
        """An EncoderWeights."""

    def get_decoder(self) -> Any:  # noqa: ANN401
        """A DecoderWeights."""

    def get_output_embeddings(self) -> Any:  # noqa: ANN401
        """The projection onto the vocabulary."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Every weight, once."""

    def state_dict(self) -> dict[str, Tensor]:
        """Every weight, by its name."""


class AttentionWeights(nn.Module):
    """Of one attention; keys have no bias."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads = heads
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj, self.q_proj, self.out_proj = (nn.Linear(width, width) for _ in range(3))


class EncoderLayerWeights(nn.Module):
    """Of a layer of the encoder: self-attention and perceptron, each with the norm before it."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.self_attn = AttentionWeights(width, heads)
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)
        self.final_layer_norm = nn.LayerNorm(width)


class DecoderLayerWeights(EncoderLayerWeights):
    """Of a layer of the decoder, which attends to the audio as well."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__(width, heads, inner)
        self.encoder_attn = AttentionWeights(width, heads)
        self.encoder_attn_layer_norm = nn.LayerNorm(width)

    @classmethod
    def like(cls, config: Any) -> DecoderLayerWeights:  # noqa: ANN401
        """Of the shape that a WhisperConfig tells."""
        return cls(config.d_model, config.decoder_attention_heads, config.decoder_ffn_dim)


class EncoderWeights(nn.Module):
    """Of an encoder."""

    def __init__(self, config: Any) -> None:  # noqa: ANN401
        super().__init__()
        width = config.d_model
        self.conv1 = nn.Conv1d(config.num_mel_bins, width, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(width, width, kernel_size=3, stride=2, padding=1)
        self.embed_positions = _embedding(config.max_source_positions, width)
        shape = width, config.encoder_attention_heads, config.encoder_ffn_dim
        self.layers: Any = nn.ModuleList(
            EncoderLayerWeights(*shape) for _ in range(config.encoder_layers)
        )
        self.layer_norm = nn.LayerNorm(width)


class DecoderWeights(nn.Module):
    """Of a decoder."""

    def __init__(self, config: Any) -> None:  # noqa: ANN401
        super().__init__()
        width = config.d_model
        self.embed_tokens = _embedding(config.vocab_size, width)
        self.embed_positions = _embedding(config.max_target_positions, width)
        self.layers = nn.ModuleList(
            DecoderLayerWeights.like(config) for _ in range(config.decoder_layers)
        )
        self.layer_norm = nn.LayerNorm(width)


class Whisper(nn.Module):
    """A WhisperForConditionalGeneration, or a WhisperForCausalLM, which has no `encoder`."""

    def __init__(
        self, config: PretrainedConfig, generation_config: GenerationConfig, encoder: bool = True
    ) -> None:
        """Weights of the shapes that `config` tells, which are to be replaced."""
        super().__init__()
        self.config: Any = config
        self.generation_config = generation_config
        self.model = nn.Module()
        if encoder:
            self.model.encoder = EncoderWeights(config)
        self.model.decoder = DecoderWeights(config)
        self.proj_out = nn.Linear(self.config.d_model, self.config.vocab_size, bias=False)

    def tie_weights(self) -> None:
        """Let the projection onto the vocabulary be the embeddings of tokens."""
        self.proj_out.weight = self.get_decoder().embed_tokens.weight

    def without_encoder(self) -> Whisper:
        """The decoder alone, which shares the weights: the form in which Distil-Whisper drafts."""
        with torch.device("meta"):
            alone = Whisper(self.config, self.generation_config, encoder=False).eval()
        alone.model.decoder, alone.proj_out = self.get_decoder(), self.proj_out
        return alone

    @property
    def device(self) -> torch.device:
        """That of the weights."""
        return self.proj_out.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """That of the weights."""
        return self.proj_out.weight.dtype

    def get_encoder(self) -> Any:  # noqa: ANN401
        """See WhisperModel."""
        return self.model.encoder

    def get_decoder(self) -> Any:  # noqa: ANN401
        """See WhisperModel."""
        return self.model.decoder

    def get_output_embeddings(self) -> nn.Linear:
        """See WhisperModel."""
        return self.proj_out


def _embedding(count: int, width: int) -> nn.Embedding:
    """Without values: to draw them on the meta device, torch would import its compiler."""
    return nn.Embedding(count, width, _weight=torch.empty(count, width))
