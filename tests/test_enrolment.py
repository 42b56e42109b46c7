"""Clips through the endpoint on the demo models: names in the answer, refusals, and no trace."""

import asyncio
import base64
import io
import json
import logging
import re
from copy import deepcopy
from multiprocessing import get_context

import numpy as np
import pytest
import torch
from scipy.signal import resample_poly

from config import InferenceConfig
from tests.helpers.refusals import refused
from tests.support.dialogue import Style, draw_dialogue
from tests.support.speech import Voice, draw_clip
from whosaid.audio.decode import AudioLimits
from whosaid.diarization.known_speakers import VoiceEnroller, speaker_voice
from whosaid.diarization.pyannote import fingerprint
from whosaid.diarization.thread import DiarizationClient
from whosaid.errors import AudioTooLong, InvalidReference
from whosaid.scheduling.steps import run_steps

RATE = 16_000
ANNA = Voice("espeak", "f2", "en-us", 50, 160)
BOB = Voice("espeak", "Andy", "en-us", 50, 150)
STRANGER = Voice("espeak", "m3", "en-us", 45, 150)


def clip(voice, seconds, seed=9):
    """Return so much speech, between half a second of silence on either side."""
    rng, parts, quiet = np.random.default_rng(seed), [], np.zeros(RATE // 2, np.float32)
    while sum(map(len, parts)) < seconds * RATE:
        parts.append(0.5 * draw_clip(voice, rng).samples)
    samples = np.concatenate([quiet, np.concatenate(parts)[: int(seconds * RATE)], quiet])
    return samples + 1e-3 * rng.standard_normal(len(samples))


@pytest.fixture(scope="module")
def encode(wav):
    return lambda samples, rate=RATE: base64.b64encode(wav(samples, rate)).decode()


@pytest.fixture(scope="module")
def dialogue(encode):
    """Anna, Bob and a stranger, in base64.

    The same in any order of the tests: a new process speaks (see `tests.support.speech`)."""
    cast, generator = [ANNA, BOB, STRANGER], np.random.default_rng(3)
    with get_context("spawn").Pool(1) as pool:
        scene = pool.apply(draw_dialogue, (cast, 20.0, Style(noise=1e-3), generator))
    return encode(scene.samples)


@pytest.fixture(scope="module")
def clips(encode):
    bob = "data:audio/wav;base64," + encode(clip(BOB, 3.5))
    return {"Anna": encode(clip(ANNA, 3.5)), "Bob B.": bob}


@pytest.fixture(scope="module")
def ask(demo_handler, dialogue):
    def ask(clips=(), **parameters):
        known = [{"name": name, "reference": reference} for name, reference in clips]
        if known:
            parameters["known_speakers"] = known
        # Drafts may round a probability differently.
        return demo_handler({"inputs": dialogue, "parameters": {"assisted": False} | parameters})

    return ask


@pytest.fixture(scope="module")
def plain(ask):
    return ask(return_timestamps="word", output=["srt", "rttm"])


@pytest.fixture(scope="module")
def log():
    lines = io.StringIO()
    handler, root = logging.StreamHandler(lines), logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield lines
    root.removeHandler(handler)
    root.setLevel(before)


@pytest.fixture(scope="module")
def answer(ask, clips, log):
    return ask(clips.items(), return_timestamps="word", output=["srt", "rttm"])


def speakers(answer):
    return {each["speaker"] for each in answer["speakers"]}


def renamed(text, answer, space=" "):
    """`text` with the labels of matched names in place of the names."""
    for each in answer["known_speakers"]:
        text = text.replace(each["name"].replace(" ", space), each["label"])
    return text


def test_known_speakers_have_names_and_the_stranger_keeps_the_label(answer, plain):
    told = {each["name"]: each for each in answer["known_speakers"]}
    assert all(each["matched"] and each["similarity"] > 0.7 for each in told.values())
    (label,) = speakers(answer) - {"Anna", "Bob B."}
    assert label.startswith("SPEAKER_")
    assert speakers(plain) == {label, *(each["label"] for each in told.values())}
    assert "known_speakers" not in plain


def test_names_change_nothing_but_labels_wherever_they_stand(answer, plain):
    body = {key: value for key, value in answer.items() if key not in ("known_speakers", "output")}
    expected = {name: value for name, value in plain.items() if name != "output"}
    assert json.loads(renamed(json.dumps(body), answer)) == expected
    assert {word["speaker"] for word in answer["words"]} == speakers(answer)
    assert renamed(answer["output"]["rttm"], answer, "_") == plain["output"]["rttm"]
    assert all(len(line.split()) == 10 for line in answer["output"]["rttm"].splitlines())
    assert "Bob B.: " in answer["output"]["srt"]


def test_two_clips_of_a_name_match_at_8_khz(ask, encode, clips):
    low = resample_poly(clip(ANNA, 4.0, seed=4), 1, 2)
    found = ask([("Anna", encode(low, 8_000)), ("Anna", clips["Anna"])], sampling_rate=8_000)
    (told,) = found["known_speakers"]
    assert told["matched"]
    assert "Anna" in speakers(found)


@pytest.mark.parametrize("parameters", [{"diarize": False}, {}], ids=["not asked for", "no model"])
def test_clips_without_diarization_are_a_warning(demo_handler, monkeypatch, hum, parameters):
    if not parameters:
        monkeypatch.setattr(demo_handler.endpoint.models, "diarizer", None)
    known = [{"name": "Anna", "reference": "never decoded"}] * 2
    asked = {"known_speakers": known, "voices": True, **parameters}
    found = demo_handler({"inputs": hum, "parameters": asked})
    for ignored in ("known_speakers are ignored", "voices are ignored"):
        assert any(ignored in warning for warning in found["warnings"])
    unmatched = {"name": "Anna", "label": None, "similarity": None, "matched": False}
    assert found["known_speakers"] == [unmatched]
    assert found["voices"] == {}


@pytest.fixture(scope="module")
def voices(demo_handler, clips):
    found = {}
    for name, inputs in clips.items():
        answer = demo_handler({"inputs": inputs, "parameters": {"voices": True}})
        (found[name],) = answer["voices"].values()
        assert answer["voices"].keys() == speakers(answer)
    return found


def test_a_voice_of_an_answer_names_as_its_recording_does(ask, clips, voices, answer):
    """Alone, beside a clip, and as text; the speech of the clip is 3.5 s long."""
    known = [{"name": name, "voice": voice} for name, voice in voices.items()]
    assert ask(known_speakers=known)["known_speakers"] == answer["known_speakers"]
    known[0] = {"name": "Anna", "reference": clips["Anna"]}
    mixed = ask(known_speakers=json.dumps(known))
    assert mixed["known_speakers"] == answer["known_speakers"]
    assert all(3 < voice["seconds"] < 4 for voice in voices.values())


def test_a_voice_has_the_embedding_of_the_clip(demo_endpoint, clips, voices):
    both = {}
    for kind, given in (("reference", clips), ("voice", voices)):
        known = [{"name": name, kind: each} for name, each in given.items()]
        config = InferenceConfig.read({"known_speakers": known})
        client = DiarizationClient(demo_endpoint.workers.diarization, demo_endpoint.diarizer)
        both[kind] = asyncio.run(demo_endpoint.workers.enrol(client, config)).vectors
    for name, ((first,), (second,)) in zip(
        clips, zip(both["reference"].values(), both["voice"].values(), strict=True), strict=True
    ):
        assert first @ second == pytest.approx(1, abs=1e-7), name


def test_voices_of_a_conversation_name_its_speakers(ask, answer, log):
    """The names of the first answer are those of the second, and nothing is logged."""
    found = ask(voices=True, known_speakers=[])
    assert found["voices"].keys() == speakers(found)
    known = [{"name": f"Person {label}", "voice": each} for label, each in found["voices"].items()]
    named = ask(voices=True, known_speakers=known)
    labels = {each["label"]: each["name"] for each in named["known_speakers"] if each["matched"]}
    assert labels == {label: f"Person {label}" for label in speakers(found)}
    assert named["voices"] == {labels[label]: each for label, each in found["voices"].items()}
    assert all(each["embedding"] not in log.getvalue() for each in found["voices"].values())


def test_a_long_recording_has_the_voice_of_its_longest_turns(demo_endpoint):
    samples = np.arange(60 * RATE, dtype=np.float32)
    given = []

    class Diarizer:
        capabilities = demo_endpoint.diarizer.capabilities

        def embed(self, samples, spans):
            given.append((samples, spans))
            return np.ones(3, np.float32)

    voice = speaker_voice(Diarizer(), samples, [(0.0, 5.0), (10.0, 32.0), (40.0, 50.0)])
    assert voice.seconds == 30.0
    ((joined, spans),) = given
    assert [*joined] == [*samples[10 * RATE : 32 * RATE], *samples[40 * RATE : 48 * RATE]]
    assert spans == [(0.0, 30.0)]
    assert speaker_voice(Diarizer(), samples, [(0.0, 0.5)]) is None


def test_other_weights_have_other_names(demo_endpoint):
    network = torch.nn.Linear(2, 2)
    before = fingerprint(network)
    assert before == fingerprint(deepcopy(network))
    with torch.no_grad():
        network.bias[0] += 1
    assert before != fingerprint(network)
    assert fingerprint(None) == ""
    assert demo_endpoint.diarizer.capabilities.voice_model.startswith("WeSpeakerResNet34-")


def in_base64(values):
    return base64.b64encode(np.asarray(values, "<f4").tobytes()).decode()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model": "WeSpeakerResNet34-0123456789abcdef"}, "model"),
        ({"embedding": "no base64"}, "embedding"),
        ({"embedding": "AAA="}, "embedding"),
        ({"embedding": in_base64([0.5])}, "embedding"),
        ({"embedding": in_base64(np.full(256, np.nan))}, "embedding"),
        ({"embedding": in_base64(np.full(256, np.inf))}, "embedding"),
        ({"embedding": in_base64(np.zeros(256))}, "embedding"),
    ],
)
def test_useless_voice_is_refused_before_the_audio(demo_handler, voices, change, field):
    known = [{"name": "Anna", "voice": each | change} for each in voices.values()]
    known[0]["voice"] = voices["Anna"]
    with pytest.raises(InvalidReference) as refused:
        demo_handler({"inputs": "not even base64!", "parameters": {"known_speakers": known}})
    assert refused.value.param == f"known_speakers[1].voice.{field}"


@pytest.fixture(scope="module")
def useless(encode):
    both = np.concatenate([clip(ANNA, 3.0), clip(BOB, 3.0)])
    return {
        "not base64": ("?", "reference is not base64"),
        "no audio": (base64.b64encode(b"no audio at all" * 9).decode(), "no audio"),
        "silence": (encode(np.zeros(3 * RATE)), "no speech"),
        "noise": (encode(0.1 * np.random.default_rng(0).standard_normal(3 * RATE)), "no speech"),
        "0.3 s": (encode(clip(ANNA, 0.3)), "too short|no speech"),
        "two voices": (encode(both), "more than one person"),
        "31 s": (encode(np.zeros(31 * RATE)), "longer than the 30 s"),
    }


def test_useless_clip_is_refused_before_the_audio(demo_handler, useless, voices, caplog):
    for reason, (reference, text) in useless.items():
        known = [{"name": "Anna", "voice": voices["Anna"]}, {"name": "B", "reference": reference}]
        body = {"inputs": "not even base64!", "parameters": {"known_speakers": known}}
        with caplog.at_level(logging.DEBUG), pytest.raises(InvalidReference) as refused:
            demo_handler(body)
        assert str(refused.value).startswith("INVALID_REFERENCE: known_speakers[1]: "), reason
        assert re.search(text, str(refused.value))
        assert reference[:40] not in caplog.text


def named(pairs):
    return [{"name": name, "reference": reference} for name, reference in pairs]


def test_bytes_of_clips_and_audio_count_together(demo_handler, monkeypatch, clips, dialogue):
    size = len(base64.b64decode(clips["Anna"]))
    known = {"known_speakers": named([("A", clips["Anna"]), ("B", clips["Anna"])])}
    monkeypatch.setattr(demo_handler.endpoint.workers, "limits", AudioLimits(60, 2 * size - 1))
    with refused("INVALID_REFERENCE", "known_speakers[1]"):
        demo_handler({"inputs": "", "parameters": known})
    monkeypatch.setattr(demo_handler.endpoint.workers, "limits", AudioLimits(60, 2 * size + 2))
    with refused("INVALID_AUDIO"):
        demo_handler({"inputs": "", "parameters": known})
    with pytest.raises(AudioTooLong):
        demo_handler({"inputs": dialogue, "parameters": known})


def test_doubtful_clips_are_used_with_a_warning(demo_endpoint, encode):
    rng = np.random.default_rng(0)
    short = clip(ANNA, 1.5)
    noisy = clip(BOB, 6.0) + 0.08 * rng.standard_normal(7 * RATE)
    clips = [("A", encode(short)), ("B", encode(noisy)), ("C", encode(short))]
    config = {"known_speakers": named(clips)}
    find_speech, limits = demo_endpoint.recogniser.transcriber.find_speech, demo_endpoint.limits
    enrolment = VoiceEnroller(demo_endpoint.diarizer, find_speech, limits, RATE)
    for each in InferenceConfig.read(config).known_speakers:
        enrolment.enrol(each.name, run_steps(enrolment.decode(each)))
    text = " ".join(enrolment.known.warnings)
    assert "known_speakers[0]: 1." in text
    assert "known_speakers[1]: it is noisy" in text
    assert "names 0 and 2 sound alike" in text


def test_the_clips_leave_no_trace(demo_endpoint, clips, answer, log):
    needle = clips["Anna"][200:260]
    config = InferenceConfig.read({"known_speakers": named(clips.items())})
    assert needle in config.known_speakers[0].reference
    assert "audio answered in" in log.getvalue()
    assert needle not in json.dumps(answer) + log.getvalue() + repr(config)
    assert needle not in repr(vars(demo_endpoint)) + repr(vars(demo_endpoint.diarizer))
