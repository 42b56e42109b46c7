"""An encoder that follows one speaker: against the published formulas, in float64, and in batches."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import oracle
import pytest
import torch
import torch.nn.functional as F
from cuda_emulator import emulated_cuda, on_cuda
from oracle import TINY, decode, models_of
from safetensors.torch import load_file, save_file
from stand_ins import asking

from config import ModelSettings
from handler import load_asr
from tests.support.tiny_whispers import model_of, noise, save
from whosaid.asr.checkpoint.assistants import main_digest, with_conditioning
from whosaid.asr.checkpoint.conditioning import DICOW_CLASSES, FILE, PRODUCTS, Conditioning
from whosaid.asr.checkpoint.loading import Checkpoint, WhisperModels, load_whisper
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.fallback import Fallback
from whosaid.asr.engine.request import DecodeOptions, Request
from whosaid.asr.engine.scheduler import DEFAULT_LIMITS
from whosaid.asr.frontend.target_speaker import TargetSpeaker, TargetWindow
from whosaid.asr.model.encoder import AudioEncoder, Encoder
from whosaid.asr.transcriber import Transcriber
from whosaid.errors import StartError
from whosaid.runtime.steps import run_steps

CPU, WIDTH, HEADS, FRAMES, LAYERS = torch.device("cpu"), 16, 2, 50, 2
REJECTING = Fallback(logprob_threshold=0.0, no_speech_threshold=1.0)
ENCODER = "model.encoder."


def drawn(shape, seed, scale=0.3):
    random = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=random, dtype=torch.float64)


def conditioning_weights(scale=0.3, products=PRODUCTS, rank=3):
    """The tensors of a file; those of scale 0 change nothing."""
    weights = {}
    for place in range(LAYERS + 1):
        weights[f"fddt.{place}.weight"] = 1 + drawn((4, WIDTH), 2 * place, scale)
        weights[f"fddt.{place}.bias"] = drawn((4, WIDTH), 2 * place + 1, scale)
    for layer in range(LAYERS):
        for number, product in enumerate(products):
            inputs = WIDTH * (2 if product == "fc2" else 1)
            outputs = WIDTH * (2 if product == "fc1" else 1)
            name, seed = f"layers.{layer}.{product}", 100 + 10 * layer + number
            weights[f"{name}.lora_a"] = drawn((rank, inputs), seed, 0.3)
            weights[f"{name}.lora_b"] = drawn((outputs, rank), seed + 50, scale)
    return weights


def conditioned(models=None, **given):
    conditioning = Conditioning(conditioning_weights(**given))
    return replace(models or models_of(TINY, 142), conditioning=conditioning)


def mask_of(seed, frames=FRAMES):
    """Shares of the classes in turns, some of them soft."""
    random = np.random.default_rng(seed)
    turns = np.eye(4)[random.integers(0, 4, frames // 5 + 1)].repeat(5, axis=0)[:frames]
    soft = random.dirichlet(np.ones(4), frames)
    return np.where(np.arange(frames)[:, None] % 10 < 7, turns, soft).astype(np.float32)


def target_of(seed, samples):
    return TargetWindow(mask_of(seed, len(samples) // 320), (noise(1.0, 70), mask_of(99)))


# The published formulas: TS-ASR-Whisper's FDDT.py, encoder.py and layers.py


def attention(read, name, x, source):
    def product(part, each):
        bias = read.get(f"{name}.{part}_proj.bias")
        split = F.linear(each, read[f"{name}.{part}_proj.weight"], bias)
        return split.view(*each.shape[:2], HEADS, -1).transpose(1, 2)

    query = product("q", x) * (WIDTH // HEADS) ** -0.5
    weights = (query @ product("k", source).transpose(2, 3)).softmax(-1)
    mixed = (weights @ product("v", source)).transpose(1, 2).flatten(2)
    return F.linear(mixed, read[f"{name}.out_proj.weight"], read[f"{name}.out_proj.bias"])


def layer_output(read, name, x):
    def linear(part, each):
        return F.linear(each, read[f"{name}.{part}.weight"], read[f"{name}.{part}.bias"])

    def norm(part, each):
        return F.layer_norm(
            each, (WIDTH,), read[f"{name}.{part}.weight"], read[f"{name}.{part}.bias"]
        )

    normed = norm("self_attn_layer_norm", x)
    x = x + attention(read, f"{name}.self_attn", normed, normed)
    return x + linear("fc2", F.gelu(linear("fc1", norm("final_layer_norm", x))))


def followed(models, samples, mask, added, enrolment=None):
    """The output for one window; its enrolment, features and mask, is in the second row."""
    read = {
        name.removeprefix(ENCODER): weight.detach()
        for name, weight in models.model.named_parameters()
        if name.startswith(ENCODER)
    }
    for name, each in added.items():
        if name.endswith("lora_a"):
            stem = name.removesuffix(".lora_a")
            read[f"{stem}.weight"] = read[f"{stem}.weight"] + added[f"{stem}.lora_b"] @ each
    windows, masks = [samples], [mask]
    if enrolment is not None:
        windows, masks = [samples, enrolment[0]], [mask, enrolment[1]]
    silent = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64).repeat(len(masks), FRAMES, 1)
    for row, each in zip(silent, masks, strict=True):
        row[: len(each)] = torch.tensor(each)

    def transform(x, place):
        weight, bias = (added.get(f"fddt.{place}.{part}") for part in ("weight", "bias"))
        if weight is None:
            return x
        return sum(silent[: len(x), :, c, None] * (x * weight[c] + bias[c]) for c in range(4))

    x = Encoder(models).log_mel(windows).double()
    for name, stride in (("conv1", 1), ("conv2", 2)):
        x = F.gelu(F.conv1d(x, read[f"{name}.weight"], read[f"{name}.bias"], stride, padding=1))
    x = transform(x.transpose(1, 2), 0) + read["embed_positions.weight"]
    for layer in range(LAYERS):
        x = transform(x, layer + 1)
        block = f"ca_enrolls.{layer}.cae."
        if f"{block}cross_gate.gate" in added:
            own, enrolled = x[:1], x[1:]
            both = torch.cat((attention(added, f"{block}cross_attn", own, enrolled), own), dim=-1)
            inner = F.gelu(
                F.linear(both, added[f"{block}ffn.0.weight"], added[f"{block}ffn.0.bias"])
            )
            update = F.linear(inner, added[f"{block}ffn.3.weight"], added[f"{block}ffn.3.bias"])
            own = own + torch.tanh(added[f"{block}cross_gate.gate"]) * update
            last = f"ca_enrolls.{layer + 1}.cae.cross_gate.gate" not in added
            x = own if last else torch.cat((own, enrolled))
        x = layer_output(read, f"layers.{layer}", x)
    return F.layer_norm(x, (WIDTH,), read["layer_norm.weight"], read["layer_norm.bias"])


# The encoder


@pytest.mark.parametrize("products", [PRODUCTS, ("self_attn.q_proj", "fc1"), ()])
def test_a_conditioned_window_is_the_formulas(products):
    models, windows = conditioned(products=products), oracle.noise_windows(6)
    targets = [target_of(number, each) for number, each in enumerate(windows)]
    found = Encoder(models).encode(windows, drafted=False, targets=targets).main
    for output, samples, target in zip(found, windows, targets, strict=True):
        expected = followed(models, samples, target.mask, models.conditioning.weights)
        torch.testing.assert_close(output[None], expected, rtol=0, atol=1e-11)


@torch.inference_mode()
def test_updates_of_products_in_bfloat16_are_the_formulas_to_rounding():
    models = conditioned()
    exact = followed(models, noise(1.0), mask_of(1), models.conditioning.weights)
    low = model_of(TINY, width=WIDTH)
    low.load_state_dict(models.model.state_dict())
    weights = {name: each.float() for name, each in models.conditioning.weights.items()}
    rounded = AudioEncoder(low, torch.bfloat16, Conditioning(weights))
    features = Encoder(models).log_mel([noise(1.0)])
    found = rounded.forward(features, torch.tensor(mask_of(1))[None])
    assert found.dtype == torch.float32
    assert (found - exact).abs().max() < 0.3


# The engine


def requests_of(models, every=3, count=8):
    """Windows, of which each number `every` follows no speaker."""
    prompts = oracle.prompts_of(models.special_tokens, True, count)
    windows = zip(oracle.noise_windows(count), prompts, strict=True)
    return [
        Request(n, samples, prompt, 24, target=target_of(n, samples) if n % every else None)
        for n, (samples, prompt) in enumerate(windows)
    ]


def plain(requests):
    return [replace(each, target=None) for each in requests]


def test_a_conditioning_that_changes_nothing_gives_the_plain_tokens():
    models = models_of(TINY, 142)
    requests = requests_of(models)
    found = decode(DecodeEngine(conditioned(models, scale=0.0)), requests, DecodeOptions())
    tokens = oracle.greedy(models, plain(requests), timestamps=True)
    assert {key: each.tokens for key, each in found.items()} == tokens


@pytest.mark.parametrize(
    ("options", "drafter"),
    [
        (DecodeOptions(batch_size=8), None),
        (DecodeOptions(batch_size=8, num_beams=2), None),
        (DecodeOptions(batch_size=8, fallback=REJECTING, drafts=3, assisted=True), "shared"),
        (DecodeOptions(batch_size=8, fallback=REJECTING, drafts=3, assisted=True), "own"),
    ],
)
def test_rows_of_a_mixed_batch_are_those_of_each_alone(options, drafter):
    models = conditioned()
    if drafter:
        models = oracle.with_assistant(models, 0.1, own_encoder=drafter == "own")
    engine, undrafted = DecodeEngine(models), replace(options, assisted=False, drafts=None)
    requests = requests_of(models)
    together = decode(engine, requests, options)
    for each in requests:
        (expected,) = decode(engine, [each], undrafted).values()
        assert together[each.key].tokens == expected.tokens
        assert together[each.key].log_probs == pytest.approx(expected.log_probs)
        assert together[each.key].attention == pytest.approx(expected.attention, abs=1e-6)
    without = decode(DecodeEngine(models_of(TINY, 142)), plain(requests), undrafted)
    differ = [
        each.key for each in requests if together[each.key].tokens != without[each.key].tokens
    ]
    assert set(differ) <= {each.key for each in requests if each.target is not None}
    assert len(differ) >= 3


def test_graphs_are_for_plain_windows_as_before(monkeypatch):
    """Windows that follow a speaker run eagerly, beside the same replays."""
    options, models = DecodeOptions(batch_size=8), models_of(TINY, 142)
    passes, captured = [], []
    with emulated_cuda(monkeypatch) as device:
        for each in (models, conditioned(models)):
            engine = DecodeEngine(on_cuda(each))
            captured.append(engine.runner.graph_count)
            sizes, before = oracle.encoder_passes(engine, monkeypatch), device.replays
            found = decode(engine, plain(requests_of(models)), options)
            passes.append((sizes, device.replays - before, engine.runner.eager, found))
        assert captured[0] == captured[1]
        assert passes[0] == passes[1]
        mixed, before = decode(engine, requests_of(models), options), len(passes[1][0])
    assert passes[1][0][before:] == [3]
    expected = decode(DecodeEngine(conditioned(models)), requests_of(models), options)
    assert {key: each.tokens for key, each in mixed.items()} == {
        key: each.tokens for key, each in expected.items()
    }
