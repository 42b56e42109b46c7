"""Recognises quantised checkpoints: few are computed exactly, all others are refused by name.

In 8 bits with one scale for each output or for the whole tensor, a weight is its number times its
scale. llm-compressor writes such files ("compressed-tensors").
"""

from collections.abc import Mapping
from typing import Any

from whosaid.asr.checkpoint.weights import PLAIN
from whosaid.errors import StartError

# The entries of config.json that state a quantisation: of transformers, MLX, early llm-compressor.
ENTRIES = ("quantization_config", "quantization", "compression_config")
COMPRESSED_TENSORS = "compressed-tensors"
SCALED_FORMATS = (None, "float-quantized", "int-quantized", "naive-quantized")
STRATEGIES = ("channel", "tensor")
# Parts of the names that quantisers and adapters give to tensors beside or in place of a weight.
QUANTISERS = ("scale", "scb", "qweight", "qzeros", "zero", "absmax", "quant", "packed", "g_idx")
ADAPTERS = ("base_layer", "lora_", "modules_to_save")


def is_scaled(name: str, entries: Mapping[str, Any]) -> bool:
    """Return whether config.json states 8 bits with scales. Raises StartError for other methods."""
    stated = next((entries[each] for each in ENTRIES if entries.get(each)), None)
    if stated is None:
        return False
    if not isinstance(stated, Mapping) or not _has_plain_scales(stated):
        raise StartError(f"{name} is quantised ({_method(stated)}): {PLAIN}")
    return True


def unknown_tensor(name: str, key: str) -> StartError:
    """Return the error for a tensor that changes a Whisper in a way that is not computed."""
    part = key.lower()
    if any(each in part for each in ADAPTERS):
        reason = "an adapter that was not merged: save the model after `merge_and_unload`"
    elif any(each in part for each in QUANTISERS):
        reason = f"a quantised weight: {PLAIN}"
    else:
        reason = "which no Whisper of its config.json has"
    return StartError(f"{name} holds {key}, {reason}")


def _has_plain_scales(stated: Mapping[str, Any]) -> bool:
    """Return whether all weights are numbers of 8 bits times a scale."""
    sparsity = (stated.get("sparsity_config") or {}).get("format", "dense")
    if stated.get("quant_method") != COMPRESSED_TENSORS or sparsity != "dense":
        return False
    if stated.get("kv_cache_scheme") or stated.get("transform_config"):
        return False
    groups = list((stated.get("config_groups") or {}).values())
    formats = (stated.get("format"), *(group.get("format") for group in groups))
    return (
        bool(groups)
        and all(each in SCALED_FORMATS for each in formats)
        and all(_is_plain_scale(group.get("weights") or {}) for group in groups)
    )


def _is_plain_scale(weights: Mapping[str, Any]) -> bool:
    bits, symmetric = weights.get("num_bits"), weights.get("symmetric", True)
    return bits == 8 and symmetric is True and weights.get("strategy") in STRATEGIES


def _method(stated: object) -> str:
    """Return the method's name, with its format and bits if they are stated."""
    if not isinstance(stated, Mapping):
        return str(stated)
    name = stated.get("quant_method") or ("bitsandbytes" if "load_in_8bit" in stated else "MLX")
    bits = 4 if stated.get("load_in_4bit") else 8 if stated.get("load_in_8bit") else None
    details = stated.get("format"), stated.get("bits") or stated.get("w_bit") or bits
    return " ".join(str(each) for each in (name, *details, "bits" if details[1] else "") if each)
