"""How the demo's models are trained: the loop, windows and their targets, losses against their
definitions, and a build from the corpus to folders that the endpoint loads.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModelForCausalLM, WhisperFeatureExtractor

from extras.demo_models import assistant, corpus, recogniser, training
from extras.demo_models.assistant import first_and_last_layers
from extras.demo_models.batches import IGNORED, Targets
from extras.demo_models.checksums import write_checksums
from extras.demo_models.corpus import SpokenMel, load_corpus, log_mel_power
from extras.demo_models.recogniser import Guidance, encode, muon_and_adam, text_loss
from extras.demo_models.training import rate_factor, train
from extras.demo_models.whisper import ALIGNMENT_HEADS, demo_tokenizer, new_model
from extras.demo_models.windows import Spoken, Window, draw_window
from tests.support.speech import vocabulary
from tests.support.tiny_whispers import SMALL, model_of
from whosaid.asr import Checkpoint, load_whisper, with_assistant
from whosaid.runtime.errors import verify_checksums


@pytest.fixture(scope="module")
def tokenizer():
    return demo_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer):
    torch.manual_seed(0)
    return new_model(tokenizer).eval()


@pytest.fixture(scope="module")
def targets(model, tokenizer):
    return Targets.of(model, tokenizer)


@pytest.fixture(scope="module")
def features():
    noise = np.random.default_rng(0).normal(0, 0.1, 16_000 * 3).astype(np.float32)
    return WhisperFeatureExtractor(feature_size=80)(
        noise, sampling_rate=16_000, return_tensors="pt"
    ).input_features


# ---- the loop


class Interrupted(Exception):
    pass


def fit(checkpoint, seen=None, ends=None) -> nn.Module:
    """Train a line for twelve steps, or up to an interruption."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)

    def draw(_, generator):
        return torch.from_numpy(generator.standard_normal((4, 3))).float()

    def loss_of(step, inputs):
        if step == ends:
            raise Interrupted
        if seen is not None:
            seen.append(step)
        return ((model(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean()

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    train(model, draw, loss_of, [optimizer], 12, checkpoint)
    return model


def test_an_interrupted_run_ends_where_an_uninterrupted_one_does(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "SAVE_EVERY", 5)
    whole, seen = fit(tmp_path / "whole.pt"), []
    with pytest.raises(Interrupted):
        fit(tmp_path / "folder" / "cut.pt", ends=8)
    resumed = fit(tmp_path / "folder" / "cut.pt", seen)
    assert seen == list(range(5, 12))
    again = fit(tmp_path / "folder" / "cut.pt", seen)
    assert seen == list(range(5, 12))
    for each in (resumed, again):
        assert torch.equal(each.weight, whole.weight)
        assert not each.training


def test_the_rate_rises_stays_and_falls():
    rates = [rate_factor(step / 100) for step in range(101)]
    assert rates[0] == rates[100] == 0
    assert rates[5:51] == [1.0] * 46
    assert rates[75] == pytest.approx(0.5)


def test_every_weight_that_is_trained_has_one_optimizer_and_layers_matrices_have_muon():
    model = model_of(SMALL)
    model.model.encoder.requires_grad_(False)
    other = nn.Linear(2, 3)
    of_muon, of_adam = (
        [id(weight) for group in each.param_groups for weight in group["params"]]
        for each in muon_and_adam(nn.ModuleList([model, other]))
    )
    layers = model.model.decoder.layers
    assert set(of_muon) == {id(weight) for weight in layers.parameters() if weight.ndim == 2}
    trained = [*model.parameters(), *other.parameters()]
    trained = [id(weight) for weight in trained if weight.requires_grad]
    assert sorted(of_muon + of_adam) == sorted(trained)


# ---- windows and targets


def segment(words: list[str], start: float, complete: bool = True) -> Spoken:
    spans = [(start + 0.4 * index, start + 0.4 * index + 0.3) for index in range(len(words))]
    ids = [vocabulary().index(word) for word in words]
    return Spoken(np.array(ids, np.int16), np.array(spans, np.float32), complete)


def window_of(*segments: Spoken) -> Window:
    return Window(np.zeros((80, 400), np.float32), segments, np.zeros(200, np.int64))


@pytest.mark.parametrize(
    ("window", "texts"),
    [
        (
            window_of(segment(["good", "morning"], 0.5), segment(["yes"], 2.0)),
            {
                "<|0.50|> good morning<|1.20|><|2.00|> yes<|2.30|>",
                "<|notimestamps|> good morning yes",
            },
        ),
        (
            window_of(segment(["yes"], 0.0), segment(["good", "morning"], 3.5, complete=False)),
            {"<|0.00|> yes<|0.30|><|3.50|>"},
        ),
        (window_of(), {"<|0.00|>", "<|notimestamps|>"}),
    ],
)
def test_a_target_has_one_segment_a_sentence_or_plain_text(tokenizer, targets, window, texts):
    """Of a sentence that the window cuts only the start."""
    drawn = [targets.sequence(window, np.random.default_rng(seed)) for seed in range(20)]
    ids = [[token for token, _ in sequence] for sequence in drawn]
    assert {sequence[0] for sequence in ids} == {targets.special.start_of_transcript}
    assert {sequence[-1] for sequence in ids} == {targets.special.end_of_text}
    bodies = ("".join(tokenizer.convert_ids_to_tokens(each[3:-1])) for each in ids)
    assert {body.replace("Ġ", " ") for body in bodies} == texts


def test_a_batch_pads_targets_and_times_words(targets):
    windows = [window_of(), window_of(segment(["good", "morning"], 0.5))]
    sequences = [targets.sequence(window, np.random.default_rng(0)) for window in windows]
    batch, special = targets.collate(windows, sequences), targets.special
    assert batch.targets[:, 0].tolist() == [special.no_speech, special.languages["en"]]
    assert batch.targets[0, -1] == IGNORED
    assert batch.tokens[1, 1:].tolist()[: len(sequences[1]) - 2] == [
        token for token, _ in sequences[1][1:-1]
    ]
    words = (batch.targets[1] < special.end_of_text) & (batch.targets[1] != IGNORED)
    np.testing.assert_allclose(batch.spans[1][words].numpy(), [(0.5, 0.8), (0.9, 1.2)], atol=1e-6)


def test_windows_keep_their_clips_where_they_say():
    mel = np.full((100, 80), -10.0, np.float16)
    mel[20:60] = 2.0
    clips = [SpokenMel(mel, np.array([3], np.int16), np.array([(0.2, 0.6)], np.float32))]
    generator = np.random.default_rng(0)
    for _ in range(20):
        window = draw_window(clips, 4, generator)
        assert window.features.shape == (80, 400)
        assert window.labels.shape == (200,)
        assert np.isfinite(window.features).all()
        assert window.features.max() - window.features.min() <= 2.0 + 1e-5
        middles = {
            int(float(start + 0.2) * 50) for part in window.segments for start, _ in part.spans
        }
        assert all(window.labels[frame] == 4 for frame in middles if frame < 200)


def test_mel_power_is_what_the_feature_extractor_computes():
    samples = np.random.default_rng(0).normal(0, 0.1, 16_000).astype(np.float32)
    expected = WhisperFeatureExtractor(feature_size=80)(
        samples, sampling_rate=16_000, return_tensors="np"
    )
    power = log_mel_power(samples).astype(np.float64)
    scaled = (np.maximum(power, power.max() - 8) + 4) / 4
    inner = slice(3, 97)
    np.testing.assert_allclose(scaled[inner].T, expected.input_features[0][:, inner], atol=0.01)


# ---- losses


def test_encoding_is_the_models_own(model, features):
    with torch.inference_mode():
        torch.testing.assert_close(
            encode(model, features), model.model.encoder(features).last_hidden_state
        )


def test_the_text_loss_is_cross_entropy_that_forgives_timestamps_near_the_truth():
    torch.manual_seed(0)
    logits, wanted = torch.randn(2, 5, 40), torch.randint(0, 30, (2, 5))
    wanted[0, 3:] = IGNORED
    expected = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=IGNORED)
    torch.testing.assert_close(text_loss(logits, wanted, first_timestamp=30), expected)
    exact, near, far = (
        text_loss(F.one_hot(torch.tensor([[at]]), 60).float() * 5, torch.tensor([[30]]), 20)
        for at in (30, 31, 45)
    )
    assert exact < near < far
    assert far - near > near - exact


def test_guidance_reads_the_attention_that_transformers_reports(model, tokenizer, features):
    heads = new_model(tokenizer)
    heads.load_state_dict(model.state_dict())
    heads.set_attn_implementation("eager")
    guidance = Guidance(heads)
    tokens = torch.tensor([[600, 601, 702, 350, 351]])
    spans = torch.full((1, 5, 2), math.nan)
    spans[0, 2], spans[0, 3] = torch.tensor([0.5, 0.9]), torch.tensor([1.0, 1.4])
    with torch.inference_mode():
        hidden = encode(heads, features)
        decoded = heads.model.decoder(tokens, encoder_hidden_states=hidden, output_attentions=True)
        attention = torch.stack(
            [decoded.cross_attentions[layer][0, head] for layer, head in ALIGNMENT_HEADS]
        )
        frames = torch.arange(1500) / 50
        masses = [
            attention[:, row, (frames >= start - 0.2) & (frames <= end + 0.2)].sum(-1)
            for row, (start, end) in ((2, (0.5, 0.9)), (3, (1.0, 1.4)))
        ]
        expected = -torch.stack(masses).log().mean()
        torch.testing.assert_close(guidance.loss(spans), expected, rtol=1e-4, atol=1e-4)


def test_first_and_last_of_two_layers_are_the_whole_model(tokenizer, features):
    whole = new_model(tokenizer)
    del whole.model.decoder.layers[1:3]
    whole.config.decoder_layers = 2
    student = first_and_last_layers(whole).eval()
    tokens = torch.tensor([[600, 601, 702, 350]])
    with torch.inference_mode():
        expected = whole.eval()(
            input_features=features, decoder_input_ids=tokens, use_cache=False
        ).logits
        torch.testing.assert_close(
            student(features, decoder_input_ids=tokens, use_cache=False).logits, expected
        )


# ---- a build


@pytest.mark.slow
def test_the_endpoint_loads_what_is_built(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "SHARD_CLIPS", 6)
    for number in range(2):
        corpus._write_shard((number, tmp_path / f"shard-00{number}.pickle"))
    clips = load_corpus(tmp_path)
    assert len(clips) == 12
    assert all(clip.spans[-1, 1] <= len(clip.log_power) / 100 for clip in clips)
    recogniser.build(tmp_path / "asr", tmp_path, tmp_path / "asr.state", steps=2)
    assistant.build(tmp_path / "assistant", tmp_path / "asr", tmp_path, tmp_path / "state", steps=2)
    for name in ("asr", "assistant"):
        write_checksums(tmp_path / name)
        verify_checksums(tmp_path / name)
    models = load_whisper(Checkpoint(str(tmp_path / "asr")), torch.device("cpu"), torch.float32)
    assert with_assistant(models, Checkpoint(str(tmp_path / "assistant"))).assistant is not None
    drafter = AutoModelForCausalLM.from_pretrained(tmp_path / "assistant")
    assert (drafter.dtype, drafter.config.vocab_size) == (torch.float16, models.special_tokens.size)
    tokens = models.tokenizer.get_vocab()
    assert {"<|yue|>", "<|nospeech|>", "<|0.00|>", "<|30.00|>"} <= tokens.keys()


def test_checksums_are_those_of_sha256sum(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "weights.bin").write_bytes(b"abc")
    (tmp_path / "README.md").write_text("for people")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    for _ in range(2):
        write_checksums(tmp_path)
        assert (tmp_path / "SHA256SUMS").read_text() == f"{digest}  deep/weights.bin\n"
