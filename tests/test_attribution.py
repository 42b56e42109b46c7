"""The speakers of an answer are numbered in the order in which its words name them."""

from hypothesis import given, settings
from hypothesis import strategies as st

from config import InferenceConfig
from diarization_utils import attribute
from tests.helpers.readers import read_rttm, read_tsv
from whosaid.answer.attribution import attributed
from whosaid.answer.response import response
from whosaid.diarization.diarizer import Diarization
from whosaid.diarization.known_speakers import KnownVoices
from whosaid.transcript import Chunk, SpeakerTurn, Transcript, Word

FORMATS = {"output": ["srt", "vtt", "tsv", "rttm"], "return_timestamps": "word"}
MOMENTS = st.integers(0, 90)
TURNS = st.lists(st.tuples(st.sampled_from("zyx"), MOMENTS, st.integers(1, 30)), min_size=1)
# Texts of up to six words, some of which a voice speaks alone.
TEXTS = st.lists(
    st.tuples(MOMENTS, st.lists(st.integers(0, 20), min_size=1, max_size=6), st.sampled_from(".zy"))
)


def recognised(texts) -> Transcript:
    chunks = []
    for start, lengths, voice in texts:
        words, now = [], start / 10
        for length in lengths:
            words.append(Word(f" w{len(words)}", now, now + length / 10))
            now += length / 10
        text = "".join(word.text for word in words)
        chunk = Chunk(text, start / 10, now, words=tuple(words), voice=voice.strip(".") or None)
        chunks.append(chunk)
    chunks.sort(key=lambda chunk: (chunk.start, chunk.end))
    return Transcript(tuple(chunks), "en", speech=((0.0, 30.0),))


def diarized(turns) -> Diarization:
    found = [SpeakerTurn(who, at / 10, (at + length) / 10) for who, at, length in turns]
    found += [SpeakerTurn(who, 29.0, 29.5) for who in "zy"]
    found = tuple(sorted(found, key=lambda turn: (turn.start, turn.end, turn.speaker)))
    return Diarization(found, found)


def in_order(names) -> list[str]:
    return [*dict.fromkeys(filter(None, names))]


def labels(count: int, before: str = "") -> list[str]:
    return [f"{before}SPEAKER_{place:02d}" for place in range(count)]


@settings(max_examples=60)
@given(TEXTS, TURNS)
def test_first_word_names_the_first_speaker_in_every_format(texts, turns):
    """Voices without words, which only RTTM has, come after all others, in order of time."""
    heard, found = recognised(texts), diarized(turns)
    answer = attributed(30.0, [heard], [found], KnownVoices(), InferenceConfig.read(FORMATS))
    body = response(answer, InferenceConfig.read(FORMATS))
    speaking = in_order(word["speaker"] for word in body["words"])
    assert speaking == labels(len(speaking))
    assert in_order(each["speaker"] for each in body["speakers"]) == speaking
    files = body["output"]
    assert in_order(row["speaker"] for row in read_tsv(files["tsv"])) == speaking
    for mark, end in ((": ", "\n"), ("<v ", ">")):
        text = files["srt" if mark == ": " else "vtt"]
        assert all((f"{who}: " if end == "\n" else f"<v {who}>") in text for who in speaking)
    voices = in_order(who for who, *_ in read_rttm(files["rttm"]))
    assert sorted(voices) == labels(len({turn.speaker for turn in found.turns}))
    assert [who for who in voices if who not in speaking] == sorted({*voices} - {*speaking})
    chunks = attribute(heard.chunks, found.turns, found.exclusive)
    before = [word.speaker for chunk in chunks for word in chunk.words]
    after = [word.speaker for chunk in answer.transcript.chunks for word in chunk.words]
    pairs = {*zip(before, after, strict=True)}
    assert len(pairs) == len({one for one, _ in pairs}) == len({each for _, each in pairs})


@settings(max_examples=40)
@given(TEXTS, TURNS, TEXTS, TURNS)
def test_a_channels_only_speaker_with_words_has_its_name(texts, turns, others, more):
    config = InferenceConfig.read(FORMATS | {"channels": "separate", "diarize": True})
    heard, found = [recognised(texts), recognised(others)], [diarized(turns), diarized(more)]
    body = response(attributed(30.0, heard, found, KnownVoices(), config), config)
    for channel, transcript in enumerate(heard):
        name = f"CHANNEL_{channel:02d}"
        words = [word for word in body["words"] if word["channel"] == channel]
        assert len(words) == sum(len(chunk.words) for chunk in transcript.chunks)
        numbered = [who for who in in_order(w["speaker"] for w in words) if who != name]
        assert numbered == labels(len(numbered), f"{name}_")
        assert len(numbered) != 1
