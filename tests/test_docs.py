"""Files, folders and links in the documents exist, and tables equal the code's."""

import re
import subprocess
from pathlib import Path, PurePosixPath

import pytest

from config import REPOSITORY, InferenceConfig
from tests.helpers.reference_tables import DOCUMENTS as WITH_TABLES
from tests.helpers.reference_tables import PLACE, TABLES, filled
from whosaid.asr.engine.fallback import DEFAULT_FALLBACK

DOCUMENTS = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"]
DOCUMENTS += [each for of in ("docs", "extras") for each in sorted((REPOSITORY / of).rglob("*.md"))]
# The first word of a code span: a file of ours by its ending, which may have stars, a folder by its
# slash, or a script.
PATH = re.compile(
    r"`(?P<path>(?:[\w.*-]+/)*[\w*-]+\.(?:py|md|toml|ya?ml)|(?:[\w-]+/)+|scripts/\w+)(?=[` ])"
)
NOT_OURS = {"attempts/"}  # of what an archive writes
LINK = re.compile(r"\]\((?!https?:|#|mailto:)(?P<target>[^)#\s]+)")


@pytest.fixture(scope="module")
def tracked() -> set[PurePosixPath]:
    """All files and folders of the repository."""
    command = ["git", "ls-files"]
    listed = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    files = [PurePosixPath(line) for line in listed.stdout.splitlines()]
    return {*files, *(folder for file in files for folder in file.parents)}


def test_the_tracked_files_are_small(tracked):
    """Containers, endpoints and rented machines copy all of them."""
    files = [REPOSITORY / each for each in tracked]
    assert sum(each.stat().st_size for each in files if each.is_file()) <= 50 << 20


def named(document: Path) -> set[str]:
    found = PATH.finditer(document.read_text(encoding="utf-8"))
    return {each["path"] for each in found} - NOT_OURS


def missing(document: Path, tracked: set[PurePosixPath]) -> set[str]:
    """Names that are no path's end: a document may say which folder it is about."""
    return {name for name in named(document) if not any(path.match(name) for path in tracked)}


def titled(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


@pytest.mark.parametrize("document", DOCUMENTS, ids=titled)
def test_files_and_folders_that_are_named_exist(document, tracked):
    assert missing(document, tracked) == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=titled)
def test_links_lead_to_files(document):
    targets = [each["target"] for each in LINK.finditer(document.read_text(encoding="utf-8"))]
    assert [each for each in targets if not (document.parent / each).exists()] == []


def test_a_name_of_nothing_is_found(tmp_path, tracked):
    page = tmp_path / "page.md"
    page.write_text(
        "`diarization/pipeline.py`, `diarization/clustering.py` and `engine/sch*.py`, `nothing/`,"
        " `runtime/`, `scripts/nope it`, `scripts/test docs`, `python -m nope.py`"
    )
    assert missing(page, tracked) == {"diarization/pipeline.py", "nothing/", "scripts/nope"}


def test_tables_are_those_of_the_code():
    """`python -m tests.helpers.reference_tables` writes them."""
    pages = {path.name: path.read_text(encoding="utf-8") for path in WITH_TABLES}
    assert sorted(name for page in pages.values() for name in PLACE.findall(page)) == sorted(TABLES)
    assert {name for name, page in pages.items() if filled(page) != page} == set()


@pytest.mark.parametrize(
    "name", ["compression_ratio_threshold", "logprob_threshold", "no_speech_threshold"]
)
def test_a_threshold_that_is_not_given_is_the_documented_one(name):
    description = InferenceConfig.model_fields[name].description
    assert f"default {getattr(DEFAULT_FALLBACK, name)}" in description
