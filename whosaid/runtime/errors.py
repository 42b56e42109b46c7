"""Turns exceptions of libraries and devices into the errors of `whosaid/errors.py`.

`endpoint_errors` guards a request, so that no traceback and no path reaches a client. `loading`
guards the load of one model. Importing this module loads neither torch nor transformers nor the
Hub's client.
"""

import hashlib
import logging
import os
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from whosaid.errors import EndpointError, ModelError, OutOfMemory, StartError
from whosaid.runtime.logs import hide_tokens, without_tokens
from whosaid.runtime.versions import refused_repository

logger = logging.getLogger("endpoint")

# PyTorch reports a lack of memory in several ways: the caching allocator raises OutOfMemoryError,
# calls of CUDA raise AcceleratorError (a RuntimeError before torch 2.9) with CUDA's text, and
# cuBLAS, cuDNN and the CPU allocator raise plain RuntimeErrors with these texts.
OUT_OF_MEMORY_TEXTS = ("out of memory", "alloc_failed", "can't allocate memory")

# Seconds until a process with a lost device ends, in which answers are sent, and its exit status.
SECONDS_TO_ANSWER, EXIT_STATUS = 1.0, 70
ENDING = "end of the process"  # name of the thread that ends the process

CHECKSUMS = "SHA256SUMS"
UNAUTHORIZED, FORBIDDEN = 401, 403


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the call that raised `error` may succeed with a smaller batch."""
    if isinstance(error, MemoryError) or _is_named(error, "OutOfMemoryError"):
        return True
    text = str(error).lower() if isinstance(error, RuntimeError) else ""
    return any(each in text for each in OUT_OF_MEMORY_TEXTS)


def is_device_lost(error: BaseException) -> bool:
    """Return whether only a new process can use the device again: CUDA errors such as an illegal
    memory access are sticky.
    """
    if is_out_of_memory(error):
        return False
    plain = isinstance(error, RuntimeError) and str(error).startswith("CUDA error")
    return plain or _is_named(error, "AcceleratorError")


def _is_named(error: BaseException, name: str) -> bool:
    """Return whether `error` is an instance of torch's class `name`, without importing torch."""
    return any((kind.__module__, kind.__name__) == ("torch", name) for kind in type(error).__mro__)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@contextmanager
def endpoint_errors() -> Iterator[None]:
    """Pass EndpointErrors on; turn other exceptions into OutOfMemory or, logged, ModelError. If the
    device is lost, the process ends, so that the platform starts a new one.
    """
    try:
        yield
    except Exception as error:
        lost = next(filter(is_device_lost, causes(error)), None)
        if lost is not None:  # the text is torch's and holds no user data
            end_process(f"the device is lost: {' '.join(str(lost).split())}")
        if isinstance(error, EndpointError):
            raise
        if is_out_of_memory(error):
            raise OutOfMemory(
                "this request does not fit into the memory of this endpoint"
            ) from error
        origin = traceback.extract_tb(error.__traceback__)[-1]
        name = type(error).__name__
        logger.error("%s in %s, line %s", name, Path(origin.filename).name, origin.lineno)
        raise ModelError(f"unexpected {name}; the log of the endpoint names its origin") from error


def end_process(reason: str) -> None:
    """End this process after SECONDS_TO_ANSWER, in which answers are sent; log the reason once."""
    if process_ends():
        return
    logger.critical("the process ends: %s", reason)
    timer = threading.Timer(SECONDS_TO_ANSWER, os._exit, (EXIT_STATUS,))
    timer.name, timer.daemon = ENDING, True
    timer.start()


def process_ends() -> bool:
    return any(thread.name == ENDING for thread in threading.enumerate())


@contextmanager
def loading(variable: str, name: str) -> Iterator[None]:
    """Guard the load of model `name`, a Hub ID or folder that `variable` named, and raise a
    one-line StartError that begins with `variable`. A folder is first compared with its SHA256SUMS,
    because pyannote unpickles weights, which can run code.
    """
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    hide_tokens()  # of downloads
    try:
        verify_checksums(Path(name))
        yield
    except StartError as error:
        raise StartError(error.text, variable) from error
    except Exception as error:
        raise StartError(f"{variable}={name}: {_reason(name, error)}") from error


def verify_checksums(folder: Path) -> None:
    """Check the digests in `folder`/SHA256SUMS, if any. Raises StartError for the first fault."""
    checksums = folder / CHECKSUMS
    if not checksums.is_file():
        return
    for line in checksums.read_text(encoding="utf-8").splitlines():
        digest, _, name = line.partition("  ")
        if not (folder / name).is_file() or _sha256(folder / name) != digest:
            raise StartError(
                f"{folder.name}/{name} is missing or is not the file that {CHECKSUMS} lists"
            )


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _reason(name: str, error: Exception) -> str:
    """Return why model `name` did not load: the Hub's refusal if there was one."""
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

    chain = list(causes(error))
    for cause in chain:
        if refusal := _hub_refusal(name, cause):
            return refusal
    if any(isinstance(cause, LocalEntryNotFoundError | OfflineModeIsEnabled) for cause in chain):
        return "the hub cannot be reached, and the files are not in the local cache"
    if any("safetensors" in str(cause) for cause in chain):
        # safetensors reports a file that it may not open as missing.
        for file in Path(name).glob("*.safetensors"):
            if not os.access(file, os.R_OK):
                return f"{file.name} cannot be read: its permissions, or a link to nothing"
        return "it has no safetensors weights, and pickled ones are not loaded"
    first_line = next(iter(str(error).splitlines()), "")
    return f"could not be loaded ({type(error).__name__}: {without_tokens(first_line)})"


def _hub_refusal(name: str, error: BaseException) -> str | None:
    """Return an explanation of a Hub's HTTP error for the deployer; None for other exceptions."""
    from huggingface_hub import errors as hub

    if not isinstance(error, hub.HfHubHTTPError) or isinstance(error, hub.LocalEntryNotFoundError):
        return None
    repository, status = refused_repository(error) or name, error.response.status_code
    if isinstance(error, hub.GatedRepoError):
        return _licence_steps(name, repository)
    if status == UNAUTHORIZED:
        return (
            f"the hub denied access to {repository}: "
            "HF_TOKEN is missing or wrong, or there is no such repository"
        )
    if isinstance(error, hub.RepositoryNotFoundError):
        return (
            f"the hub has no repository {repository} that HF_TOKEN may read, "
            "and no folder has that name"
        )
    if isinstance(error, hub.RevisionNotFoundError):
        return f"{repository} has no such revision"
    if status == FORBIDDEN:
        return f"the hub refused access to {repository}: HF_TOKEN may not read it"
    if isinstance(error, hub.EntryNotFoundError):
        return f"{repository} lacks a file that a model of this kind has"
    return f"the hub answered {status}, and the files are not in the local cache"


def _licence_steps(name: str, repository: str) -> str:
    """Return how to get access to a gated `repository`, which may be part of model `name`."""
    if repository == name:
        steps = f"access to {name} is restricted: accept its licence at https://hf.co/{name}"
    else:
        both = f"https://hf.co/{name} and https://hf.co/{repository}"
        steps = (
            f"it loads {repository}, which is restricted: two licences must be accepted, at {both},"
        )
    return f"{steps} with the account whose token is in HF_TOKEN"
