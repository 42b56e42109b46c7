"""Attention without a mask on CUDA: which kernel computes a shape, and what it computes."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from whosaid.asr.model import cuda_attention

CUDNN = "_scaled_dot_product_cudnn_attention"
HEADS, FRAMES, SIZE = 20, 1500, 64


class Operations(TorchDispatchMode):
    """Records the names of the operations that run."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def computed(monkeypatch):
    """Return the operations of attention on a device of given compute capability."""

    def computed(rows, positions, dtype=torch.float16, capability=(9, 0), version=91_900):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        monkeypatch.setattr(torch.backends.cudnn, "version", lambda: version)
        # torch asks the driver which kernel it may choose.
        monkeypatch.setattr(F, "scaled_dot_product_attention", lambda query, *_: query.clone())
        monkeypatch.setattr(cuda_attention, "_agrees", lambda _: True)
        cuda_attention.CUDNN.permit(True)
        with FakeTensorMode(), Operations() as operations:
            query = torch.empty(rows, positions, HEADS, SIZE, device="cuda", dtype=dtype)
            keys = torch.empty(rows, HEADS, FRAMES, SIZE, device="cuda", dtype=dtype)
            mixed = cuda_attention.cuda_attention(query.transpose(1, 2), keys, keys)
        assert mixed.shape == (rows, HEADS, positions, SIZE)
        return operations.names

    yield computed
    cuda_attention.CUDNN.permit(False)


@pytest.mark.parametrize(("rows", "positions"), [(16, 1), (24, 9), (96, 1)])
def test_cudnn_computes_few_queries_of_many_rows(computed, rows, positions):
    assert CUDNN in computed(rows, positions)


@pytest.mark.parametrize(("rows", "positions"), [(1, 1), (8, 9), (24, 10), (24, 64)])
def test_prompts_and_few_rows_are_left_to_torch(computed, rows, positions):
    assert CUDNN not in computed(rows, positions)


@pytest.mark.parametrize(
    "other",
    [
        {"dtype": torch.float32},
        *({"capability": each} for each in ((8, 9), (10, 0))),
        *({"version": each} for each in (90_100, None)),
    ],
    ids=str,
)
def test_unmeasured_shapes_use_torchs_choice(computed, other):
    assert CUDNN not in computed(24, 1, **other)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("rows", "positions"), [(1, 1), (16, 1), (24, 5), (96, 1)])
def test_on_a_device_attention_is_that_of_float64(rows, positions):
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=generator, device="cuda", dtype=torch.float16)

    query = draw(rows, positions, HEADS, SIZE).transpose(1, 2)
    keys, values = draw(rows, HEADS, FRAMES, SIZE), draw(rows, HEADS, FRAMES, SIZE)
    scores = query.double() @ keys.double().transpose(2, 3) * SIZE**-0.5
    expected = scores.softmax(dim=-1) @ values.double()
    cuda_attention.CUDNN.permit(True)
    found = cuda_attention.cuda_attention(query, keys, values).double()
    cuda_attention.CUDNN.permit(False)
    assert (found - expected).norm() / expected.norm() < 1e-3
