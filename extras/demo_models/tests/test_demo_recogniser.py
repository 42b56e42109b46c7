"""How the demo's recogniser and assistant are trained: targets and losses against their
definitions, and a build of a few steps that the endpoint loads.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

from config import DEMO_MODELS
from extras.demo_models import assistant, batches, recogniser
from extras.demo_models.batches import IGNORED, Targets
from extras.demo_models.corpus import SpokenMel, draw_spoken_mel
from extras.demo_models.recogniser import encode, guidance_loss, text_loss
from extras.demo_models.whisper import demo_tokenizer, new_model
from extras.demo_models.windows import Spoken, Window, draw_window
from tests.support.speech import vocabulary
from whosaid.asr import Checkpoint, load_whisper, with_assistant
from whosaid.runtime.errors import verify_checksums

SETTINGS = ("config.json", "generation_config.json", "vocab.json", "preprocessor_config.json")


@pytest.fixture(scope="module")
def tokenizer():
    return demo_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer):
    torch.manual_seed(0)
    return new_model(tokenizer).eval()


@pytest.fixture(scope="module")
def targets(model, tokenizer):
    return Targets(model, tokenizer)


def segment(words: list[str], start: float, complete: bool = True) -> Spoken:
    spans = [(start + 0.4 * index, start + 0.4 * index + 0.3) for index in range(len(words))]
    ids = [vocabulary().index(word) for word in words]
    return Spoken(np.array(ids, np.int16), np.array(spans, np.float32), complete)


def window_of(*segments: Spoken) -> Window:
    return Window(np.zeros((80, 400), np.float32), segments)


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
    """A sentence cut by the window's end has only its start timestamp."""
    drawn = [targets.sequence(window, np.random.default_rng(seed)) for seed in range(20)]
    ids = [[token for token, _ in sequence] for sequence in drawn]
    assert {sequence[0] for sequence in ids} == {targets.special.start_of_transcript}
    assert {sequence[-1] for sequence in ids} == {targets.special.end_of_text}
    bodies = ("".join(tokenizer.convert_ids_to_tokens(each[3:-1])) for each in ids)
    assert {body.replace("Ġ", " ") for body in bodies} == texts


def test_a_batch_pads_targets_and_times_words(targets):
    windows, special = [window_of(), window_of(segment(["good", "morning"], 0.5))], targets.special
    batch = targets.collate(windows, np.random.default_rng(0))
    assert batch.targets[:, 0].tolist() == [special.no_speech, special.languages["en"]]
    assert batch.targets[0, -1] == IGNORED
    spoken = batch.targets[1, 2:] != IGNORED
    assert torch.equal(batch.tokens[1, 3:][spoken[:-1]], batch.targets[1, 2:-1][spoken[:-1]])
    words = (batch.targets[1] < special.end_of_text) & (batch.targets[1] != IGNORED)
    np.testing.assert_allclose(batch.spans[1][words].numpy(), [(0.5, 0.8), (0.9, 1.2)], atol=1e-6)
    good, morning = (vocabulary().index(word) + 1 for word in ("good", "morning"))
    frames = [0] * 25 + [good] * 15 + [0] * 5 + [morning] * 15 + [0] * 140
    assert batch.labels.tolist() == [[0] * 200, frames]


def test_a_windows_segments_lie_where_their_clips_are():
    mel = np.full((100, 80), -10.0, np.float16)
    mel[20:60] = 2.0
    clips = [SpokenMel(mel, np.array([3], np.int16), np.array([(0.2, 0.6)], np.float32))]
    generator = np.random.default_rng(0)
    for _ in range(20):
        window = draw_window(clips, 4, generator)
        assert window.features.shape == (80, 400)
        assert np.isfinite(window.features).all()
        assert window.features.max() - window.features.min() <= 2.0 + 1e-5
        loud = np.median(window.features, axis=0)
        for start, end in (span for part in window.segments for span in part.spans):
            inside = loud[round(start * 100) : round(end * 100)]
            assert len(inside) == 0 or np.median(inside) > np.median(loud) - 1e-6


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


def test_guidance_is_the_attention_near_a_tokens_time():
    attentions = torch.zeros(4, 1, 4, 2, 100)
    attentions[..., 0, 50:60] = 0.05  # half of the mass lies about 1.0 to 1.2 s
    spans = torch.tensor([[[1.0, 1.2], [math.nan, math.nan]]])
    assert guidance_loss([*attentions], spans) == pytest.approx(-math.log(0.5))


def test_short_windows_are_encoded_as_whole_ones(model):
    features = torch.randn(1, 80, 3000, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        whole = model.model.encoder(features).last_hidden_state
        torch.testing.assert_close(encode(model, features), whole)


@pytest.mark.slow
def test_the_endpoint_loads_what_a_few_steps_build(tmp_path, monkeypatch):
    monkeypatch.setattr(batches, "BATCH_SIZES", {4: 2, 10: 1, 30: 1})
    clips = [draw_spoken_mel(number) for number in range(6)]
    assert all(clip.spans[-1, 1] <= len(clip.log_power) / 100 for clip in clips)
    recogniser.build(tmp_path / "asr", clips, steps=2)
    assistant.build(tmp_path / "assistant", tmp_path / "asr", clips, steps=2)
    for name in ("asr", "assistant"):
        verify_checksums(tmp_path / name)
        listed = {path.name for path in (tmp_path / name).iterdir()}
        assert listed | {"README.md"} == {path.name for path in (DEMO_MODELS / name).iterdir()}
        for file in SETTINGS:
            built, shipped = (
                json.loads((top / name / file).read_text()) for top in (tmp_path, DEMO_MODELS)
            )
            assert built | {"transformers_version": ""} == shipped | {"transformers_version": ""}
    models = load_whisper(Checkpoint(str(tmp_path / "asr")), torch.device("cpu"), torch.float32)
    assert with_assistant(models, Checkpoint(str(tmp_path / "assistant"))).assistant is not None
    drafter = AutoModelForCausalLM.from_pretrained(tmp_path / "assistant")
    assert (drafter.dtype, drafter.config.vocab_size) == (torch.float16, models.special_tokens.size)
