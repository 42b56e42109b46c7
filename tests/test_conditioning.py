"""An encoder that follows one speaker: the published formulas, in float64, batches, checkpoints."""

import json
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from config import ModelSettings
from handler import load_asr
from tests.helpers import oracle
from tests.helpers.calls import calls_of
from tests.helpers.cuda_emulator import emulated_cuda, on_cuda
from tests.helpers.launches import LaunchCounter
from tests.helpers.nightly import some
from tests.helpers.oracle import TINY, decode, models_of
from tests.helpers.stand_ins import asking
from tests.support.tiny_whispers import model_of, noise, save
from whosaid.asr.checkpoint.assistants import main_digest, with_conditioning
from whosaid.asr.checkpoint.conditioning import DICOW_CLASSES, FILE, PRODUCTS, Conditioning
from whosaid.asr.checkpoint.loading import Checkpoint, load_whisper
from whosaid.asr.checkpoint.weights import below
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.fallback import Fallback
from whosaid.asr.engine.request import DecodeOptions, Request
from whosaid.asr.engine.scheduler import DEFAULT_LIMITS
from whosaid.asr.frontend.target_speaker import Enrolment, TargetSpeaker, TargetWindow
from whosaid.asr.model.encoder import AudioEncoder, AudioWindow, Encoder
from whosaid.asr.transcriber import Transcriber
from whosaid.errors import StartError
from whosaid.scheduling.steps import run_steps

CPU, WIDTH, HEADS, FRAMES, LAYERS = torch.device("cpu"), 16, 2, 50, 2
REJECTING = Fallback(logprob_threshold=0.0, no_speech_threshold=1.0)
ENCODER = "model.encoder."


def drawn(shape, seed, scale=0.3):
    random = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(*shape, generator=random)).double()


def conditioning_weights(scale=0.3, products=PRODUCTS, rank=3):
    """The tensors of a file; those of scale 0 change nothing."""
    weights = {}
    for place in range(LAYERS + 1):
        weights[f"fddt.{place}.weight"] = (1 + drawn((4, WIDTH), 2 * place, scale)).float().double()
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
    return TargetWindow(mask_of(seed, len(samples) // 320), enrolment_of(99))


def enrolment_of(seed):
    return Enrolment(noise(1.0, seed), mask_of(seed))


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
    weights = [(name, each.detach()) for name, each in models.model.named_parameters()]
    read = {name.removeprefix(ENCODER): each for name, each in weights if name.startswith(ENCODER)}
    for name, each in added.items():
        if name.endswith("lora_a"):
            stem = name.removesuffix(".lora_a")
            read[f"{stem}.weight"] = read[f"{stem}.weight"] + added[f"{stem}.lora_b"] @ each
    windows, masks = [samples], [mask]
    if enrolment is not None:
        windows, masks = [samples, enrolment.samples], [mask, enrolment.mask]
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
            first = F.linear(both, added[f"{block}ffn.0.weight"], added[f"{block}ffn.0.bias"])
            inner = F.gelu(first)
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
    asked = [AudioWindow(one, target=target) for one, target in zip(windows, targets, strict=True)]
    found = Encoder(models).encode(asked, drafted=False).main
    for output, samples, target in zip(found, windows, targets, strict=True):
        expected = followed(models, samples, target.mask, models.conditioning.weights)
        torch.testing.assert_close(output[None], expected, rtol=0, atol=1e-11)


@torch.inference_mode()
@pytest.mark.parametrize(("always", "frames"), [(False, 100), (True, 300)])
def test_a_short_window_is_encoded_in_part_by_weights_trained_so(always, frames):
    models = models_of(replace(TINY, seconds=6), 142)
    models = replace(models, conditioning=Conditioning(conditioning_weights(), always=always))
    encoder, samples = Encoder(models), noise(1.0)
    target = target_of(3, samples)
    found = encoder.encode([AudioWindow(samples, target=target)], drafted=False).main
    mask = torch.eye(4, dtype=torch.float64)[[0]].repeat(frames, 1)
    mask[: len(target.mask)] = torch.tensor(target.mask)
    features = encoder.log_mel([samples]).double()[..., : 2 * frames]
    torch.testing.assert_close(found, encoder.main.forward(features, mask[None]))


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
    assert oracle.tokens_of(found) == oracle.greedy(models, plain(requests), timestamps=True)


@pytest.mark.parametrize(
    ("options", "drafter"),
    some(
        2,
        [
            (DecodeOptions(batch_size=8), None),
            (DecodeOptions(batch_size=8, fallback=REJECTING, drafts=3, assisted=True), "own"),
            (DecodeOptions(batch_size=8, fallback=REJECTING, drafts=3, assisted=True), "shared"),
            (DecodeOptions(batch_size=8, num_beams=2), None),
        ],
    ),
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
    differ = [one.key for one in requests if together[one.key].tokens != without[one.key].tokens]
    assert set(differ) <= {each.key for each in requests if each.target is not None}
    assert len(differ) >= 3


def test_graphs_are_for_plain_windows_as_before(monkeypatch):
    """Windows that follow a speaker run eagerly, beside the same replays."""
    options, models = DecodeOptions(batch_size=8), models_of(TINY, 142)
    passes, captured = [], []
    with emulated_cuda(monkeypatch, rows=(5,), prompt=(8,), guess=(0,)) as device:
        for each in (models, conditioned(models)):
            engine = DecodeEngine(on_cuda(each))
            captured.append(engine.runner.graph_count)
            encoded = calls_of(monkeypatch, engine.context.encoder, "run_pass")
            before = device.replays
            found = decode(engine, plain(requests_of(models)), options)
            sizes = [len(each) for _, each in encoded]
            passes.append((sizes, device.replays - before, engine.runner.eager, found))
        assert captured[0] == captured[1]
        assert passes[0] == passes[1]
        encoded.clear()
        mixed = decode(engine, requests_of(models), options)
        assert engine.runner.graph_count == captured[1]
    assert sum(len(each) for _, each in encoded) == 3
    expected = decode(DecodeEngine(conditioned(models)), requests_of(models), options)
    assert oracle.tokens_of(mixed) == oracle.tokens_of(expected)


# Our own files


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    folder = save(tmp_path_factory.mktemp("whisper"), TINY, model_of(TINY, width=WIDTH))
    return folder, load_whisper(Checkpoint(str(folder)), CPU, torch.float64)


def write_file(folder, models, changed=(), **metadata):
    """A file as `extras.conditioning` writes it; `changed` tensors replace, or as None remove."""
    weights = {name: each.half() for name, each in conditioning_weights().items()} | dict(changed)
    known = {"rank": "3", "classes": "silence,target,other,overlap", "mask_rate": "50"}
    metadata = known | {"base_digest": main_digest(models)} | metadata
    tensors = {name: each.contiguous() for name, each in weights.items() if each is not None}
    save_file(tensors, folder / FILE, metadata)
    return Checkpoint(str(folder))


def settings_of(folder, **given):
    return ModelSettings(asr_model=str(folder), dtype="float32", device="cpu", **given)


def loaded_by_handler(settings):
    return load_asr(settings, CPU, torch.float32, DEFAULT_LIMITS).capabilities


def test_a_file_is_read(tmp_path, whisper):
    folder, models = whisper
    found = with_conditioning(models, write_file(tmp_path, models)).conditioning
    expected = {name: each.half().double() for name, each in conditioning_weights().items()}
    assert found.weights.keys() == expected.keys()
    assert all(torch.equal(found.weights[name], each) for name, each in expected.items())
    assert not loaded_by_handler(settings_of(folder)).conditioned
    assert loaded_by_handler(settings_of(folder, conditioning_model=str(tmp_path))).conditioned


def test_a_file_beside_the_checkpoint_is_read(tmp_path):
    folder = save(tmp_path, TINY, model_of(TINY, width=WIDTH))
    write_file(folder, load_whisper(Checkpoint(str(folder)), CPU, torch.float32))
    assert loaded_by_handler(settings_of(folder)).conditioned


@pytest.mark.parametrize(
    ("changed", "metadata", "reason"),
    [
        ({}, {"base_digest": "0" * 64}, "was trained for another model"),
        ({"fddt.0.bias": torch.ones(3, WIDTH)}, {}, r"fddt.0.bias is \(3, 16\), not \(4, 16\)"),
        ({"fddt.1.weight": torch.ones(4, 16, dtype=torch.int8)}, {}, "is stored in I8: use"),
        ({"fddt.1.weight": None}, {}, r"fddt.1.weight is None, not \(4, 16\)"),
        ({"layers.0.fc1.lora_b": None}, {}, r"fc1.lora_b is None, not \(32, 3\)"),
        ({"layers.0.fc3.lora_a": torch.ones(3)}, {}, "fc3.lora_a is .* not None"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path, whisper, changed, metadata, reason):
    folder, models = whisper
    write_file(tmp_path, models, changed, **metadata)
    with pytest.raises(StartError, match=f"CONDITIONING_MODEL: .*{reason}"):
        loaded_by_handler(settings_of(folder, conditioning_model=str(tmp_path)))


def test_a_folder_without_the_file_is_refused(tmp_path, whisper):
    with pytest.raises(StartError, match=f"has no {FILE}"):
        with_conditioning(whisper[1], Checkpoint(str(tmp_path)))


# DiCoW


def dicow_weights(blocks=0):
    """Encoder weights by our names, and by those of TS-ASR-Whisper."""
    ours, theirs = conditioning_weights(products=()), {}
    for place in range(LAYERS + 1):
        name = f"fddts.{place - 1}" if place else "initial_fddt"
        for row, each in enumerate(DICOW_CLASSES):
            for part in ("weight", "bias"):
                theirs[f"{name}.{each}_linear.{part}"] = ours[f"fddt.{place}.{part}"][row]
    for number in range(blocks):
        name = f"ca_enrolls.{number}.cae"
        shapes = {f"cross_attn.{each}_proj.weight": (WIDTH, WIDTH) for each in "qkv"}
        shapes |= {f"cross_attn.{each}_proj.bias": (WIDTH,) for each in ("q", "v", "out")}
        shapes |= {"cross_attn.out_proj.weight": (WIDTH, WIDTH), "cross_gate.gate": (1,)}
        shapes |= {"ffn.0.weight": (2 * WIDTH, 2 * WIDTH), "ffn.0.bias": (2 * WIDTH,)}
        shapes |= {"ffn.3.weight": (WIDTH, 2 * WIDTH), "ffn.3.bias": (WIDTH,)}
        for seed, (part, shape) in enumerate(shapes.items(), 300 + 20 * number):
            ours[f"{name}.{part}"] = theirs[f"{name}.{part}"] = drawn(shape, seed)
    return ours, theirs


def dicow(folder, theirs, **config):
    """A checkpoint with layers for CTC, and the configuration of DiCoW v3."""
    save(folder, TINY, model_of(TINY, width=WIDTH))
    ctc = {"lm_head.weight": torch.ones(7, WIDTH), "subsample_conv1.weight": torch.ones(1, 1, 3)}
    ctc["additional_self_attention_layer.q_proj.bias"] = torch.ones(WIDTH)
    weights = load_file(folder / "model.safetensors")
    weights |= {ENCODER + name: each.contiguous() for name, each in (theirs | ctc).items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    entries = json.loads((folder / "config.json").read_text())
    entries |= {"model_type": "DiCoW", "architectures": ["DiCoWForConditionalGeneration"]}
    entries |= {"auto_map": {"AutoConfig": "config.DiCoWConfig"}, "use_fddt": True} | config
    (folder / "config.json").write_text(json.dumps(entries))
    return Checkpoint(str(folder))


def check_dicow(models, ours, blocks=0):
    """Windows with a mask follow it; another is the target's alone, and its own enrolment."""
    encoder, windows = Encoder(models), oracle.noise_windows(3)
    targets = [target_of(1, windows[0]), target_of(2, windows[1]), None]
    asked = [AudioWindow(one, target=target) for one, target in zip(windows, targets, strict=True)]
    found = encoder.encode(asked, drafted=False).main
    whole = np.tile(np.eye(4, dtype=np.float32)[1], (FRAMES, 1))
    for output, samples, target in zip(found, windows, targets, strict=True):
        mask, enrolment = target or (whole, Enrolment(samples, whole))
        expected = followed(models, samples, mask, ours, enrolment if blocks else None)
        torch.testing.assert_close(output[None], expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("blocks", [0, 1, 2])
def test_dicow_and_its_enrolment_blocks_are_the_formulas(tmp_path, capsys, blocks):
    ours, theirs = dicow_weights(blocks)
    checkpoint = dicow(tmp_path, theirs, use_pre_pos_fddt=True, scb_layers=blocks or None)
    models = load_whisper(checkpoint, CPU, torch.float64)
    assert "custom code" not in "".join(capsys.readouterr())  # nobody is asked to run any
    assert models.conditioning.always
    check_dicow(models, ours, blocks)


def test_windows_of_a_speaker_share_what_the_enrolment_takes(tmp_path):
    ours, theirs = dicow_weights(2)
    checkpoint = dicow(tmp_path, theirs, use_pre_pos_fddt=True, scb_layers=2)
    models = load_whisper(checkpoint, CPU, torch.float64)
    encoder, windows = Encoder(models), oracle.noise_windows(6)
    enrolments = [enrolment_of(seed) for seed in range(40, 49)]

    def encode(enrolled):
        pairs = enumerate(zip(windows, enrolled, strict=False))
        targets = [(samples, TargetWindow(mask_of(n), each)) for n, (samples, each) in pairs]
        asked = [AudioWindow(samples, target=target) for samples, target in targets]
        with LaunchCounter() as counter:
            found = encoder.encode(asked, drafted=False).main
        for number, (output, each) in enumerate(zip(found, enrolled, strict=True)):
            expected = followed(models, windows[number], mask_of(number), ours, each)
            torch.testing.assert_close(output[None], expected, rtol=0, atol=1e-11)
        return counter.counts.total()

    two, others = enrolments[:2], enrolments[2:]
    fresh, known = encode(two * 3), encode(two * 3)
    again = Enrolment(two[0].samples, two[0].mask)  # of another recording
    once = fresh - known
    assert once > 0
    assert encode(([again, two[1]]) * 3) - known == once // 2
    assert encode(others[:6]) - encode(others[2:6] + others[:2]) == once * 2  # the last four stay
    assert encode(two * 3) == fresh
    ends = [weakref.ref(each) for each in enrolments]
    del enrolments, two, others, again
    assert not any(end() for end in ends)


@torch.inference_mode()
def test_launches_are_those_of_the_documentation():
    models, (ours, _) = models_of(TINY, 142), dicow_weights(2)
    features = torch.zeros(1, 80, 2 * FRAMES, dtype=torch.float64)
    mask = torch.tensor(mask_of(1)).double()[None]

    def launches(conditioning):
        encoder = AudioEncoder(models.model, conditioning=conditioning)
        enrolled = [*encoder.enrolled(features, mask)]
        with LaunchCounter() as counter:
            encoder.forward(features, mask, (torch.cat([each]) for each in enrolled))
        return counter.counts.total()

    transforms = {name: each for name, each in ours.items() if name.startswith("fddt")}
    blocks = tuple(below(ours, f"ca_enrolls.{layer}.cae.") for layer in range(2))
    plain, dicow = launches(None), launches(Conditioning(transforms))
    assert dicow - plain == 4 * (LAYERS + 1)
    assert launches(Conditioning(conditioning_weights())) - dicow == 3 * LAYERS * len(PRODUCTS)
    assert launches(Conditioning(transforms, blocks)) - dicow <= 14 * len(blocks)


def test_dicow_with_fewer_transforms(tmp_path):
    """Biases alone before one layer, no transform before the other, none of overlap before both."""
    ours, theirs = dicow_weights()
    for name in [each for each in theirs if "fddts.1" in each or "overlap" in each]:
        del theirs[name]
    for each in DICOW_CLASSES[:3]:
        del theirs[f"fddts.0.{each}_linear.weight"]
        theirs[f"fddts.0.{each}_linear"] = theirs.pop(f"fddts.0.{each}_linear.bias")
    for part in ("weight", "bias"):
        del ours[f"fddt.2.{part}"]
        for place in (0, 1):
            ours[f"fddt.{place}.{part}"][3] = float(part == "weight")
    ours["fddt.1.weight"].fill_(1)
    check_dicow(load_whisper(dicow(tmp_path, theirs), CPU, torch.float64), ours)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"target_amplifiers.0.target_linear.weight": torch.ones(WIDTH)}, "not of DiCoW v3"),
        ({"fddts.0.target_linear.weight": torch.ones(WIDTH, WIDTH)}, r"is \(16, 16\), not"),
        ({"ca_enrolls.0.cae.cross_gate.gate": torch.ones(1)}, "precede the release"),
    ],
)
def test_another_dicow_is_refused(tmp_path, changed, reason):
    with pytest.raises(StartError, match=reason):
        load_whisper(dicow(tmp_path, dicow_weights()[1] | changed), CPU, torch.float32)


def test_a_dicow_takes_no_other_conditioning(tmp_path, whisper):
    models = replace(whisper[1], conditioning=Conditioning({}, always=True))
    with pytest.raises(StartError, match="is conditioned already"):
        with_conditioning(models, write_file(tmp_path, models))


# A recording


def test_every_window_has_its_part_of_the_mask(monkeypatch):
    """Including windows with a long pause cut out, and windows that are decoded again."""
    transcriber = Transcriber(conditioned(), fallback=REJECTING)
    mask = np.eye(4, dtype=np.float32)[np.repeat([0, 1, 2, 3, 0, 2, 2, 2, 1, 0], FRAMES)]
    mask[17, :] = 0.4, 0.2, 0.2, 0.2
    samples = noise(10.0)
    speech, enrolment = TargetSpeaker(samples, mask).speech, enrolment_of(7)
    expected = [(16_000 * start, 16_000 * (start + 1)) for start in (1, 3, 8)]
    assert [(each.start, each.stop) for each in speech] == expected
    added = calls_of(monkeypatch, transcriber.engine, "add")
    run_steps(transcriber.start(samples, transcriber.validate(asking()), mask, enrolment)).run()
    requests = [each for _, new in added for each in new]
    assert len(requests) >= 3
    for each in requests:
        first = round(each.key.start / 320)
        expected = mask[first : first + -(-len(each.samples) // 320)]
        np.testing.assert_array_equal(each.target.mask[: len(expected)], expected)
        assert len(each.target.mask) <= len(expected) + 1
        assert each.target.enrolment is enrolment
        assert each.encoded is None
        assert not each.key.tentative
        assert mask[first : first + FRAMES, [1, 3]].any()  # never of others alone


def test_a_mask_needs_conditioned_models():
    transcriber = Transcriber(models_of(TINY, 142))
    with pytest.raises(ValueError, match="cannot follow a speaker"):
        run_steps(transcriber.start(noise(1.0), transcriber.validate(asking()), mask_of(0)))
