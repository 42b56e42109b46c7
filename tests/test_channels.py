"""Separate channels, on the models that ship: each says what it says alone."""

import base64
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.helpers.refusals import refused
from tests.support.audio_files import conversation, request_body, wav_file
from whosaid.audio.decode import AudioLimits, decode_audio
from whosaid.endpoint import Finished

RATE = 16_000
# Stretches of the conversation in which one of its speakers is alone, in seconds.
AGENT = ((0.45, 2.6), (20.7, 23.6), (26.5, 29.3))
CUSTOMER = ((3.0, 10.1),)


@pytest.fixture(scope="module")
def voices() -> tuple[np.ndarray, np.ndarray]:
    """The texts of two people, each separately, with pauses; they often speak at once."""
    heard = conversation()
    pause = np.zeros(RATE // 2)
    voices = [
        np.concatenate(
            [
                np.append(pause, heard[round(start * RATE) : round(end * RATE)])
                for start, end in spans
            ]
        )
        for spans in (AGENT, CUSTOMER)
    ]
    longest = max(map(len, voices))
    agent, customer = (np.pad(voice, (0, longest - len(voice))) for voice in voices)
    return agent, customer


def ask(handler: Any, *channels: np.ndarray, **parameters: Any) -> dict[str, Any]:
    audio = wav_file(np.stack(channels, axis=1), RATE)
    return handler(request_body(audio, **parameters))


def apart(handler: Any, *channels: np.ndarray, **parameters: Any) -> dict[str, Any]:
    return ask(handler, *channels, **{"channels": "separate"} | parameters)


def timed_words(answer: dict[str, Any], channel: int = 0) -> list[tuple[str, list[float]]]:
    words = [word for word in answer["words"] if word.get("channel", 0) == channel]
    return [(word["word"], word["timestamp"]) for word in words]


@pytest.fixture(scope="module")
def alone(demo_handler, voices) -> list[dict[str, Any]]:
    return [ask(demo_handler, voice, diarize=False, return_timestamps="word") for voice in voices]


@pytest.fixture(scope="module")
def together(demo_handler, voices) -> dict[str, Any]:
    shown = {"return_timestamps": "word", "output": ["srt", "vtt", "tsv", "rttm", "txt"]}
    return apart(demo_handler, *voices, channel_names=["agent", "customer"], **shown)


def test_each_channel_is_transcribed_as_if_alone(together, alone):
    assert [timed_words(together, channel) for channel in (0, 1)] == list(map(timed_words, alone))
    assert min(len(answer["words"]) for answer in alone) > 15
    assert together["warnings"] == []


def test_a_channel_is_its_speaker(together):
    names = ("agent", "customer")
    for entry in together["speakers"] + together["words"]:
        assert entry["speaker"] == names[entry["channel"]]
    assert [each["name"] for each in together["channels"]] == list(names)
    assert {each["language"] for each in together["channels"]} == {"en"}


def test_all_is_in_order_of_time(together):
    for entries in (together["chunks"], together["speakers"], together["words"]):
        starts = [entry["timestamp"][0] for entry in entries]
        assert starts == sorted(starts)
    assert "".join(chunk["text"] for chunk in together["chunks"]) == together["text"]
    for channel in (0, 1):
        own = [each for each in together["speakers"] if each["channel"] == channel]
        assert all(a["timestamp"][1] <= b["timestamp"][0] for a, b in pairwise(own))
        text = "".join(segment["text"] for segment in own)
        assert text == "".join(it["word"] for it in together["words"] if it["channel"] == channel)


def test_words_over_another_channels_are_marked(together):
    """The oracle compares all pairs of words: a fifth of a word has to be spoken over."""
    for word in together["words"]:
        start, end = word["timestamp"]
        others = [it["timestamp"] for it in together["words"] if it["channel"] != word["channel"]]
        over = sum(max(0.0, min(end, stop) - max(start, begin)) for begin, stop in others)
        if abs(over - 0.2 * (end - start)) > 0.02:  # times are rounded
            assert word["overlap"] == (over > 0.2 * (end - start)), word
    marks = [word["overlap"] for word in together["words"]]
    assert True in marks
    assert False in marks


def test_files_hold_every_word_once_for_its_speaker(together):
    files = together["output"]
    lines = [line.split("\t") for line in files["tsv"].splitlines()[1:]]
    assert [line[3] for line in lines] == [each["speaker"] for each in together["speakers"]]
    turns = [line.split() for line in files["rttm"].splitlines()]
    assert {(turn[2], turn[7]) for turn in turns} == {("1", "agent"), ("2", "customer")}
    for channel, name in enumerate(("agent", "customer")):
        words = [word for word, _ in timed_words(together, channel)]
        cues = files["vtt"].split("\n\n")[1:]
        own = [cue.split("\n", 1)[1] for cue in cues if f"<v {name}>" in cue]
        said = " ".join(cue.removeprefix(f"<v {name}>") for cue in own)
        assert said.split() == "".join(words).split()


@pytest.mark.parametrize("channels", [1, 8])
def test_any_number_of_channels(demo_handler, alone, voices, channels):
    """The others are silent, and cost nothing."""
    silence = np.zeros(len(voices[0]))
    answer = apart(demo_handler, *[silence] * (channels - 1), voices[1], return_timestamps="word")
    assert timed_words(answer, channels - 1) == timed_words(alone[1])
    assert {each["speaker"] for each in answer["speakers"]} == {f"CHANNEL_{channels - 1:02d}"}
    assert (["one" in each for each in answer["warnings"]] == [True]) is (channels == 1)
    assert len(answer["channels"]) == channels


def test_crosstalk_is_written_once(demo_handler, alone, voices):
    """A line in which each hears the other after a while, and speaks for long enough in one of the
    blocks of 16 s in which echoes are looked for."""
    silence = np.zeros(16 * RATE)
    agent = np.concatenate([voices[0], silence])
    customer = np.concatenate([silence, voices[1]])
    share, delay = 10 ** (-10 / 20), RATE // 10
    leaks = [share * np.roll(voice, delay) for voice in (customer, agent)]
    noise = np.random.default_rng(0).normal(0, 1e-4, (2, len(agent)))
    answer = apart(demo_handler, agent + leaks[0] + noise[0], customer + leaks[1] + noise[1])
    turns = [(each["channel"], each["text"]) for each in answer["speakers"]]
    own = ["".join(text for of, text in turns if of == channel) for channel in (0, 1)]
    assert own == [each["text"] for each in alone]
    assert any("crosstalk" in warning for warning in answer["warnings"])


def test_voices_within_a_channel_are_separated_on_request(demo_handler, voices):
    """A channel's only speaker has the channel's name."""
    voices = tuple(voice[: 8 * RATE] for voice in voices)
    both = np.concatenate(voices)
    answer = apart(demo_handler, both, np.roll(both, RATE)[::-1] * 0, diarize=True, output=["rttm"])
    labels = {each["speaker"] for each in answer["speakers"]}
    assert labels == {"CHANNEL_00_SPEAKER_00", "CHANNEL_00_SPEAKER_01"}
    assert all(label in answer["output"]["rttm"] for label in labels)
    single = apart(demo_handler, voices[0], voices[1], diarize=True)
    assert {each["speaker"] for each in single["speakers"]} == {"CHANNEL_00", "CHANNEL_01"}


def test_known_speakers_have_their_names(demo_handler, voices):
    clip = wav_file(voices[1][: 8 * RATE], RATE)
    known = [{"name": "Ada", "reference": base64.b64encode(clip).decode()}]
    asked = {"known_speakers": known, "known_speaker_threshold": 0.5, "voices": True}
    answer = apart(demo_handler, *voices, **asked)
    names = {each["channel"]: each["speaker"] for each in answer["speakers"]}
    assert names == {0: "CHANNEL_00", 1: "Ada"}
    (told,) = answer["known_speakers"]
    assert (told["label"], told["matched"]) == ("CHANNEL_01", True)
    assert answer["voices"].keys() == set(names.values())
    known = [{"name": "Ada", "voice": answer["voices"]["Ada"]}]
    (again,) = apart(demo_handler, *voices, known_speakers=known)["known_speakers"]
    assert (again["label"], again["matched"]) == ("CHANNEL_01", True)


def test_names_are_as_many_as_channels(demo_handler, voices):
    with refused("INVALID_PARAMETER", "channel_names"):
        apart(demo_handler, *voices, channel_names=["agent"])
    with refused("INVALID_PARAMETER", "channel_names"):
        apart(demo_handler, *voices, channel_names=["agent", "Agent"])
    answer = ask(demo_handler, voices[0], channel_names=["agent"], diarize=False)
    assert answer["warnings"] == ["channel_names are ignored: channels are mixed"]


def test_all_channels_count_as_audio(voices):
    audio = wav_file(np.stack(voices, axis=1), RATE)
    seconds = len(voices[0]) / RATE
    limits = AudioLimits(1.5 * seconds, 2**28)
    assert decode_audio(audio, RATE, limits).duration == pytest.approx(seconds)
    with refused("AUDIO_TOO_LONG"):
        decode_audio(audio, RATE, limits, separate=True)


async def test_progress_is_of_all_channels(demo_endpoint, voices):
    """Every chunk is reported once, with its channel."""
    audio = wav_file(np.stack(voices, axis=1), RATE)
    parameters = {"channels": "separate"}
    request = demo_endpoint.parse({"inputs": audio, "parameters": parameters}, as_text=True)

    _, *progress, finished = [event async for event in demo_endpoint.stream(request)]
    assert isinstance(finished, Finished)
    chunks = finished.answer.transcript.chunks
    for channel in (0, 1):
        told = [chunk for event in progress for chunk in event.chunks if chunk.channel == channel]
        assert [each.text for each in told] == [it.text for it in chunks if it.channel == channel]
    done = [event.done for event in progress]
    assert done == sorted(done)
    assert progress[-1].done == progress[-1].total
    assert {event.total for event in progress} == {progress[0].total}
