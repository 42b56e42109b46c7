"""The recordings that heads are trained on or evaluated with."""

from pathlib import Path

from benchmarks.real.manifest import Recording, load_manifests
from whosaid.audio import ENDING


def find_recordings(source: Path) -> list[Recording]:
    """Return the recordings of a manifest, or of a folder: those its `manifest.json` lists, else
    every audio file below it. Raises ValueError if there are none.
    """
    if not source.exists():
        raise ValueError(f"{source}: there is no such folder or manifest")
    manifest = source / "manifest.json" if source.is_dir() else source
    if manifest.is_file():
        found = load_manifests([manifest])
    else:
        files = sorted(path for path in source.rglob("*") if ENDING.fullmatch(path.suffix))
        found = [Recording(path.resolve()) for path in files]
    if not found:
        raise ValueError(f"{source}: it holds no recordings")
    return found
