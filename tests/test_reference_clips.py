"""Clips of known speakers as requests name them: which names are refused, and by which place."""

import json

import pytest

from config import InferenceConfig, WrongParameter
from whosaid.payload.parameters import MAX_CLIPS
from whosaid.server.openai_api.form import paired_clips


def named(pairs):
    return [{"name": name, "reference": reference} for name, reference in pairs]


def test_names_lose_the_space_around_them_and_may_come_again():
    clips = named([(" Anna ", "AAAA"), ("Bob", "BBBB"), ("Anna", "CCCC")])
    read = InferenceConfig.read({"known_speakers": clips}).known_speakers
    found = [(clip.name, clip.reference) for clip in read]
    assert found == [("Anna", "AAAA"), ("Bob", "BBBB"), ("Anna", "CCCC")]
    assert len(InferenceConfig.read({"known_speakers": clips[:1] * MAX_CLIPS}).known_speakers) == 20


def test_a_reference_is_not_printed():
    assert "AAAA" not in repr(InferenceConfig.read({"known_speakers": named([("Anna", "AAAA")])}))


WRONG_NAMES = {
    "": r"\[0\].name: should have 1 to 64",
    " ": r"\[0\].name: should have 1 to 64",
    "x" * 65: r"\[0\].name: should have 1 to 64",
    "a\nb": r"\[0\].name: should have no control",
    "a\u202eb": r"\[0\].name: should have no control",
    "SPEAKER_01": r"\[0\].name: should not look like a label",
    "speaker 1": r"\[0\].name: should not look like a label",
}


@pytest.mark.parametrize("name", WRONG_NAMES)
def test_wrong_names_are_refused_by_place(name):
    with pytest.raises(ValueError, match="known_speakers" + WRONG_NAMES[name]):
        InferenceConfig.read({"known_speakers": named([(name, "AAAA")])})


@pytest.mark.parametrize(
    "value",
    [
        named([("Anna", "AAAA"), ("anna ", "AAAA"), ("ANNA", "AAAA")]),
        named([("Bob B", "AAAA"), ("Bob  b", "AAAA")]),
        named([("a", "AAAA")] * 21),
        *([{"name": "Anna"}], [{"reference": "AAAA"}], [{"name": "Anna", "reference": 3}]),
        *([3], {"Anna": "AAAA"}, "[[["),
    ],
)
def test_wrong_lists_are_refused_and_no_reference_repeated(value):
    with pytest.raises(ValueError, match="known_speakers") as refused:
        InferenceConfig.read({"known_speakers": value})
    assert "AAAA" not in str(refused.value)


VOICE = {"model": "Net-0", "seconds": 3.5, "embedding": "AAAAAA=="}


def test_voice_replaces_a_reference_in_every_form():
    clips = [*named([("Anna", "AAAA")]), {"name": "Bob", "voice": VOICE}]
    config = InferenceConfig.read({"known_speakers": clips})
    assert config.known_speakers[1].voice.model_dump() == VOICE
    assert config.reference_bytes == 3
    assert VOICE["embedding"] not in repr(config)
    as_text = paired_clips(["Anna", "Bob"], ["AAAA", json.dumps(VOICE)])
    for given in (json.dumps(clips), as_text, json.dumps(as_text)):
        assert InferenceConfig.read({"known_speakers": given}, as_text=True) == config


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        *((each, "") for each in ({}, {"voice": None}, {"voice": "AAAAAA=="})),
        ({"voice": VOICE, "reference": "AAAA"}, ""),
        ({"voice": {"model": "Net-0"}}, ".embedding"),
        ({"voice": VOICE | {"model": ""}}, ".model"),
        ({"voice": VOICE | {"model": 3}}, ".model"),
        ({"voice": VOICE | {"seconds": "long"}}, ".seconds"),
        ({"voice": VOICE | {"embedding": "A" * (2**14 + 4)}}, ".embedding"),
    ],
)
def test_a_wrong_voice_is_refused_by_its_field(entry, field):
    with pytest.raises(WrongParameter) as refused:
        InferenceConfig.read({"known_speakers": [{"name": "Anna", **entry}]})
    assert refused.value.param == f"known_speakers[0].voice{field}"
    assert "AAAA" not in str(refused.value)
