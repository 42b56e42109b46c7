"""The product over the vocabulary with padding: nobody sees it, and memory holds weights once."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F

from tests.helpers import oracle
from tests.helpers.oracle import TINY, decode, models_of, random_heads, with_assistant
from tests.support.tiny_whispers import SMALL, save
from whosaid.asr.checkpoint.loading import Checkpoint, load_whisper
from whosaid.asr.checkpoint.medusa import LINEAR
from whosaid.asr.checkpoint.weights import EMBEDDINGS
from whosaid.asr.engine.engine import DecodeEngine
from whosaid.asr.engine.fallback import Fallback
from whosaid.asr.engine.request import DecodeOptions
from whosaid.asr.model import decoder, draft_heads
from whosaid.asr.model.cpu_kernels import PackedLinear
from whosaid.asr.model.decoder import ALIGNED, PaddedLinear, vocabulary_product

TOKENS = 13
REJECTING = Fallback(3, True, logprob_threshold=0.0, no_speech_threshold=1.0)


@pytest.mark.parametrize("biased", [False, True])
def test_scores_are_those_of_tokens_alone(biased):
    # Every score is below that of padding, 0.
    weight = torch.rand(TOKENS, 4, dtype=torch.float64) + 0.1
    x = -torch.rand(2, 3, 4, dtype=torch.float64) - 0.1
    bias = torch.rand(TOKENS, dtype=torch.float64) if biased else None
    expected = F.linear(x, weight, bias)
    found = PaddedLinear(weight)(x, bias)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found.log_softmax(-1), expected.log_softmax(-1))
    assert found.stride(1) % ALIGNED == 0  # where its rows begin


def test_weights_are_a_part_of_the_padded_ones():
    model = models_of(TINY).model
    weight = model.get_output_embeddings().weight
    before = weight.detach().clone()
    product = PaddedLinear(weight)
    assert len(product.weight) == -(-len(before) // ALIGNED) * ALIGNED > len(before)
    assert torch.equal(weight, before)
    assert model.get_input_embeddings().weight.data_ptr() == product.weight.data_ptr()
    assert not product.weight[len(before) :].any()


def test_a_loaded_model_holds_its_embeddings_once(monkeypatch, tmp_path):
    monkeypatch.setattr(decoder, "vocabulary_product", lambda weight, _: PaddedLinear(weight))
    checkpoint = Checkpoint(str(save(tmp_path, SMALL)))
    model = load_whisper(checkpoint, torch.device("cpu"), torch.float32).model
    before = model.weights[EMBEDDINGS].clone()
    main = decoder.Decoder(model)
    held = (main.token_embeddings, main.output_embeddings, model.weights[EMBEDDINGS])
    assert {each.data_ptr() for each in held} == {main.output.weight.data_ptr()}
    assert torch.equal(main.token_embeddings, before)


def test_a_model_with_padded_weights_can_be_trained():
    """Weights that were padded in inference mode can be trained too."""
    model = copy.deepcopy(models_of(TINY).model)
    with torch.inference_mode():
        PaddedLinear(model.get_output_embeddings().weight)
    embeddings = model.get_input_embeddings()
    embeddings(torch.tensor([1])).sum().backward()
    assert embeddings.weight.grad[1].any()


def test_a_cpu_pads_nothing():
    weight = models_of(TINY).model.get_output_embeddings().weight
    assert type(vocabulary_product(weight, None)) is PackedLinear


def listed_heads():
    models = random_heads(models_of(TINY, 142), 5, LINEAR, scale=0.02)
    listed = torch.arange(50, 50 + 8 * TOKENS + 1)
    return dataclasses.replace(models, medusa=dataclasses.replace(models.medusa, shortlist=listed))


def windows_of():
    return oracle.windows_of(True, 4, 16)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda: models_of(TINY, 142), DecodeOptions(fallback=REJECTING)),
        (lambda: models_of(TINY, 142), DecodeOptions(temperature=0.6, timestamps=False)),
        (lambda: with_assistant(models_of(TINY, 142), 0.1), DecodeOptions(assisted=True, drafts=3)),
        (listed_heads, DecodeOptions(assisted=True, drafts=3)),
    ],
    ids=["to beams", "sampled", "an assistant", "a shortlist"],
)
def test_padding_changes_no_answer(monkeypatch, make, options):
    expected = decode(DecodeEngine(make()), windows_of(), options)
    for module in (decoder, draft_heads):
        monkeypatch.setattr(module, "vocabulary_product", lambda weight, _: PaddedLinear(weight))
    models = make()
    engine = DecodeEngine(models)
    if options.assisted:
        assert len({id(engine.main.output), id(engine.draft_model.output)}) == 2
        assert isinstance(engine.draft_model.output, PaddedLinear)
    found = decode(engine, windows_of(), options)
    for key, each in expected.items():
        assert found[key].tokens == each.tokens
        assert found[key].log_probs == pytest.approx(each.log_probs)
        assert found[key].no_speech_prob == pytest.approx(each.no_speech_prob)
        assert max(each.tokens) < models.model.config.vocab_size
