"""The device that is chosen, and the one line where there is none to serve with."""

import pytest
import torch

from handler import load_endpoint
from whosaid.diarization.pyannote import windows_together
from whosaid.errors import StartError
from whosaid.runtime import device
from whosaid.runtime.device import choose_device, choose_dtype, prepare_device

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def cuda(monkeypatch):
    """Sets whether torch can use CUDA, its error, and whether there is an NVIDIA device."""

    def set_usable(
        usable, reason="Found no NVIDIA driver on your system.\nPlease check.", present=False
    ):
        def fail():
            raise RuntimeError(reason)

        monkeypatch.setattr(torch.cuda, "is_available", lambda: usable)
        monkeypatch.setattr(torch.cuda, "init", fail)
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(device, "nvidia_device_present", lambda: present)

    return set_usable


@pytest.fixture
def threads(monkeypatch):
    """Stands in for torch's threads and the processors of the process; [0] are the threads."""
    count = [0]

    def have(threads, processors):
        count[0] = threads
        monkeypatch.setattr(device.joblib, "cpu_count", lambda: processors)
        return count

    monkeypatch.setattr(torch, "get_num_threads", lambda: count[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda number: count.__setitem__(0, number))
    return have


@pytest.mark.parametrize(
    ("wanted", "usable", "present", "chosen"),
    [
        ("auto", True, True, CUDA), ("auto", True, False, CUDA), ("auto", False, False, CPU),
        ("cuda", True, True, CUDA), ("cpu", True, True, CPU), ("cpu", False, True, CPU),
        ("cpu", False, False, CPU),
    ],
)  # fmt: skip
def test_the_device(cuda, wanted, usable, present, chosen):
    cuda(usable, present=present)
    assert choose_device(wanted) == chosen


@pytest.mark.parametrize(
    ("wanted", "present", "says"),
    [("auto", True, "DEVICE=cpu"), ("cuda", True, "DEVICE=cuda"), ("cuda", False, "DEVICE=cuda")],
)
def test_no_silent_service_on_the_cpu(cuda, wanted, present, says):
    cuda(False, present=present)
    with pytest.raises(StartError) as caught:
        choose_device(wanted)
    line = str(caught.value)
    assert says in line
    assert "Found no NVIDIA driver on your system. Please check." in line
    assert "\n" not in line


def test_a_build_without_cuda_says_so(cuda, monkeypatch):
    cuda(False)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(StartError, match="this build of torch has no CUDA"):
        choose_device("cuda")


@pytest.fixture
def processor(monkeypatch):

    def have(*flags):
        for name in ("_is_avx512_bf16_supported", "_is_vnni_supported"):
            monkeypatch.setattr(torch.cpu, name, lambda name=name: name in flags, raising=False)

    return have


BOTH = ("_is_avx512_bf16_supported", "_is_vnni_supported")


@pytest.mark.skipif(not device.HAS_ONEDNN, reason="oneDNN is missing or slow")
@pytest.mark.parametrize(
    ("wanted", "device", "flags", "chosen"),
    [
        ("auto", CPU, BOTH, torch.bfloat16), ("auto", CPU, BOTH[1:], torch.float32),
        ("auto", CPU, (), torch.float32), ("float32", CPU, BOTH, torch.float32),
        ("bfloat16", CPU, BOTH[:1], torch.bfloat16), ("int8", CPU, BOTH, torch.int8),
        ("auto", CUDA, BOTH, torch.float16), ("float16", CUDA, (), torch.float16),
        ("bfloat16", CUDA, (), torch.bfloat16), ("float32", CUDA, (), torch.float32),
    ],
)  # fmt: skip
def test_the_precision(processor, wanted, device, flags, chosen, monkeypatch):
    processor(*flags)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    assert choose_dtype(wanted, device) == chosen


@pytest.mark.parametrize(
    ("wanted", "device", "says"),
    [
        ("int8", CUDA, "on CUDA choose float16, bfloat16 or float32"),
        ("bfloat16", CUDA, "older than Ampere"),
        ("float16", CPU, "on a CPU choose auto, bfloat16, int8 or float32"),
        ("bfloat16", CPU, "AVX512_BF16"),
        ("int8", CPU, "AVX512_BF16"),
    ],
)
def test_missing_precision_is_refused_in_one_line(processor, wanted, device, says, monkeypatch):
    processor()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    with pytest.raises(StartError, match=f"START_FAILED: DTYPE={wanted}") as caught:
        choose_dtype(wanted, device)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not device.HAS_ONEDNN, reason="oneDNN is missing or slow")
@pytest.mark.parametrize("supported", [True, False])
def test_precision_on_arm_follows_its_processor(processor, monkeypatch, supported):
    processor()
    monkeypatch.setattr(device.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(device, "_arm_supports_bfloat16", lambda: supported)
    assert choose_dtype("auto", CPU) == (torch.bfloat16 if supported else torch.float32)


@pytest.mark.skipif(not device.HAS_ONEDNN, reason="oneDNN is missing or slow")
@pytest.mark.parametrize("seconds", [(1.0, 2.0), (2.0, 1.0)])
def test_onednn_is_chosen_by_its_speed(monkeypatch, seconds):
    taken = iter(seconds)

    def repeat(product, number):
        product()
        return [next(taken)]

    monkeypatch.setattr(device.timeit, "repeat", repeat)
    assert device._onednn_is_faster() == (seconds[0] < seconds[1])


@pytest.mark.parametrize("lacking", ["no function of it", "no oneDNN"])
def test_auto_is_float32_where_torch_lacks_the_product(processor, monkeypatch, caplog, lacking):
    processor(*BOTH)
    if lacking == "no oneDNN":
        monkeypatch.setattr(device, "HAS_ONEDNN", False)
    else:
        flags = {torch.bfloat16: (*device.CPU_FLAGS[torch.bfloat16][:2], "mkldnn::_gone")}
        monkeypatch.setattr(device, "CPU_FLAGS", flags)
    with caplog.at_level("INFO", "endpoint"):
        assert choose_dtype("auto", CPU) == torch.float32
    assert "computing in float32: bfloat16 needs" in caplog.text


@pytest.mark.parametrize(
    ("before", "processors", "after"), [(8, 2, 2), (2, 2, 2), (1, 16, 1)], ids=str
)
def test_threads_are_lowered_to_the_processors_and_never_raised(threads, before, processors, after):
    count = threads(before, processors)
    prepare_device(torch.device("cpu"))
    assert count == [after]


@pytest.mark.parametrize(("kind", "kept"), [("cpu", True), ("cuda", False)])
def test_cudnn_attention_is_off_on_cuda(threads, kind, kept):
    threads(1, 1)
    products = torch.backends.cuda.matmul
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    products.allow_fp16_reduced_precision_reduction = True
    try:
        prepare_device(torch.device(kind))
        assert torch.backends.cuda.cudnn_sdp_enabled() is kept
        assert products.allow_fp16_reduced_precision_reduction is kept
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
        products.allow_fp16_reduced_precision_reduction = True


@pytest.mark.parametrize(
    ("gigabytes", "line"),
    [
        (1.6, None),
        (1.2, "memory is short: diarization may need 1.5 GB, and the models leave 1.2 GB"),
    ],
)
def test_too_little_memory_for_diarization_is_one_line(monkeypatch, caplog, gigabytes, line):
    free = int(gigabytes * 1e9)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free - 3, 16 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 5)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 2)
    device.warn_if_memory_is_short(torch.device("cuda"))
    assert [each.getMessage() for each in caplog.records] == ([line] if line else [])


@pytest.mark.parametrize(("gigabytes", "windows"), [(15, 16), (22, 32)])
def test_a_small_gpu_diarizes_fewer_windows_together(monkeypatch, gigabytes, windows):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (0, gigabytes << 30))
    assert windows_together(torch.device("cuda")) == windows


@pytest.mark.skipif(torch.cuda.is_available(), reason="its CUDA device is usable")
@pytest.mark.parametrize(("wanted", "told"), [("auto", "DEVICE=cpu"), ("cuda", "DEVICE=cuda")])
def test_an_endpoint_with_an_unusable_gpu_does_not_start(whisper_folder, monkeypatch, wanted, told):
    monkeypatch.setenv("ASR_MODEL", str(whisper_folder))
    monkeypatch.setenv("DEVICE", wanted)
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "0")
    with pytest.raises(SystemExit, match=f"^START_FAILED: .*{told}") as caught:
        load_endpoint()
    assert "\n" not in str(caught.value)
