"""Heads against the formula, written out, on random weights in float64."""

import dataclasses

import pytest
import torch

from tests.helpers import oracle
from tests.helpers.oracle import TINY, models_of, random_heads
from whosaid.asr.checkpoint.medusa import BLOCK
from whosaid.asr.model.decoder import Decoder
from whosaid.asr.model.draft_heads import HeadStack, MedusaModel


@pytest.mark.parametrize("blocks", [1, 3])
def test_heads_are_residual_blocks_before_the_projection(blocks):
    models = random_heads(models_of(TINY), 4, blocks=blocks)
    main, heads = Decoder(models.model), models.medusa.heads
    newest = torch.randn(3, main.token_embeddings.shape[1], dtype=torch.float64)
    bias = torch.randn(len(main.token_embeddings), dtype=torch.float64)
    scores = MedusaModel(main, models.medusa).scores(newest, 2, bias)
    for number in range(2):
        ahead = oracle.head_output(newest, heads, number)
        torch.testing.assert_close(scores[:, number], models.model.proj_out(ahead) + bias)
    found = HeadStack(heads)(newest[:, None])[:, 0, 3]
    torch.testing.assert_close(found, oracle.head_output(newest, heads, 3))
    first = tuple(type(each)(each.weight[:1], each.bias[:1]) for each in heads)
    torch.testing.assert_close(HeadStack(first)(newest)[:, 0], oracle.head_output(newest, heads, 0))


def test_a_shortlist_scores_its_tokens_alike_and_forbids_the_others():
    models = random_heads(models_of(TINY), 3)
    main, listed = Decoder(models.model), torch.tensor([7, 3, 200])
    newest = torch.randn(2, main.token_embeddings.shape[1], dtype=torch.float64)
    bias = torch.randn(len(main.token_embeddings), dtype=torch.float64)
    whole = MedusaModel(main, models.medusa).scores(newest, 3, bias)
    short = dataclasses.replace(models.medusa, shortlist=listed)
    scores = MedusaModel(main, short).scores(newest, 3, bias)
    torch.testing.assert_close(scores[..., listed], whole[..., listed])
    assert torch.isfinite(scores).sum() == scores[..., listed].numel()


@pytest.mark.parametrize(
    ("dtype", "most"),
    [
        pytest.param(
            torch.bfloat16,
            0.05,
            marks=pytest.mark.skipif(
                not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
                reason="oneDNN has no bfloat16 on this processor",
            ),
        ),
        # Without VNNI's instructions oneDNN's products saturate.
        (torch.int8, 0.05 if torch.cpu._is_vnni_supported() else 0.15),
    ],
)
def test_reduced_products_are_near(dtype, most):
    """At sizes that are packed, compared with float32."""
    torch.manual_seed(0)
    heads = random_heads(models_of(dataclasses.replace(TINY), dtype=torch.float32), 2).medusa.heads
    sized = [(each, torch.randn(4, 512, 512) / 50) for each in heads]
    wide = tuple(type(each)(weight, each.bias.new_zeros(4, 512)) for each, weight in sized)
    hidden = torch.randn(5, 512)
    exact, rounded = HeadStack(wide)(hidden), HeadStack(wide, dtype)(hidden)
    assert (exact - rounded).abs().max() < most
    assert rounded.dtype == torch.float32


def test_the_further_layer_reads_positions_as_they_come():
    """A prompt at once and then two at a time: what one pass over the text gives."""
    models = random_heads(models_of(TINY), 2, BLOCK)
    window, tokens = oracle.noise_windows(1)[0], [*range(20, 31)]
    expected = oracle.states_read_by_heads(models, window, tokens)
    plain = dataclasses.replace(models, medusa=None)
    hidden = oracle.states_read_by_heads(plain, window, tokens)[None]
    model = MedusaModel(Decoder(models.model), models.medusa)
    cache = model.block.allocate(1, 16)
    with torch.inference_mode():
        encoded = models.model.get_encoder()(oracle.features_of(models, window)).last_hidden_state
        model.block.fill_cross_kv(encoded, cache)
        for start, stop in ((0, 5), (5, 7), (7, 9), (9, 11)):
            positions = torch.arange(start, stop)[None]
            states = model.states(hidden[:, start:stop], positions, cache, 16)
            torch.testing.assert_close(states[0], expected[start:stop], atol=1e-6, rtol=1e-5)
