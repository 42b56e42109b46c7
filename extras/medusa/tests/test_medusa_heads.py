import json

import pytest
import torch
import torch.nn.functional as F

from extras.medusa.heads import Heads, Projection, save_heads
from whosaid.asr import Checkpoint, load_whisper, with_assistant
from whosaid.asr.checkpoint.medusa import base_digest
from whosaid.asr.checkpoint.weights import EMBEDDINGS


@pytest.fixture(scope="module")
def models(whisper_folder):
    return load_whisper(Checkpoint(str(whisper_folder)), torch.device("cpu"), torch.float32)


def random_heads(count: int, layers: int, width: int) -> Heads:
    heads = Heads(count, layers, width)
    generator = torch.Generator().manual_seed(1)
    for each in heads.parameters():
        each.data = torch.randn(each.shape, generator=generator)
    return heads


def test_a_head_adds_silu_of_a_product_in_every_block():
    heads = random_heads(3, 2, 8)
    hidden = torch.randn(5, 8)
    found = heads(hidden)
    for number in range(3):
        expected = hidden
        for layer in range(2):
            inner = F.linear(expected, heads.weight[layer, number], heads.bias[layer, number])
            expected = expected + F.silu(inner)
        torch.testing.assert_close(found[number], expected)


def test_fresh_heads_repeat_the_newest_token():
    hidden = torch.randn(4, 8)
    assert torch.equal(Heads(2, 1, 8)(hidden), hidden.expand(2, -1, -1))


@pytest.mark.parametrize("listed", [None, (3, 7, 90)])
def test_the_endpoint_loads_what_was_saved(models, tmp_path, listed):
    shortlist = None if listed is None else torch.tensor(listed)
    projection = Projection.of(models.model, shortlist)
    heads = random_heads(3, 2, models.model.config.d_model)
    save_heads(tmp_path, heads, projection, models)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["base_digest"] == base_digest(models.model)
    assert (config["medusa_num_heads"], config["medusa_num_layers"]) == (3, 2)
    loaded = with_assistant(models, Checkpoint(str(tmp_path))).medusa
    assert torch.equal(torch.stack([each.weight for each in loaded.heads]), heads.weight)
    assert torch.equal(torch.stack([each.bias for each in loaded.heads]), heads.bias)
    assert (loaded.shortlist is None) == (listed is None)
    assert loaded.shortlist is None or loaded.shortlist.tolist() == list(listed)


def test_heads_of_a_rounded_model_are_those_of_its_files(models, tmp_path):
    """As on CUDA, where models are in float16 whatever their files are in."""
    rounded = load_whisper(models.checkpoint, torch.device("cpu"), torch.float16)
    assert base_digest(rounded.model) != base_digest(models.model)
    heads = random_heads(2, 1, models.model.config.d_model)
    save_heads(tmp_path, heads, Projection.of(rounded.model), rounded)
    for each in (rounded, models):
        assert with_assistant(each, Checkpoint(str(tmp_path))).medusa.heads


def test_a_shortlist_numbers_its_tokens(models):
    projection = Projection.of(models.model, torch.tensor([3, 7, 90]))
    assert projection.index(torch.tensor([7, 3, 4, 90])).tolist() == [1, 0, -1, 2]
    hidden = torch.randn(2, models.model.config.d_model)
    expected = F.linear(hidden, models.model.weights[EMBEDDINGS])[:, [3, 7, 90]]
    torch.testing.assert_close(projection.logits(hidden), expected)
