"""The parts of a decoder layer against those of transformers' layer with the same weights."""

from __future__ import annotations

import copy

import pytest
import torch
from oracle import TINY

from tests.support.tiny_whispers import model_of
from whosaid.asr.model.decoder import DecoderLayer

NEAR = {"atol": 1e-9, "rtol": 1e-9}


@pytest.fixture(scope="module")
def source():
    """transformers' layer, in float64, with biases and norms that are not as they begin."""
    layer = model_of(TINY).to(torch.float64).model.decoder.layers[0]
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=weight.dtype) / 4)
    return layer.eval()


def layer_of(source, **options):
    return DecoderLayer(source.state_dict(), source.self_attn.num_heads, **options)


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


@torch.inference_mode()
def test_the_perceptron_is_transformers(source):
    x = drawn(3, 2, source.embed_dim)
    inner = torch.nn.functional.gelu(source.fc1(source.final_layer_norm(x)))
    found = layer_of(source).feed_forward(x)
    torch.testing.assert_close(found, source.fc2(inner), **NEAR)


@torch.inference_mode()
def test_keys_and_values_of_the_audio_are_transformers(source):
    own, encoded = source.encoder_attn, drawn(3, 50, source.embed_dim)
    split = (3, 50, own.num_heads, own.head_dim)
    keys, values = layer_of(source).cross_attention.project(encoded)
    torch.testing.assert_close(keys, own.k_proj(encoded).view(split).transpose(1, 2), **NEAR)
    torch.testing.assert_close(values, own.v_proj(encoded).view(split).transpose(1, 2), **NEAR)


def test_what_was_joined_is_held_beside_the_models_weights(source):
    """Rounded keys and values have layouts of their own, and are not joined."""
    layer = layer_of(source)
    assert layer.joined == (
        layer.self_attention.query_key_value,
        *layer.cross_attention.key_value,
    )
    rounded = layer_of(copy.deepcopy(source).float(), dtype=torch.bfloat16)
    assert rounded.joined == (rounded.self_attention.query_key_value,)


def test_alignment_heads_have_their_places_among_all_layers(source):
    layer = layer_of(source, aligned=(1, 0), first_aligned=5)
    assert layer.aligned.tolist() == [1, 0]
    assert layer.cross_attention.aligned_places == slice(5, 7)
    assert layer.heads == source.self_attn.num_heads
