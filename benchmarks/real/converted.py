"""Converts weights for CTranslate2 once and keeps them.

CTranslate2's converter reads a transformers folder and keeps float32; the precision an engine
computes in is chosen when it loads them. A conversion is named after the folder and the size and
time of what is in it, so a changed model is converted again.
"""

import hashlib
import shutil
from pathlib import Path

from ctranslate2.converters import TransformersConverter
from transformers import AutoTokenizer

from benchmarks.report import RESULTS
from whosaid.runtime.versions import tokenizer_arguments

FOLDER = RESULTS / "ctranslate2"


def convert(model: Path, folder: Path = FOLDER) -> Path:
    """Return the folder with CTranslate2's form of a transformers folder."""
    made = folder / _fingerprint(model)
    if not made.is_dir():
        partial = made.with_suffix(".part")
        shutil.rmtree(partial, ignore_errors=True)
        partial.parent.mkdir(parents=True, exist_ok=True)
        converter = TransformersConverter(str(model), copy_files=["preprocessor_config.json"])
        converter.convert(str(partial))
        # Without a tokenizer in one file faster-whisper downloads another model's.
        tokenizer = AutoTokenizer.from_pretrained(model, **tokenizer_arguments())
        tokenizer.backend_tokenizer.save(str(partial / "tokenizer.json"))
        partial.rename(made)
    return made


def _fingerprint(model: Path) -> str:
    files = sorted(path for path in model.resolve().iterdir() if path.is_file())
    stated = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr(stated).encode()).hexdigest()[:16]
