"""POST /v1/transcripts/{format}: a transcript's files, as a person has corrected it."""

import copy
import json
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import readers
from tests.helpers.asgi import call, served
from tests.helpers.page_answers import answer_of
from whosaid.answer.corrected import consistent
from whosaid.answer.formats import MEDIA_TYPES
from whosaid.server import transcripts

TURNS = [("SPEAKER_00", "Good <b>morning</b>."), (None, "Hm."), ("SPEAKER_01", "How are & you?")]


def an_answer() -> dict:
    return answer_of(TURNS)


async def rendered(form: str, **body):
    content = json.dumps(body).encode()
    headers = {"content-type": "application/json", "content-length": str(len(content))}
    _, app = served()
    return await call(app, parts=[content], path=f"/v1/transcripts/{form}", headers=headers)


def shown(form: str, body: bytes) -> list[tuple[str, str]]:
    """The speakers and texts that a format's own reader finds, one for every turn of TURNS."""
    text = body if form == "docx" else body.decode()
    lines = {
        "docx": lambda: readers.read_docx(text)[1:],
        "md": lambda: readers.read_md(text)[1:],
        "html": lambda: readers.read_html(text).texts["p"],
        "txt": lambda: text.splitlines(),
        "srt": lambda: [event.plaintext for event in readers.read_srt(text)],
    }.get(form)
    if lines:
        parts = [line.rpartition("] ")[2].rpartition(": ") for line in lines()]
        return [(name, said) for name, _, said in parts]
    if form == "vtt":
        return [(each.voice or "", each.text) for each in readers.read_vtt(text)]
    return [(row["speaker"], row["text"]) for row in readers.read_tsv(text)]


@pytest.mark.parametrize("form", ["txt", "md", "docx", "html", "srt", "vtt", "tsv"])
async def test_each_format_has_corrections_and_names(form):
    answer = an_answer()
    answer["speakers"][2]["words"][0]["word"] = " Where"
    answer["speakers"][0]["text"] = "stale, because the words say otherwise"
    parameters = {"recording_name": "Gespräch 1/2.m4a", "txt_times": True, "max_line_width": 90}
    given = {"speaker_names": {"SPEAKER_01": "Zoë"}, "parameters": parameters}
    reply = await rendered(form, transcript=answer, **given)
    assert reply.status == 200
    assert reply.headers["content-type"].startswith(MEDIA_TYPES[form])
    names = reply.headers["content-disposition"]
    assert unquote(names.partition("UTF-8''")[2]) == f"2.{form}"
    said = shown(form, reply.body)
    # SubRip has no escapes, and WebVTT's reader keeps its own.
    escapes = {"srt": {"<": "\u2039", ">": "\u203a"}}
    escapes["vtt"] = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
    table = str.maketrans(escapes.get(form, {}))
    expected = [("SPEAKER_00", "Good <b>morning</b>."), ("", "Hm."), ("Zoë", "Where are & you?")]
    assert said == [(name, text.translate(table)) for name, text in expected]


async def test_rttm_takes_the_turns_of_an_answer_or_its_speakers():
    answer = an_answer()
    names = {"SPEAKER_00": "Ada King"}
    reply = await rendered("rttm", transcript=answer, speaker_names=names)
    expected = [("Ada_King", 0.0, 1.0), ("SPEAKER_01", 1.5, 3.5)]
    assert readers.read_rttm(reply.body.decode()) == expected
    turn = "SPEAKER audio 1 1.500 2.250 <NA> <NA> SPEAKER_00 <NA> <NA>\n"
    answer["output"] = {"rttm": turn, "srt": "stale"}
    reply = await rendered("rttm", transcript=answer, speaker_names=names)
    assert readers.read_rttm(reply.body.decode()) == [("Ada_King", 1.5, 3.75)]


async def test_json_follows_from_the_turns():
    answer = an_answer()
    assert (await rendered("json", transcript=answer)).json == answer
    answer["speakers"][0] |= {"speaker": "SPEAKER_01", "text": " Bye.", "words": []}
    names = {"SPEAKER_01": "Bo", "SPEAKER_00": "gone"}
    made = (await rendered("json", transcript=answer, speaker_names=names)).json
    assert made["text"] == " Bye. Hm. How are & you?"
    assert [each["text"] for each in made["chunks"]] == [" Bye.", " Hm.", " How are & you?"]
    assert [each["speaker"] for each in made["speakers"]] == ["Bo", None, "Bo"]
    assert [each["word"] for each in made["words"]] == [" Hm.", " How", " are", " &", " you?"]
    assert made["speaker_names"] == {"SPEAKER_01": "Bo"}
    assert made["language"] == "en"


CHANGES = st.sampled_from(["text", "delete", "speaker", "time", "words", "move"])
EDIT = st.tuples(CHANGES, st.integers(0, 2), st.integers(0, 2), st.floats(0, 9))
EDITS = st.lists(EDIT, max_size=6)


@given(EDITS, st.booleans())
def test_after_any_edits_words_are_in_order_and_all_in_turns(edits, without_speakers):
    answer = an_answer()
    for edit, place, other, seconds in edits:
        turn = answer["speakers"][place]
        if edit == "text":
            turn |= {"text": f" new {other}", "words": []}
        elif edit == "delete":
            turn["words"] = turn["words"][other:]
        elif edit == "speaker":
            turn["speaker"] = f"SPEAKER_0{other}"
        elif edit == "time":
            turn["timestamp"] = [seconds, seconds / 2]
        elif edit == "words" and turn["words"]:
            turn["words"][0] |= {"word": f" w{other}", "timestamp": [seconds, seconds]}
        else:
            turn["words"] = [copy.copy(word) for word in answer["speakers"][other]["words"]]
    if without_speakers:
        answer["chunks"], answer["speakers"] = answer["speakers"], []
    made = consistent(answer)
    turns = made["speakers"] or made["chunks"]
    assert made["text"].split() == [word for turn in turns for word in turn["text"].split()]
    assert [each["text"].split() for each in made["chunks"]] == [it["text"].split() for it in turns]
    starts = [each["timestamp"][0] for each in made["words"]]
    assert starts == sorted(starts)
    for each in (*turns, *made["words"]):
        start, end = each["timestamp"]
        assert 0 <= start <= end <= answer["duration"]
    for turn in made["speakers"]:
        if words := turn.get("words"):
            assert "".join(word["word"] for word in words) == turn["text"]
            assert {word["speaker"] for word in words} == {turn["speaker"]}
    held = [word for turn in made["speakers"] for word in turn.get("words", ())]
    assert without_speakers or len(held) == len(made["words"])


async def test_a_chunk_keeps_a_word_that_ends_after_it():
    answer = an_answer() | {"speakers": []}
    answer["chunks"][0]["timestamp"] = [0.0, 0.6]
    assert (await rendered("json", transcript=answer)).json["words"] == answer["words"]
    answer["chunks"][1]["text"] = " Good."
    made = (await rendered("json", transcript=answer)).json
    assert len(made["words"]) == len(answer["words"]) - 1
    told = (await rendered("txt", transcript=answer)).body.decode()
    assert told.split() == ["Good", "<b>morning</b>.", "Good.", "How", "are", "&", "you?"]


async def test_an_answer_of_interleaved_channels_stays():
    """Speakers of one channel are grouped, over chunks of the other channel."""
    said = [(" One", "A", 0), (" two.", "A", 0), (" Yes.", "B", 1), (" Three.", "A", 0)]
    words = [
        {"word": word, "timestamp": [at, at + 0.5], "speaker": name, "channel": channel}
        for at, (word, name, channel) in enumerate(said)
    ]
    chunks = [
        {"text": each["word"], "timestamp": each["timestamp"], "channel": each["channel"]}
        | {"avg_logprob": -0.1 * place}
        for place, each in enumerate(words)
    ]
    spoken = {"A": [words[0], words[1], words[3]], "B": [words[2]]}
    speakers = [
        {"speaker": name, "text": "".join(each["word"] for each in own), "words": own}
        | {"timestamp": [own[0]["timestamp"][0], own[-1]["timestamp"][1]]}
        | {"channel": own[0]["channel"]}
        for name, own in spoken.items()
    ]
    answer = {"speakers": speakers, "chunks": chunks, "words": words, "language": "en"}
    answer |= {"text": " One two. Yes. Three.", "duration": 9.0, "warnings": []}
    assert (await rendered("json", transcript=answer)).json == answer
    speakers[1] |= {"text": " No.", "words": []}
    made = (await rendered("json", transcript=answer)).json
    assert [each["text"] for each in made["chunks"]] == [" One two. Three.", " No."]


async def test_a_word_that_ends_before_its_chunk_stays():
    """Times of words and of chunks are measured separately."""
    answer = answer_of([(None, "Yes."), (None, "I do."), (None, "I do.")]) | {"speakers": []}
    answer["chunks"][1]["timestamp"][0] = answer["words"][1]["timestamp"][1] + 0.01
    assert (await rendered("json", transcript=answer)).json["words"] == answer["words"]


async def test_chunks_that_are_not_edited_stay():
    spaced = answer_of([("A", "今日はいい天気ですね。"), ("B", "そうですね。")])
    answer = json.loads(json.dumps(spaced).replace(" ", ""))  # as Japanese is written
    answer["chunks"][0]["avg_logprob"] = -0.5
    assert (await rendered("json", transcript=answer)).json == answer


@pytest.mark.parametrize("form", ["txt", "json", "srt"])
async def test_a_text_without_times_is_written(form):
    reply = await rendered(form, transcript={"duration": 9.0, "text": " Good morning."})
    assert b"Good morning." in reply.body


WRONG = [
    ("srt", {"transcript": an_answer() | {"channels": "separate"}}, "transcript.channels: should"),
    ("srt", {"transcript": an_answer() | {"voices": ["x"]}}, "transcript.voices: should"),
    ("srt", {"transcript": an_answer() | {"duration": 1e307}}, "transcript.duration: should"),
    ("pdf", {"transcript": an_answer()}, "INVALID_PARAMETER: format: should be json, srt"),
    ("srt", {}, "INVALID_PARAMETER: transcript: is required"),
    ("srt", {"transcript": {"duration": 1, "speakers": [{"text": "a"}]}}, "transcript.speakers[0]"),
    ("srt", {"transcript": {"duration": -1}}, "INVALID_PARAMETER: transcript.duration: should be"),
    ("srt", {"transcript": an_answer(), "speaker_names": {"A": ""}}, "speaker_names.A: "),
    (
        "rttm",
        {"transcript": an_answer() | {"output": {"rttm": "SPEAKER audio 1 x y"}}},
        "INVALID_PARAMETER: transcript.output.rttm: should be RTTM",
    ),
    (
        "srt",
        {"transcript": an_answer(), "parameters": {"max_line_width": 0}},
        "INVALID_PARAMETER: max_line_width: should be",
    ),
]


@pytest.mark.parametrize(("form", "body", "told"), WRONG)
async def test_wrong_fields_are_named(form, body, told):
    reply = await rendered(form, **body)
    assert reply.status == 400
    assert told in reply.json["error"]["message"]


@pytest.mark.parametrize(
    ("content", "kind", "status", "code"),
    [
        (b"[]", "application/json", 422, "INVALID_REQUEST"),
        (b"{", "application/json", 422, "INVALID_REQUEST"),
        (b"\xff", "application/json", 422, "INVALID_REQUEST"),
        (b"{}", "text/plain", 415, "UNSUPPORTED_MEDIA_TYPE"),
        (b" " * 101, "application/json", 413, "BODY_TOO_LARGE"),
    ],
)
async def test_other_bodies_are_refused(content, kind, status, code, monkeypatch):
    monkeypatch.setattr(transcripts, "MAX_BYTES", 100)
    _, app = served()
    headers = {"content-type": kind, "content-length": str(len(content))}
    reply = await call(app, parts=[content], path="/v1/transcripts/srt", headers=headers)
    assert (reply.status, reply.code) == (status, code)


async def test_a_place_in_the_queue_is_needed_and_freed():
    endpoint, app = served(max_queue=1)
    content = json.dumps({"transcript": an_answer()}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(content))}
    for _ in range(2):
        reply = await call(app, parts=[content], path="/v1/transcripts/txt", headers=headers)
        assert reply.status == 200
    assert (app.admission.permits.taken, endpoint.seen) == (0, [])
