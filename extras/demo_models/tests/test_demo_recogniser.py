"""How the demo's recogniser and its assistant are trained: each part against transformers or
against its definition.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoProcessor, WhisperForConditionalGeneration

from extras.demo_models.acceptance import acceptance, count_drafts, greedy, prompt
from extras.demo_models.assistant import first_and_last_layers
from extras.demo_models.batches import IGNORED
from extras.demo_models.checksums import write_checksums
from extras.demo_models.objectives import Guidance, encode, text_loss
from extras.demo_models.scoring import Utterance, transcribe, window_features
from extras.demo_models.tokenizer import train_tokenizer
from extras.demo_models.training import Plan
from extras.demo_models.whisper import ALIGNMENT_HEADS, new_model, save_checkpoint
from tests.support.speech import draw_sentence


@pytest.fixture(scope="module")
def tokenizer():
    generator = np.random.default_rng(0)
    return train_tokenizer(draw_sentence(generator) for _ in range(1500))


@pytest.fixture(scope="module")
def model(tokenizer):
    torch.manual_seed(0)
    return new_model(tokenizer).eval()


@pytest.fixture(scope="module")
def noise():
    return np.random.default_rng(0).normal(0, 0.1, 16_000 * 3).astype(np.float32)


def test_encoding_is_the_models_own(model, noise):
    features = window_features(noise)
    with torch.inference_mode():
        torch.testing.assert_close(
            encode(model, features), model.model.encoder(features).last_hidden_state
        )


def test_the_text_loss_is_cross_entropy_where_nothing_is_a_timestamp():
    torch.manual_seed(0)
    logits, targets = torch.randn(2, 5, 40), torch.randint(0, 30, (2, 5))
    targets[0, 3:] = IGNORED
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
    torch.testing.assert_close(text_loss(logits, targets, first_timestamp=30), expected)


def test_a_timestamp_near_the_truth_costs_less_than_one_far_away():
    targets = torch.tensor([[30]])
    exact, near, far = (F.one_hot(torch.tensor([[at]]), 60).float() * 5 for at in (30, 31, 45))
    losses = [
        text_loss(logits, targets, first_timestamp=20).item() for logits in (exact, near, far)
    ]
    assert losses == sorted(losses)
    assert losses[2] - losses[1] > losses[1] - losses[0]


def test_guidance_reads_the_attention_that_transformers_reports(model, tokenizer, noise):
    heads = new_model(tokenizer)
    heads.load_state_dict(model.state_dict())
    heads.set_attn_implementation("eager")
    guidance = Guidance(heads)
    tokens = torch.tensor([[600, 601, 702, 350, 351]])
    spans = torch.full((1, 5, 2), math.nan)
    spans[0, 2], spans[0, 3] = torch.tensor([0.5, 0.9]), torch.tensor([1.0, 1.4])
    with torch.inference_mode():
        hidden = encode(heads, window_features(noise))
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


def test_first_and_last_of_two_layers_are_the_whole_model(tokenizer, noise):
    whole = new_model(tokenizer)
    del whole.model.decoder.layers[1:3]
    whole.config.decoder_layers = 2
    student = first_and_last_layers(whole).eval()
    features, tokens = window_features(noise), torch.tensor([[600, 601, 702, 350]])
    with torch.inference_mode():
        expected = whole.eval()(
            input_features=features, decoder_input_ids=tokens, use_cache=False
        ).logits
        torch.testing.assert_close(
            student(features, decoder_input_ids=tokens, use_cache=False).logits, expected
        )


def test_greedy_tokens_are_transformers_own(model, tokenizer, noise):
    features = window_features(noise)
    with torch.inference_mode():
        hidden = model.model.encoder(features).last_hidden_state
        tokens = greedy(model, hidden, prompt(model), 12)
        generated = model.generate(
            features, language="en", task="transcribe", return_timestamps=True, max_new_tokens=12
        )
    continued = tokens[len(prompt(model)) :]
    assert continued == generated[0].tolist()[-len(continued) :]


def test_a_model_keeps_all_of_its_own_drafts(model, noise, monkeypatch):
    monkeypatch.setattr("extras.demo_models.acceptance.MAX_TOKENS", 40)  # of a text that never ends
    assert acceptance(model, model, [Utterance(noise, "")]) == 1.0


def test_drafts_are_counted_up_to_the_first_difference(model, noise):
    with torch.inference_mode():
        hidden = model.model.encoder(window_features(noise)).last_hidden_state
        truth = greedy(model, hidden, prompt(model), 9)
        wrong = [*truth[:5], truth[5] - 1 if truth[5] else 1]
        assert count_drafts(model, hidden, truth[:6], 3) == (3, 3)
        kept, drafted = count_drafts(model, hidden, wrong, 3)
    assert (kept, drafted) == (2, 3)


def test_a_saved_checkpoint_is_float16_and_loads_everywhere(model, tokenizer, noise, tmp_path):
    save_checkpoint(model, tokenizer, tmp_path)
    loaded = WhisperForConditionalGeneration.from_pretrained(tmp_path)
    assert loaded.dtype == torch.float16
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config.vocab_size == len(tokenizer)
    processor = AutoProcessor.from_pretrained(tmp_path)
    for token in (
        "<|endoftext|>",
        "<|startoftranscript|>",
        "<|yue|>",
        "<|nospeech|>",
        "<|0.00|>",
        "<|30.00|>",
    ):
        assert processor.tokenizer.convert_tokens_to_ids(token) == tokenizer.convert_tokens_to_ids(
            token
        )
    assert loaded.generation_config.to_dict()["alignment_heads"] == [
        list(head) for head in ALIGNMENT_HEADS
    ]
    assert isinstance(transcribe(loaded.float(), processor.tokenizer, noise), str)


def test_checksums_are_those_of_sha256sum(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "weights.bin").write_bytes(b"abc")
    (tmp_path / "README.md").write_text("for people")
    write_checksums(tmp_path)
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert (tmp_path / "SHA256SUMS").read_text() == f"{digest}  deep/weights.bin\n"
    write_checksums(tmp_path)
    assert (tmp_path / "SHA256SUMS").read_text() == f"{digest}  deep/weights.bin\n"


def test_the_mix_of_windows_moves_from_its_first_shares_to_its_last():
    plan = Plan(seconds=1.0, first_shares=(1.0, 0.0, 0.0), last_shares=(0.2, 0.3, 0.5))
    assert plan.shares(0.0) == [1.0, 0.0, 0.0]
    assert plan.shares(0.25) == pytest.approx([0.6, 0.15, 0.25])
    assert plan.shares(0.5) == plan.shares(0.9) == [0.2, 0.3, 0.5]
