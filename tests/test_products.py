"""Products through oneDNN are those of torch, and whoever else multiplies notices nothing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from asr.products import FEW, HUGE, LARGE, LARGE_ALONE, MANY, LargeProducts, linear

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
    torch.testing.assert_close(linear(x, weight, bias), F.linear(x, weight, bias), rtol=1e-5, atol=1e-4)


@torch.inference_mode()
def test_what_a_bias_forbids_stays_forbidden():
    bias = torch.zeros(4100)
    bias[7] = float("-inf")
    logits = linear(torch.ones(2, 256), torch.ones(4100, 256), bias)
    assert (logits[:, 7] == float("-inf")).all()
    assert torch.isfinite(logits[:, 8:]).all()


@torch.inference_mode()
def test_a_view_with_gaps_is_read_rightly():
    x, weight = torch.randn(40, 3, 256)[:, 1], torch.randn(256, 512).t()
    torch.testing.assert_close(linear(x, weight), x.contiguous() @ weight.t(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("positions", "weights", "pays"),
    [
        (1, LARGE, False),
        (1, LARGE_ALONE, True),
        (2, LARGE, True),
        (FEW, LARGE, True),
        (FEW, LARGE - WIDTH, False),
        (FEW + 1, LARGE, False),
        (FEW + 1, HUGE, True),
        (MANY - 1, LARGE, False),
        (MANY, WIDTH, True),
    ],
)
@torch.inference_mode()
def test_products_go_where_they_were_found_faster(positions, weights, pays):
    x, weight = torch.ones(1, positions, WIDTH), torch.ones(weights // WIDTH, WIDTH)
    assert (ONE_DNN in operators(lambda: linear(x, weight))) is pays


@torch.inference_mode()
def test_other_types_stay_with_torch():
    x, weight = torch.ones(MANY, WIDTH, dtype=torch.float64), torch.ones(WIDTH, WIDTH, dtype=torch.float64)
    assert ONE_DNN not in operators(lambda: linear(x, weight))


@torch.inference_mode()
def test_modules_of_others_are_left_as_they_are():
    layer, x = torch.nn.Linear(64, 64), torch.ones(MANY, 64)
    before = layer(x)

    def within():
        with LargeProducts():
            torch.testing.assert_close(layer(x), before, rtol=1e-5, atol=1e-5)

    assert ONE_DNN in operators(within)
    assert ONE_DNN not in operators(lambda: layer(x))
