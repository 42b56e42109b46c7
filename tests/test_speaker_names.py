"""Names in place of an answer's labels, as `--speaker-names` gives them."""

from __future__ import annotations

import pytest

from config import InferenceConfig
from whosaid.answer.response import Answer, response
from whosaid.answer.subtitles import FORMATS, Rendering
from whosaid.transcribe.speaker_names import with_speaker_names
from whosaid.transcript import Channel, Chunk, SpeakerSegment, SpeakerTurn, Transcript, Word

LABELS = ("SPEAKER_00", "SPEAKER_01")
TEXTS = (" Good <b>morning</b>, SPEAKER_01: hello.", " =1 + 1", ' "How"\tare {you}?')


def segments(names: tuple[str, str]) -> list[SpeakerSegment]:
    """Segments of two speakers by turns, one with an unknown speaker."""
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
    # Wide, because a line breaks where its labels say.
    rendering = Rendering(9.0, chunks, spoken, turns, InferenceConfig(max_line_width=1000))
    return {name: form(rendering) for name, form in FORMATS.items()}


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
def test_files_are_those_of_an_endpoint_that_calls_the_speakers_so(names):
    answer = {
        "speakers": [{"speaker": label, "words": [{"speaker": label}]} for label in LABELS],
        "words": [{"word": "hi", "speaker": LABELS[1]}, {"word": "ho", "speaker": None}],
        "known_speakers": [{"name": "Eve", "label": LABELS[0], "matched": False}],
        "voices": {label: {"seconds": 2.0} for label in LABELS},
        "made_with": {"parameters": {"channels": "mix"}},
        "output": files(LABELS),
        "warnings": ["noise"],
    }
    renamed = with_speaker_names(answer, dict(zip(LABELS, names, strict=True)))
    assert renamed == answer | {
        "speakers": [{"speaker": name, "words": [{"speaker": name}]} for name in names],
        "words": [{"word": "hi", "speaker": names[1]}, {"word": "ho", "speaker": None}],
        "voices": {name: {"seconds": 2.0} for name in names},
        "output": files(names),
    }
    assert answer["output"] == files(LABELS)


def test_a_label_that_is_not_there_is_told_with_those_that_are():
    answer = {"speakers": [{"speaker": label} for label in LABELS], "warnings": ["noise"]}
    renamed = with_speaker_names(answer, {"SPEAKER_01": "Bob", "SPEAKER_02": "Eve"})
    assert renamed["speakers"] == [{"speaker": "SPEAKER_00"}, {"speaker": "Bob"}]
    told = "--speaker-names: no SPEAKER_02; the speakers are SPEAKER_00, SPEAKER_01"
    assert renamed["warnings"] == ["noise", told]
    nobody = with_speaker_names({"speakers": []}, {"SPEAKER_00": "Anna"})
    assert nobody["warnings"] == ["--speaker-names: no SPEAKER_00; no speaker was found"]
    assert with_speaker_names(answer, {}) == answer


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
