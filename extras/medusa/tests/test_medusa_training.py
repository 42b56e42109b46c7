"""A model's own texts, and heads that learn from them, against their definitions."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from transformers.modeling_outputs import BaseModelOutput

from extras.medusa import hidden_states
from extras.medusa.heads import Heads, Projection, save_heads
from extras.medusa.hidden_states import Teacher, Text, cache_name, cached_texts, teacher_forced
from extras.medusa.options import Plan
from extras.medusa.tests.stand_ins import tiny_models, write_recordings
from extras.medusa.training import Training, check_shortlist, choose_shortlist, split, targets
from tests.helpers.cuda_emulator import emulated_cuda, on_cuda
from tests.support.tiny_whispers import hears_sound
from tests.support.transformers_models import in_transformers
from whosaid.asr import Checkpoint, load_whisper, with_assistant
from whosaid.asr.checkpoint.medusa import base_digest
from whosaid.asr.model.encoder import AudioWindow

PLAN = Plan(heads=2, epochs=4, batch=32, rate=2e-2)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    return write_recordings(tmp_path_factory.mktemp("recordings"), 12)


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    return Teacher(tiny_models(), hears_sound)


@pytest.fixture(scope="module")
def texts(teacher, recordings) -> list[Text]:
    return teacher.read(recordings)


@pytest.fixture(scope="module")
def projection(teacher) -> Projection:
    return Projection.of(teacher.models.model)


# ---- texts


def test_states_equal_a_fresh_pass_in_every_style(teacher, recordings, monkeypatch):
    """Styles are with timestamps, without them, and after previous text. The reference pass is
    transformers'; while texts are read the engine holds no rows."""
    held = []

    def watched(*arguments):
        held.append([batch.memory.capacity for batch in teacher.engine.batches.values()])
        return teacher_forced(*arguments)

    monkeypatch.setattr(hidden_states, "teacher_forced", watched)
    texts = teacher.read(recordings[:2])
    assert held == [[0]] * 3  # once for each style
    windows = list(teacher.windows(recordings[:2]))
    numbers = list(range(len(windows)))
    assert [text.window for text in texts] == [*numbers, *numbers, *numbers[1:]]
    audio = [AudioWindow(each.samples) for each in windows]
    encoded = teacher.engine.context.encoder.encode(audio, drafted=False).main
    decoded = [text for style in teacher.styles(windows, encoded) for text in style]
    model = in_transformers(teacher.models.model).model
    for (window, prompt, tokens), text in zip(decoded, texts, strict=True):
        assert text.tokens.tolist() == list(tokens)
        read = torch.tensor([[*prompt, *tokens[:-1]]])
        audio = BaseModelOutput(encoded[window : window + 1])
        with torch.inference_mode():
            states = model(encoder_outputs=audio, decoder_input_ids=read).last_hidden_state
        expected = states[0, len(prompt) - 1 :].double()
        torch.testing.assert_close(text.hidden.double(), expected, atol=2e-3, rtol=2e-3)


def test_a_language_not_given_is_detected_once(teacher, tmp_path, monkeypatch):
    asked = []
    detect = teacher.engine.detect_language
    monkeypatch.setattr(
        teacher.engine, "detect_language", lambda samples: asked.append(0) or detect(samples)
    )
    recordings = write_recordings(tmp_path, 2, windows=3)
    unknown = [dataclasses.replace(each, language=None) for each in recordings]
    assert len(list(teacher.windows(unknown))) >= 6
    assert len(asked) == 2


def test_a_text_that_repeats_itself_is_left_out(teacher):
    assert teacher.loops((5, 6) * 20)
    assert not teacher.loops(tuple(range(40)))


def test_a_broken_run_continues_after_its_last_shard(
    teacher, recordings, texts, tmp_path, monkeypatch
):
    whole = cached_texts(teacher, recordings, tmp_path)
    assert {text.window for text in whole} == {text.window for text in texts}
    (tmp_path / "00001.pt").unlink()
    read, asked = teacher.read, []
    monkeypatch.setattr(teacher, "read", lambda some: asked.append(len(some)) or read(some))
    again = cached_texts(teacher, recordings, tmp_path)
    assert asked == [len(recordings) - hidden_states.RECORDINGS_A_SHARD]
    for one, other in zip(whole, again, strict=True):
        assert one.window == other.window
        assert torch.equal(one.hidden, other.hidden)


def test_another_model_or_other_recordings_have_another_cache(recordings):
    models = tiny_models()
    german = [dataclasses.replace(each, language="de") for each in recordings]
    names = [cache_name(models, each) for each in (recordings, recordings, recordings[1:], german)]
    with torch.no_grad():
        models.model.get_encoder().layer_norm.bias.add_(1)
    names.append(cache_name(models, recordings))
    assert names[0] == names[1]
    assert len(set(names)) == 4


@pytest.mark.reliability
def test_texts_are_decoded_and_read_on_the_engines_streams(monkeypatch, tmp_path):
    monkeypatch.setattr(Teacher, "loops", lambda *_: False)
    with emulated_cuda(monkeypatch) as device:
        teacher = Teacher(on_cuda(tiny_models()), hears_sound)
        recordings = write_recordings(tmp_path, 1, windows=2)
        device.used_streams.clear()
        assert len(teacher.read(recordings)) > 1
        assert device.used_streams
        assert all(stream and stream.priority < 0 for stream in device.used_streams)


# ---- heads


def random_heads(count: int, layers: int, width: int) -> Heads:
    heads = Heads(count, layers, width)
    generator = torch.Generator().manual_seed(1)
    for each in heads.parameters():
        each.data = torch.randn(each.shape, generator=generator)
    return heads


def test_a_head_adds_silu_of_each_blocks_product():
    heads, hidden = random_heads(3, 2, 8), torch.randn(5, 8)
    weights = heads.state_dict()
    for number, found in enumerate(heads(hidden)):
        expected = hidden
        for layer in range(2):
            name = f"medusa_heads.{number}.{layer}.linear"
            inner = F.linear(expected, weights[f"{name}.weight"], weights[f"{name}.bias"])
            expected = expected + F.silu(inner)
        torch.testing.assert_close(found, expected)
    assert torch.equal(Heads(2, 1, 8)(hidden), hidden.expand(2, -1, -1))


@pytest.mark.parametrize("listed", [None, (3, 7, 90)])
def test_the_endpoint_loads_what_was_saved(whisper_folder, tmp_path, listed):
    """Heads of a rounded model, as models are on CUDA, are those of its files."""
    models, rounded = (
        load_whisper(Checkpoint(str(whisper_folder)), torch.device("cpu"), dtype)
        for dtype in (torch.float32, torch.float16)
    )
    assert base_digest(rounded.model) != base_digest(models.model)
    shortlist = None if listed is None else torch.tensor(listed)
    heads = random_heads(3, 2, models.model.config.d_model)
    save_heads(tmp_path, heads, Projection.of(rounded.model, shortlist), rounded)
    for each in (rounded, models):
        loaded = with_assistant(each, Checkpoint(str(tmp_path))).medusa
    for layer, blocks in enumerate(loaded.heads):
        saved = [head[layer].linear for head in heads.medusa_heads]
        assert torch.equal(blocks.weight, torch.stack([each.weight for each in saved]))
        assert torch.equal(blocks.bias, torch.stack([each.bias for each in saved]))
    assert (None if loaded.shortlist is None else tuple(loaded.shortlist.tolist())) == listed


# ---- training


def test_targets_are_the_next_tokens_of_the_text():
    assert targets(torch.tensor([5, 6, 7]), 2).tolist() == [[6, 7], [7, -1]]
    projection = Projection(torch.zeros(3, 4), torch.tensor([3, 7, 90]), 100)
    assert projection.index(torch.tensor([7, 3, 4, 90])).tolist() == [1, 0, -1, 2]


@pytest.mark.parametrize("shortlist", [False, True])
def test_trained_heads_guess_more_of_the_models_tokens(teacher, texts, tmp_path, shortlist):
    special = teacher.special
    count = special.size - special.timestamp_begin + 30
    listed = choose_shortlist(texts, special, count) if shortlist else None
    projection = Projection.of(teacher.models.model, listed)
    plan = dataclasses.replace(PLAN, layers=2, batch=8)
    training = Training(texts, projection, plan, tmp_path / "state")
    before, _ = training.examples.right(training.heads, projection)
    heads = training.run(lambda _: None)
    after, _ = training.examples.right(heads, projection)
    assert after[0] > before[0] + 0.1


def test_a_broken_run_ends_in_the_same_weights(texts, projection, tmp_path):
    epochs = []
    whole = Training(texts, projection, PLAN, tmp_path / "whole").run(epochs.append)

    class Broken(Exception):
        pass

    def stop(epoch):
        if epoch.number == 2:
            raise Broken

    with pytest.raises(Broken):
        Training(texts, projection, PLAN, tmp_path / "broken").run(stop)
    again = []
    resumed = Training(texts, projection, PLAN, tmp_path / "broken").run(again.append)
    assert again == epochs[2:]
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


def test_training_ends_where_nothing_is_gained(texts, projection, tmp_path):
    plan = dataclasses.replace(PLAN, rate=0.0, epochs=9, patience=2)
    epochs = []
    Training(texts, projection, plan, tmp_path / "state").run(epochs.append)
    assert [epoch.number for epoch in epochs] == [1, 2, 3]


def test_held_out_windows_are_never_trained_on(texts):
    training, held_out = split(texts)
    assert not {text.window for text in training} & {text.window for text in held_out}
    assert len(training) + len(held_out) == len(texts)
    with pytest.raises(ValueError, match="at least 10 windows"):
        split([text for text in texts if text.window < 3])


def test_the_shortlist_holds_common_tokens_timestamps_and_the_end(teacher, texts):
    special = teacher.special
    assert choose_shortlist(texts, special, special.size) is None
    times = special.size - special.timestamp_begin
    with pytest.raises(ValueError, match=f"--shortlist {times + 1}: .* {times + 1} tokens"):
        check_shortlist(special, times + 1)
    check_shortlist(special, times + 2)
    listed = choose_shortlist(texts, special, times + 4).tolist()
    counts = torch.cat([text.tokens for text in texts]).bincount()[: special.end_of_text]
    words = [token for token in listed if token < special.end_of_text]
    rest = [special.end_of_text, *range(special.timestamp_begin, special.size)]
    assert listed == sorted([*words, *rest])
    assert len(words) == 3
    assert counts[words].sum() == counts.topk(3).values.sum()
