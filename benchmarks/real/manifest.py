"""The recordings of a manifest (`whosaid.cli.manifest`), and their transcripts.

`text` is the transcript, and `reference` its source: `truth` for the spoken or read text, else the
name of its author, usually another model. A recording without text has no speech, and every
recognised word in it is an error. Only the language (Whisper's code) of the `parameters` is used;
without one every engine detects it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whosaid.audio.decode import AudioLimits, decode_audio
from whosaid.cli.manifest import read_manifest
from whosaid.errors import InvalidAudio
from whosaid.timebase import SAMPLE_RATE

TRUTH = "truth"
LIMITS = AudioLimits(max_seconds=24 * 3600.0, max_bytes=2**31)


@dataclass(frozen=True)
class Recording:
    """A recording of a manifest; `audio` is absolute."""

    audio: Path
    language: str | None = None
    text: str = ""
    reference: str = TRUTH

    @property
    def name(self) -> str:
        return self.audio.name

    def facts(self, seconds: float) -> dict[str, Any]:
        """Return the entry of a recording of `seconds` in the results, by its name."""
        known = {"language": self.language, "text": self.text, "reference": self.reference}
        return {**known, "seconds": round(seconds, 3)}

    def samples(self) -> NDArray[np.float32]:
        """Return the samples (n,), mono at 16 kHz, by this project's decoder. Raises InvalidAudio
        with the file's path.
        """
        try:
            return decode_audio(self.audio.read_bytes(), SAMPLE_RATE, LIMITS).samples
        except InvalidAudio as error:
            raise InvalidAudio(f"{self.audio}: {error.reason}") from error


def recordings_of(
    results: Mapping[str, Any], texts: Mapping[str, Mapping[str, object]]
) -> list[Recording]:
    """Return the recordings of results for which every engine has a text."""
    return [
        Recording(Path(name), kept["language"], kept["text"], kept["reference"])
        for name, kept in results["recordings"].items()
        if all(name in known for known in texts.values())
    ]


def load_manifests(files: list[Path]) -> list[Recording]:
    """Return the recordings of several manifests in order.

    Raises ValueError of one line that names file and line if a manifest is wrong or a recording is
    missing, and if two recordings have one name.
    """
    recordings = [recording for file in files for recording in _load(file)]
    names = [recording.name for recording in recordings]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"more than one recording is called {twice[0]}")
    return recordings


def _load(file: Path) -> list[Recording]:
    try:
        text = file.read_text(encoding="utf-8-sig")
        return [_recording(file, *entry) for entry in read_manifest(text)]
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: is not text in UTF-8") from error
    except ValueError as error:
        raise ValueError(f"{file}, {error}") from error


def _recording(file: Path, place: str, fields: dict[str, Any]) -> Recording:
    audio = (file.parent / fields["path"]).resolve()
    if not audio.is_file():
        raise ValueError(f"{place}: there is no {audio}")
    language = fields.get("parameters", {}).get("language")
    return Recording(audio, language, fields.get("text") or "", fields.get("reference") or TRUTH)
