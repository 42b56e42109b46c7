"""What decides which demo model is kept and what its card says: the training loop, the corpus it
reads, and the rates that checkpoints are compared by.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import jiwer
import numpy as np
import pytest
import torch
from torch import nn

from extras.demo_models import corpus, diarization_error, evaluate, scoring, training
from extras.demo_models.corpus import SHARD_CLIPS, load_corpus, log_mel_power
from extras.demo_models.embedding import SCALE, VoiceClassifier
from extras.demo_models.scoring import Utterance
from extras.demo_models.training import Plan, Training
from tests.support.dialogue import Scene
from tests.support.speech import Clip, vocabulary
from tests.support.tiny_whispers import SMALL, model_of
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import SpeakerTurn, Word


class Line(nn.Module):
    """Fits y = 3x - 1; two losses whose weighted sum is the square of what is wrong."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.line = nn.Linear(1, 1)

    def forward(self, batch):
        with torch.autocast("cpu", enabled=False):
            square = (self.line(batch) - 3 * batch + 1).square().mean()
        return {"half": square, "whole": square}


WEIGHTS = {"half": 0.5, "whole": 0.5}


def optimizers_of_line(objectives):
    """Two, as a Whisper has them, whose matrices have one of their own."""
    made = [torch.optim.AdamW([each], training.ADAM_RATE) for each in objectives.parameters()]
    for optimizer in made:
        optimizer.param_groups[0]["full_rate"] = training.ADAM_RATE
    return made


class Clock:
    """Every look at it is a second later."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        self.seconds += 1
        return self.seconds


@pytest.fixture
def trainings(monkeypatch, tmp_path):
    """Trainings of one state file, whose steps take a second each."""
    monkeypatch.setattr(training, "time", Clock())
    monkeypatch.setattr(training, "_optimizers", optimizers_of_line)

    def batches(self, _corpus, _special):
        while self.progress < 1:
            random = torch.Generator().manual_seed(self.steps)
            yield torch.randn(8, 1, generator=random)

    monkeypatch.setattr(Training, "_batches", batches)

    def make(seconds, state="state", **changes):
        plan = Plan(seconds, print_every=1e9, **{"evaluate_every": 1e9} | changes)
        return Training(Line(), WEIGHTS, tmp_path / state, plan)

    return make


def test_the_checkpoint_of_the_lowest_score_is_kept(trainings):
    """Scores 5, 3, 4, 3, 1 after every two steps of ten, and 2 at the end."""
    scores, kept = iter([5.0, 3.0, 4.0, 3.0, 1.0, 2.0, 0.5]), []
    subject = trainings(10.0, evaluate_every=2.0)
    seen = []

    def evaluate():
        assert not subject.objectives.training
        seen.append(next(scores))
        return seen[-1]

    subject.run(None, None, evaluate, lambda: kept.append(seen[-1]))
    assert len(seen) == 6
    assert kept == [5.0, 3.0, 1.0]
    assert subject.best == 1.0
    assert (subject.steps, subject.elapsed) == (10, 10.0)


def test_a_resumed_training_goes_on_as_one_that_was_not_broken_off(trainings):
    whole = trainings(40.0, "whole")
    whole.run(None, None, lambda: 0.5, lambda: None)
    part = trainings(40.0, "part")
    stopped = iter(range(20))
    steps = Training._batches

    def first(self, _corpus, _special):
        for _, batch in zip(stopped, steps(self, None, None), strict=False):
            yield batch

    part._batches = first.__get__(part)
    part.run(None, None, lambda: 0.75, lambda: None)
    resumed, kept = trainings(40.0, "part"), []
    assert (resumed.steps, resumed.best) == (20, 0.75)
    resumed.run(None, None, lambda: 0.5, lambda: kept.append(1))
    assert resumed.steps == whole.steps == 40
    assert kept == [1]
    for name, weight in whole.objectives.state_dict().items():
        assert torch.equal(weight, resumed.objectives.state_dict()[name])
    assert trainings(40.0, "part").progress == 1.0


def test_the_rate_rises_stays_and_falls(trainings):
    subject, rates = trainings(400.0), []
    adam = subject.optimizers[1]
    step = adam.step
    adam.step = lambda: (rates.append(adam.param_groups[0]["lr"]), step())
    subject.run(None, None, lambda: 0.0, lambda: None)
    full = training.ADAM_RATE
    assert rates[:100] == pytest.approx([full * n / 100 for n in range(1, 101)])
    assert rates[100:200] == pytest.approx([full] * 100)
    assert rates[300] == pytest.approx(full / 2, rel=0.01)
    assert rates[-1] == pytest.approx(full * training.MIN_RATE_FACTOR)


def test_every_weight_that_is_trained_has_one_optimizer_and_layers_matrices_have_muon():
    model = model_of(SMALL)
    model.model.encoder.requires_grad_(False)
    other = nn.Linear(2, 3)
    muon, adam = training._optimizers(nn.ModuleList([model, other]))
    of_muon, of_adam = (
        [id(weight) for group in each.param_groups for weight in group["params"]]
        for each in (muon, adam)
    )
    layers = model.model.decoder.layers
    assert set(of_muon) == {id(weight) for weight in layers.parameters() if weight.ndim == 2}
    trained = [*model.parameters(), *other.parameters()]
    trained = [id(weight) for weight in trained if weight.requires_grad]
    assert sorted(of_muon + of_adam) == sorted(trained)


def clip_of(number):
    """So many tenths of a second of a tone, and two words of the vocabulary."""
    times = np.arange(1_600 * (number + 3)) / SAMPLE_RATE
    samples = (0.1 * np.sin(2 * np.pi * 200 * (number + 1) * times)).astype(np.float32)
    names = vocabulary()
    first = Word(names[number % len(names)], 0.0, 0.1)
    return Clip(samples, (first, Word(names[-1], 0.1, 0.1 + number / 100))[: 1 + number % 2])


def test_clips_come_back_as_they_were_written_and_unfinished_shards_are_not_read(
    tmp_path, monkeypatch
):
    drawn = iter([clip_of(number) for number in range(6)])
    monkeypatch.setattr(corpus, "_draw_training_clip", lambda _: next(drawn))
    monkeypatch.setattr(corpus, "SHARD_CLIPS", 3)
    for number in range(2):
        corpus._write_shard((tmp_path / f"shard-{number:03}.npz", number))
    (tmp_path / "shard-002.partial.npz").write_bytes(b"PK\3\4 and then the power went")
    found = load_corpus(tmp_path)
    assert len(found) == 6
    for number, each in enumerate(found):
        clip = clip_of(number)
        assert np.array_equal(each.log_power, log_mel_power(clip.samples))
        assert [vocabulary()[word] for word in each.words] == [word.text for word in clip.words]
        spans = [(word.start, word.end) for word in clip.words]
        assert each.spans == pytest.approx(np.array(spans))
    assert SHARD_CLIPS == 500


def test_the_word_error_rate_is_jiwers_over_all_words_together(monkeypatch):
    said = ["is there a hotel", "yes"]
    heard = iter(["is there hotel", "no yes"])
    monkeypatch.setattr(scoring, "transcribe", lambda *_: next(heard))
    utterances = [Utterance(np.zeros(1, np.float32), text) for text in said]
    found = scoring.word_error_rate(None, None, utterances)
    assert found == pytest.approx(2 / 5)
    assert found == jiwer.wer(said, ["is there hotel", "no yes"])


def test_english_is_counted_by_first_windows():
    """Of four recordings; a second window, which is not English, does not count."""
    languages = {"<|en|>": 7, "<|de|>": 8}
    config = SimpleNamespace(to_dict=lambda: {"lang_to_id": languages})
    heard = iter([7, 8, 7, 7])
    model = SimpleNamespace(
        generation_config=config, detect_language=lambda _: torch.tensor([next(heard)])
    )
    samples = np.zeros(SAMPLE_RATE * 31, np.float32)
    utterances = [Utterance(samples[: SAMPLE_RATE * length], "") for length in (1, 31, 2, 1)]
    assert evaluate.english_share(model, utterances) == 0.75
    assert next(heard, None) is None


def test_diarization_errors_are_of_all_seconds_spoken_by_one_voice():
    """Two scenes of 10 s: the first is right. In the second B's last 2 s are A's, and the half
    second where both speak does not count, nor an eighth of a second on each side of an edge.
    """
    true = (
        (("A", 0.0, 5.0), ("B", 5.0, 10.0)),
        (("A", 0.0, 5.0), ("B", 4.5, 10.0)),
    )
    found = (
        (("x", 0.0, 5.0), ("y", 5.0, 10.0)),
        (("x", 0.0, 5.0), ("y", 5.0, 8.0), ("x", 8.0, 10.0)),
    )
    turns = [tuple(SpeakerTurn(*turn) for turn in some) for some in (*true, *found)]
    samples = np.zeros(10 * SAMPLE_RATE, np.float32)
    answers = iter(turns[2:])
    diarizer = SimpleNamespace(diarize=lambda *_: SimpleNamespace(turns=next(answers)))
    scenes = [Scene(samples, (), some) for some in turns[:2]]
    rate, right = diarization_error.error_rate(diarizer, scenes)
    edge = diarization_error.COLLAR / 2
    first = 10 - 4 * edge
    second = (4.5 - 2 * edge) + (5 - 2 * edge)
    assert rate == pytest.approx((2 - edge) / (first + second))
    assert right == 1.0


def test_without_a_margin_the_voices_loss_is_cross_entropy_of_cosines():
    torch.manual_seed(0)
    model = VoiceClassifier(16)
    with torch.no_grad():
        model.details.normal_()
    vectors, speakers = torch.randn(5, 256), torch.tensor([0, 3, 7, 8, 15])
    a_voice = 16 // len(model.voices)
    classes = torch.stack([model.voices[n // a_voice] + model.details[n] for n in range(16)])
    cosines = torch.nn.functional.cosine_similarity(vectors[:, None], classes[None], dim=2)
    expected = nn.functional.cross_entropy(SCALE * cosines, speakers)
    assert model.loss(vectors, speakers, 0.0).item() == pytest.approx(expected.item(), rel=1e-4)
    margin = 0.2
    moved = cosines.clone()
    for row, speaker in enumerate(speakers.tolist()):
        moved[row, speaker] = math.cos(math.acos(cosines[row, speaker].item()) + margin)
    expected = nn.functional.cross_entropy(SCALE * moved, speakers)
    assert model.loss(vectors, speakers, margin).item() == pytest.approx(expected.item(), rel=1e-4)
