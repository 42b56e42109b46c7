import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from config import REPOSITORY
from tests.helpers.calls import calls_of
from tests.helpers.refusals import refused
from tests.helpers.stand_ins import TIMESTAMPS, StandInEngine, asking, rounded, said_in
from tests.support.tiny_whispers import SMALL, SMALL_ENGLISH, hears_sound, loaded, noise
from whosaid.asr.checkpoint.loading import Assistant, WhisperModels
from whosaid.asr.decoding_plan import Planner
from whosaid.asr.engine.prefill import LanguagePosterior
from whosaid.asr.engine.request import Request
from whosaid.asr.engine.result import DecodeResult
from whosaid.asr.frontend.vad import VadOptions
from whosaid.asr.hotwords import HotWords
from whosaid.asr.language_timeline import LanguageTimeline
from whosaid.asr.output.chunks import ChunkReader
from whosaid.asr.transcriber import Transcriber
from whosaid.audio.decode import AudioLimits, decode_audio
from whosaid.errors import InvalidParameter
from whosaid.scheduling.steps import run_steps
from whosaid.timebase import SAMPLE_RATE, SAMPLES_PER_TOKEN

MODELS = loaded(replace(SMALL, seconds=30), dtype=torch.float32)
ENGLISH_ONLY = loaded(SMALL_ENGLISH, dtype=torch.float32)
CONVERSATION = REPOSITORY / "demo" / "conversation.ogg"
FIRST_WORD, WORDS = 300, 30  # text tokens of the made-up vocabulary, one a word
WRONG_WORD = 299
PAUSE = np.zeros(50 * SAMPLES_PER_TOKEN, np.float32)  # a second


def spoken(word: int, frames: int) -> np.ndarray:
    """Return a word of the recogniser below, whose number is in its level."""
    return np.full(frames * SAMPLES_PER_TOKEN, 0.3 + 0.01 * word, np.float32)


class Recogniser(StandInEngine):
    """Reads the words from their levels, and ends windows inside speech as Whisper does.

    A word that the window's end cuts is left open: announced by its start alone, or with words that
    were misrecognised."""

    def __init__(self, models: WhisperModels = MODELS, misrecognises: bool = False) -> None:
        super().__init__()
        self.special_tokens = models.special_tokens
        self.misrecognises = misrecognises

    def tokens(self, window: np.ndarray) -> list[int]:
        levels = window[::SAMPLES_PER_TOKEN]
        edges = [0, *(np.flatnonzero(np.diff(levels)) + 1), len(levels)]
        tokens: list[int] = []
        for start, stop in itertools.pairwise(edges):
            if levels[start] == 0:
                continue
            begin = self.special_tokens.timestamp_begin + start
            if stop == len(levels) and self.cut(window):
                open_start = tokens[-1] if tokens else begin
                tokens += [begin, WRONG_WORD] if self.misrecognises else [open_start]
                break
            word = round((float(levels[start]) - 0.3) / 0.01)
            tokens += [begin, FIRST_WORD + word, self.special_tokens.timestamp_begin + stop]
        return tokens

    def cut(self, window: np.ndarray) -> bool:
        """Return whether the sound continues at the window's end, by its samples."""
        return bool(window[-1] != 0)


def transcribe(
    samples: np.ndarray, engine: object, models: WhisperModels = MODELS, **options: object
):
    transcriber = Transcriber(models, detect_speech=hears_sound)
    transcriber.engine = engine
    return transcriber.transcribe(samples, transcriber.validate(asking(**options)))


def words_of(chunks) -> list[str]:
    return [word for chunk in chunks for word in chunk.text.split()]


@st.composite
def conversations(draw):
    """Words with gaps of up to a second, neighbours different; texts, and times in frames."""
    lengths = st.tuples(st.integers(15, 50), st.sampled_from([0, 0, 0, 2, 10, 50]))
    spans = draw(st.lists(lengths, min_size=1, max_size=40))
    parts, truth, position = [], [], 0
    for index, (length, gap) in enumerate(spans):
        word = (index * 7) % WORDS
        parts += [spoken(word, length), np.zeros(gap * SAMPLES_PER_TOKEN, np.float32)]
        truth.append((f"word{FIRST_WORD + word - 256}", position, position + length))
        position += length + gap
    return np.concatenate([*parts, np.zeros(10 * SAMPLES_PER_TOKEN, np.float32)]), truth


@given(conversations(), st.integers(4, 30), st.integers(1, 8), st.booleans())
def test_no_word_is_lost_doubled_or_moved_at_seams(
    conversation, chunk_length_s, batch_size, misrecognises
):
    samples, truth = conversation
    options = {"language": "en", "chunk_length_s": chunk_length_s, "batch_size": batch_size}
    transcript = transcribe(samples, Recogniser(misrecognises=misrecognises), **options)
    texts = [(each.text.strip(), each.start, each.end) for each in transcript.chunks]
    heard = [(text, round(start * 50), round(end * 50)) for text, start, end in texts]
    assert heard == truth


class Stops(Recogniser):
    """Writes the first words of a window alone, and says that they last to its end: by timestamps,
    or else by alignment."""

    def __init__(self, most: int, timestamps: bool = True) -> None:
        super().__init__()
        self.most, self.timestamps = most, timestamps

    def tokens(self, window: np.ndarray) -> list[int]:
        begin, end = TIMESTAMPS, TIMESTAMPS + len(window) // SAMPLES_PER_TOKEN
        tokens = [token for token in super().tokens(window) if token < begin][: self.most]
        return [begin, *tokens, end] if self.timestamps else tokens

    def decode(self, request: Request) -> DecodeResult:
        """Attend to each word's place, for the last word to all that follows."""
        result = super().decode(request)
        whole = said_in(request.samples, Recogniser.tokens(self, request.samples))
        places = [at for at, token in enumerate(whole.tokens) if token < TIMESTAMPS]
        attention = np.zeros_like(result.attention)
        rows = [at for at, token in enumerate(result.tokens) if token < TIMESTAMPS]
        for row, place in zip(rows, places, strict=False):
            attention[row] = whole.attention[place]
        return replace(result, attention=attention)


@pytest.mark.parametrize("timestamps", [True, False])
@pytest.mark.parametrize(("most", "seconds"), [(2, 15), (4, 30), (12, 30)])
def test_speech_behind_the_end_of_a_text_is_written(most, seconds, timestamps):
    """In order, each word once and in few windows. Only stretches shorter than 1.5 s may be
    missing: one word between two others, of which a word with digits may last as long as two."""
    words = [index * 7 % WORDS for index in range(seconds)]
    pause = np.zeros(8 * SAMPLES_PER_TOKEN, np.float32)
    samples = np.concatenate([part for word in words for part in (spoken(word, 42), pause)])
    recogniser = Stops(most, timestamps)
    transcript = transcribe(samples, recogniser, language="en", timestamps=timestamps)
    numbers = [int(word.removeprefix("word")) for word in words_of(transcript.chunks)]
    heard = [number + 256 - FIRST_WORD for number in numbers]
    places, left = [], list(enumerate(words))
    for word in heard:
        while left[0][1] != word:
            left.pop(0)
        places.append(left.pop(0)[0])
    assert max(np.diff([-1, *places, len(words)])) <= 2
    assert len(places) >= 0.65 * len(words)
    assert transcript.unwritten == ()
    pairs = itertools.pairwise(transcript.chunks)
    assert all(one.end <= two.start + 0.01 for one, two in pairs)
    assert sum(len(each.samples) for each in recogniser.requests) <= 5 * len(samples)


def test_speech_that_nobody_writes_is_told():
    """A word that is never written, six seconds long, between others."""

    class Misses(Recogniser):
        def tokens(self, window: np.ndarray) -> list[int]:
            found = super().tokens(window)
            missed = FIRST_WORD + 9
            places = zip([0, *found], found, [*found[1:], 0], strict=False)
            return [near[1] for near in places if missed not in near]

    said = [spoken(1, 40), spoken(2, 40), PAUSE, spoken(9, 300), PAUSE, spoken(3, 40), PAUSE]
    recogniser = Misses()
    transcript = transcribe(np.concatenate(said), recogniser, language="en")
    assert words_of(transcript.chunks) == ["word45", "word46", "word47"]
    (unwritten,) = transcript.unwritten
    assert (unwritten.start, unwritten.end) == pytest.approx((2.6, 8.6), abs=0.1)
    (warning,) = transcript.unwritten_warning
    assert warning == "unwritten: 6.0 s of detected speech have no words"
    assert len(recogniser.requests) <= 1 + 2 + 4  # the recording; the word's halves; their halves


def test_without_a_detector_nothing_is_called_unwritten():
    samples = np.concatenate([spoken(index, 48) for index in range(8)])
    transcriber = Transcriber(MODELS, detect_speech=hears_sound)
    transcriber.engine = recogniser = Stops(2)
    transcript = transcriber.transcribe(samples, asking(language="en", vad=None))
    assert (len(recogniser.requests), transcript.unwritten) == (1, ())


def test_the_stand_ins_windows_do_end_inside_words():
    """Otherwise the property above would hold for lack of seams."""
    samples = np.concatenate([spoken(index % WORDS, 50) for index in range(60)])
    recogniser = Recogniser()
    transcript = transcribe(samples, recogniser, language="en", chunk_length_s=10)
    assert len(recogniser.batches) > len(samples) // (10 * SAMPLE_RATE) + 1
    # The last word ends with the audio: announced, never closed.
    assert len(words_of(transcript.chunks)) == 60 - 1


def test_words_are_aligned_with_what_is_not_decoded_again(monkeypatch):
    """Else the last word would run on into the next window."""
    calls = calls_of(monkeypatch, ChunkReader, "chunks")
    samples = np.concatenate([spoken(index % WORDS, 50) for index in range(60)])
    transcribe(samples, Recogniser(misrecognises=True), language="en")
    seams = [each for each in calls if each[1].stop != each[1].region_stop]
    assert seams
    for _, _, segments, heard, _ in seams:
        assert len(heard) == round(segments[-1].end * SAMPLE_RATE)


def test_unfinished_words_that_nothing_follows_are_kept():
    class Breaks(Recogniser):
        def tokens(self, window: np.ndarray) -> list[int]:
            begin = self.special_tokens.timestamp_begin
            end = len(window) // SAMPLES_PER_TOKEN
            return [begin, 301, begin + end - 5, begin + end - 5, 302]

    chunks = transcribe(np.append(spoken(1, 75), PAUSE), Breaks(), language="en").chunks
    assert words_of(chunks) == ["word45", "word46"]
    assert chunks[-1].end == pytest.approx(1.8, abs=0.03)  # where the window ends


@pytest.mark.parametrize("multilingual", [True, False])
def test_batch_size_changes_no_answer(multilingual):
    models = loaded(SMALL, seed=2)
    parts = [np.append(noise(2.5, seed), np.zeros(6400, np.float32)) for seed in range(4)]
    samples = np.concatenate(parts)
    transcriber = Transcriber(models, detect_speech=hears_sound)
    asked = [asking(multilingual=multilingual, batch_size=size) for size in (1, 3)]
    one, three = (transcriber.transcribe(samples, each) for each in asked)
    assert rounded(one) == rounded(three)
    assert one.language in models.special_tokens.languages
    assert one.speech[0] == (0.0, pytest.approx(2.5, abs=0.04))
    assert one.stats.tokens > 0


def test_without_timestamps_a_window_is_a_chunk():
    class Talks(Recogniser):
        def tokens(self, window: np.ndarray) -> list[int]:
            return [301, 302] * 5

    samples = np.concatenate([spoken(0, 400), PAUSE, spoken(0, 400)])
    transcript = transcribe(samples, Talks(), language="en", timestamps=False, chunk_length_s=10)
    assert [chunk.text for chunk in transcript.chunks] == [" word45 word46" * 5] * 2
    first, second = transcript.chunks
    assert 8.3 <= first.end < second.start <= 8.7
    assert second.end == 17.0


@pytest.mark.parametrize(
    ("no_speech_prob", "log_prob", "kept"), [(0.9, -1.5, 0), (0.9, -0.5, 1), (0.3, -1.5, 1)]
)
def test_a_window_is_dropped_if_silent_and_unsure(no_speech_prob, log_prob, kept):
    class Doubts(Recogniser):
        def decode(self, request: Request) -> DecodeResult:
            result = super().decode(request)
            return replace(result, no_speech_prob=no_speech_prob, log_probs=(log_prob,) * 4)

    samples = np.append(spoken(3, 50), PAUSE)
    assert len(transcribe(samples, Doubts(), language="en").chunks) == kept


@pytest.mark.parametrize("given", [None, "en"])
def test_an_empty_transcript_has_only_a_given_language(given):
    """The detector takes noise for speech, and the model then finds none."""

    class HearsNothing(Recogniser):
        def detect_language(self, _window: np.ndarray) -> LanguagePosterior:
            return LanguagePosterior({"zh": 0.4}, 0.9)

        def decode(self, request: Request) -> DecodeResult:
            return replace(super().decode(request), no_speech_prob=0.9, log_probs=(-1.5,))

    transcript = transcribe(np.append(spoken(3, 50), PAUSE), HearsNothing(), language=given)
    assert transcript.chunks == ()
    assert (transcript.language, transcript.language_probability) == (given, None)


def test_words_without_duration_are_dropped():
    class Babbles(Recogniser):
        def tokens(self, samples: np.ndarray) -> list[int]:
            at = self.special_tokens.timestamp_begin
            return [at, 301, at + 20, at + 20, 302, at + 20, at + 30, 303, at + 40]

    transcript = transcribe(np.append(spoken(3, 50), PAUSE), Babbles(), language="en")
    assert [chunk.text for chunk in transcript.chunks] == [" word45", " word47"]


class Guesses(Recogniser):
    """Finds no speech in the first windows, and another language there."""

    def __init__(self, answers: list[tuple[str, float]]) -> None:
        super().__init__()
        self.answers = answers

    def detect_language(self, _window: np.ndarray) -> LanguagePosterior:
        language, no_speech = self.answers.pop(0)
        return LanguagePosterior({language: 0.7}, no_speech)


@pytest.mark.parametrize(
    ("answers", "language"),
    [
        ([("zh", 0.1)], "zh"),
        ([("es", 0.9), ("de", 0.2), ("zh", 0.1)], "de"),
        ([("es", 0.9), ("de", 0.8), ("zh", 0.7)], "es"),
    ],
)
def test_the_first_window_with_speech_sets_the_language(answers, language):
    samples = np.tile(np.append(spoken(0, 400), PAUSE), 3)
    transcript = transcribe(samples, Guesses(answers), chunk_length_s=10)
    assert (transcript.language, transcript.language_probability) == (language, 0.7)


def test_every_window_is_decoded_in_the_language_found():
    class Chinese(Recogniser):
        def detect_language(self, _window):
            return LanguagePosterior({"zh": 0.9}, 0.0)

    recogniser = Chinese()
    samples = np.concatenate([spoken(index % 9, 50) for index in range(40)])
    transcribe(samples, recogniser, chunk_length_s=10)
    prompts = {request.prompt for request in recogniser.requests}
    assert prompts == {MODELS.special_tokens.prompt("zh", "transcribe", timestamps=True)}


class Bilingual(Recogniser):
    """Words below the tenth are German, and so is the window in which most words are."""

    def detect_language(self, samples: np.ndarray) -> LanguagePosterior:
        german = float(((samples > 0) & (samples < 0.395)).sum() / max(1, (samples > 0).sum()))
        share = 0.005 + 0.99 * german
        return LanguagePosterior({"en": 1 - share, "de": share}, 0.0, torch.zeros(1, 1, 1))

    def decode(self, request: Request) -> DecodeResult:
        heard = self.detect_language(request.samples)
        return replace(
            super().decode(request), language=heard.language, language_probability=heard.probability
        )


def bilingual_speech() -> np.ndarray:
    gap = np.zeros(25 * SAMPLES_PER_TOKEN, np.float32)
    words = [*range(10, 18), *range(8), *range(18, 26)]
    return np.concatenate([np.append(spoken(word, 50), gap) for word in words])


def test_every_part_is_decoded_and_marked_in_its_language():
    answers = []
    for batch_size in (1, 3, 24):
        recogniser = Bilingual()
        options = {"multilingual": True, "batch_size": batch_size}
        transcript = transcribe(bilingual_speech(), recogniser, **options)
        assert (transcript.language, transcript.warnings) == ("en", ())
        assert transcript.language_probability == pytest.approx(0.995)
        spoken_in = [chunk.language for chunk in transcript.chunks]
        assert spoken_in == ["en"] * 8 + ["de"] * 8 + ["en"] * 8
        prompt_of = MODELS.special_tokens.prompt
        prompts = [prompt_of(code, "transcribe", timestamps=True) for code in ("en", "de", "en")]
        assert [request.prompt for request in recogniser.requests] == prompts
        answers.append(transcript)
    assert answers[0] == answers[1] == answers[2]


def test_translations_are_read_as_english():
    timeline = LanguageTimeline((0, 4 * SAMPLE_RATE), ("en", "de"), "en", 0.9)
    plan = Planner(MODELS, asking(task="translate")).plan(timeline)
    assert {plan.at(at).reader.language for at in (0, 5 * SAMPLE_RATE)} == {"en"}
    spoken = Planner(MODELS, asking()).plan(timeline)
    assert [spoken.at(at).reader.language for at in (0, 5 * SAMPLE_RATE)] == ["en", "de"]


@pytest.mark.parametrize(
    ("models", "language", "reason"),
    [(MODELS, "German", "the language was given"), (ENGLISH_ONLY, None, "the model is English")],
)
def test_a_known_language_is_not_detected(models, language, reason):
    options = {"multilingual": True, "language": language}
    transcript = transcribe(bilingual_speech(), Bilingual(models), models, **options)
    expected = "de" if language else "en"
    assert {chunk.language for chunk in transcript.chunks} == {transcript.language} == {expected}
    (warning,) = transcript.warnings
    assert warning.startswith(f"multilingual: {reason}")


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({}, True),
        ({"language": "en"}, False),
        ({"multilingual": True}, False),
        ({"prompt": "word3"}, False),
    ],
)
def test_an_unexpected_second_language_is_warned_of(options, warned):
    transcript = transcribe(bilingual_speech(), Bilingual(), chunk_length_s=12, **options)
    assert [text[:14] for text in transcript.warnings] == ["language: from"] * warned
    if warned:
        assert "from 12" in transcript.warnings[0] or "from 11" in transcript.warnings[0]
        assert "German (de)" in transcript.warnings[0]


def test_without_the_filter_everything_is_decoded():
    """In consecutive windows, silence too; larger padding decodes more."""
    pause = np.zeros(4 * SAMPLE_RATE, np.float32)
    samples = np.concatenate([pause, spoken(1, 50), pause, spoken(2, 50), pause])
    decoded = {}
    options = {"plain": VadOptions(), "padded": VadOptions(speech_pad_ms=1000), "all": None}
    for name, vad in options.items():
        recogniser = Recogniser()
        transcript = transcribe(samples, recogniser, language="en", chunk_length_s=6, vad=vad)
        decoded[name] = sum(len(request.samples) for request in recogniser.requests)
        assert words_of(transcript.chunks) == ["word45", "word46"]
        assert (transcript.speech == ((0.0, 14.0),)) is (vad is None)
    assert decoded["plain"] / SAMPLE_RATE == pytest.approx(2 * 1.6, abs=0.1)
    assert decoded["padded"] / SAMPLE_RATE == pytest.approx(2 * 3.0, abs=0.1)
    assert decoded["all"] == len(samples)


def test_the_detector_hears_under_the_options():
    transcriber = Transcriber(MODELS)
    transcriber.engine = StandInEngine()
    samples = decode_audio(CONVERSATION.read_bytes(), SAMPLE_RATE, AudioLimits(600, 2**29)).samples
    heard = []
    for vad in (VadOptions(0.9), VadOptions(), VadOptions(0.05, min_silence_duration_ms=3000)):
        options = transcriber.validate(asking(vad=vad))
        found = run_steps(transcriber.start(samples[: 40 * SAMPLE_RATE], options))
        heard.append(sum(stop - start for start, stop in found._speech))
    assert 0 < heard[0] < heard[1] < heard[2]


def test_an_end_threshold_above_the_speech_threshold_is_refused():
    transcriber = Transcriber(MODELS, detect_speech=hears_sound)
    for vad in (VadOptions(0.4, 0.45), VadOptions(None, 0.55)):
        with refused("INVALID_PARAMETER", "vad_parameters"):
            transcriber.validate(asking(vad=vad))
    transcriber.validate(asking(vad=VadOptions(None, 0.5)))


@pytest.mark.parametrize(("log_prob", "kept"), [(-0.1, True), (-3.0, False)])
def test_loud_sound_is_speech_if_the_model_is_sure(log_prob, kept):
    """The detector finds no speech: either all of the recording is kept or nothing."""

    class Sure(Recogniser):
        def decode(self, request: Request) -> DecodeResult:
            return replace(super().decode(request), text_logprob=log_prob)

    samples = np.concatenate([spoken(index % WORDS, 30) for index in range(40)])
    recogniser = Sure()
    transcriber = Transcriber(MODELS, detect_speech=lambda _: ())
    transcriber.engine = recogniser
    transcript = transcriber.transcribe(samples, transcriber.validate(asking(chunk_length_s=10)))
    assert len(recogniser.requests) > 1
    assert all(request.once for request in recogniser.requests)
    assert bool(transcript.chunks) is bool(transcript.speech) is kept
    assert transcript.language == ("en" if kept else None)


def prompts_given(
    models: WhisperModels = MODELS, **options: object
) -> tuple[list[tuple[int, ...]], tuple[str, ...]]:
    recogniser = Recogniser(models)
    samples = np.concatenate([spoken(index % WORDS, 50) for index in range(40)])
    options |= {"language": "en", "chunk_length_s": 10}
    transcript = transcribe(samples, recogniser, models, **options)
    prompts = [request.prompt for request in recogniser.requests]
    assert len(prompts) > 1
    return prompts, transcript.warnings


def test_every_window_is_told_the_prompt_and_no_hot_words():
    prompts, warnings = prompts_given(prompt="word3 word4", hotwords=HotWords(("word1", "word2")))
    plain = MODELS.special_tokens.prompt("en", "transcribe", timestamps=True)
    (told,) = {prompt[: -len(plain)] for prompt in prompts}
    assert {prompt[-len(plain) :] for prompt in prompts} == {plain}
    assert told[0] == MODELS.special_tokens.start_of_previous
    assert MODELS.tokenizer.decode(told[1:]) == " word3 word4"
    assert warnings == ()


def test_names_of_special_tokens_in_a_prompt_are_text():
    prompts, _ = prompts_given(prompt="<|endoftext|><|startoftranscript|> word1")
    plain = MODELS.special_tokens.prompt("en", "transcribe", timestamps=True)
    for prompt in prompts:
        assert max(prompt[1 : -len(plain)]) < MODELS.special_tokens.end_of_text


def test_too_long_a_prompt_keeps_its_end():
    prompts, (warning,) = prompts_given(prompt="word7 " + "word5 " * 90)
    most = MODELS.special_tokens.longest_previous
    plain = MODELS.special_tokens.prompt("en", "transcribe", timestamps=True)
    assert {len(prompt) for prompt in prompts} == {1 + most + len(plain)}
    assert MODELS.tokenizer.decode(prompts[0][1 : 1 + most]).endswith("word5")
    assert warning.startswith(f"prompt: {most} tokens fit")


def test_a_model_that_knows_no_prompts_refuses_them_but_takes_hot_words():
    models = replace(MODELS, special_tokens=replace(MODELS.special_tokens, start_of_previous=None))
    prompts_given(models, hotwords=HotWords(("word5",)))
    with refused("UNSUPPORTED", "prompt"):
        prompts_given(models, prompt="word5")


@pytest.mark.parametrize("language", ["en", "EN", "English", None])
def test_an_english_only_model_accepts_english(language):
    Transcriber(ENGLISH_ONLY).validate(asking(language=language))
    recogniser = Recogniser(ENGLISH_ONLY)
    transcript = transcribe(spoken(0, 50), recogniser, ENGLISH_ONLY, language=language)
    assert transcript.language == "en"


@pytest.mark.parametrize(
    ("models", "options", "message"),
    [
        (ENGLISH_ONLY, {"language": "German"}, "language: the model is English-only"),
        (ENGLISH_ONLY, {"task": "translate"}, "task: the model is English-only"),
        (MODELS, {"language": "klingon"}, "language: should be a language that Whisper knows"),
        (MODELS, {"language": "Dutch"}, "language: the model does not know Dutch"),
        (
            replace(MODELS, special_tokens=replace(MODELS.special_tokens, tasks={"transcribe": 1})),
            {"task": "translate"},
            "task",
        ),
    ],
)
def test_refusals_name_the_parameter(models, options, message):
    with pytest.raises(InvalidParameter, match=f"INVALID_PARAMETER: {message}"):
        Transcriber(models).validate(asking(**options))


def assisted_by(only_language: str | None) -> WhisperModels:
    return replace(MODELS, assistant=Assistant("tiny", MODELS.model, True, only_language))


@pytest.mark.parametrize(
    ("models", "options", "drafts", "warning"),
    [
        (MODELS, {}, False, None),
        (MODELS, {"assisted": True}, False, "no assistant model is loaded"),
        (assisted_by(None), {}, True, None),
        (assisted_by(None), {"live": True}, False, None),
        (assisted_by(None), {"assisted": False}, False, None),
        (assisted_by(None), {"assisted": True, "language": "de"}, True, None),
        (assisted_by(None), {"num_beams": 5}, False, None),
        (assisted_by(None), {"num_beams": 5, "assisted": True}, False, "beam search does not"),
        (assisted_by(None), {"temperature": 0.5}, False, None),
        (assisted_by("en"), {"assisted": True}, True, None),
        (assisted_by("en"), {"assisted": True, "language": None}, True, None),
        (assisted_by("en"), {"language": "German"}, False, None),
        (assisted_by("en"), {"assisted": True, "language": "German"}, False, "knows only English"),
    ],
)
def test_an_assistant_drafts_or_the_transcript_warns(models, options, drafts, warning):
    recogniser = Recogniser(models)
    transcript = transcribe(spoken(0, 50), recogniser, models, **{"language": "en"} | options)
    assert [options.assisted for options in recogniser.options] == [drafts]
    assert [warning in text for text in transcript.warnings] == ([True] if warning else [])


@pytest.mark.parametrize(("only", "drafts"), [(None, True), ("en", False)])
def test_a_one_language_assistant_drafts_no_bilingual_recording(only, drafts):
    models = assisted_by(only)
    recogniser = Bilingual(models)
    transcribe(bilingual_speech(), recogniser, models, multilingual=True, assisted=True)
    assert [options.assisted for options in recogniser.options] == [drafts]
