"""Names in place of an answer's labels, as `--speaker-names` gives them."""

import pytest

from config import InferenceConfig
from whosaid.answer.formats import FORMATS
from whosaid.answer.rendering import Rendering
from whosaid.answer.response import Answer, response
from whosaid.answer.speaker_names import name_speakers, with_speaker_names
from whosaid.transcript import Channel, Chunk, SpeakerSegment, SpeakerTurn, Transcript, Word

LABELS = ("SPEAKER_00", "SPEAKER_01")
TEXTS = (" Good <b>morning</b>, SPEAKER_01: hello.", " =1 + 1", ' "How"\tare {you}?')


def segments(names: tuple[str, str]) -> list[SpeakerSegment]:
    speakers = (names[0], names[1], None)
    made = []
    for number, (text, speaker) in enumerate(zip(TEXTS, speakers, strict=True)):
        start, end = 3.0 * number, 3.0 * number + 2
        words = (Word(text, start, end, speaker),)
        made.append(SpeakerSegment(speaker, text, start, end, words))
    return made


def files(names: tuple[str, str]) -> dict[str, str]:
    spoken = segments(names)
    chunks = [Chunk(each.text, each.start, each.end, words=each.words) for each in spoken]
    turns = [SpeakerTurn(each.speaker, each.start, each.end) for each in spoken if each.speaker]
    rendering = Rendering(9.0, chunks, spoken, turns)
    return {name: form(rendering) for name, form in FORMATS.items()}


def spoken(names: tuple[str, str]) -> list[dict]:
    return [
        {
            "speaker": each.speaker,
            "text": each.text,
            "timestamp": [each.start, each.end],
            "words": [
                {"word": each.text, "timestamp": [each.start, each.end], "speaker": each.speaker}
            ],
        }
        for each in segments(names)
    ]


@pytest.mark.parametrize(
    "names",
    [
        ("Anna", "Bob"),
        ("SPEAKER_01x", "SPEAKER_00"),  # the first label goes to the other speaker
        ("Dr. Ursula von der Leyen-Schmidt", "Zoë Ω"),
        ("=2+3", "<v {Bob}> & \\1\\g<0>"),
        ("Smith, Anna", 'The "Duke"'),
    ],
)
def test_renamed_files_equal_those_of_the_endpoint(names):
    answer = {
        "duration": 9.0,
        "speakers": spoken(LABELS),
        "words": [{"word": "hi", "timestamp": [0, 1], "speaker": LABELS[1]}],
        "known_speakers": [{"name": "Eve", "label": LABELS[0], "matched": False}],
        "voices": {label: {"seconds": 2.0} for label in LABELS},
        "made_with": {"parameters": {"channels": "mix"}},
        "output": files(LABELS),
        "warnings": ["noise"],
    }
    renamed = with_speaker_names(answer, dict(zip(LABELS, names, strict=True)))
    assert renamed == answer | {
        "speakers": spoken(names),
        "words": [{"word": "hi", "timestamp": [0, 1], "speaker": names[1]}],
        "voices": {name: {"seconds": 2.0} for name in names},
        "output": files(names),
    }
    assert answer["output"] == files(LABELS)


def test_an_unknown_label_is_warned_of_with_the_known_ones():
    answer = {"speakers": [{"speaker": label} for label in LABELS], "warnings": ["noise"]}
    renamed = with_speaker_names(answer, {"SPEAKER_01": "Bob", "SPEAKER_02": "Eve"})
    assert renamed["speakers"] == [{"speaker": "SPEAKER_00"}, {"speaker": "Bob"}]
    told = "--speaker-names: no SPEAKER_02; the speakers are SPEAKER_00, SPEAKER_01"
    assert renamed["warnings"] == ["noise", told]
    nobody = with_speaker_names({"speakers": []}, {"SPEAKER_00": "Anna"})
    assert nobody["warnings"] == ["--speaker-names: no SPEAKER_00; no speaker was found"]
    assert with_speaker_names(answer, {}) == answer


def test_names_are_given_in_order_or_by_label():
    answer = {"speakers": [{"speaker": label} for label in (*LABELS[::-1], LABELS[0], None)]}

    def speakers(answer: dict) -> list[str | None]:
        return [each["speaker"] for each in answer["speakers"]]

    named = name_speakers(answer, [("", "Anna"), ("", "Bob"), ("", "Eve")])
    assert speakers(named) == ["Anna", "Bob", "Bob", None]
    unknown = "--speaker-names: no speaker 3; the speakers are SPEAKER_01, SPEAKER_00"
    assert named["warnings"] == [unknown]
    swapped = name_speakers(named, [(LABELS[0], "Anna"), (LABELS[1], "Bob")])
    assert speakers(swapped) == ["Bob", "Anna", "Anna", None]
    both = name_speakers(swapped, [("Bob", "Anna")])
    assert both["speaker_names"] == dict.fromkeys(LABELS[::-1], "Anna")
    kept = name_speakers(both, [(LABELS[0], "Eve")])
    assert speakers(kept) == ["Anna", "Anna", "Anna", None]
    assert kept["warnings"][-1] == "--speaker-names: no SPEAKER_00; the speakers are Anna"
    assert speakers(name_speakers(both, [(label, "Eve") for label in LABELS]))[:2] == ["Eve", "Eve"]


def test_a_channel_is_called_by_its_name():
    chunk = Chunk(" hi", 0.0, 1.0, words=(Word(" hi", 0.0, 1.0, "CHANNEL_00"),), channel=0)
    segment = SpeakerSegment("CHANNEL_00", " hi", 0.0, 1.0, chunk.words, channel=0)
    channels = (Channel("CHANNEL_00", "en", 0.9), Channel("CHANNEL_01", None, None))
    made = Answer(2.0, Transcript((chunk,), "en"), [segment], channels=channels)
    answer = response(made, InferenceConfig(channels="separate", output=["txt"]))
    renamed = with_speaker_names(answer, {"CHANNEL_00": "agent", "CHANNEL_01": "customer"})
    assert [each["name"] for each in renamed["channels"]] == ["agent", "customer"]
    assert renamed["output"]["txt"] == "agent: hi\n"
    assert renamed["warnings"] == []
