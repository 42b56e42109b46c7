"""Failures to load a model, as one line that names the environment variable to correct.

Each module loads its models with its own library inside the context `loading`, which first compares
a local folder with its SHA256SUMS (pyannote unpickles weights, and a pickle can run code), then
turns whatever the libraries raise into a StartError.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from transformers.utils.logging import disable_progress_bar

from errors import StartError
from runtime.versions import refused_repository

CHECKSUMS = "SHA256SUMS"
UNAUTHORIZED, FORBIDDEN = 401, 403


@contextmanager
def loading(variable: str, name: str) -> Iterator[None]:
    """Load model `name`, a hub id or local folder from the environment's `variable`, in the block.

    Raises StartError, its text beginning with `variable`, for every exception of the block and for
    a folder that does not match its checksums.
    """
    disable_progress_bar()
    try:
        verify_checksums(Path(name))
        yield
    except StartError as error:
        raise StartError(f"{variable}: {str(error).removeprefix(f'{error.code}: ')}") from error
    except Exception as error:
        raise StartError(f"{variable}={name}: {_reason(name, error)}") from error


def verify_checksums(folder: Path) -> None:
    """Compare each file listed in `folder`/SHA256SUMS with its digest; without a list do nothing.

    Raises StartError naming the first file that is missing or differs.
    """
    checksums = folder / CHECKSUMS
    if not checksums.is_file():
        return
    for line in checksums.read_text(encoding="utf-8").splitlines():
        digest, _, name = line.partition("  ")
        if not _has_digest(folder / name, digest):
            raise StartError(
                f"{folder.name}/{name} is missing or is not the file that {CHECKSUMS} lists"
            )


def _has_digest(file: Path, digest: str) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() == digest


def _reason(name: str, error: Exception) -> str:
    """Say why `name` did not load: the hub's refusal, if `error` or a cause of it is one."""
    causes = list(_causes(error))
    for cause in causes:
        refusal = _hub_refusal(name, cause)
        if refusal is not None:
            return refusal
    return _other_reason(name, causes)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """`error` and the chain of exceptions that led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _hub_refusal(name: str, error: BaseException) -> str | None:
    """Explain an exception of huggingface_hub to a deployer; None for any other exception."""
    if not isinstance(error, HfHubHTTPError) or isinstance(error, LocalEntryNotFoundError):
        return None
    repository, status = refused_repository(error) or name, error.response.status_code
    if isinstance(error, GatedRepoError):
        return _licence_steps(name, repository)
    if status == UNAUTHORIZED:
        return (
            f"the hub denied access to {repository}: "
            "HF_TOKEN is missing or wrong, or there is no such repository"
        )
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"the hub has no repository {repository} that HF_TOKEN may read, "
            "and no folder has that name"
        )
    if isinstance(error, RevisionNotFoundError):
        return f"{repository} has no such revision"
    if status == FORBIDDEN:
        return f"the hub refused access to {repository}: HF_TOKEN may not read it"
    if isinstance(error, EntryNotFoundError):
        return f"{repository} lacks a file that a model of this kind has"
    return f"the hub answered {status}, and the files are not in the local cache"


def _licence_steps(name: str, repository: str) -> str:
    """What to do where `repository`, which is or is loaded by the model `name`, is gated."""
    if repository == name:
        steps = f"access to {name} is restricted: accept its licence at https://hf.co/{name}"
    else:
        both = f"https://hf.co/{name} and https://hf.co/{repository}"
        steps = (
            f"it loads {repository}, which is restricted: two licences must be accepted, at {both},"
        )
    return f"{steps} with the account whose token is in HF_TOKEN"


def _other_reason(name: str, causes: list[BaseException]) -> str:
    if any(isinstance(cause, LocalEntryNotFoundError | OfflineModeIsEnabled) for cause in causes):
        return "the hub cannot be reached, and the files are not in the local cache"
    if any("safetensors" in str(cause) for cause in causes):
        # safetensors calls a file that it may not open missing.
        for file in Path(name).glob("*.safetensors"):
            if not os.access(file, os.R_OK):
                return f"{file.name} cannot be read: its permissions, or a link to nothing"
        return "it has no safetensors weights, and pickled ones are not loaded"
    first_line = next(iter(str(causes[0]).splitlines()), "")
    return f"could not be loaded ({type(causes[0]).__name__}: {first_line})"
