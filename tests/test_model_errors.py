"""Every failure to load a model gives one line; the exceptions are the libraries' own."""

import hashlib
import json
import shutil

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled
from transformers import AutoConfig, AutoModelForSpeechSeq2Seq

from tests.helpers.hub_errors import hub_error
from whosaid.errors import StartError
from whosaid.runtime.errors import loading, verify_checksums

NAME = "owner/model"


def refusal_of(error: Exception) -> str:
    """The line for `error` as the cause of another exception, which is how transformers raises."""
    with pytest.raises(StartError) as caught, loading("ASR_MODEL", NAME):
        raise OSError("a long story\nof several lines") from error
    return str(caught.value)


RESTRICTED = "access to owner/model is restricted: accept its licence"
UNKNOWN = "HF_TOKEN is missing or wrong, or there is no such repository"
BOTH = "it loads o/part, which is restricted: two licences must be accepted"
NONE = "the hub has no repository owner/model that HF_TOKEN may read"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (hub_error(403, "GatedRepo"), f"{RESTRICTED} at https://hf.co/owner/"),
        (hub_error(401, "GatedRepo"), RESTRICTED),
        (hub_error(403, "GatedRepo", "o/part"), BOTH),
        (hub_error(401, "RepoNotFound"), UNKNOWN),
        (hub_error(401), UNKNOWN),
        (hub_error(404, "RepoNotFound"), NONE),
        (hub_error(404, "RevisionNotFound"), "owner/model has no such revision"),
        (hub_error(404, "EntryNotFound"), "owner/model lacks a file"),
        (hub_error(403), "HF_TOKEN may not read it"),
        (hub_error(429), "the hub answered 429"),
        (hub_error(503), "the hub answered 503"),
        (LocalEntryNotFoundError("no cache"), "the hub cannot be reached"),
        (OfflineModeIsEnabled("offline"), "the hub cannot be reached"),
        (OSError("no file named model.safetensors"), "no safetensors weights"),
        (RuntimeError("what happened\nmore"), "could not be loaded (OSError: a long story)"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_refusals_of_the_hub_are_explained_in_one_line(error, expected):
    line = refusal_of(error)
    assert line.startswith("START_FAILED: ASR_MODEL=owner/model: ")
    assert expected in line
    assert "\n" not in line


def test_start_errors_keep_their_text_and_gain_the_variable():
    with pytest.raises(StartError) as caught, loading("ASSISTANT_MODEL", NAME):
        raise StartError("the assistant does not fit")
    assert str(caught.value) == "START_FAILED: ASSISTANT_MODEL: the assistant does not fit"


@pytest.fixture
def folder(whisper_folder, tmp_path):
    return shutil.copytree(whisper_folder, tmp_path / "model")


def load(folder) -> None:
    with loading("ASR_MODEL", str(folder)):
        AutoConfig.from_pretrained(folder)
        AutoModelForSpeechSeq2Seq.from_pretrained(folder, use_safetensors=True)


def test_folder_with_only_a_pickle_is_refused(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(StartError, match="no safetensors weights, and pickled ones are not loaded"):
        load(folder)


def test_weights_that_cannot_be_opened_are_not_called_missing(folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(folder / "elsewhere")
    with pytest.raises(StartError, match=r"model\.safetensors cannot be read: its permissions, or"):
        load(folder)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", b"{"),
        ("config.json", json.dumps({"model_type": "no such thing"}).encode()),
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1\n"),
    ],
)
def test_a_broken_file_is_one_line(folder, file, content):
    (folder / file).write_bytes(content)
    said = r"^START_FAILED: ASR_MODEL=.*could not be loaded \(\w+: .+\)$"
    with pytest.raises(StartError, match=said):
        load(folder)


def list_checksums(folder) -> None:
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    digests = [(hashlib.sha256(file.read_bytes()).hexdigest(), file) for file in files]
    lines = [f"{digest}  {file.relative_to(folder)}\n" for digest, file in digests]
    (folder / "SHA256SUMS").write_text("".join(lines))


@pytest.fixture
def listed(tmp_path):
    """A folder with a file, a nested file and their checksums in the format of `sha256sum`."""
    (tmp_path / "embedding").mkdir()
    (tmp_path / "config.yaml").write_bytes(b"version: 1\n")
    (tmp_path / "embedding" / "weights.bin").write_bytes(bytes(range(256)) * 1000)
    list_checksums(tmp_path)
    return tmp_path


def test_a_folder_that_matches_its_checksums_passes(listed):
    verify_checksums(listed)
    (listed / "SHA256SUMS").unlink()
    verify_checksums(listed)


def flip_a_bit(file) -> None:
    content = bytearray(file.read_bytes())
    content[1234] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [flip_a_bit, lambda file: file.unlink(), lambda file: file.write_bytes(b"")],
    ids=["bit", "gone", "empty"],
)
def test_folder_with_wrong_checksums_is_refused_before_loading(listed, damage):
    damage(listed / "embedding" / "weights.bin")
    refusal = r"^START_FAILED: DIARIZATION_MODEL: .*embedding/weights.bin is missing or is not the "
    with pytest.raises(StartError, match=refusal), loading("DIARIZATION_MODEL", str(listed)):
        pytest.fail("the block ran")
