"""Products through oneDNN are those of torch, and whoever else multiplies notices nothing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from asr.products import LARGE, MANY, LargeProducts, Product

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
    torch.testing.assert_close(Product(weight, bias)(x), F.linear(x, weight, bias), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("outputs", [8, 4100])
@torch.inference_mode()
def test_a_bias_at_the_call_takes_the_place_of_its_own(outputs):
    x, weight, own, other = torch.randn(3, 256), torch.randn(outputs, 256), torch.ones(outputs), torch.randn(outputs)
    torch.testing.assert_close(Product(weight, own)(x, other), F.linear(x, weight, other), rtol=1e-5, atol=1e-4)


@torch.inference_mode()
def test_what_a_bias_forbids_stays_forbidden():
    bias = torch.zeros(4100)
    bias[7] = float("-inf")
    logits = Product(torch.ones(4100, 256))(torch.ones(2, 256), bias)
    assert (logits[:, 7] == float("-inf")).all()
    assert torch.isfinite(logits[:, 8:]).all()


@torch.inference_mode()
def test_views_with_gaps_are_read_rightly():
    x, weight = torch.randn(40, 3, 256)[:, 1], torch.randn(256, 512).t()
    torch.testing.assert_close(Product(weight)(x), x.contiguous() @ weight.t(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("weights", "dtype", "pays"),
    [(LARGE, torch.float32, True), (LARGE - WIDTH, torch.float32, False), (LARGE, torch.float64, False)],
)
@torch.inference_mode()
def test_large_weights_are_laid_out(weights, dtype, pays):
    weight = torch.ones(weights // WIDTH, WIDTH, dtype=dtype)
    product, x = Product(weight), torch.ones(1, 2, WIDTH, dtype=dtype)
    assert product.laid_out is pays
    assert (ONE_DNN in operators(lambda: product(x))) is pays
    assert weight.layout is torch.strided


@torch.inference_mode()
def test_modules_of_others_are_left_as_they_are():
    layer, x = torch.nn.Linear(WIDTH, WIDTH), torch.ones(MANY, WIDTH)
    before = layer(x)

    def within():
        with LargeProducts():
            torch.testing.assert_close(layer(x), before, rtol=1e-5, atol=1e-5)

    assert ONE_DNN in operators(within)
    assert ONE_DNN not in operators(lambda: layer(x))


@pytest.mark.parametrize(("positions", "dtype"), [(MANY - 1, torch.float32), (MANY, torch.float64)])
@torch.inference_mode()
def test_few_positions_and_other_types_stay_with_torch(positions, dtype):
    x, weight = torch.ones(positions, WIDTH, dtype=dtype), torch.ones(WIDTH, WIDTH, dtype=dtype)

    def within():
        with LargeProducts():
            F.linear(x, weight)

    assert ONE_DNN not in operators(within)
