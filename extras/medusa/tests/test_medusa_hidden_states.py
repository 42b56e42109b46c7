import dataclasses

import pytest
import torch
from transformers.modeling_outputs import BaseModelOutput

from benchmarks.real.manifest import Recording
from extras.medusa.hidden_states import (
    HiddenStates,
    Teacher,
    Text,
    cache_name,
    cached_hidden_states,
    teacher_forced,
)
from extras.medusa.tests.stand_ins import teacher_of, tiny_models, write_recordings
from tests.cuda_emulator import emulated_cuda, on_cuda
from tests.support.tiny_whispers import hears_sound
from tests.support.transformers_models import in_transformers
from whosaid.asr.checkpoint.loading import WhisperModels
from whosaid.asr.model.encoder import AudioWindow


@pytest.fixture(scope="module")
def recordings(tmp_path_factory) -> list[Recording]:
    return write_recordings(tmp_path_factory.mktemp("recordings"), 9, windows=1)


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    return teacher_of(tiny_models())


@pytest.fixture(scope="module")
def states(teacher, recordings) -> HiddenStates:
    return teacher.read(recordings[:2])


def fresh_pass(models: WhisperModels, encoded: torch.Tensor, text: Text) -> torch.Tensor:
    """Transformers' own decoder over a prompt and its text."""
    tokens = torch.tensor([[*text.prompt, *text.tokens[:-1]]])
    with torch.inference_mode():
        decoded = in_transformers(models.model).model(
            encoder_outputs=BaseModelOutput(encoded), decoder_input_ids=tokens
        )
    return decoded.last_hidden_state[0, len(text.prompt) - 1 :]


def test_cached_states_equal_a_fresh_pass_over_the_same_text(teacher, recordings, states):
    windows = list(teacher.windows(recordings[:2]))
    audio = [AudioWindow(each.samples) for each in windows]
    encoded = teacher.engine.context.encoder.encode(audio, drafted=False).main
    texts = [text for style in teacher.styles(windows, encoded) for text in style]
    assert len(texts) == len(states.lengths)
    tokens, hidden = (
        each.split(states.lengths.tolist()) for each in (states.tokens, states.hidden)
    )
    for text, said, cached in zip(texts, tokens, hidden, strict=True):
        assert said.tolist() == list(text.tokens)
        expected = fresh_pass(teacher.models, encoded[text.window : text.window + 1], text)
        torch.testing.assert_close(cached.double(), expected.double(), atol=2e-3, rtol=2e-3)


def test_the_state_of_a_place_chooses_its_token(teacher, states):
    """Except where a rule forbids the model's first wish: of texts without timestamps few."""
    count = len(states.windows.unique())
    plain = states.where((torch.arange(len(states.windows)) // count) == 1)
    projection = teacher.models.model.proj_out.weight.float()
    wished = (plain.hidden.float() @ projection.T).argmax(dim=1)
    assert (wished == plain.tokens).float().mean() > 0.9


def test_every_window_is_decoded_with_and_without_timestamps_and_after_the_text_before(
    teacher, recordings, states
):
    windows = range(len(list(teacher.windows(recordings[:2]))))
    assert len(windows) > 1
    assert states.windows.tolist() == [*windows, *windows, *windows[1:]]


def test_while_texts_are_read_the_engine_holds_no_rows(teacher, recordings, monkeypatch):
    held = []

    def watched(*arguments):
        held.append([batch.memory.capacity for batch in teacher.engine.batches.values()])
        return teacher_forced(*arguments)

    monkeypatch.setattr("extras.medusa.hidden_states.teacher_forced", watched)
    teacher.read(recordings[:2])
    assert held == [[0]] * 3  # once for each style


def test_a_text_that_repeats_itself_is_left_out(teacher):
    assert teacher.loops(Text(0, (), (5, 6) * 20))
    assert not teacher.loops(Text(0, (), tuple(range(40))))


def test_a_broken_run_goes_on_after_its_last_shard(teacher, recordings, tmp_path, monkeypatch):
    whole = cached_hidden_states(teacher, recordings, tmp_path)
    (tmp_path / "00001.safetensors").unlink()
    read = teacher.read
    asked = []
    monkeypatch.setattr(teacher, "read", lambda some: asked.append(len(some)) or read(some))
    again = cached_hidden_states(teacher, recordings, tmp_path)
    assert asked == [1]
    for field in dataclasses.fields(HiddenStates):
        assert torch.equal(getattr(whole, field.name), getattr(again, field.name))
    assert len(whole.windows.unique()) == len(list(teacher.windows(recordings)))


def test_another_model_or_other_recordings_have_another_cache(recordings):
    models = tiny_models()
    name = cache_name(models, recordings)
    assert cache_name(models, recordings) == name
    assert cache_name(models, recordings[1:]) != name
    german = [dataclasses.replace(each, language="de") for each in recordings]
    assert cache_name(models, german) != name
    bias = models.model.get_encoder().layer_norm.bias
    with torch.no_grad():
        bias.add_(1)
        other = cache_name(models, recordings)
        bias.sub_(1)
    assert other != name


def test_texts_are_made_and_read_on_the_engines_stream(monkeypatch, tmp_path):
    monkeypatch.setattr(Teacher, "loops", lambda *_: False)
    with emulated_cuda(monkeypatch) as device:
        teacher = Teacher(on_cuda(tiny_models()), hears_sound)
        recordings = write_recordings(tmp_path, 1)
        device.used_streams.clear()
        assert len(teacher.read(recordings).lengths) > 1
        (stream,) = device.used_streams
        assert stream.priority < 0
