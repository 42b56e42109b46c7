"""Products through oneDNN are those of torch, and whoever else multiplies notices nothing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from asr.model.cpu_kernels import (
    ONEDNN_FROM_POSITIONS,
    PACK_FROM_ELEMENTS,
    QUERY_BLOCK,
    TRANSPOSE_UP_TO_POSITIONS,
    OneDnnOverride,
    PackedLinear,
    TransposedLinear,
    attention,
    empty_transposed,
    encoder_batch_size,
)

WIDTH = 64
ONE_DNN = "mkldnn::_linear_pointwise"


def operators(action) -> set[str]:
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as trace:
        action()
    return {event.key for event in trace.key_averages()}


@pytest.mark.parametrize("shape", [(3, 1, 256), (2, 50, 256), (700, 256), (256,)])
@pytest.mark.parametrize("outputs", [8, 4100])
@pytest.mark.parametrize("biased", [True, False])
@torch.inference_mode()
def test_a_product_is_that_of_torch(shape, outputs, biased):
    random = torch.Generator().manual_seed(0)
    x, weight = torch.randn(shape, generator=random), torch.randn(outputs, 256, generator=random)
    bias = torch.randn(outputs, generator=random) if biased else None
    torch.testing.assert_close(
        PackedLinear(weight, bias)(x), F.linear(x, weight, bias), rtol=1e-5, atol=1e-4
    )


@pytest.mark.parametrize("outputs", [8, 4100])
@torch.inference_mode()
def test_a_bias_at_the_call_takes_the_place_of_its_own(outputs):
    x, weight, own, other = (
        torch.randn(3, 256),
        torch.randn(outputs, 256),
        torch.ones(outputs),
        torch.randn(outputs),
    )
    torch.testing.assert_close(
        PackedLinear(weight, own)(x, other), F.linear(x, weight, other), rtol=1e-5, atol=1e-4
    )


@torch.inference_mode()
def test_what_a_bias_forbids_stays_forbidden():
    bias = torch.zeros(4100)
    bias[7] = float("-inf")
    logits = PackedLinear(torch.ones(4100, 256))(torch.ones(2, 256), bias)
    assert (logits[:, 7] == float("-inf")).all()
    assert torch.isfinite(logits[:, 8:]).all()


@torch.inference_mode()
def test_views_with_gaps_are_read_rightly():
    x, weight = torch.randn(40, 3, 256)[:, 1], torch.randn(256, 512).t()
    torch.testing.assert_close(
        PackedLinear(weight)(x), x.contiguous() @ weight.t(), rtol=1e-5, atol=1e-4
    )


@pytest.mark.parametrize(
    ("weights", "dtype", "pays"),
    [
        (PACK_FROM_ELEMENTS, torch.float32, True),
        (PACK_FROM_ELEMENTS - WIDTH, torch.float32, False),
        (PACK_FROM_ELEMENTS, torch.float64, False),
    ],
)
@torch.inference_mode()
def test_large_weights_are_laid_out(weights, dtype, pays):
    weight = torch.ones(weights // WIDTH, WIDTH, dtype=dtype)
    product, x = PackedLinear(weight), torch.ones(1, 2, WIDTH, dtype=dtype)
    assert product.packed is pays
    assert (ONE_DNN in operators(lambda: product(x))) is pays
    assert weight.layout is torch.strided


@torch.inference_mode()
def test_small_weights_meet_many_positions_through_onednn():
    product, x = PackedLinear(torch.ones(WIDTH, WIDTH)), torch.ones(ONEDNN_FROM_POSITIONS, WIDTH)
    assert not product.packed
    assert ONE_DNN in operators(lambda: product(x))
    assert ONE_DNN not in operators(lambda: product(x[1:]))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("dtype", "lies_across"), [(torch.float32, True), (torch.float64, False)])
@torch.inference_mode()
def test_what_lies_across_is_that_of_torch_and_is_copied_as_it_lies(rows, dtype, lies_across):
    x, weight, bias = (
        torch.randn(shape, dtype=dtype) for shape in ((rows, 50, 24), (36, 24), (36,))
    )
    product = TransposedLinear(weight, bias)(x)
    torch.testing.assert_close(product, F.linear(x, weight, bias))
    room = empty_transposed(x, rows, 3, 50, 12)
    assert room.shape == (rows, 3, 50, 12)
    assert not room.any()
    heads = product.view(rows, 50, 3, 12).transpose(1, 2)
    assert (heads.stride(2) < heads.stride(3)) is (room.stride(2) < room.stride(3)) is lies_across


@pytest.mark.parametrize(("device", "together"), [("cpu", 1), ("cuda", 16)])
def test_a_cpu_takes_windows_one_by_one(device, together):
    assert encoder_batch_size(16, torch.device(device)) == together


@torch.inference_mode()
def test_modules_of_others_are_left_as_they_are():
    layer, x = torch.nn.Linear(WIDTH, WIDTH), torch.ones(ONEDNN_FROM_POSITIONS, WIDTH)
    before = layer(x)

    def within():
        with OneDnnOverride():
            torch.testing.assert_close(layer(x), before, rtol=1e-5, atol=1e-5)

    assert ONE_DNN in operators(within)
    assert ONE_DNN not in operators(lambda: layer(x))


@pytest.mark.parametrize(
    ("positions", "dtype"),
    [(ONEDNN_FROM_POSITIONS - 1, torch.float32), (ONEDNN_FROM_POSITIONS, torch.float64)],
)
@torch.inference_mode()
def test_few_positions_and_other_types_stay_with_torch(positions, dtype):
    x, weight = torch.ones(positions, WIDTH, dtype=dtype), torch.ones(WIDTH, WIDTH, dtype=dtype)

    def within():
        with OneDnnOverride():
            F.linear(x, weight)

    assert ONE_DNN not in operators(within)


def drawn_attention(positions, dtype):
    random = torch.Generator().manual_seed(1)
    query = torch.randn(2, 3, positions, 40, generator=random, dtype=dtype)
    # As projections leave them: heads side by side in memory.
    return query, *(
        torch.randn(2, 700, 3, 40, generator=random, dtype=dtype).transpose(1, 2) for _ in range(2)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "positions",
    [
        1,
        TRANSPOSE_UP_TO_POSITIONS,
        TRANSPOSE_UP_TO_POSITIONS + 1,
        ONEDNN_FROM_POSITIONS,
        QUERY_BLOCK + 1,
    ],
)
@torch.inference_mode()
def test_attention_is_that_of_torch(positions, dtype):
    query, keys, values = drawn_attention(positions, dtype)
    expected = F.scaled_dot_product_attention(query, keys, values)
    torch.testing.assert_close(attention(query, keys, values), expected, rtol=1e-5, atol=1e-5)
    across = [empty_transposed(each, *each.shape).copy_(each) for each in (keys, values)]
    torch.testing.assert_close(attention(query, *across), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "asked", [{}, {"scale": 1.0}, {"attn_mask": None, "is_causal": False, "scale": 0.1}]
)
@torch.inference_mode()
def test_attention_of_others_goes_through_onednn_with_their_scale(asked):
    heard = drawn_attention(QUERY_BLOCK + 1, torch.float32)
    expected, answers = F.scaled_dot_product_attention(*heard, **asked), []

    def within():
        with OneDnnOverride():
            answers.append(F.scaled_dot_product_attention(*heard, **asked))

    assert ONE_DNN in operators(within)
    torch.testing.assert_close(answers[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
@torch.inference_mode()
def test_masks_of_others_hold(causal):
    query, keys, values = drawn_attention(700, torch.float32)
    asked = {"is_causal": True} if causal else {"attn_mask": torch.rand(700, 700) > 0.5}
    expected = F.scaled_dot_product_attention(query, keys, values, **asked)
    with OneDnnOverride():
        torch.testing.assert_close(
            F.scaled_dot_product_attention(query, keys, values, **asked), expected
        )
