"""The rules against transformers' processors, on histories that no model would write."""

import math

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as some

from whosaid.asr.checkpoint.special_tokens import SpecialTokens
from whosaid.asr.model.logit_filters import History, LogitFilter, _likeliest

END, NO_TIMESTAMPS, SIZE = 8, 12, 24
SPECIAL_TOKENS = SpecialTokens(
    size=SIZE, end_of_text=END, start_of_transcript=9, no_speech=11, no_timestamps=NO_TIMESTAMPS,
    multilingual=False, languages={}, tasks={}, suppress=(2, 9), begin_suppress=(3, END),
    max_initial_timestamp_index=4, max_length=448, start_of_previous=None,
)  # fmt: skip
PROMPTS = [[9], [9, NO_TIMESTAMPS], [10, 1, 20, 9]]
TOKENS = some.lists(
    some.one_of(some.integers(0, END - 1), some.integers(NO_TIMESTAMPS + 1, SIZE - 1)), max_size=7
)
HISTORIES = some.lists(some.tuples(some.sampled_from(PROMPTS), TOKENS), min_size=1, max_size=5)

FILTERS = LogitFilter.of(SPECIAL_TOKENS, torch.zeros(SIZE, 1, dtype=torch.float64))


def history_of(tokens, begin, ends, timestamps):
    """`timestamps` (rows,) says which rows follow the grammar."""
    follows = torch.tensor(timestamps)
    return History(tokens, ends, follows, torch.where(follows, begin, tokens.shape[1] + 1))


def expected_scores(history, begin, timestamps, logits):
    config = transformers.GenerationConfig(
        eos_token_id=END, no_timestamps_token_id=NO_TIMESTAMPS, max_initial_timestamp_index=4
    )
    processors = transformers.LogitsProcessorList(
        [
            transformers.SuppressTokensAtBeginLogitsProcessor([3, END], begin),
            transformers.SuppressTokensLogitsProcessor([2, 9]),
        ]
    )
    if timestamps:
        processors.append(transformers.WhisperTimeStampLogitsProcessor(config, begin))
    return processors(torch.tensor([history]), logits[None])[0]


def padded(histories):
    """Rows (rows, width) with rubbish behind each history, where each begins and ends."""
    width = 2 + max(len(prompt) + len(said) for prompt, said in histories)
    filled = [[*prompt, *said] for prompt, said in histories]
    rows = [[*each, *[SIZE - 1] * (width - len(each))] for each in filled]
    begin = torch.tensor([len(prompt) for prompt, _ in histories])
    ends = [[len(prompt) + len(said)] for prompt, said in histories]
    return torch.tensor(rows), begin, torch.tensor(ends)


def random_logits(*shape, seed):
    return 3 * torch.randn(*shape, SIZE, generator=torch.Generator().manual_seed(seed)).double()


def next_logits(histories, timestamps, seed):
    """Random logits of each history's next position, plain and biased, and the filters' input."""
    logits = random_logits(len(histories), 1, seed=seed)
    tokens, begin, ends = padded(histories)
    first = (ends == begin[:, None])[..., None]
    biased = logits + torch.where(first, FILTERS.first_bias, FILTERS.bias)
    return logits, biased, history_of(tokens, begin, ends, timestamps)


@given(
    histories=HISTORIES,
    follows=some.lists(some.booleans(), min_size=5, max_size=5),
    token=some.integers(0, SIZE - 1),
    seed=some.integers(0, 10_000),
)
def test_given_token_is_scored_among_allowed_tokens_and_itself(histories, follows, token, seed):
    """If timestamps outweigh texts, given text tokens are still allowed; a timestamp then counts
    as one of the candidates."""
    timestamps = follows[: len(histories)]
    logits, biased, history = next_logits(histories, timestamps, seed)
    given = torch.full((len(histories), 1), token)
    found = FILTERS.score(given, biased, logits, history)
    for row, (prompt, said) in enumerate(histories):
        own, times = logits[row, 0], torch.arange(SIZE) > NO_TIMESTAMPS
        unlikely = torch.where(times, own - 100, own)
        scores = expected_scores([*prompt, *said], len(prompt), timestamps[row], unlikely)
        allowed = ~scores.isinf()
        text, spoken = own.masked_fill(~allowed | times, -math.inf), own[allowed & times]
        outweighed = len(spoken) > 0 and bool(spoken.logsumexp(0) > text.max())
        if timestamps[row] and token > NO_TIMESTAMPS and outweighed:
            allowed &= times
        allowed[token] = True
        expected = own[token] - own[allowed].logsumexp(0)
        assert found[row, 0].item() == pytest.approx(expected.item())


@given(
    histories=HISTORIES,
    follows=some.lists(some.booleans(), min_size=5, max_size=5),
    count=some.integers(1, 7),
    seed=some.integers(0, 10_000),
)
def test_the_choice_and_the_best_few_are_those_of_transformers(histories, follows, count, seed):
    """Rows with and without timestamps run beside each other. Probabilities are renormalised over
    what the rules allow, as openai/whisper's beam search does."""
    timestamps = follows[: len(histories)]
    logits, biased, history = next_logits(histories, timestamps, seed)
    choices, found = [FILTERS.choose(biased, history)], [FILTERS.best(biased, history, count)]
    if not any(timestamps):
        choices.append(FILTERS.choose(biased, history, grammar=False))
        found.append(FILTERS.best(biased, history, count, grammar=False))
    for row, (prompt, said) in enumerate(histories):
        scores = expected_scores([*prompt, *said], len(prompt), timestamps[row], logits[row, 0])
        if torch.isinf(scores).all():
            continue  # nothing may follow: no history that the filters allowed comes to this
        expected = scores.log_softmax(-1).topk(count)
        for choice in choices:
            assert choice.tokens[row, 0] == scores.argmax()
            assert choice.log_probs[row, 0].item() == pytest.approx(expected.values[0].item())
        allowed = ~expected.values.isinf()
        for best in found:
            assert torch.equal(best.tokens[row][allowed], expected.indices[allowed])
            torch.testing.assert_close(best.log_probs[row], expected.values)


@given(
    rows=some.integers(1, 4),
    ids=some.sampled_from([3, 256, 700, 2048, 2049, 5000]),
    count=some.integers(1, 9),
    seed=some.integers(0, 10_000),
)
def test_the_likeliest_of_many_ids_are_found_by_blocks(rows, ids, count, seed):
    log_probs = torch.randn(rows, 1, ids, generator=torch.Generator().manual_seed(seed))
    expected = log_probs[:, 0].topk(min(count, ids))
    found = _likeliest(log_probs, count)
    assert torch.equal(found.tokens, expected.indices)
    assert torch.equal(found.log_probs, expected.values)


@settings(max_examples=60)
@given(said=TOKENS, prompt=some.sampled_from(PROMPTS), seed=some.integers(0, 10_000))
def test_each_position_follows_the_tokens_before_it(said, prompt, seed):
    logits = random_logits(1, len(said) + 1, seed=seed)
    tokens, begin = torch.tensor([[*prompt, *said]]), torch.tensor([len(prompt)])
    ends = len(prompt) + torch.arange(len(said) + 1)[None]
    together = FILTERS.choose(logits, history_of(tokens, begin, ends, [True]))
    for place in range(len(said) + 1):
        history = history_of(tokens, begin, ends[:, place, None], [True])
        alone = FILTERS.choose(logits[:, place, None], history)
        assert alone.tokens.item() == together.tokens[0, place].item()
        expected = together.log_probs[0, place].item()
        assert alone.log_probs.item() == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("grammar", [True, False])
@pytest.mark.parametrize("timestamps", [True, False])
def test_sampling_follows_the_distribution_that_the_filters_leave(timestamps, grammar):
    if timestamps and not grammar:
        pytest.skip("rows with timestamps need the grammar")
    temperature, said, count = 0.7, [20, 1, 4], 4000
    logits = torch.randn(SIZE, generator=torch.Generator().manual_seed(3)).double()
    tokens = torch.tensor([[9, *said]]).expand(count, -1)
    begin, ends = torch.ones(count, dtype=torch.long), torch.full((count, 1), 4)
    temperatures = torch.full((count,), temperature)
    uniform = (torch.arange(count)[:, None] + 0.5) / count
    history = history_of(tokens, begin, ends, [timestamps] * count)
    biased = (logits + FILTERS.bias).expand(count, 1, -1)
    choice = FILTERS.sample(biased, history, temperatures, uniform, grammar)
    scores = expected_scores([9, *said], 1, timestamps, logits)
    shares = torch.bincount(choice.tokens[:, 0], minlength=SIZE) / count
    expected = (scores / temperature).softmax(-1)
    torch.testing.assert_close(shares.double(), expected, atol=1 / count, rtol=0)
    log_probs = scores.log_softmax(-1)[choice.tokens[:, 0]]
    torch.testing.assert_close(choice.log_probs[:, 0], log_probs)


def test_unscored_choices_are_the_same_tokens():
    logits = random_logits(4, 3, seed=0)
    tokens = torch.tensor([[9, 15, 1, 16, 16, 4, 5]]).expand(4, -1)
    begin, ends = torch.ones(4, dtype=torch.long), torch.tensor([[2, 3, 4]]).expand(4, -1)
    history = history_of(tokens, begin, ends, [True, False, True, False])
    scored, unscored = (FILTERS.choose(logits, history, scored=each) for each in (True, False))
    assert torch.equal(scored.tokens, unscored.tokens)


@pytest.mark.parametrize("grammar", [True, False])
def test_half_precision_sums_in_single(grammar):
    filters = LogitFilter.of(SPECIAL_TOKENS, torch.zeros(SIZE, 1, dtype=torch.float16))
    logits = random_logits(1, 1, seed=0).half()
    history = history_of(torch.tensor([[9]]), torch.tensor([1]), torch.tensor([[1]]), [False])
    choice = filters.choose(logits, history, grammar)
    expected = logits.float().log_softmax(-1).max().item()
    assert choice.log_probs.item() == pytest.approx(expected, abs=1e-6)
