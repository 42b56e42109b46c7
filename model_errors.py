"""Between a model's name and its weights: what may be loaded, and one plain line where that fails.

The one decision: loading is a context, not a loader. Every room loads its models as its library
wants, inside `loading`, which first checks a folder against the SHA256SUMS it carries (pyannote
unpickles weights, and a pickle can run code) and afterwards turns whatever the libraries raised
into a StartError that names the variable to mend.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from transformers.utils.logging import disable_progress_bar

from errors import StartError

CHECKSUMS = "SHA256SUMS"
UNAUTHORIZED, FORBIDDEN = 401, 403


@contextmanager
def loading(variable: str, name: str) -> Iterator[None]:
    """Load the model `name`, a hub id or a local folder, that the environment's `variable` asks
    for.

    Raises StartError, `variable` first, for whatever goes wrong inside and for a folder that is not
    what it lists.
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
    """Compare every file that `folder`/SHA256SUMS lists with its digest; a folder without a list
    passes.

    Raises StartError naming the first file that is missing or differs.
    """
    listing = folder / CHECKSUMS
    if not listing.is_file():
        return
    for line in listing.read_text(encoding="utf-8").splitlines():
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
    """Say why `name` did not load, from the first telling exception among `error` and its
    causes.
    """
    causes = list(_causes(error))
    return next(filter(None, (_refusal(name, cause) for cause in causes)), None) or _other_reason(
        causes
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _refusal(name: str, error: BaseException) -> str | None:
    """What the hub's refusals mean to a deployer; None for exceptions that are none, or only wrap
    one.
    """
    repository = getattr(error, "repo_id", None) or name
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if isinstance(error, GatedRepoError):
        return _licence(name, repository)
    if status == UNAUTHORIZED:
        return f"the hub let nobody in to {repository}: HF_TOKEN is missing or wrong, or there is no such repository"
    if isinstance(error, RepositoryNotFoundError):
        return f"the hub has no repository {repository} that HF_TOKEN may read, and no folder has that name"
    if isinstance(error, RevisionNotFoundError):
        return f"{repository} has no such revision"
    if status == FORBIDDEN:
        return f"the hub refused access to {repository}: HF_TOKEN may not read it"
    if isinstance(error, RemoteEntryNotFoundError):
        return f"{repository} lacks a file that a model of this kind has"
    if status is not None:
        return f"the hub answered {status}, and the files are not in the local cache"
    return None


def _licence(name: str, repository: str) -> str:
    if repository == name:
        steps = f"access to {name} is restricted: accept its licence at https://hf.co/{name}"
    else:
        both = f"https://hf.co/{name} and https://hf.co/{repository}"
        steps = (
            f"it loads {repository}, which is restricted: two licences must be accepted, at {both},"
        )
    return f"{steps} with the account whose token is in HF_TOKEN"


def _other_reason(causes: list[BaseException]) -> str:
    if any(isinstance(cause, LocalEntryNotFoundError | OfflineModeIsEnabled) for cause in causes):
        return "the hub cannot be reached, and the files are not in the local cache"
    if any("safetensors" in str(cause) for cause in causes):
        return "it has no safetensors weights, and pickled ones are not loaded"
    said = next(iter(str(causes[0]).splitlines()), "")
    return f"could not be loaded ({type(causes[0]).__name__}: {said})"
