"""Medusa checkpoints in the published layout and folders of heads alone: read whole, or refused."""

import functools
import hashlib
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from config import ModelSettings
from handler import EndpointHandler
from tests.support.tiny_whispers import SMALL, hears_sound, model_of, noise, save
from whosaid.asr.checkpoint.assistants import main_digest, with_assistant
from whosaid.asr.checkpoint.loading import Checkpoint, load_whisper
from whosaid.asr.checkpoint.medusa import base_digest
from whosaid.asr.decoding_plan import TranscriptionOptions
from whosaid.asr.engine.request import DecodeOptions
from whosaid.asr.transcriber import Transcriber
from whosaid.errors import StartError

CPU, WIDTH, HEADS = torch.device("cpu"), 32, 3
LAYER = "model.decoder.layers.1."


@functools.cache
def whisper():
    return model_of(SMALL)


def head_weights(count):
    random = torch.Generator().manual_seed(0)
    weights = {}
    for number in range(count):
        name = f"medusa_heads.{number}.0.linear"
        weights[f"{name}.weight"] = torch.randn(WIDTH, WIDTH, generator=random)
        weights[f"{name}.bias"] = torch.randn(WIDTH, generator=random)
    return weights


def write(folder, weights, config):
    """The tensors, in two shards, and entries beside those of the folder's config.json."""
    file = folder / "config.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(known | config))
    names, index = sorted(weights), {}
    for shard in (0, 1):
        part = {name: weights[name].contiguous() for name in names[shard::2]}
        index |= dict.fromkeys(part, f"model-{shard}.safetensors")
        save_file(part, folder / f"model-{shard}.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").unlink(missing_ok=True)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


def medusa_config(kind, **changes):
    sizes = {"medusa_num_heads": HEADS, "medusa_num_layers": 1, "medusa_hidden_size": WIDTH}
    return {**sizes, "medusa_heads_type": kind} | changes


def published(folder, kind, changed=(), removed=(), added=(), **config):
    """A checkpoint as aiola-lab's code saves it, training's leftovers included."""
    save(folder, SMALL, whisper())
    weights = load_file(folder / "model.safetensors")
    layer = {name.removeprefix(LAYER): each for name, each in weights.items() if LAYER in name}
    weights = {f"whisper_model.{name}": each for name, each in weights.items()}
    weights |= head_weights(HEADS + (kind == "base_head"))
    if kind == "medusa_block":
        weights |= {f"medusa_block.{name}": 2 * each for name, each in layer.items()}
    weights |= {f"whisper_layer.{name}": each.clone() for name, each in layer.items()}
    weights |= dict(added) | {key: each[..., :1] for key, each in weights.items() if key in changed}
    for name in removed:
        del weights[name]
    extra = {"architectures": ["WhisperMedusaModel"], "medusa_choices": [1] * 4}
    return write(folder, weights, medusa_config(kind, **extra, **config))


def alone(folder, digest, shortlist=None, kind="heads_only", **config):
    folder.mkdir()
    listed = {} if shortlist is None else {"shortlist": shortlist}
    said = {"model_type": "medusa_heads", "base_digest": digest, "shortlist": bool(listed)}
    return write(folder, head_weights(HEADS) | listed, medusa_config(kind, **said, **config))


def load(folder, dtype=torch.float32):
    return load_whisper(Checkpoint(str(folder)), CPU, dtype)


@pytest.mark.parametrize("kind", ["base_head", "medusa_block"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_published_checkpoints_load_whole(tmp_path, kind, dtype):
    models = load(published(tmp_path / "medusa", kind), dtype)
    stored = torch.float32 if dtype == torch.bfloat16 else dtype  # a CPU's products alone are lower
    expected = {name: each.to(stored) for name, each in whisper().named_parameters()}
    state = dict(models.model.named_parameters())
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], each) for name, each in expected.items())
    assert models.model.generation_config.no_timestamps_token_id == SMALL.text_entries + 11
    weights, first = head_weights(HEADS + 1), int(kind == "base_head")
    (blocks,) = models.medusa.heads
    assert blocks.weight.shape == (HEADS, WIDTH, WIDTH)
    for number in range(HEADS):
        name = f"medusa_heads.{number + first}.0.linear"
        torch.testing.assert_close(blocks.weight[number], weights[f"{name}.weight"].to(stored))
        torch.testing.assert_close(blocks.bias[number], weights[f"{name}.bias"].to(stored))
    assert (models.medusa.base is None) == (kind == "medusa_block")
    assert (models.medusa.block is None) == (kind == "base_head")
    if models.medusa.block is not None:
        own = models.medusa.block["fc1.weight"]
        torch.testing.assert_close(own, 2 * state["model.decoder.layers.1.fc1.weight"])


HEAD, ENCODER = "medusa_heads.1.0.linear", "whisper_model.model.encoder"
FAULTS = [
    ({"removed": [f"{HEAD}.bias"]}, f"lacks {HEAD}.bias"),
    ({"changed": [f"{HEAD}.weight"]}, rf"{HEAD}.weight is \(32, 1\), not \(32, 32\)"),
    ({"added": {"medusa_heads.9.0.linear.bias": torch.zeros(WIDTH)}}, "holds medusa_heads.9"),
    ({"added": {"optimizer": torch.zeros(1)}}, "holds optimizer"),
    ({"removed": [f"{ENCODER}.conv1.bias"]}, "lacks whisper_model.model.enc"),
    ({"added": {"whisper_model.model.more": torch.zeros(1)}}, "holds whisper_model.model.more"),
    ({"medusa_num_layers": 2}, "lacks medusa_heads.0.1.linear.bias and"),
    ({"medusa_num_heads": 10**9}, "medusa_num_heads is 1000000000, not"),
    ({"added": {f"{HEAD}.bias": torch.ones(WIDTH, dtype=torch.int8)}}, "stored in I8"),
    ({"medusa_num_heads": "ten"}, "medusa_num_heads is 'ten'"),
    ({"medusa_hidden_size": 64}, "medusa_hidden_size is 64, the model's d_model 32"),
    ({"medusa_heads_type": "tree"}, "medusa_heads_type is 'tree'"),
]


@pytest.mark.parametrize(("fault", "said"), FAULTS, ids=[each[1] for each in FAULTS])
def test_faulty_folders_are_refused_in_one_line(tmp_path, fault, said):
    folder = published(tmp_path / "medusa", "medusa_block", **fault)
    with pytest.raises(StartError, match=said) as refusal:
        load(folder)
    assert "\n" not in str(refusal.value)


def test_the_digest_is_of_what_the_files_hold(tmp_path):
    save(tmp_path, SMALL, whisper())
    weights = load_file(tmp_path / "model.safetensors")
    names = ("layer_norm.weight", "layer_norm.bias", "embed_tokens.weight")
    listed = [weights[f"model.decoder.{name}"].numpy().astype("<f4") for name in names]
    expected = hashlib.sha256(b"".join(each.tobytes() for each in listed)).hexdigest()
    assert base_digest(whisper()) == expected
    assert base_digest(model_of(SMALL).double()) == expected
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int8):
        assert main_digest(load(tmp_path, dtype)) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_heads_alone_join_the_model_that_they_were_made_for(tmp_path, dtype):
    save(tmp_path / "main", SMALL, whisper())
    folder = alone(tmp_path / "heads", base_digest(whisper()), torch.tensor([5, 3, 400]))
    models = with_assistant(load(tmp_path / "main", dtype), Checkpoint(str(folder)))
    assert models.assistant is models.medusa.base is models.medusa.block is None
    assert models.medusa.shortlist.tolist() == [5, 3, 400]
    assert models.medusa.heads[0].weight.dtype == models.model.dtype


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"digest": "0" * 64}, "its heads were trained for another model"),
        ({"digest": None}, "base_digest is missing"),
        *(
            ({"shortlist": torch.tensor(each)}, "shortlist is not a list of different tokens")
            for each in ([5, 5], [5, 1 << 20], [5.0])
        ),
    ],
)
def test_other_heads_are_refused(tmp_path, changes, said):
    save(tmp_path / "main", SMALL, whisper())
    folder = alone(tmp_path / "heads", **{"digest": base_digest(whisper())} | changes)
    with pytest.raises(StartError, match=said):
        with_assistant(load(tmp_path / "main"), Checkpoint(str(folder)))


def test_assisted_requests_use_whichever_drafter_there_is(tmp_path):
    save(tmp_path / "main", SMALL, whisper())
    plain, folder = load(tmp_path / "main"), alone(tmp_path / "heads", base_digest(whisper()))
    texts = []
    for models in (plain, with_assistant(plain, Checkpoint(str(folder)))):
        transcriber = Transcriber(models, fallback=None, detect_speech=hears_sound)
        asked = TranscriptionOptions(language="en", decode=DecodeOptions(assisted=True))
        options = transcriber.validate(asked)
        transcript = transcriber.transcribe(noise(2.0), options)
        texts.append(transcript.text)
        assert len(transcript.warnings) == (models.medusa is None)
    assert texts[0] == texts[1] != ""


def test_a_medusa_checkpoint_takes_no_other_drafter(tmp_path):
    main = published(tmp_path / "main", "base_head")
    settings = ModelSettings.for_models(str(main), str(save(tmp_path / "assistant", SMALL)), None)
    said = r"ASSISTANT_MODEL: .* already drafts with its own Medusa heads"
    with pytest.raises(SystemExit, match=said):
        EndpointHandler(settings=settings)
