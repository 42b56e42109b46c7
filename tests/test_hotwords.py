"""Hot words: what sounds alike, which parts of a text are compared, and that nothing else moves."""

import json

import numpy as np
import pytest
from rapidfuzz.distance import Levenshtein

from config import InferenceConfig
from tests.helpers.invariance import parts
from tests.support import audio_files
from tests.support.audio_files import request_body, wav_file
from whosaid.asr import hotwords
from whosaid.asr.engine import rescoring
from whosaid.asr.hotwords import HotWordProposer, HotWords, Match, sound
from whosaid.cli.options import add_parameters, parameters
from whosaid.cli.parser import CommandParser
from whosaid.payload.parameters import HotWord

SURE, UNSURE = 0.0, -1.0


def test_the_phrases_most_alike_are_found_as_by_brute_force():
    random = np.random.default_rng(1)

    def word(most):
        return "".join(random.choice([*"abdeiklmnorstu"], random.integers(3, most)))

    def similarity(left, right):
        sounds = [sound(text) for text in (left, right)]
        doubled = ["".join(each if each in "aeiou" else 2 * each for each in it) for it in sounds]
        return 1 - Levenshtein.distance(*doubled) / 2 / max(len(sound(left)), len(sound(right)))

    phrases = [*dict.fromkeys(word(8) for _ in range(300))]
    texts = [word(10) for _ in range(40)]
    found = HotWords(tuple(phrases)).alike(texts)
    assert sum(map(len, found)) > 40
    for text, matches in zip(texts, found, strict=True):
        others = [Match(similarity(text, each), each) for each in phrases if each != text]
        likely = [match for match in others if match.similarity >= hotwords.ALIKE]
        best = sorted(likely, key=lambda match: -match.similarity)
        assert matches == best[: hotwords.MOST_PHRASES]


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("Philip's sun", "Filipson"),
        ("shivawn", HotWord(text="Siobhan", sounds_like=("shivawn",))),
        ("Чайковскова", "Чайковского"),
        ("김민서", "김민석"),
        ("タナカサン", "タナガサン"),
    ],
)
def test_texts_sound_like_phrases_of_any_script(text, phrase):
    (found,) = HotWords(("Zürich", phrase)).alike([text])
    assert [match.phrase for match in found] == [getattr(phrase, "text", phrase)]


@pytest.mark.parametrize("text", ["Siobhan", "by siobhan", "", "!", "Wellington"])
def test_neither_the_phrase_itself_nor_other_words_match(text):
    assert HotWords(("Siobhan",)).alike([text]) == [[]]


@pytest.fixture(scope="module")
def proposing(demo_handler):
    models = demo_handler.endpoint.recogniser.transcriber.models

    def propose(parts, *phrases, language="en"):
        """Return the proposals for a text made of `parts`, each with its log-probability."""
        tokens, log_probs = [], []
        for part, log_prob in parts:
            new = [part] if isinstance(part, int) else models.tokens_of(part)
            tokens += new
            log_probs += [log_prob] * len(new)
        prompt = models.special_tokens.prompt("en", "transcribe", timestamps=True)
        found = HotWordProposer(models, HotWords(phrases)).propose(prompt, tokens, log_probs)
        return [(models.text_of(tokens[at:stop]), models.text_of(new)) for at, stop, new in found]

    return propose


def test_only_unsure_parts_are_compared(proposing):
    assert proposing([(" 5", SURE), (" Maria", UNSURE)], "Marya")[0] == (" Maria", " Marya")
    assert proposing([(" we met Maria", SURE)], "Marya") == []


def test_parts_are_words_without_punctuation_or_timestamps_between_them(proposing, demo_handler):
    begin = demo_handler.endpoint.recogniser.transcriber.models.special_tokens.timestamp_begin
    joined = [(" Mary", UNSURE), (" Ann", UNSURE)]
    assert (" Mary Ann", " Marian") in proposing(joined, "Marian")
    for between in (",", begin):
        parted = [joined[0], (between, SURE), joined[1]]
        assert {part for part, _ in proposing(parted, "Marian")} <= {" Mary", " Ann"}


def test_a_phrase_begins_a_sentence_with_a_capital(proposing):
    text = [(" Seized", UNSURE), (".", SURE), (" Seized", UNSURE), (".", SURE)]
    assert proposing(text, "seest") == [(" Seized", " Seest")] * 2
    assert (" Seized", " seest") in proposing([(" he", SURE), (" Seized", UNSURE)], "seest")


def ask(handler, **parameters):
    clip = wav_file(audio_files.conversation()[: 12 * 16_000], 16_000)
    return json.dumps(handler(request_body(clip, **parameters)))


def test_a_list_of_other_words_changes_nothing(demo_handler):
    """Except last digits of probabilities: drafts depend on measured costs."""
    options = {"return_timestamps": "word", "diarize": True, "group_by_speaker": True, "output": []}
    strange = [f"xylophone {number}" for number in range(2000)]
    asked = ({}, {"hotwords": strange}, {"hotwords": []})
    plain, *others = (json.loads(ask(demo_handler, **options, **hot)) for hot in asked)
    for other in others:
        assert [*parts(options, other)] == [*parts(options, plain)]
        assert not any("heard" in word for word in other["words"])


def test_words_show_what_was_decoded_instead(demo_handler, monkeypatch):
    """A phrase is written whatever the audio; text of the client never is replaced."""
    monkeypatch.setattr(hotwords, "UNSURE", 0.0)
    monkeypatch.setattr(rescoring, "HANDICAP", 1e9)
    plain = json.loads(ask(demo_handler, return_timestamps="word"))
    longest = max((word["word"].strip(" .,?!") for word in plain["words"]), key=len)
    hot = longest.lower() + "s"
    wanted = {"return_timestamps": "word", "hotwords": [hot]}
    answer = json.loads(ask(demo_handler, **wanted))
    new = [word for word in answer["words"] if "heard" in word]
    assert new
    assert hot in answer["text"].lower()
    assert {word["heard"].lower() for word in new} >= {longest.lower()}
    times = [time for word in answer["words"] for time in word["timestamp"]]
    assert times == sorted(times)
    given = json.loads(ask(demo_handler, **wanted, text=plain["text"], diarize=False))
    assert given["text"].split() == plain["text"].split()


@pytest.mark.parametrize(
    ("content", "phrases"),
    [
        ("Smith, John\n\n Žižek \n", ["Smith, John", "Žižek"]),
        ('["Ada", {"text": "Žižek"}]', ["Ada", HotWord(text="Žižek")]),
    ],
)
def test_the_command_line_reads_phrases_from_a_file(content, phrases, tmp_path):
    (tmp_path / "names").write_text(content, encoding="utf-8")
    parser = CommandParser("test", "", ())
    add_parameters(parser)
    given = parameters(parser.parse_args(["--hotwords", str(tmp_path / "names")]))
    assert InferenceConfig.read(given).hotwords == phrases


def test_silence_has_no_hot_words(demo_handler, monkeypatch):
    monkeypatch.setattr(rescoring, "HANDICAP", 1e9)
    quiet = wav_file(1e-3 * np.random.default_rng(0).normal(size=48_000), 16_000)
    for vad_filter in (True, False):
        body = request_body(quiet, hotwords=["Siobhan"], vad_filter=vad_filter)
        answer = demo_handler(body)
        assert "siobhan" not in json.dumps(answer).lower()
