import pytest
import torch

from extras.medusa.acceptance import Acceptance, measure, targets, walk
from extras.medusa.heads import Heads, Projection
from extras.medusa.hidden_states import HiddenStates
from extras.medusa.tests.stand_ins import teacher_of, tiny_models, write_recordings
from tests.oracle import random_heads
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.request import DecodeOptions, Request


def states_of(*texts: list[int]) -> HiddenStates:
    tokens = torch.tensor([token for text in texts for token in text], dtype=torch.int32)
    lengths = torch.tensor([len(text) for text in texts])
    return HiddenStates(
        torch.zeros(len(tokens), 4).half(),
        tokens,
        lengths,
        torch.arange(len(texts)),
        torch.zeros(len(texts), dtype=torch.bool),
    )


def test_targets_are_the_tokens_after_each_within_its_text():
    found = targets(states_of([5, 6, 7], [8, 9]), 2)
    assert found.tolist() == [[6, 7], [7, -1], [-1, -1], [9, -1], [-1, -1]]


def test_right_drafts_give_one_token_more_than_they_are():
    text = states_of([5, 6, 7, 8, 9, 10, 11])
    walked = walk(targets(text, 2), text)
    assert walked == Acceptance((2, 2), (2, 2), tokens=6, passes=2)
    assert walked.tokens_a_pass == 3


def test_wrong_drafts_give_one_token_a_pass():
    text = states_of([5, 6, 7, 8, 9])
    walked = walk(torch.full((5, 3), 99), text)
    assert walked == Acceptance((4, 0, 0), (0, 0, 0), tokens=4, passes=4)
    assert walked.by_depth == (0.0, 0.0, 0.0)


def test_a_round_begins_behind_what_the_round_before_made_final():
    text = states_of([5, 6, 7, 8, 9, 10])
    drafts = torch.tensor([[6, 0], [0, 0], [8, 9], [0, 0], [0, 0], [0, 0]])
    # From 5: 6 is right and 0 wrong, so 6 and 7 are final. From 7: 8 and 9 are, and 10 follows.
    assert walk(drafts, text) == Acceptance((2, 2), (2, 1), tokens=5, passes=2)


@pytest.fixture(scope="module")
def drafting():
    """A tiny Whisper whose heads copy, nearly, and its engine."""
    models = random_heads(tiny_models(), 3, scale=0.02)
    return models, DecodeEngine(models)


@pytest.mark.parametrize("timestamps", [True, False])
def test_the_engine_accepts_as_many(tmp_path, drafting, timestamps):
    models, engine = drafting
    teacher = teacher_of(tiny_models())
    recordings = write_recordings(tmp_path, 3)
    states = teacher.read(recordings)
    styles = states.timestamps == timestamps
    windows = teacher.windows(recordings)
    if timestamps:  # behind these stand the texts that were given the text before
        styles &= torch.arange(len(styles)) < len(windows)
    projection = Projection.of(models.model)
    found = measure(
        Heads.of(models.medusa), projection, models.special_tokens, states.where(styles)
    )
    prompt = models.special_tokens.prompt("en", "transcribe", timestamps)
    requests = [Request(number, each.samples, prompt) for number, each in enumerate(windows)]
    options = DecodeOptions(timestamps=timestamps, assisted=True, drafts=3, batch_size=4)
    with engine.session(options) as session:
        session.add(requests)
        while not session.done:
            session.step()
    assert session.stats.accepted == sum(found.accepted)
    assert session.stats.drafted_rows == found.passes
