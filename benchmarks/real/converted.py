"""Converts weights for CTranslate2 once and keeps them.

CTranslate2's converter reads a transformers folder and keeps float32; the precision an engine
computes in is chosen when it loads them. A conversion is named after the folder and the size and
time of what is in it, so a changed model is converted again.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from ctranslate2.converters import TransformersConverter
from transformers import AutoTokenizer

from benchmarks.report import RESULTS
from whosaid.runtime.versions import tokenizer_arguments

FOLDER = RESULTS / "ctranslate2"
TOKENIZER, FEATURES = "tokenizer.json", "preprocessor_config.json"


def convert(model: Path, folder: Path = FOLDER) -> Path:
    """Return the folder with CTranslate2's form of a transformers folder."""
    made = folder / _fingerprint(model)
    if not made.is_dir():
        partial = made.with_suffix(".part")
        shutil.rmtree(partial, ignore_errors=True)
        partial.parent.mkdir(parents=True, exist_ok=True)
        TransformersConverter(str(model)).convert(str(partial))
        _copy_tokenizer(model, partial)
        shutil.copy(model / FEATURES, partial / FEATURES)
        partial.rename(made)
    return made


def _copy_tokenizer(model: Path, target: Path) -> None:
    """faster-whisper wants the tokenizer in one file, and otherwise downloads another model's."""
    if (model / TOKENIZER).is_file():
        shutil.copy(model / TOKENIZER, target / TOKENIZER)
        return
    tokenizer = AutoTokenizer.from_pretrained(model, **tokenizer_arguments())
    tokenizer.backend_tokenizer.save(str(target / TOKENIZER))


def _fingerprint(model: Path) -> str:
    files = sorted(path for path in model.resolve().iterdir() if path.is_file())
    stated = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr(stated).encode()).hexdigest()[:16]
