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
    windows = teacher.windows(recordings[:2])
    encoded = teacher.engine.context.encoder.encode([each.samples for each in windows], False).main
    texts = [text for style in teacher.styles(windows, encoded) for text in style]
    assert len(texts) == len(states.lengths)
    for text, cached in zip(texts, states.texts(), strict=True):
        assert cached.tokens.tolist() == list(text.tokens)
        expected = fresh_pass(teacher.models, encoded[text.window : text.window + 1], text)
        torch.testing.assert_close(cached.hidden.double(), expected.double(), atol=2e-3, rtol=2e-3)


def test_the_state_of_a_place_chooses_its_token(teacher, states):
    """Except where a rule forbids the model's first wish: of texts without timestamps few."""
    plain = states.where(~states.timestamps)
    projection = teacher.models.model.proj_out.weight.float()
    wished = (plain.hidden.float() @ projection.T).argmax(dim=1)
    assert (wished == plain.tokens).float().mean() > 0.9


def test_every_window_is_decoded_with_and_without_timestamps_and_after_the_text_before(
    teacher, recordings, states
):
    windows = range(len(teacher.windows(recordings[:2])))
    assert len(windows) > 1
    assert states.windows[~states.timestamps].tolist() == [*windows]
    assert states.windows[states.timestamps].tolist() == [*windows, *windows[1:]]


def test_while_texts_are_read_the_engine_holds_no_rows(teacher, recordings, monkeypatch):
    held = []

    def watched(*arguments):
        held.append([batch.memory.capacity for batch in teacher.engine.batches.values()])
        return teacher_forced(*arguments)

    monkeypatch.setattr("extras.medusa.hidden_states.teacher_forced", watched)
    teacher.read(recordings[:2])
    assert held == [[0]] * 3  # once for each style


def test_a_text_that_repeats_itself_is_left_out(teacher):
    assert teacher.loops(Text(0, (), (5, 6) * 20, False))
    assert not teacher.loops(Text(0, (), tuple(range(40)), False))


def test_a_broken_run_goes_on_after_its_last_shard(teacher, recordings, tmp_path, monkeypatch):
    reported = []
    whole = cached_hidden_states(
        teacher, recordings, tmp_path, lambda *progress: reported.append(progress)
    )
    assert reported == [(8, 9), (9, 9)]
    (tmp_path / "00001.safetensors").unlink()
    read = teacher.read
    asked = []
    monkeypatch.setattr(teacher, "read", lambda some: asked.append(len(some)) or read(some))
    again = cached_hidden_states(teacher, recordings, tmp_path, lambda *_: None)
    assert asked == [1]
    for field in dataclasses.fields(HiddenStates):
        assert torch.equal(getattr(whole, field.name), getattr(again, field.name))
    assert len(whole.windows.unique()) == len(teacher.windows(recordings))


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
