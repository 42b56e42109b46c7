"""A cache's rows: views share memory, a row is moved whole, its memory is what its shapes say."""

from __future__ import annotations

import oracle
import pytest
import torch

from whosaid.asr.model.decoder import Decoder, alignment_heads
from whosaid.asr.model.kv_cache import KVCache


@pytest.fixture(scope="module")
def decoder():
    model = oracle.models_of(oracle.TINY).model
    return Decoder(model, alignment_heads(model))


def tensors(cache):
    return [of_layer for each in cache.tensors for of_layer in each]


def test_the_beams_of_a_row_go_with_it_and_share_its_audio(decoder):
    cache = decoder.allocate(3, 16, 2)
    for beam in range(6):
        for each in (*cache.keys, *cache.values, *cache.alignment_queries):
            each[beam] = beam
    for each in (*cache.cross_keys, *cache.cross_values):
        each[:] = torch.arange(3.0)[:, None, None, None]
    cache.view(1, 3).move(1, 0)
    assert cache.keys[0][:, 0, 0, 0].tolist() == [0, 1, 4, 5, 4, 5]
    assert cache.cross_keys[0][:, 0, 0, 0].tolist() == [0, 2, 2]
    taken = sum(each.numel() * each.element_size() for each in tensors(cache))
    assert 3 * decoder.cache_bytes_per_row(16, 2) == taken


def test_what_first_beams_read_is_given_to_the_others(decoder):
    cache = decoder.allocate(2, 16, 3)
    for each in cache.first_beams().keys:
        each[:] = torch.tensor([7.0, 8.0])[:, None, None, None]
    cache.copy_first_beams(4)
    assert cache.keys[0][:, 0, 3, 0].tolist() == [7, 7, 7, 8, 8, 8]
    assert cache.keys[0][:, 0, 4, 0].tolist() == [7, 0, 0, 8, 0, 0]


def test_rows_in_any_places_are_cleared_and_read_as_if_they_stood_together():
    rows = [torch.arange(float(4)).view(1, 4, 1, 1, 1).repeat(2, 1, 1, 3, 1) for _ in range(4)]
    cache = KVCache(*rows, torch.zeros(2, 4, 3, 1)).take(torch.tensor([3, 1]))
    assert cache.gathered(cache.cross_keys[0]).flatten(1)[:, 0].tolist() == [3, 1]
    assert cache.places(slice(1, 2)).tolist() == [1]
    cache.clear(2)
    assert cache.keys[0, :, 0, :, 0].tolist() == [[0, 0, 0], [0, 0, 1], [2, 2, 2], [0, 0, 3]]
