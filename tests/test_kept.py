"""Answers in JSON files: what they say of themselves, and what follows from them."""

import json
from dataclasses import replace

import pytest

from config import InferenceConfig
from whosaid.answer.attribution import attributed
from whosaid.answer.kept import BY_SEGMENT, BY_WORD, RunRequest, for_keeping, is_of
from whosaid.answer.response import response
from whosaid.diarization.diarizer import Diarization
from whosaid.diarization.known_speakers import KnownVoices
from whosaid.transcript import Chunk, SpeakerTurn, Transcript, Word

MODELS = {"asr_model": "a/whisper", "assistant_model": None, "diarization_model": "a/pipeline"}
FORMATS = sorted(BY_WORD | BY_SEGMENT)
LAYOUTS = [
    {}, {"max_line_width": 12}, {"max_line_width": 20, "max_line_count": 1},
    {"max_words_per_line": 2}, {"highlight_words": True}, {"subtitle_speakers": False},
]  # fmt: skip


def transcript(shift: float = 0.0) -> Transcript:
    texts = (" Good morning, Ann.", " Is it late? Yes, it's four o'clock.", " I see.")
    chunks, now = [], shift
    for text in texts:
        words = []
        for word in text.split():
            words.append(Word(f" {word}", now, now + 0.3, probability=0.5))
            now += 0.37
        chunks.append(Chunk(text, words[0].start, words[-1].end, words=tuple(words)))
        now += 1.3
    return Transcript(tuple(chunks), "en", speech=((0.0, now),))


def diarization() -> Diarization:
    turns = (SpeakerTurn("A", 0.0, 3.4), SpeakerTurn("B", 3.2, 6.0), SpeakerTurn("A", 6.0, 10.0))
    return Diarization(turns, turns)


def an_answer(parameters: dict, apart: str) -> dict:
    """Return an answer of an endpoint; `apart` says how speakers are separated, or overlap."""
    config = InferenceConfig.read(parameters)
    heard, found = [transcript()], [diarization() if apart == "voices" else None]
    if apart == "overlap":
        pairs = (("A", 0.0), ("B", 0.9))
        one, other = ([replace(it, voice=who) for it in transcript(at).chunks] for who, at in pairs)
        chunks = sorted([*one, *other], key=lambda chunk: chunk.start)
        heard, found = [replace(transcript(), chunks=tuple(chunks))], [diarization()]
    if apart == "channels":
        heard, found = [transcript(), transcript(0.8)], [None, None]
    answer = attributed(12.0, heard, found, KnownVoices(), config)
    return json.loads(json.dumps(response(answer, config)))


def a_kept_answer(parameters: dict, apart: str = "voices") -> dict:
    made = RunRequest(MODELS, parameters)
    return {"made_with": made.to_json(), **an_answer(parameters, apart)}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("before", LAYOUTS[:2])
@pytest.mark.parametrize("apart", ["", "voices", "channels", "overlap"])
def test_formats_and_layouts_follow_to_the_letter(apart, before, layout):
    separate = {"channels": "separate"} if apart == "channels" else {}
    kept = a_kept_answer(for_keeping({**separate, **before, "output": ["srt", "txt"]}), apart)
    wanted = for_keeping({**separate, **layout, "output": FORMATS})
    request = RunRequest(MODELS, wanted)
    assert request.why_not(kept) == ""
    laid_out = request.laid_out(kept, FORMATS)
    assert laid_out["output"] == an_answer(wanted, apart)["output"]
    assert laid_out["made_with"] == request.to_json()
    assert request.laid_out(laid_out, FORMATS) is laid_out


def test_without_word_times_texts_follow_and_subtitles_do_not():
    kept = a_kept_answer({"output": []})
    request = RunRequest(MODELS, {"output": FORMATS})
    assert request.laid_out(kept, FORMATS)["output"].keys() == BY_SEGMENT
    assert RunRequest(MODELS, for_keeping({})).why_not(kept) == "has no word times"
    assert request.why_not(a_kept_answer(for_keeping({}))) == ""


def test_turns_are_kept_as_they_are():
    kept = a_kept_answer(for_keeping({"output": ["rttm"]}))
    request = RunRequest(MODELS, for_keeping({"max_line_width": 9}))
    laid_out = request.laid_out(kept, ["srt", "rttm"])
    assert laid_out["output"]["rttm"] == kept["output"]["rttm"] != ""


CLIP = {"name": "Ann", "reference": "UklGRg=="}
VOICE = {"model": "a", "seconds": 2.0, "embedding": "c2VjcmV0IQ=="}
SPEAKER = {"name": "Ann", "voice": VOICE}
OTHER_CLIP = CLIP | {"reference": "UklGRQ=="}
OTHER_SPEAKER = SPEAKER | {"voice": VOICE | {"model": "b"}}


@pytest.mark.parametrize(
    ("before", "now", "changed"),
    [
        ({}, {"language": "de"}, "language"),
        ({"language": "de", "num_beams": 2}, {}, "num_beams, language"),
        ({}, {"task": "transcribe", "num_beams": 1, "num_speakers": None}, ""),
        ({"hotwords": "Ada, Zuse"}, {"hotwords": ["Ada", "Zuse"]}, ""),
        ({"vad_parameters": '{"threshold": 0.4}'}, {"vad_parameters": {"threshold": 0.4}}, ""),
        ({}, {"batch_size": 4, "assisted": True, "highlight_words": True}, ""),
        ({}, {"diarize": False}, "diarize"),
        ({}, {"diarize": True}, ""),
        ({"channels": "separate"}, {"channels": "separate", "diarize": True}, "diarize"),
        ({}, {"known_speakers": [CLIP]}, "known_speakers"),
        ({"known_speakers": [CLIP]}, {"known_speakers": json.dumps([CLIP])}, ""),
        ({"known_speakers": [CLIP]}, {"known_speakers": [OTHER_CLIP]}, "known_speakers"),
        ({"known_speakers": [SPEAKER]}, {"known_speakers": [SPEAKER]}, ""),
        ({"known_speakers": [SPEAKER]}, {"known_speakers": [OTHER_SPEAKER]}, "known_speakers"),
        ({}, {"voices": True}, "voices"),
        ({"text": "one"}, {"text": "two"}, "text"),
        ({"text": "one"}, {"text": "one"}, ""),
    ],
)
def test_parameters_that_change_an_answer_are_compared_by_their_effect(before, now, changed):
    kept = json.loads(json.dumps({"made_with": RunRequest(MODELS, before).to_json()}))
    why = f"was made with other parameters ({changed})" if changed else ""
    assert RunRequest(MODELS, now).why_not(kept) == why


def test_neither_clips_nor_texts_are_kept():
    known = [CLIP, SPEAKER]
    made = RunRequest(MODELS, {"known_speakers": known, "text": "in confidence"}).to_json()
    assert CLIP["reference"] not in json.dumps(made)
    assert VOICE["embedding"] not in json.dumps(made)
    assert "confidence" not in json.dumps(made)
    assert made["parameters"]["known_speakers"][0]["name"] == "Ann"


@pytest.mark.parametrize(
    ("models", "parameters", "changed"),
    [
        (MODELS | {"asr_model": "b/whisper"}, {}, "asr_model was a/whisper"),
        (MODELS | {"assistant_model": "a/small"}, {}, ""),
        (MODELS | {"diarization_model": None}, {}, "diarization_model was a/pipeline"),
        (MODELS | {"dtype": "int8"}, {}, "dtype was none"),
        (None, {}, "not all servers name theirs"),
        (MODELS | {"diarization_model": None}, {"diarize": False}, ""),  # none is used
    ],
)
def test_models_that_change_an_answer_are_compared(models, parameters, changed):
    kept = {"made_with": RunRequest(MODELS, parameters).to_json()}
    why = f"was made with other models ({changed})" if changed else ""
    assert RunRequest(models, parameters).why_not(kept) == why


@pytest.mark.parametrize(
    "made",
    [
        *(None, [], {}, {"models": {}, "parameters": None}),
        {"models": 1, "parameters": {"language": 1}},
    ],
)
def test_unknown_form_of_made_with_counts_as_absent(made):
    assert RunRequest(MODELS, {}).why_not({"made_with": made}) == "does not say how it was made"


def test_recording_is_identified_by_size_time_or_content():
    answer = {"recording": {"name": "a", "size": 3, "modified": 7, "sha256": "x"}}

    def never() -> str:
        raise AssertionError("it was read")

    assert is_of(answer, 3, 7, True, never)
    assert not is_of(answer, 4, 7, True, never)
    for other in ({}, {"recording": {"name": "live"}}):
        assert not is_of(other, 3, 7, True, never)
    for modified, same_path in ((8, True), (7, False), (0, True)):
        assert is_of(answer, 3, modified, same_path, lambda: "x")
        assert not is_of(answer, 3, modified, same_path, lambda: "y")
