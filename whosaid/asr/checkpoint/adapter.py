"""Merges an adapter of PEFT (LoRA) into the weights of its base while they are read.

A product's weight W becomes W + scaling * B A with scaling = alpha / r, or alpha / sqrt(r) with
`use_rslora` (Hu et al. 2022, "LoRA"; Kalajdzievski 2023, "rsLoRA"). Tensors of `modules_to_save`
and biases replace the base's. Other adapters, and unknown entries, are refused.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from whosaid.asr.checkpoint.weights import EMBEDDINGS, PROJECTION, Shape, Tensors, open_file
from whosaid.errors import StartError

MERGE = "merge it with peft's `merge_and_unload` and save the model"
PREFIX = re.compile(r"^base_model\.model\.")
LOW_RANK = re.compile(r"(?P<module>.+)\.lora_(?P<part>[AB])\.weight")
# Entries of adapter_config.json that change nothing of a merged model, or that are computed here.
# `fan_in_fan_out` concerns layers that Whisper lacks; peft ignores it for others.
KNOWN = {
    *("alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "corda_config"),
    *("ensure_weight_tying", "eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode"),
    *("init_lora_weights", "layers_pattern", "layers_to_transform", "loftq_config", "lora_alpha"),
    *("lora_dropout", "megatron_core", "modules_to_save", "peft_type", "peft_version"),
    *("qalora_group_size", "r", "rank_pattern", "revision", "runtime_config", "target_modules"),
    *("task_type", "use_rslora", "lora_ga_config"),
}
# Other initialisations also change the base, and the adapter is a difference to that.
INITIALISATIONS = (None, True, False, "gaussian", "eva", "orthogonal")


class MergedTensors:
    """The base's tensors with an adapter merged into them, in float32.

    `tied` says whether the base's projection onto the vocabulary is its embeddings; the adapter
    `unties` them if it holds either.
    """

    def __init__(
        self, name: str, base: Tensors, path: str, config: Mapping[str, Any], tied: bool
    ) -> None:
        self.name, self.base, self.config = name, base, config
        self._adapter = open_file(name, path)
        _require_lora(name, config)
        ours = {key.removeprefix("model."): key for key in base.keys}
        embeddings, projection = ours.get(EMBEDDINGS.removeprefix("model."), ""), PROJECTION
        if tied:
            ours[projection] = projection
        self._low_rank: dict[str, dict[str, str]] = {}  # keys of A and B by the base's key
        self._replaced: dict[str, str] = {}
        for key in self._adapter.keys:
            own = PREFIX.sub("", key).replace(".base_layer.", ".").removeprefix("model.")
            match = LOW_RANK.fullmatch(own)
            target = ours.get(f"{match['module']}.weight" if match else own)
            if target is None or (match and tied and target in (embeddings, projection)):
                raise StartError(f"{name} holds {key}, which is not supported here: {MERGE}")
            if match:
                self._low_rank.setdefault(target, {})[match["part"]] = key
            else:
                self._replaced[target] = key
        self.unties = tied and not self._replaced.keys().isdisjoint((embeddings, projection))
        self.keys = {*base.keys, *((projection,) if self.unties else ())}
        self._embeddings = embeddings if self.unties else None

    def read(self, shapes: Mapping[str, Shape | None]) -> Iterator[tuple[str, Tensor]]:
        own = {key: name for key, name in self._replaced.items() if key in shapes}
        read = dict(self._adapter.read({name: shapes[key] for key, name in own.items()}))
        yield from ((key, read[name]) for key, name in own.items())
        rest = {key: shape for key, shape in shapes.items() if key not in own}
        if self._embeddings and PROJECTION in rest:  # the base's embeddings, before any change
            shape = rest.pop(PROJECTION)
            yield from ((PROJECTION, each) for _, each in self.base.read({self._embeddings: shape}))
        for key, weight in self.base.read(rest):
            yield key, self._merge(key, weight) if key in self._low_rank else weight

    def _merge(self, key: str, weight: Tensor) -> Tensor:
        """Return a weight (outputs, inputs, ...) with its low-rank product added."""
        parts = self._low_rank[key]
        read = dict(self._adapter.read(dict.fromkeys(parts.values())))
        if len(parts) != 2:
            raise StartError(f"{self.name} lacks half of the update of {key}")
        a, b = (read[parts[part]].float().flatten(1) for part in "AB")
        if len(a) != b.shape[1] or (len(b), a.shape[1]) != weight.flatten(1).shape:
            shapes = f"{tuple(a.shape)} and {tuple(b.shape)} for {tuple(weight.shape)}"
            raise StartError(f"{self.name}: {parts['A']} does not fit its base: {shapes}")
        alpha = _alpha(self.config, key.removesuffix(".weight"))
        rank = math.sqrt(len(a)) if self.config.get("use_rslora") else len(a)
        return weight.float() + (b @ a * (alpha / rank)).view(weight.shape)


def _require_lora(name: str, config: Mapping[str, Any]) -> None:
    """Raise StartError unless adapter_config.json states a LoRA of known entries."""
    kind = config.get("peft_type")
    if kind != "LORA":
        raise StartError(f"{name} is an adapter of kind {kind}, of which only LORA loads: {MERGE}")
    start = config.get("init_lora_weights")
    if start not in INITIALISATIONS:
        raise StartError(f"{name} is a LoRA that began by {start}, which changes its base: {MERGE}")
    if odd := sorted(key for key, value in config.items() if value and key not in KNOWN):
        raise StartError(f"{name} is a LoRA with {', '.join(odd)}, which is not supported: {MERGE}")


def _alpha(config: Mapping[str, Any], module: str) -> float:
    """Return alpha of the first pattern that a module's name ends with, else the adapter's."""
    patterns: Mapping[str, float] = config.get("alpha_pattern") or {}
    matching = (key for key in patterns if re.fullmatch(rf"(.*\.)?({key})", module))
    pattern = next(matching, None)
    return float(config["lora_alpha"] if pattern is None else patterns[pattern])
