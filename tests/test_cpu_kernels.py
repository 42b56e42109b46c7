"""Products through oneDNN are those of torch."""

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from whosaid.asr.model.cpu_kernels import (
    INT8_FROM_ELEMENTS,
    KEYS_FIRST_UP_TO_POSITIONS,
    ONEDNN_FROM_POSITIONS,
    PACK_FROM_ELEMENTS,
    QUERY_BLOCK,
    TRANSPOSE_UP_TO_POSITIONS,
    EncoderLinear,
    PackedLinear,
    TransposedLinear,
    attention,
    empty_transposed,
    encoder_attention,
    encoder_batch_size,
)
from whosaid.errors import StartError
from whosaid.runtime.device import choose_dtype

WIDTH = 64
ONE_DNN = "mkldnn::_linear_pointwise"


def missing(dtype) -> str:
    """Return why this machine does not multiply in a precision; empty if it does."""
    try:
        choose_dtype(str(dtype).removeprefix("torch."), torch.device("cpu"))
    except StartError as error:
        return str(error)
    return ""


def needs(dtype):
    return pytest.mark.skipif(bool(missing(dtype)), reason=missing(dtype) or "it is there")


needs_bfloat16, needs_int8 = needs(torch.bfloat16), needs(torch.int8)


@pytest.fixture
def precisions():
    """Skips a test of a precision that is not there."""

    def require(dtype):
        if reason := missing(dtype):
            pytest.skip(reason)

    return require


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
    found = PackedLinear(weight, bias)(x)
    torch.testing.assert_close(found, F.linear(x, weight, bias), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("outputs", [8, 4100])
@torch.inference_mode()
def test_bias_of_the_call_replaces_the_layers(outputs):
    x, weight = torch.randn(3, 256), torch.randn(outputs, 256)
    own, other = torch.ones(outputs), torch.randn(outputs)
    found = PackedLinear(weight, own)(x, other)
    torch.testing.assert_close(found, F.linear(x, weight, other), rtol=1e-5, atol=1e-4)


@torch.inference_mode()
def test_views_with_gaps_are_read_rightly():
    x, weight = torch.randn(40, 3, 256)[:, 1], torch.randn(256, 512).t()
    found, expected = PackedLinear(weight)(x), x.contiguous() @ weight.t()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


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
def test_transposed_product_equals_torch_and_keeps_its_layout(rows, dtype, lies_across):
    x, weight, bias = (torch.randn(each, dtype=dtype) for each in ((rows, 50, 24), (36, 24), (36,)))
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


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("positions", [ONEDNN_FROM_POSITIONS - 1, ONEDNN_FROM_POSITIONS])
@torch.inference_mode()
def test_an_encoders_linear_layer_is_torchs(positions, gelu):
    layer, x = torch.nn.Linear(WIDTH, WIDTH), torch.randn(2, positions, WIDTH)
    weights = dict(layer.named_parameters("fc1"))
    expected = F.gelu(layer(x)) if gelu else layer(x)
    ours = EncoderLinear(weights, "fc1", gelu=gelu)
    torch.testing.assert_close(ours(x), expected, rtol=1e-5, atol=1e-5)
    assert (ONE_DNN in operators(lambda: ours(x))) == (2 * positions >= ONEDNN_FROM_POSITIONS)
    assert ONE_DNN not in operators(lambda: ours(x[:1, :10]))
    doubled = EncoderLinear({"fc1.weight": layer.weight.double()}, "fc1")
    assert ONE_DNN not in operators(lambda: doubled(x.double()))


def drawn_attention(positions, dtype):
    random = torch.Generator().manual_seed(1)
    query = torch.randn(2, 3, positions, 40, generator=random, dtype=dtype)
    # As projections leave them: heads side by side in memory.
    return query, *(
        torch.randn(2, 700, 3, 40, generator=random, dtype=dtype).transpose(1, 2) for _ in range(2)
    )


SMALL, LARGE = TRANSPOSE_UP_TO_POSITIONS, ONEDNN_FROM_POSITIONS


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "positions", [1, SMALL, SMALL + 1, KEYS_FIRST_UP_TO_POSITIONS + 1, LARGE, QUERY_BLOCK + 1]
)
@torch.inference_mode()
def test_attention_is_that_of_torch(positions, dtype):
    query, keys, values = drawn_attention(positions, dtype)
    expected = F.scaled_dot_product_attention(query, keys, values)
    torch.testing.assert_close(attention(query, keys, values), expected, rtol=1e-5, atol=1e-5)
    across = [empty_transposed(each, *each.shape).copy_(each) for each in (keys, values)]
    torch.testing.assert_close(attention(query, *across), expected, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_an_encoders_attention_goes_through_onednn():
    heard = drawn_attention(QUERY_BLOCK + 1, torch.float32)
    expected = F.scaled_dot_product_attention(*heard, scale=1.0)
    torch.testing.assert_close(encoder_attention(*heard), expected, rtol=1e-5, atol=1e-5)
    assert ONE_DNN in operators(lambda: encoder_attention(*heard))


def to_bfloat16(x):
    """Round by definition, in float64: to the nearest number with 8 significant bits."""
    mantissa, exponent = torch.frexp(x.double())
    return torch.ldexp((mantissa * 256).round(), exponent - 8)


def quantized(rows):
    """Quantize by definition, in float64: 127 levels on either side, a row's largest value last."""
    step = rows.double().abs().amax(dim=1, keepdim=True) / 127
    return step * (rows.double() / step.clamp(min=1e-30)).round(), step


@needs_bfloat16
@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("positions", [1, 7, 200])
@torch.inference_mode()
def test_bfloat16_rounds_operands_and_result_and_nothing_between(positions, gelu):
    x, weight, bias = torch.randn(1, positions, 512), torch.randn(300, 512), torch.randn(300)
    expected = to_bfloat16(x[0]) @ to_bfloat16(weight).t() + bias.double()
    expected = F.gelu(expected) if gelu else expected
    product = PackedLinear(weight, bias, torch.bfloat16, gelu)(x)
    assert product.dtype == torch.float32
    # Half of the last of 8 bits; sums of 512 in float32.
    torch.testing.assert_close(product[0].double(), expected, rtol=2**-8, atol=1e-4)


@needs_int8
@pytest.mark.parametrize("positions", [1, 7, 200])
@torch.inference_mode()
def test_int8_product_equals_that_of_quantized_values(positions):
    x, weight = torch.randn(positions, 512), torch.randn(INT8_FROM_ELEMENTS // 512, 512)
    bias = torch.randn(len(weight))
    x[0] = 0  # a row without a largest
    x[-1, 3], weight[5] = 1e4, 0
    (levels, step), (weights, _) = quantized(x), quantized(weight)
    expected = levels @ weights.t() + bias.double()
    product = PackedLinear(weight, bias, torch.int8)(x)
    # A level that float32 rounds to the other side of a half moves the sum by a step of one input.
    bound = 1e-5 * expected.abs() + 1.001 * step * weight.abs().max()
    assert ((product.double() - expected).abs() <= bound).all()
    assert (product.double() - expected).abs().median() <= 1e-7 * expected.abs().max()


@needs_int8
@torch.inference_mode()
def test_small_weights_are_not_quantized_and_the_smallest_not_rounded():
    x = torch.randn(3, 512)
    halved = PackedLinear(torch.randn(300, 512), dtype=torch.int8)
    assert halved.quantized is None
    assert ONE_DNN in operators(lambda: halved(x))
    weight = torch.randn(PACK_FROM_ELEMENTS // 512 - 1, 512)
    torch.testing.assert_close(PackedLinear(weight, dtype=torch.int8)(x), F.linear(x, weight))


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.int8])
@torch.inference_mode()
def test_infinite_bias_keeps_its_logit_in_every_precision(dtype, precisions):
    precisions(dtype or torch.float32)
    bias = torch.zeros(4100)
    bias[7] = float("-inf")
    logits = PackedLinear(torch.ones(4100, 256), dtype=dtype)(torch.ones(2, 256), bias)
    assert (logits[:, 7] == float("-inf")).all()
    assert torch.isfinite(logits[:, 8:]).all()


@needs_bfloat16
@pytest.mark.parametrize("positions", [1, 4, 7])
@torch.inference_mode()
def test_attention_over_bfloat16_keys_is_that_of_torch_to_rounding(positions):
    query, keys, values = drawn_attention(positions, torch.float32)
    expected = F.scaled_dot_product_attention(query.double(), keys.double(), values.double())
    like = torch.empty(0, dtype=torch.bfloat16)
    copied = empty_transposed(like, *values.shape).copy_(values)
    mixed = attention(query, keys.bfloat16(), copied)
    assert mixed.dtype == torch.float32
    # Weights are off by the rounding of a score, 2^-8 of at most 6, and values by 2^-9.
    torch.testing.assert_close(mixed.double(), expected, rtol=0, atol=0.03)
