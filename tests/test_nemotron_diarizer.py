"""Nemotron-3-Diarization, small and with random weights, against transformers' own."""

import asyncio
import base64
import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from pyannote.audio.utils.signal import Binarize
from pyannote.core import SlidingWindow, SlidingWindowFeature

from config import DEMO_MODELS, ModelSettings
from handler import load_endpoint, respond
from tests.helpers.calls import calls_of
from tests.helpers.refusals import start_failure
from tests.support.audio_files import request_body, speech, wav_file
from whosaid.diarization import nemotron
from whosaid.diarization.diarizer import DiarizationCancelled, SpeakerHints
from whosaid.errors import ModelError
from whosaid.runtime import versions
from whosaid.transcript import SpeakerTurn

CPU = torch.device("cpu")
NO_HINTS = SpeakerHints()
HERE = hasattr(transformers, "Nemotron3DiarizationConfig")
needs_the_model = pytest.mark.skipif(not HERE, reason="transformers has it from 5.18 on")
RATE = 100.0  # frames a second
CHUNK, RIGHT = 20, 4  # encoder frames; a chunk is 1.6 s
CHUNK_SAMPLES = CHUNK * 8 * 160


def small_config(**options: int):
    """The published shape but for sizes."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    audio = {"num_key_value_heads": 4, "intermediate_size": 64, "num_mel_bins": 80}
    streaming = {"chunk_length": CHUNK, "chunk_right_context": RIGHT, "fifo_length": 8}
    return transformers.Nemotron3DiarizationConfig(
        audio_config=sizes | audio | {"initializer_range": 0.3},
        head_config={"hidden_size": 16, "audio_hidden_size": 32},
        streaming_config={"speaker_cache_length": 24},
        initializer_range=0.3,
        **streaming | {"speaker_cache_update_period": 12} | options,
    )


def small_model(**options: int):
    """A model of random weights whose outputs cross the threshold often."""
    torch.manual_seed(0)
    config = small_config(**options)
    model = transformers.Nemotron3DiarizationForAudioFrameClassification(config).eval()
    with torch.no_grad():
        # As initialised these repeat frames and ignore silence.
        model.model.upsampler.conv.weight.normal_(0, 0.2)
        model.silence_embeds.normal_()
        logits = offline(model, speech(12.0).astype(np.float32))[0]
        scale = 2 / logits.std(dim=0)
        model.classifier.out_proj.weight.mul_(scale[:, None])
        bias = model.classifier.out_proj.bias
        bias.copy_((bias - logits.mean(dim=0)) * scale)
    return model


def processor():
    extractor = transformers.NemotronAsrStreamingFeatureExtractor(feature_size=80)
    return transformers.Nemotron3DiarizationProcessor(extractor)


def offline(model, samples: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Return transformers' logits for a whole recording in one pass, and the mask of frames."""
    inputs = processor()(samples, sampling_rate=16_000, return_tensors="pt")
    with torch.no_grad():
        logits = model(inputs.input_features.to(model.dtype), inputs.attention_mask).logits
    return logits[0], inputs.attention_mask[0].bool()


def save(folder, model=None):
    """A folder as a repository of the Hub holds the model."""
    (model or small_model()).save_pretrained(folder)
    processor().save_pretrained(folder)
    return folder


def loaded(folder) -> nemotron.NemotronDiarizer:
    return nemotron.load_nemotron(str(folder), None, None, CPU)


def diarizer_of(model, folder) -> nemotron.NemotronDiarizer:
    """A diarizer around this very model, whatever its precision."""
    diarizer = loaded(save(folder, model))
    diarizer._model = model
    return diarizer


def probabilities(diarizer: nemotron.NemotronDiarizer, samples: np.ndarray) -> np.ndarray:
    stream = nemotron.NemotronStream(diarizer, diarizer._whole)
    stream._audio = torch.from_numpy(samples)
    return torch.cat(list(stream._probabilities(last=True))).numpy()


@pytest.fixture(scope="module")
def spoken() -> np.ndarray:
    return speech(12.0).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("nemotron"))


@pytest.fixture(scope="module")
def diarizer(folder) -> nemotron.NemotronDiarizer:
    return loaded(folder)


@needs_the_model
@pytest.mark.parametrize("options", [{}, {"mel_filters_dtype": "bfloat16"}, {"preemphasis": None}])
@pytest.mark.parametrize("size", [1_600, 16_159])
def test_features_are_those_of_the_processor_in_any_stretches(spoken, options, size):
    """The oracle takes its filters from librosa, in float32."""
    extractor = transformers.NemotronAsrStreamingFeatureExtractor(feature_size=80, **options)
    samples = spoken[:size]
    theirs = extractor(samples, sampling_rate=16_000, return_tensors="pt").input_features[0]
    ours = nemotron.MelFeatures.read("name", extractor.to_dict())
    given = torch.from_numpy(samples)
    count = ours.count(given)
    assert torch.equal(theirs[count:], torch.zeros(1, 80))
    for step in (1, 7, count):
        edges = [*range(0, count, step), count]
        parts = [ours.frames(given, first, last) for first, last in pairwise(edges)]
        torch.testing.assert_close(torch.cat(parts), theirs[:count], rtol=1e-4, atol=1e-3)


# Around the edges of frames (160 samples), encoder frames and chunks, and what is left after them.
SIZES = [
    *(160, 1_279, 1_280, 1_281, 3 * CHUNK_SAMPLES, 12 * 16_000),
    *(CHUNK_SAMPLES + extra for extra in (-1, 0, 1, 160, 1_279, 1_280, 1_280 * RIGHT + 5)),
]
CONTEXTS = [{}, {"chunk_left_context": 3}, {"chunk_right_context": 0, "fifo_length": 30}]


@needs_the_model
@pytest.mark.parametrize("options", CONTEXTS, ids=lambda options: ",".join(options) or "as it is")
def test_chunks_together_equal_one_forward_pass(options, spoken, tmp_path):
    """All but the features is float64. In twelve seconds the cache is compressed several times."""
    model = small_model(**options).double()
    diarizer = diarizer_of(model, tmp_path)
    for size in SIZES:
        logits, mask = offline(model, spoken[:size])
        expected = logits.sigmoid()[mask].numpy()
        np.testing.assert_allclose(probabilities(diarizer, spoken[:size]), expected, atol=1e-6)


@needs_the_model
def test_turns_are_those_that_the_processor_reads(diarizer, spoken):
    found = diarizer.diarize(spoken, NO_HINTS)
    logits = torch.from_numpy(probabilities(diarizer, spoken)).double().logit()
    (expected,) = processor().extract_speaker_dict(logits[None])
    assert len(expected) > 30
    entries = [(turn.start, turn.end, int(turn.speaker[-2:])) for turn in found.turns]
    assert entries == [(each["Start"], each["End"], each["Speaker"]) for each in expected]


activities = st.integers(0, 2**32 - 1).map(
    lambda seed: np.repeat(
        np.random.default_rng(seed).random((12, 3)).astype(np.float32),
        np.random.default_rng(seed).integers(1, 30, 12),
        axis=0,
    )
)


@given(activities, st.sampled_from([0.0, 0.045, 0.095]), st.sampled_from([0.0, 0.065, 0.195]))
def test_short_pauses_and_turns_go_as_in_pyannotes_pipelines(found, on, off):
    # What lasts until the end is ended there by a frame more, in the middle of which it stands.
    frames = SlidingWindow(1 / RATE, 1 / RATE, -0.5 / RATE)
    scores = SlidingWindowFeature(np.pad(found, ((0, 1), (0, 0))), frames)
    expected = Binarize(min_duration_on=on, min_duration_off=off)(scores)
    active = nemotron.smooth(found > 0.5, nemotron.Durations(on, off), RATE)
    turns = [(f"SPEAKER_{label:02d}", *turn) for turn, _, label in expected.itertracks(True)]
    ours = nemotron.turns_of(active, RATE)
    assert sorted((turn.speaker, round(turn.start, 2), round(turn.end, 2)) for turn in ours) == (
        sorted((label, round(start, 2), round(end, 2)) for label, start, end in turns)
    )


@given(activities)
def test_exclusive_turns_have_the_likeliest_of_the_active(found):
    active = found > 0.5
    alone = nemotron.likeliest(active, found)
    assert (alone.sum(axis=1) == active.any(axis=1)).all()
    assert (found[alone] == np.where(active, found, 0).max(axis=1)[active.any(axis=1)]).all()


@needs_the_model
def test_durations_come_from_the_models_configuration(folder, tmp_path, spoken):
    model = transformers.AutoModelForAudioFrameClassification.from_pretrained(folder)
    model.config.min_duration_on, model.config.min_duration_off = 0.2, 0.1
    plain = loaded(folder).diarize(spoken, NO_HINTS)
    smoothed = loaded(save(tmp_path, model)).diarize(spoken, NO_HINTS)
    assert min(turn.end - turn.start for turn in plain.turns) < 0.1
    assert min(turn.end - turn.start for turn in smoothed.turns) >= 0.2 - 1e-9


@needs_the_model
def test_audio_shorter_than_a_frame_has_no_turns(diarizer):
    for size in (0, 1, 159):
        found = diarizer.diarize(np.zeros(size, np.float32), NO_HINTS)
        assert (found.turns, found.exclusive) == ((), ())


@needs_the_model
def test_hints_change_no_turns_and_add_warnings(diarizer, spoken):
    can = diarizer.capabilities
    assert (can.hints, can.voices, can.streams) == (False, False, False)
    parts = (diarizer._model, diarizer._features, object, (9, 4), object())
    on_a_gpu = nemotron.NemotronDiarizer(*parts)
    assert on_a_gpu.capabilities.streams
    alone = diarizer.diarize(spoken, NO_HINTS)
    hinted = diarizer.diarize(spoken, SpeakerHints(num_speakers=2))
    assert hinted == replace(alone, hints=SpeakerHints(num_speakers=2))
    many = "8 speakers were found, the most that the model can distinguish"
    assert hinted.warnings == ("speaker hints could not be met: 8 found", many)
    assert alone.warnings == (many,)
    fewer = tuple(turn for turn in alone.turns if turn.speaker != "SPEAKER_03")
    assert replace(alone, turns=fewer).warnings == ()


@needs_the_model
def test_a_cancelled_call_computes_no_further_chunk(diarizer, spoken, monkeypatch):
    scored = calls_of(monkeypatch, diarizer, "_score")
    diarizer.diarize(spoken, NO_HINTS)
    number = len(scored)
    assert number == 8
    for last in range(number):
        pauses = []
        scored.clear()

        def pause(last=last, pauses=pauses):
            pauses.append(len(scored))
            if len(scored) == last:
                raise DiarizationCancelled

        with pytest.raises(DiarizationCancelled):
            diarizer.diarize(spoken, NO_HINTS, pause)
        assert pauses == list(range(last + 1))
        assert len(scored) == last


@needs_the_model
def test_numbers_beyond_the_precisions_range_are_no_silence(diarizer, spoken, monkeypatch):
    bias = diarizer._model.classifier.out_proj.bias
    monkeypatch.setattr(bias, "data", torch.full_like(bias, torch.nan))
    with pytest.raises(ModelError):
        diarizer.diarize(spoken, NO_HINTS)


def joined(turns) -> tuple[SpeakerTurn, ...]:
    """The turns of a stream, those that a push has cut put together."""
    whole: dict[tuple[str, float], SpeakerTurn] = {}
    for turn in turns:
        before = whole.pop((turn.speaker, turn.start), turn)
        whole[turn.speaker, turn.end] = replace(before, end=turn.end)
    return tuple(sorted(whole.values(), key=lambda turn: (turn.start, turn.speaker)))


def streamed(stream: nemotron.NemotronStream, samples: np.ndarray, sizes: list[int]):
    """Probabilities, turns, and turns of one speaker at a time, of samples in pieces."""
    parts, turns, exclusive, clock = [], [], [], 0.0
    push = stream._turns.push
    stream._turns.push = lambda new, last: parts.extend(new) or push(new, last)
    edges = np.cumsum(sizes)
    pieces = np.split(samples, edges[edges < len(samples)])
    for place, piece in enumerate(pieces):
        last = place == len(pieces) - 1
        found = stream.push(piece, last)
        for turn in (*found.turns, *found.exclusive):
            assert clock <= turn.start < turn.end <= stream.clock
        turns += found.turns
        exclusive += found.exclusive
        clock = stream.clock
        assert last or stream.missing > 0
        assert clock <= edges[place] / 16_000 or last
    assert clock == np.inf
    return np.concatenate([np.zeros((0, 8), np.float32), *parts]), joined(turns), joined(exclusive)


def pieces_of(seed: int) -> list[int]:
    generator = np.random.default_rng(seed)
    return [int(each) for each in generator.choice([1, 160, 1_000, 4_800, 60_000], 400)]


@needs_the_model
def test_stream_in_any_pieces_equals_the_whole(diarizer, spoken, monkeypatch):
    monkeypatch.setattr(diarizer, "_durations", nemotron.Durations(0.1, 0.05))
    for seed, size in enumerate([0, 100, *SIZES]):
        whole = diarizer.diarize(spoken[:size], NO_HINTS)
        stream = nemotron.NemotronStream(diarizer, diarizer._whole)
        found, turns, exclusive = streamed(stream, spoken[:size], pieces_of(seed))
        assert turns == joined(whole.turns)
        assert exclusive == joined(whole.exclusive)
        expected = probabilities(diarizer, spoken[:size]) if size >= 160 else found[:0]
        np.testing.assert_allclose(found, expected, atol=1e-4)


@given(activities, st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.05, 0.3]))
def test_turns_so_far_are_those_of_the_whole(found, seed, off):
    durations = nemotron.Durations(0.1, off)
    generator = np.random.default_rng(seed)
    so_far, turns = nemotron.TurnsSoFar(durations, RATE, 3), []
    parts = np.split(found, np.sort(generator.integers(0, len(found) + 1, 9)))
    for place, part in enumerate(parts):
        turns += so_far.push([part], last=place == 9).turns
    smooth = nemotron.smooth(found > 0.5, durations, RATE)
    assert joined(turns) == joined(nemotron.turns_of(smooth, RATE))


@needs_the_model
def test_stream_equals_transformers_streaming(spoken, tmp_path):
    """The last chunk, which is longer there, is not compared. The model's queue is short enough to
    run over, and its own chunks are those of its stream."""
    model = small_model(chunk_length=9, chunk_right_context=4, fifo_length=20).double()
    model.config.streaming_config.fifo_length = 20
    model.config.streaming_config.speaker_cache_update_period = 12
    diarizer, theirs = diarizer_of(model, tmp_path), processor()
    found, *_ = streamed(diarizer.stream(), spoken, pieces_of(0))
    expected, cache, frame = [], None, 0
    while True:
        start = theirs.audio_chunk_start(frame) if frame else 0
        count = (
            theirs.num_samples_per_audio_chunk if frame else theirs.num_samples_first_audio_chunk
        )
        if start + count > len(spoken):
            break
        how = {"is_streaming": True, "is_first_audio_chunk": frame == 0, "return_tensors": "pt"}
        inputs = theirs(spoken[start : start + count], sampling_rate=16_000, **how)
        with torch.no_grad():
            output = model(
                inputs["input_features"].double(),
                inputs["attention_mask"],
                speaker_cache=cache,
                num_lookahead_frames=inputs["num_lookahead_frames"],
            )
        cache = output.speaker_cache
        expected.append(output.logits[0].sigmoid().numpy())
        frame += theirs.num_mel_frames_per_step
    assert len(expected) > 14
    both = np.concatenate(expected)
    np.testing.assert_allclose(found[: len(both)], both, atol=1e-6)


@needs_the_model
def test_stream_advances_with_missing_samples_and_keeps_little(diarizer, spoken):
    stream, at = diarizer.stream(), 0
    assert stream.missing == (13 * 8 - 1) * 160 + 256  # 1.04 s
    for place in range(14):
        missing = stream.missing
        assert stream.push(spoken[at : at + missing - 1]).turns == ()
        assert (stream.clock, stream.missing) == (pytest.approx(0.72 * place), 1)
        stream.push(spoken[at + missing - 1 : at + missing])
        assert stream.clock == pytest.approx(0.72 * (place + 1))
        at += missing
        assert stream.missing == 9 * 1_280
        assert len(stream._audio) <= 20 * 1_280
    before = stream.clock
    rest = stream.push(spoken[at : at + 16_000], last=True)
    assert stream.clock == np.inf
    assert all(before <= turn.start < turn.end <= at / 16_000 + 1 for turn in rest.turns)
    assert rest.turns


@needs_the_model
def test_the_streaming_mode_is_the_checkpoints(folder, tmp_path):
    assert loaded(folder)._live == nemotron.Chunking(9, 0, 4, 264, 222)
    file = save(tmp_path) / "processor_config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"streaming_mode": "ultra_low_latency"}))
    assert loaded(tmp_path)._live == nemotron.Chunking(3, 0, 1, 264, 222)
    file.unlink()
    processor().feature_extractor.save_pretrained(tmp_path)
    assert loaded(tmp_path)._live == nemotron.Chunking(9, 0, 4, 264, 222)


@needs_the_model
def test_pickled_weights_are_not_read(tmp_path):
    model = small_model()
    torch.save(model.state_dict(), save(tmp_path, model) / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    assert "no safetensors weights" in start_failure(tmp_path)


@needs_the_model
def test_weights_that_lack_a_part_are_refused(tmp_path):
    model = small_model()
    state = {name: each for name, each in model.state_dict().items() if "upsampler" not in name}
    save(tmp_path)
    model.save_pretrained(tmp_path, state_dict=state)
    assert "lacks the weights model.upsampler.conv.bias" in start_failure(tmp_path)


@needs_the_model
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"feature_extractor_type": "WhisperFeatureExtractor"}, "needs WhisperFeatureExtractor"),
        ({"sampling_rate": 8_000}, "at 8000 Hz"),
        ({"feature_size": 128}, "could not be loaded"),
    ],
)
def test_features_of_another_model_are_refused(tmp_path, options, said):
    file = save(tmp_path) / "processor_config.json"
    config = json.loads(file.read_text())
    config["feature_extractor"] |= options
    file.write_text(json.dumps(config))
    assert said in start_failure(tmp_path)


def test_an_older_transformers_is_named_with_what_is_needed(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"model_type": "nemotron3_diarization"}')
    if HERE:
        monkeypatch.setattr(versions, "_release", lambda _: (5, 17))
    message = start_failure(tmp_path)
    assert "needs transformers 5.18 or newer, and here is " in message
    assert transformers.__version__ in message


@needs_the_model
def test_an_endpoint_answers_with_it(folder, monkeypatch, tmp_path):
    monkeypatch.setattr("whosaid.diarization.VOICES", tmp_path / "absent")
    endpoint = load_endpoint(ModelSettings.for_models(str(DEMO_MODELS / "asr"), None, str(folder)))
    clip = base64.b64encode(b"no audio at all").decode()
    known = [{"name": "Anna", "reference": clip}]
    parameters = {"num_speakers": 2, "known_speakers": known, "output": ["rttm"]}
    body = request_body(wav_file(speech(6.0), 16_000), **parameters)
    try:
        response = asyncio.run(respond(endpoint, body))
    finally:
        endpoint.close()
    labels = {f"SPEAKER_0{number}" for number in range(8)}
    assert {entry["speaker"] for entry in response["speakers"]} <= labels
    assert response["output"]["rttm"].startswith("SPEAKER ")
    unmatched = {"name": "Anna", "label": None, "similarity": None, "matched": False}
    assert response["known_speakers"] == [unmatched]
    assert response["warnings"][:2] == [
        "speaker hints are ignored: the diarization model takes none",
        "known_speakers are ignored: the diarization model compares no voices",
    ]
