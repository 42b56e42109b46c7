"""The tensors of a checkpoint's safetensors files; a pickle, which can run code, is not read."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from safetensors import safe_open
from torch import Tensor
from transformers.utils.hub import cached_file

SINGLE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"

Source = Mapping[str, Any]  # the arguments common to every `from_pretrained`


class Tensors:
    """Read when they are asked for; `files` has the file of each."""

    def __init__(self, source: Source) -> None:
        """Find the files, one or those that an index lists. Raises OSError where there are none."""
        self.name = str(source["pretrained_model_name_or_path"])
        self.options = {key: source.get(key) for key in ("revision", "token")}
        index = cached_file(
            self.name, INDEX_FILE, **self.options, _raise_exceptions_for_missing_entries=False
        )
        if index is None:
            single = self._path(SINGLE_FILE)
            with safe_open(single, framework="pt") as opened:
                self.files = dict.fromkeys(opened.keys(), single)
            return
        with open(index, encoding="utf-8") as stream:
            listed = json.load(stream)["weight_map"]
        paths = {file: self._path(file) for file in set(listed.values())}
        self.files = {key: paths[file] for key, file in listed.items()}

    def read(self, keys: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Tensors, on the CPU, with their keys, in any order. They may be parts of mapped files."""
        by_file = defaultdict(list)
        for key in keys:
            by_file[self.files[key]].append(key)
        for file, inside in by_file.items():
            with safe_open(file, framework="pt") as opened:
                for key in inside:
                    yield key, opened.get_tensor(key)

    def _path(self, file: str) -> str:
        """A file of the checkpoint, fetched where it is on the hub."""
        return str(cached_file(self.name, file, **self.options))
