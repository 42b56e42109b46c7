"""Folders of every format in docs/deploy.md load as the plain model, or are refused by name."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import WhisperForConditionalGeneration

from config import DEMO_MODELS
from tests.support import audio_files
from tests.support.tiny_whispers import hears_sound
from whosaid.asr.checkpoint import loading
from whosaid.asr.checkpoint.assistants import with_assistant
from whosaid.asr.checkpoint.loading import Checkpoint, WhisperModels, load_whisper
from whosaid.asr.checkpoint.opening import LARGEST
from whosaid.asr.checkpoint.weights import EMBEDDINGS
from whosaid.asr.decoding_plan import TranscriptionOptions
from whosaid.asr.transcriber import Transcriber
from whosaid.errors import StartError
from whosaid.runtime import versions

DEMO = DEMO_MODELS / "asr"
WEIGHTS, EXTRACTOR, TOKENIZER = "model.safetensors", "preprocessor_config.json", "tokenizer.json"
K = "model.decoder.layers.0.encoder_attn.k_proj"
FP8, INT8 = torch.float8_e4m3fn, torch.int8
PLAIN = "use the checkpoint in 16 or 32 bits that it was made from"
MERGE = "merge it with peft's `merge_and_unload` and save the model"


def load(folder) -> WhisperModels:
    return load_whisper(Checkpoint(str(folder)), torch.device("cpu"), torch.float32)


def refusal(folder) -> str:
    with pytest.raises(StartError) as caught:
        load(folder)
    return caught.value.text.removeprefix(str(folder))


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(DEMO, tmp_path / "m", ignore=shutil.ignore_patterns("SHA256SUMS"))


def text_of(models) -> str:
    clip = audio_files.conversation()[round(32.8 * 16_000) : round(46.0 * 16_000)]
    transcriber = Transcriber(models, fallback=None, detect_speech=hears_sound)
    return transcriber.transcribe(clip, transcriber.validate(TranscriptionOptions())).text


@pytest.fixture(scope="module")
def plain():
    models = load(DEMO)
    return models, text_of(models)


def edit(folder, file="config.json", **entries):
    path = folder / file
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | entries))


def remove(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


def keep(*names):
    return lambda folder: [each.unlink() for each in folder.iterdir() if each.name not in names]


def store(change, every=False, **entries):
    """Replace the weights of linear layers, or `every` one, by what `change` makes of each."""

    def build(folder):
        stored = {}
        for key, weight in load_file(folder / WEIGHTS).items():
            linear = every or (".layers." in key and weight.dim() == 2)
            stored |= change(key, weight.float()) if linear else {key: weight}
        save_file({key: each.contiguous() for key, each in stored.items()}, folder / WEIGHTS)
        edit(folder, **entries)

    return build


def nest_processor(folder):
    """Move the extractor to where transformers 5 saves it."""
    stated = json.loads((folder / EXTRACTOR).read_text())
    edit(folder, "processor_config.json", feature_extractor=stated)
    (folder / EXTRACTOR).unlink()


def stated(kind="float", **changes):
    """The entry of llm-compressor in config.json, for 8 bits."""
    weights = {"num_bits": 8, "strategy": "channel", "symmetric": True, "type": kind} | changes
    group = {"weights": weights, "input_activations": {"dynamic": True}, "targets": ["Linear"]}
    entry = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
    return {"quantization_config": entry | {"format": f"{kind}-quantized", "ignore": ["proj_out"]}}


def scaled(dtype, largest, channels=True):
    def change(key, weight):
        peak = weight.abs().amax(1, keepdim=True) if channels else weight.abs().max().view(1)
        scale = (peak / largest).bfloat16()
        number = (weight / scale.float()).clamp(-largest, largest)
        number = number.round() if dtype == INT8 else number
        return {key: number.to(dtype), f"{key}_scale": scale}

    return change


def beside(suffix, dtype=torch.float32, alone=False, part=""):
    """Add a tensor to the module of each weight, or put it in the weight's place."""

    def change(key, weight):
        added = {key.removesuffix("weight") + suffix: weight[:, 0].to(dtype)} if part in key else {}
        return added if alone else {key: weight, **added}

    return change


# How a folder is made, and how much a weight may differ from the plain model's largest.
LOADS = {
    "names of a WhisperModel": (store(lambda key, each: {key[6:]: each}, every=True), 0),
    "biases of keys": (store(beside("bias", part="k_proj")), 0),
    "bfloat16": (store(lambda key, each: {key: each.bfloat16()}, every=True), 2**-8),
    "no preprocessor config": (remove(EXTRACTOR), 0),
    "processor of transformers 5": (nest_processor, 0),
    "tokenizer.json alone": (keep("config.json", "generation_config.json", WEIGHTS, TOKENIZER), 0),
    "vocab.json and merges.txt": (remove(TOKENIZER), 0),
    "FP8": (store(scaled(FP8, 448), **stated()), 2**-4),
    "one scale": (store(scaled(FP8, 448, channels=False), **stated(strategy="tensor")), 2**-4),
    "int8": (store(scaled(INT8, 127), **stated("int")), 2**-7),
}


@pytest.mark.parametrize("name", LOADS)
def test_a_folder_loads_as_the_plain_model(name, folder, plain):
    build, most = LOADS[name]
    build(folder)
    models, (expected, text) = load(folder), plain
    stored = load_file(folder / WEIGHTS)
    assert models.model.weights.keys() == expected.model.weights.keys()
    for key, weight in expected.model.weights.items():
        found = models.model.weights[key]
        assert (found - weight).abs().max() <= most * weight.abs().max(), key
        if (scale := stored.get(f"{key}_scale")) is not None:
            assert torch.equal(found, stored[key].float() * scale.float())
    assert models.tokenizer.decode(range(600)) == expected.tokenizer.decode(range(600))
    filters = (each.feature_extractor.mel_filters for each in (models, expected))
    np.testing.assert_array_equal(*filters)
    assert name == "bfloat16" or text_of(models) == text


FORMATS = {"a.gguf": "GGUF", "ggml-base.bin": "whisper.cpp", "base.pt": "pickled"}
FORMATS |= {"pytorch_model.bin": "pickled", "weights.npz": "MLX", "onnx/encoder.onnx": "ONNX"}


@pytest.mark.parametrize("file", FORMATS)
def test_weights_of_another_format_are_named(file, folder):
    (folder / WEIGHTS).unlink()
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).touch()
    assert refusal(folder) == (
        f" has no safetensors weights, and {FORMATS[file]} files are not loaded: "
        "use the checkpoint in safetensors that they were made from"
    )


METHODS = {
    "bitsandbytes 8 bits": {"quant_method": "bitsandbytes", "load_in_8bit": True},
    "bitsandbytes 4 bits": {"load_in_4bit": True, "load_in_8bit": False},
    "awq 4 bits": {"quant_method": "awq", "bits": 4},
    "gptq 4 bits": {"quant_method": "gptq", "bits": 4},
    "torchao": {"quant_method": "torchao"},
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "compressed-tensors pack": {"quant_method": "compressed-tensors", "format": "pack"},
    "compressed-tensors int-quantized": stated("int", symmetric=False)["quantization_config"],
    "compressed-tensors float-quantized": stated(strategy="group")["quantization_config"],
}


@pytest.mark.parametrize("method", METHODS)
def test_a_quantisation_is_named(method, folder):
    edit(folder, quantization_config=METHODS[method])
    assert refusal(folder) == f" is quantised ({method}): {PLAIN}"


TENSORS = {
    f" holds {K}.weight_scale, a quantised weight: {PLAIN}": store(scaled(FP8, 448)),
    f"k_proj.weight is stored in I8: {PLAIN}": store(lambda key, each: {key: each.to(INT8)}),
    f"k_proj.weight is stored in F32 with a scale: {PLAIN}": store(
        beside("weight_scale"), **stated()
    ),
    f" holds {K}.qweight, a quantised weight: {PLAIN}": store(
        beside("qweight", torch.int32, alone=True)
    ),
    f" holds {K}.SCB, a quantised weight: {PLAIN}": store(beside("SCB")),
    f" holds {K}.base_layer.weight, an adapter that was not merged: save the model after "
    "`merge_and_unload`": store(beside("base_layer.weight", alone=True)),
    f" holds {K}.gate, which no Whisper of its config.json has": store(beside("gate")),
    "holds numbers that are not finite: the file is damaged": store(
        lambda key, each: {key: each / 0}
    ),
    " lacks tokenizer.json: copy it from the model that this one was made from, such as "
    "openai/whisper-base": remove(TOKENIZER, "vocab.json", "merges.txt"),
    f" is quantised (MLX 4 bits): {PLAIN}": lambda folder: edit(folder, quantization={"bits": 4}),
    " is in the format of MLX or openai/whisper, not of transformers": lambda folder: edit(
        folder, n_audio_state=512
    ),
    "its tokenizer numbers <|notimestamps|> 706, its configuration 707: use the tokenizer that it "
    "was trained with (CrisperWhisper's does not load)": lambda folder: edit(
        folder, "generation_config.json", no_timestamps_token_id=707
    ),
}


@pytest.mark.parametrize("line", TENSORS)
def test_unexpected_tensors_are_named(line, folder):
    TENSORS[line](folder)
    assert refusal(folder).endswith(line)


def test_an_assistant_passes_the_same_gate(folder):
    store(scaled(FP8, 448))(folder)
    with pytest.raises(StartError, match=re.escape(next(iter(TENSORS)))):
        with_assistant(load(DEMO), Checkpoint(str(folder)))


Q = "decoder.layers.1.encoder_attn.q_proj"
ADAPTERS = {
    "all products": {"target_modules": ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]},
    "rank-stabilised": {"target_modules": ["q_proj", "fc2"], "use_rslora": True},
    "patterns": {"rank_pattern": {Q: 3}, "alpha_pattern": {Q: 5, "fc1": 2}},
    "fan in": {"fan_in_fan_out": True},
    "convolutions": {"target_modules": ["conv1", "conv2"]},
    "biases": {"bias": "all"},
    "whole modules": {"modules_to_save": ["conv1", "layer_norm"]},
    "another projection": {"modules_to_save": ["proj_out"]},
    "other embeddings": {"modules_to_save": ["embed_tokens"]},
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_is_merged_as_peft_merges_it(name, tmp_path):
    dtype = versions.dtype_argument(torch.float32)
    base = WhisperForConditionalGeneration.from_pretrained(DEMO, **dtype)
    options = {"target_modules": ["q_proj", "fc1"], **ADAPTERS[name]}
    adapted = get_peft_model(base, LoraConfig(r=4, lora_alpha=6, **options))
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in adapted.parameters():
            weight += 0.1 * weight.requires_grad * torch.randn_like(weight)
    adapted.save_pretrained(tmp_path)
    found = load(tmp_path).model.weights
    merged = adapted.merge_and_unload().named_parameters(remove_duplicate=False)
    for key, weight in merged:
        assert torch.equal(found.get(key, found[EMBEDDINGS]), weight), key


LORA = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "base_model_name_or_path": str(DEMO)}
REFUSED = {
    f" is a LoRA with use_dora, which is not supported: {MERGE}": {"use_dora": True},
    f" is a LoRA with use_novelty, which is not supported: {MERGE}": {"use_novelty": 1},
    f" is an adapter of kind LOHA, of which only LORA loads: {MERGE}": {"peft_type": "LOHA"},
    f" is a LoRA that began by pissa, which changes its base: {MERGE}": {
        "init_lora_weights": "pissa"
    },
    "/adapter_config.json: base_model_name_or_path: '/gone' is neither a hub id (owner/name or "
    "owner/name@revision) nor an existing folder: put the base's folder or hub id there": {
        "base_model_name_or_path": "/gone"
    },
    f" holds base_model.model.other.lora_A.weight, which is not supported here: {MERGE}": {},
}


@pytest.mark.parametrize("line", REFUSED)
def test_another_adapter_is_refused_by_name(line, tmp_path):
    edit(tmp_path, "adapter_config.json", **(LORA | REFUSED[line]))
    tensors = {"base_model.model.other.lora_A.weight": torch.ones(4, 2)}
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    assert refusal(tmp_path) == line


def test_an_adapter_names_the_fault_of_its_base(folder, tmp_path):
    edit(folder, quantization_config=METHODS["torchao"])
    edit(tmp_path, "adapter_config.json", **(LORA | {"base_model_name_or_path": str(folder)}))
    (tmp_path / "adapter_model.safetensors").touch()
    assert refusal(tmp_path) == f"base_model_name_or_path: {folder} is quantised (torchao): {PLAIN}"


@pytest.mark.parametrize(
    ("entry", "value", "line"),
    [
        ("hidden_size", 10**9, "d_model is 1000000000, not a number from 1 to 1048576"),
        ("encoder_layers", 300_000, "encoder_layers is 300000, not a number from 1 to 256"),
        ("decoder_layers", -1, "decoder_layers is -1, not a number from 1 to 256"),
        ("decoder_attention_heads", 7, "decoder_attention_heads is 7, d_model 160"),
        ("encoder_attention_heads", 0, "encoder_attention_heads is 0, not a number from 1 to 1024"),
        ("vocab_size", 10**12, "vocab_size is 1000000000000, not a number from 1 to 1048576"),
        ("d_model", "160", "d_model is '160', not a number from 1 to 1048576"),
        ("scale_embedding", True, " scales its embeddings, as no published Whisper does"),
        ("n_fft", 10**9, "n_fft is 1000000000, not a number to 4096"),
        ("hop_length", 1, "hop_length and sampling_rate are (1, 16000), not Whisper's"),
        ("feature_size", 10**9, "frames, its encoder reads 80 by 3000"),
        ("chunk_length", 10**9, "by 100000000000 frames, its encoder reads 80 by 3000"),
    ],
)
def test_sizes_are_bounded_before_anything_is_made_of_them(entry, value, line, folder, monkeypatch):
    file = "config.json" if entry in {*LARGEST, "hidden_size", "scale_embedding"} else EXTRACTOR
    edit(folder, file, **{entry: value})
    for name in ("whisper_shapes", "WhisperFeatureExtractor"):
        monkeypatch.setattr(loading, name, lambda *_, name=name, **__: pytest.fail(name))
    assert refusal(folder).endswith(line)
