"""The device that is chosen, and the one line where there is none to serve with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import device
from device import choose_device, prepare_device
from errors import StartError

CPU = (torch.device("cpu"), torch.float32)
CUDA = (torch.device("cuda"), torch.float16)
REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture
def cuda(monkeypatch):
    """Sets whether torch can use CUDA, and what torch says where it cannot."""

    def set_usable(usable, reason="Found no NVIDIA driver on your system.\nPlease check."):
        def fail():
            raise RuntimeError(reason)

        monkeypatch.setattr(torch.cuda, "is_available", lambda: usable)
        monkeypatch.setattr(torch.cuda, "init", fail)
        monkeypatch.setattr(torch.version, "cuda", "13.0")

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
        ("auto", True, True, CUDA),
        ("auto", True, False, CUDA),
        ("auto", False, False, CPU),
        ("cuda", True, True, CUDA),
        ("cpu", True, True, CPU),
        ("cpu", False, True, CPU),
        ("cpu", False, False, CPU),
    ],
)
def test_the_device_and_its_precision(cuda, wanted, usable, present, chosen):
    cuda(usable)
    assert choose_device(wanted, present) == chosen


@pytest.mark.parametrize(
    ("wanted", "present", "says"),
    [("auto", True, "DEVICE=cpu"), ("cuda", True, "DEVICE=cuda"), ("cuda", False, "DEVICE=cuda")],
)
def test_no_silent_service_on_the_cpu(cuda, wanted, present, says):
    cuda(False)
    with pytest.raises(StartError) as caught:
        choose_device(wanted, present)
    line = str(caught.value)
    assert says in line
    assert "Found no NVIDIA driver on your system. Please check." in line
    assert "\n" not in line


def test_a_build_without_cuda_says_so(cuda, monkeypatch):
    cuda(False)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(StartError, match="this build of torch has no CUDA"):
        choose_device("cuda", False)


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
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        prepare_device(torch.device(kind))
        assert torch.backends.cuda.cudnn_sdp_enabled() is kept
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.skipif(torch.cuda.is_available(), reason="its CUDA device is usable")
@pytest.mark.parametrize("wanted", ["auto", "cuda"])
def test_an_endpoint_whose_gpu_is_unusable_does_not_start(whisper_folder, wanted):
    done = subprocess.run(
        [sys.executable, "-c", "from handler import EndpointHandler; EndpointHandler('')"],
        cwd=REPOSITORY,
        env={
            **os.environ,
            "ASR_MODEL": str(whisper_folder),
            "DEVICE": wanted,
            "NVIDIA_VISIBLE_DEVICES": "0",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("START_FAILED: ")
    assert ("DEVICE=cpu" if wanted == "auto" else "DEVICE=cuda") in line
