"""The rules against transformers' processors, on histories that no model would write."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from asr.checkpoint.special_tokens import SpecialTokens
from asr.engine.logit_filters import Draw, LogitFilter

END, NO_TIMESTAMPS, SIZE = 8, 12, 24
VOCABULARY = SpecialTokens(
    size=SIZE,
    end_of_text=END,
    start_of_transcript=9,
    no_speech=11,
    no_timestamps=NO_TIMESTAMPS,
    multilingual=False,
    languages={},
    tasks={},
    suppress=(2, 9),
    begin_suppress=(3, END),
    max_initial_timestamp_index=4,
    max_length=448,
    start_of_previous=None,
)
PROMPTS = [[9], [9, NO_TIMESTAMPS], [10, 1, 20, 9]]
TOKENS = some.lists(
    some.one_of(some.integers(0, END - 1), some.integers(NO_TIMESTAMPS + 1, SIZE - 1)), max_size=7
)
HISTORIES = some.lists(some.tuples(some.sampled_from(PROMPTS), TOKENS), min_size=1, max_size=5)


def rules_of(timestamps: bool) -> LogitFilter:
    return LogitFilter.of(VOCABULARY, timestamps, torch.zeros(SIZE, 1, dtype=torch.float64))


def expected_scores(history, begin, timestamps, logits):
    config = GenerationConfig(
        eos_token_id=END, no_timestamps_token_id=NO_TIMESTAMPS, max_initial_timestamp_index=4
    )
    processors = LogitsProcessorList(
        [
            SuppressTokensAtBeginLogitsProcessor([3, END], begin),
            SuppressTokensLogitsProcessor([2, 9]),
        ]
    )
    if timestamps:
        processors.append(WhisperTimeStampLogitsProcessor(config, begin))
    return processors(torch.tensor([history]), logits[None])[0]


def padded(histories):
    """Rows (rows, width) with rubbish behind each history, where each begins and ends."""
    width = 2 + max(len(prompt) + len(said) for prompt, said in histories)
    rows = [
        [*prompt, *said, *[SIZE - 1] * (width - len(prompt) - len(said))]
        for prompt, said in histories
    ]
    begin = torch.tensor([len(prompt) for prompt, _ in histories])
    return (
        torch.tensor(rows),
        begin,
        torch.tensor([[len(prompt) + len(said)] for prompt, said in histories]),
    )


@pytest.mark.parametrize("timestamps", [True, False])
@settings(deadline=None, max_examples=150)
@given(histories=HISTORIES, seed=some.integers(0, 10_000))
def test_choice_and_probability_are_those_of_transformers(timestamps, histories, seed):
    rules = rules_of(timestamps)
    logits = (
        3
        * torch.randn(
            len(histories), 1, SIZE, generator=torch.Generator().manual_seed(seed)
        ).double()
    )
    tokens, begin, ends = padded(histories)
    first = ends == begin[:, None]
    choice = rules.choose(
        logits + torch.where(first[..., None], rules.first_bias, rules.bias), tokens, begin, ends
    )
    for row, (prompt, said) in enumerate(histories):
        scores = expected_scores([*prompt, *said], len(prompt), timestamps, logits[row, 0])
        if torch.isinf(scores).all():
            continue  # nothing may follow: no history that the rules allowed comes to this
        assert choice.tokens[row, 0] == scores.argmax()
        assert choice.log_probability[row, 0].item() == pytest.approx(
            scores.log_softmax(-1).max().item()
        )


@settings(deadline=None, max_examples=60)
@given(said=TOKENS, prompt=some.sampled_from(PROMPTS), seed=some.integers(0, 10_000))
def test_every_position_of_a_row_is_judged_by_what_stands_before_it(said, prompt, seed):
    rules = rules_of(True)
    logits = (
        3
        * torch.randn(
            1, len(said) + 1, SIZE, generator=torch.Generator().manual_seed(seed)
        ).double()
    )
    tokens, begin = torch.tensor([[*prompt, *said]]), torch.tensor([len(prompt)])
    ends = len(prompt) + torch.arange(len(said) + 1)[None]
    together = rules.choose(logits, tokens, begin, ends)
    for place in range(len(said) + 1):
        alone = rules.choose(logits[:, place, None], tokens, begin, ends[:, place, None])
        assert alone.tokens.item() == together.tokens[0, place].item()
        assert alone.log_probability.item() == pytest.approx(
            together.log_probability[0, place].item(), nan_ok=True
        )


@pytest.mark.parametrize("timestamps", [True, False])
def test_sampling_follows_the_distribution_that_the_rules_leave(timestamps):
    rules, heat = rules_of(timestamps), 0.7
    history, prompt = [20, 1, 4], [9]
    logits = torch.randn(SIZE, generator=torch.Generator().manual_seed(3)).double()
    count = 4000
    tokens = torch.tensor([[*prompt, *history]]).expand(count, -1)
    begin, ends = torch.ones(count, dtype=torch.long), torch.full((count, 1), 4)
    draw = Draw(torch.full((count,), heat), (torch.arange(count)[:, None] + 0.5) / count)
    choice = rules.sample((logits + rules.bias).expand(count, 1, -1), tokens, begin, ends, draw)
    scores = expected_scores([*prompt, *history], 1, timestamps, logits)
    shares = torch.bincount(choice.tokens[:, 0], minlength=SIZE) / count
    torch.testing.assert_close(shares.double(), (scores / heat).softmax(-1), atol=1 / count, rtol=0)
    torch.testing.assert_close(
        choice.log_probability[:, 0], scores.log_softmax(-1)[choice.tokens[:, 0]]
    )


def test_unscored_choices_are_the_same_tokens():
    rules, logits = (
        rules_of(True),
        torch.randn(4, 3, SIZE, generator=torch.Generator().manual_seed(0)).double(),
    )
    tokens = torch.tensor([[9, 15, 1, 16, 16, 4, 5]]).expand(4, -1)
    arguments = (
        logits,
        tokens,
        torch.ones(4, dtype=torch.long),
        torch.tensor([[2, 3, 4]]).expand(4, -1),
    )
    assert torch.equal(
        rules.choose(*arguments).tokens, rules.choose(*arguments, scored=False).tokens
    )


def test_half_precision_sums_in_single():
    rules = LogitFilter.of(VOCABULARY, False, torch.zeros(SIZE, 1, dtype=torch.float16))
    logits = torch.randn(1, 1, SIZE, generator=torch.Generator().manual_seed(0)).half()
    choice = rules.choose(logits, torch.tensor([[9]]), torch.tensor([1]), torch.tensor([[1]]))
    assert choice.log_probability.item() == pytest.approx(
        logits.float().log_softmax(-1).max().item(), abs=1e-6
    )
