"""The oracle of the decode engine: transformers' greedy `generate` over the same windows under the
same rules.

Both compute in float64. In float32 a matrix product may round differently in a batch of another
size, and where two tokens score nearly alike the choice could flip; in float64 that does not
happen."""

import copy
import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    PreTrainedModel,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperForCausalLM,
    WhisperTimeStampLogitsProcessor,
)

from tests.support.decoding import decode as decode_counted
from tests.support.tiny_whispers import Published, feature_extractor_of, model_of, tokenizer_of
from whosaid.asr.checkpoint.loading import Assistant, WhisperModels
from whosaid.asr.checkpoint.medusa import (
    BLOCK,
    HEADS_ONLY,
    LINEAR,
    Heads,
    MedusaHeads,
    ResidualBlocks,
)
from whosaid.asr.checkpoint.special_tokens import SpecialTokens, read_special_tokens
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.request import DecodeOptions, Request
from whosaid.asr.engine.result import DecodeResult

TINY = Published(text_entries=300, languages=4, seconds=1)
TINY_ENGLISH = dataclasses.replace(TINY, multilingual=False)
TINY_128 = dataclasses.replace(TINY, mel_bins=128)


@functools.cache
@torch.inference_mode(False)  # the first caller may be in inference mode, and other tests share it
def models_of(
    shape: Published = TINY, ending: int | None = None, dtype: torch.dtype = torch.float64
) -> WhisperModels:
    """Return a random Whisper; texts end at token number `ending`, a little earlier, or never."""
    model = model_of(shape, dtype=dtype, width=16)
    words = model.model.decoder.embed_tokens.weight.data
    words[shape.text_entries] = 0.0 if ending is None else words[ending] * 1.1
    tokenizer = tokenizer_of(shape)
    special_tokens = read_special_tokens("tiny", model.config, model.generation_config, tokenizer)
    model.generation_config = _greedy_configuration(special_tokens)
    return WhisperModels("tiny", model, tokenizer, feature_extractor_of(shape), special_tokens)


def steered_by_rules_alone(models: WhisperModels) -> PreTrainedModel:
    """The model, its weights shared, under a generation configuration for greedy search only."""
    model = copy.copy(models.model)
    model.generation_config = _greedy_configuration(models.special_tokens)
    return model


def _greedy_configuration(special_tokens: SpecialTokens) -> GenerationConfig:
    """Greedy search, in full: `generate` takes all that is unset from the model's configuration."""
    return GenerationConfig(
        do_sample=False,
        num_beams=1,
        max_length=special_tokens.max_length,
        bos_token_id=special_tokens.end_of_text,
        eos_token_id=special_tokens.end_of_text,
        pad_token_id=special_tokens.end_of_text,
        decoder_start_token_id=special_tokens.start_of_transcript,
        no_timestamps_token_id=special_tokens.no_timestamps,
        max_initial_timestamp_index=special_tokens.max_initial_timestamp_index,
        return_timestamps=False,
        force_unique_generate_call=True,
    )


def with_assistant(models: WhisperModels, noise: float, own_encoder: bool = False) -> WhisperModels:
    """Return the models with a disturbed copy of the main one as assistant, by `noise`."""
    model = copy.deepcopy(models.model)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.model.decoder.parameters():
            drawn = torch.randn(weight.shape, generator=random, dtype=weight.dtype)
            weight.add_(noise * weight.std() * drawn)
    if not own_encoder:
        model = _decoder_alone(model)
    return dataclasses.replace(models, assistant=Assistant("noisy", model, not own_encoder, None))


def _decoder_alone(model: PreTrainedModel) -> PreTrainedModel:
    alone = WhisperForCausalLM(copy.deepcopy(model.config)).to(model.dtype).eval()
    alone.model.decoder = model.model.decoder
    alone.proj_out = model.proj_out
    return alone


def noise_windows(count: int, seconds: float = 1.0, seed: int = 0) -> list[NDArray[np.float32]]:
    """Return windows of noise of different loudness and length, so that their texts differ."""
    random = np.random.default_rng(seed)
    lengths = random.integers(int(8000 * seconds), int(16_000 * seconds) + 1, count)
    return [
        (
            random.uniform(0.05, 0.5)
            * random.normal(size=length)
            * np.sin(np.arange(length) / random.uniform(3, 30))
        )
        .clip(-1, 1)
        .astype(np.float32)
        for length in lengths
    ]


def prompts_of(
    special_tokens: SpecialTokens, timestamps: bool, count: int
) -> list[tuple[int, ...]]:
    """Prompts of different lengths in turn: plain ones, and ones that start with previous text."""
    plain = special_tokens.prompt("en", "transcribe", timestamps)
    start_of_previous = special_tokens.no_timestamps - 2
    return [(*((start_of_previous, 5, 6, 11)[: 2 * (index % 3)]), *plain) for index in range(count)]


@functools.cache
def windows_of(
    timestamps: bool = True, count: int = 6, max_tokens: int | None = 24, shape: Published = TINY
) -> list[Request]:
    """Windows of noise by number, with those prompts."""
    prompts = prompts_of(models_of(shape).special_tokens, timestamps, count)
    windows = enumerate(zip(noise_windows(count), prompts, strict=True))
    return [Request(key, samples, prompt, max_tokens) for key, (samples, prompt) in windows]


@functools.cache
def truth(
    timestamps: bool = True,
    count: int = 6,
    max_tokens: int | None = 24,
    shape: Published = TINY,
    ending: int | None = None,
) -> dict[object, tuple[int, ...]]:
    """Return transformers' tokens for `windows_of` these arguments."""
    windows = windows_of(timestamps, count, max_tokens, shape)
    return greedy(models_of(shape, ending), windows, timestamps)


def decode(
    engine: DecodeEngine, windows: Sequence[Request], options: DecodeOptions
) -> dict[object, DecodeResult]:
    return decode_counted(engine, windows, options)[0]


def tokens_of(answers: Mapping[object, DecodeResult]) -> dict[object, tuple[int, ...]]:
    return {key: tuple(answer.tokens) for key, answer in answers.items()}


def check_alike(
    found: Mapping[object, DecodeResult], expected: Mapping[object, DecodeResult]
) -> None:
    """Check that answers are the same; attention may differ by rounding."""
    assert tokens_of(found) == tokens_of(expected)
    for key, each in expected.items():
        ours = found[key]
        assert (ours.temperature, ours.timestamps) == (each.temperature, each.timestamps)
        assert ours.log_probs == pytest.approx(each.log_probs, rel=1e-9, abs=1e-9)
        assert ours.no_speech_prob == pytest.approx(each.no_speech_prob)
        assert (ours.attention is None) == (each.attention is None)
        if each.attention is not None:
            assert ours.attention == pytest.approx(each.attention, abs=1e-5)


def interleaved(
    engine: DecodeEngine, asked: Sequence[tuple[DecodeOptions, Sequence[Request]]]
) -> list[dict[object, DecodeResult]]:
    """Every session's answers, by key; their steps are taken in turns."""
    sessions = [engine.session(options) for options, _ in asked]
    answers: list[dict[object, DecodeResult]] = [{} for _ in sessions]
    for session, (_, windows) in zip(sessions, asked, strict=True):
        session.add(windows)
    while not all(session.done for session in sessions):
        for session, answered in zip(sessions, answers, strict=True):
            answered |= {request.key: result for request, result in session.step()}
    return answers


@torch.inference_mode()
def greedy(
    models: WhisperModels, windows: Sequence[Request], timestamps: bool
) -> dict[object, tuple[int, ...]]:
    """Return transformers' tokens by key, behind prefixes if there are any; windows with prompts,
    and prefixes, of one length go together."""

    def lengths(window: Request) -> tuple[int, int]:
        return len(window.prompt), len(window.prefix)

    answers: dict[object, tuple[int, ...]] = {}
    for length in {lengths(window) for window in windows}:
        group = [window for window in windows if lengths(window) == length]
        answers |= dict(
            zip((window.key for window in group), _generate(models, group, timestamps), strict=True)
        )
    return answers


def _generate(
    models: WhisperModels, windows: Sequence[Request], timestamps: bool
) -> list[tuple[int, ...]]:
    features = features_of(models, [window.samples for window in windows])
    begin, most = len(windows[0].prompt), windows[0].max_tokens
    sequences = GenerationMixin.generate(
        models.model,
        features,
        attention_mask=torch.ones_like(features[:, 0], dtype=torch.long),
        decoder_input_ids=torch.tensor([window.prompt + window.prefix for window in windows]),
        logits_processor=rules_of(models, timestamps, begin),
        max_length=models.special_tokens.max_length if most is None else begin + most,
        force_unique_generate_call=True,
    )
    end = models.special_tokens.end_of_text
    rows = sequences[:, begin:].tolist()
    return [tuple(row[: row.index(end)] if end in row else row) for row in rows]


def features_of(models: WhisperModels, samples) -> torch.Tensor:
    """Return the features of one window or of several, in the model's precision."""
    read = models.feature_extractor(samples, sampling_rate=16_000, return_tensors="pt")
    return read.input_features.to(models.model.dtype)


@functools.cache
def eager_copy(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of the model with transformers' eager attention, whose weights can be read."""
    config = copy.deepcopy(model.config)
    config._attn_implementation = "eager"
    eager = type(model)(config).to(model.dtype).eval()
    eager.load_state_dict(model.state_dict())
    eager.generation_config = model.generation_config
    return eager


@torch.inference_mode()
def cross_attention(
    models: WhisperModels, window: Request, tokens: Sequence[int], heads: Sequence[tuple[int, int]]
) -> torch.Tensor:
    """Return transformers' eager attention as `tokens` are chosen, (heads, tokens, frames)."""
    eager = eager_copy(models.model)
    features = features_of(models, window.samples)
    read = torch.tensor([[*window.prompt, *tokens]])[:, :-1]
    answer = eager(features, decoder_input_ids=read, output_attentions=True)
    frames = -(-len(window.samples) // 320)
    attention = torch.stack([answer.cross_attentions[layer][0, head] for layer, head in heads])
    heard = attention[:, -len(tokens) :, :frames]
    return heard / heard.sum(dim=2, keepdim=True)


def rules_of(models: WhisperModels, timestamps: bool, begin: int) -> LogitsProcessorList:
    """transformers' own processors in transformers' own order."""
    special_tokens = models.special_tokens
    processors = LogitsProcessorList(
        [
            SuppressTokensAtBeginLogitsProcessor(special_tokens.begin_suppress, begin),
            SuppressTokensLogitsProcessor(special_tokens.suppress),
        ]
    )
    if timestamps:
        processors.append(WhisperTimeStampLogitsProcessor(models.model.generation_config, begin))
    return processors


def random_heads(
    models: WhisperModels, count: int, kind: str = HEADS_ONLY, blocks: int = 1, scale: float = 0.3
) -> WhisperModels:
    """The models with random heads, of which those near 0 in `scale` draft the newest token again.

    A further layer (`kind` BLOCK) is random too, and so is head 0 of the main path (LINEAR)."""
    random, width = torch.Generator().manual_seed(3), models.model.config.d_model
    dtype = models.model.dtype

    def drawn(*shape: int) -> torch.Tensor:
        return scale * torch.randn(*shape, generator=random, dtype=dtype)

    def stack(heads: int) -> Heads:
        each = range(blocks)
        return tuple(ResidualBlocks(drawn(heads, width, width), drawn(heads, width)) for _ in each)

    block = None
    if kind == BLOCK:
        last = models.model.model.decoder.layers[-1].named_parameters()
        block = {name: weight.detach() + drawn(*weight.shape) for name, weight in last}
    base = stack(1) if kind == LINEAR else None
    return dataclasses.replace(models, medusa=MedusaHeads("random", stack(count), base, block))


def through_base_head(models: WhisperModels) -> WhisperModels:
    """The models for `greedy`, whose projection reads head 0 of the main path."""
    assert models.medusa is not None
    assert models.medusa.base is not None
    model = copy.deepcopy(models.model)
    model.proj_out = _WithBaseHead(model.proj_out, models.medusa.base)
    return dataclasses.replace(models, model=model)


class _WithBaseHead(torch.nn.Module):
    """A projection of head 0's output, by the formula."""

    def __init__(self, projection: torch.nn.Module, base: Heads) -> None:
        super().__init__()
        self.projection, self.base = projection, base
        self.weight = projection.weight

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.projection(head_output(hidden, self.base, 0))


def head_output(hidden: torch.Tensor, heads: Heads, number: int) -> torch.Tensor:
    """Return a head's output for `hidden` (.., d_model): aiola's MedusaResBlock, by hand."""
    for weight, bias in heads:
        inner = hidden @ weight[number].T + bias[number]
        hidden = hidden + inner * torch.sigmoid(inner)
    return hidden


def sharpest(attention: torch.Tensor) -> torch.Tensor:
    """Return the half of the heads, sharpest first, whose tokens' largest weights are largest in
    the mean; (heads, tokens, frames)."""
    by_head = sorted(attention, key=lambda head: -head.max(dim=1).values.mean().item())
    return torch.stack(by_head[: (len(by_head) + 1) // 2])


@torch.inference_mode()
def states_read_by_heads(
    models: WhisperModels, samples: NDArray[np.float32], tokens: Sequence[int]
) -> torch.Tensor:
    """Return the states that heads read after each of `tokens`, (tokens, d_model), in one pass."""
    features = features_of(models, samples)
    answer = models.model.model(features, decoder_input_ids=torch.tensor([tokens]))
    hidden = answer.last_hidden_state
    if models.medusa is None or models.medusa.block is None:
        return hidden[0]
    future = torch.ones(len(tokens), len(tokens), dtype=torch.bool).triu(1)
    mask = torch.zeros(future.shape, dtype=hidden.dtype).masked_fill(future, float("-inf"))
    layer = copy.deepcopy(models.model.model.decoder.layers[-1])
    layer.load_state_dict(models.medusa.block)
    audio = answer.encoder_last_hidden_state
    through = layer(hidden, attention_mask=mask[None, None], encoder_hidden_states=audio)
    return (through[0] if isinstance(through, tuple) else through).view(len(tokens), -1)


def count_checked_states(engine: DecodeEngine) -> int:
    """Check the states that heads read next in the rows of lane 1; return the number of rows."""
    state, batch = engine.memory.state, engine.batch(1)
    for sequence in batch.rows:
        row = batch.places.index(sequence)
        tokens = state.rows.tokens[row, : state.rows.length[row]].tolist()
        states = states_read_by_heads(engine.models, sequence.request.samples, tokens)
        newest = state.drafter.newest[row]
        torch.testing.assert_close(newest, states[-2], atol=1e-6, rtol=1e-5)
    return len(batch.rows)
