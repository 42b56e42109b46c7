"""A client's text with names: what is read of it, and who has its words in the answer."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import InferenceConfig, WrongParameter
from whosaid.answer.attribution import attributed
from whosaid.answer.formats import FORMATS
from whosaid.answer.rendering import Rendering, read_rendering
from whosaid.answer.response import response
from whosaid.diarization.known_speakers import KnownVoices
from whosaid.payload.named_text import GivenTurn, read_turns, spoken_text
from whosaid.transcript import Chunk, SpeakerSegment, Transcript, Unspoken, Word

NAMES = st.sampled_from(["SPEAKER_00", "CHANNEL_01", "Katie", "Dr. Zoë Müller", "O'Neil *", "凯"])
SAID = st.sampled_from(
    ["Well,", "10:30", "yes:", "no", "*", "[x]", "<b>", "\\", "a#1", "https://x"]
)
TURNS = st.lists(st.tuples(NAMES, st.lists(SAID, min_size=1, max_size=4)), min_size=1, max_size=5)


@given(TURNS, st.sampled_from(["txt", "md"]), st.booleans())
def test_written_turns_are_read_back(turns, form, times):
    said = [GivenTurn(name, " ".join(words)) for name, words in turns]
    segments = [SpeakerSegment(name, f" {text}", 0.0, 1.0) for name, text in said]
    layout = InferenceConfig(txt_times=times, recording_name="a.m4a")
    text = FORMATS[form](Rendering(1.0, (), segments, (), layout))
    read = read_turns(text)
    if times or form == "md" or len(turns) > 1 or "_" in turns[0][0]:
        assert [*read] == said
    else:
        assert (read, spoken_text(text)) == ((), text)


@pytest.mark.parametrize(
    ("text", "turns"),
    [
        ("Remember: do it.", ()),
        ("Remember: do it.\nAnd go.", ()),
        ("He said it was like this: no.\nThey said it was like that: yes.", ()),
        ("At 10:30 we met.\nhttps://example.com", ()),
        ("Good morning.\nKatie: hi\nKatie: ho", ()),
        ("Katie: hi\nSteve: ho", (("Katie", "hi"), ("Steve", "ho"))),
        ("A:\n  hi\nthere\n\nB: ho\nA: no", (("A", "hi there"), ("B", "ho"), ("A", "no"))),
        ("SPEAKER_00: hi", (("SPEAKER_00", "hi"),)),
        ("[00:12:31] Katie: hi\n[12:40.5] ho", (("Katie", "hi"), (None, "ho"))),
        ("张三\uff1a你好\n李四\uff1a好", (("张三", "你好"), ("李四", "好"))),
        ("A: <|0.00|> hi\nB: ho", (("A", "hi"), ("B", "ho"))),
        ("", ()),
    ],
)  # fmt: skip
def test_a_name_is_a_speaker_by_rule(text, turns):
    assert read_turns(text) == tuple(GivenTurn(*turn) for turn in turns)


def test_names_alone_are_no_words():
    with pytest.raises(WrongParameter, match="should have words"):
        InferenceConfig.read({"text": "Katie:\nSteve: ...\n"})


@given(
    st.lists(
        st.tuples(
            NAMES,
            st.lists(st.tuples(st.sampled_from(["a", "bc", "d-e"]), st.booleans()), min_size=1),
        ),
        min_size=2,
        max_size=5,
    ),
    st.integers(1, 4),
)
def test_each_spoken_word_has_the_speaker_of_its_turn(turns, size):
    """Words that nobody speaks move no others. Chunks end anywhere."""
    text = "\n".join(f"{name}: {' '.join(word for word, _ in words)}" for name, words in turns)
    words = [(name, word, spoken) for name, own in turns for word, spoken in own]
    heard, unspoken = [], []
    for _, word, spoken in words:
        if spoken:
            heard.append(Word(f" {word}", float(len(heard)), len(heard) + 1.0))
        elif unspoken and unspoken[-1].before == len(heard):
            unspoken[-1] = Unspoken((*unspoken[-1].words, f" {word}"), len(heard))
        else:
            unspoken.append(Unspoken((f" {word}",), len(heard)))
    chunks = []
    for at in range(0, len(heard), size):
        own = tuple(heard[at : at + size])
        chunks.append(Chunk("".join(w.text for w in own), own[0].start, own[-1].end, words=own))
    transcript = Transcript(tuple(chunks), "en", unspoken=tuple(unspoken))
    config = InferenceConfig.read({"text": text, "return_timestamps": "word", "output": ["txt"]})
    body = response(attributed(99.0, [transcript], [None], KnownVoices(), config), config)
    expected = [(name, " ".join(w for w, spoken in own if spoken)) for name, own in turns]
    expected = [(name, said) for name, said in expected if said]
    assert [(each["speaker"], each["text"].strip()) for each in body["speakers"]] == expected
    assert body["output"]["txt"] == "".join(f"{name}: {said}\n" for name, said in expected)
    assert [each["speaker"] for each in body["words"]] == [n for n, _, spoken in words if spoken]
    again = FORMATS["txt"](read_rendering(json.loads(json.dumps(body)), config))
    assert again == body["output"]["txt"]
