"""The tensors of a checkpoint's safetensors files; a pickle, which can run code, is not read."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from safetensors import safe_open
from torch import Tensor
from transformers.utils.hub import cached_file

from errors import StartError

SINGLE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"

Shape = tuple[int, ...]
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

    def read(self, shapes: Mapping[str, Shape | None]) -> Iterator[tuple[str, Tensor]]:
        """Tensors, on the CPU, with their keys, in any order. They may be parts of mapped files.

        Raises StartError for the first whose shape is not the one here; None stands for any.
        """
        by_file = defaultdict(list)
        for key in shapes:
            by_file[self.files[key]].append(key)
        for file, keys in by_file.items():
            with safe_open(file, framework="pt") as opened:
                for key in keys:
                    tensor, shape = opened.get_tensor(key), shapes[key]
                    if shape not in (None, tuple(tensor.shape)):
                        raise StartError(
                            f"{self.name}: {key} is {tuple(tensor.shape)}, not {shape}"
                        )
                    yield key, tensor

    def _path(self, file: str) -> str:
        """A file of the checkpoint, fetched where it is on the hub."""
        return str(cached_file(self.name, file, **self.options))
