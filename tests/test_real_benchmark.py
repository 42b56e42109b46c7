"""The benchmark on anybody's recordings: scores, kept results, and engines that agree."""

import json
import re
from multiprocessing import get_context
from pathlib import Path

import jiwer
import numpy as np
import pytest
import soundfile

from benchmarks.counts import Count
from benchmarks.options import DEFAULT, FORMS, read_bench, run
from benchmarks.pages import NOTHING
from benchmarks.real import bench
from benchmarks.real.converted import convert
from benchmarks.real.engines import Setting, Spec
from benchmarks.real.manifest import Recording, load_manifests
from benchmarks.real.scoring import score
from config import DEMO_MODELS
from tests.support.speech import Voice, speak
from whosaid.errors import InvalidAudio
from whosaid.timebase import SAMPLE_RATE

SENTENCE = "is there a hotel near the museum"


def english(name: str, text: str = "red green blue grey", reference: str = "truth") -> Recording:
    return Recording(Path(name), "en", text, reference)


def manifest(folder: Path, *entries: object) -> Path:
    path = folder / "manifest.json"
    path.write_text(json.dumps(entries))
    return path


def test_every_form_of_a_manifest_is_read_alike(tmp_path):
    for name in ("a.wav", "b.wav"):
        (tmp_path / name).touch()
    lines = tmp_path / "list.jsonl"
    lines.write_text(
        '{"path": "a.wav", "name": "call-1", "parameters": {"language": "de"}}\n\n'
        '{"path": "b.wav", "text": "oui", "reference": "large", "language": null}\n'
    )
    last = {"audio": "b.wav", "text": "oui", "reference": "large"}
    listed = manifest(tmp_path, {"audio": "a.wav", "language": "de"}, last)
    other = Recording(tmp_path / "b.wav", None, "oui", "large")
    expected = [Recording(tmp_path / "a.wav", "de"), other]
    for each in (lines, listed):
        assert load_manifests([each]) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'[{"audio": "no.wav"}]', r"entry 1: there is no .*/no\.wav"),
        (b'["a.wav"]', r'entry 1: should be an object with a "path", such as \{"path": "talk.wav"'),
        (
            b'[{"path": "a.wav"}, {"audio": "a.wav", "txt": ""}]',
            "entry 2: 'txt' is none of .*; did",
        ),
        (b'{"path": "a.wav", "text": 7}', "line 1: text: should be text"),
        (b'{"path": "a.wav"}\n{"path": "a.wav"}', "more than one recording is called a.wav"),
        (b'{"path": "a.wav"}\n{"path": "b.wav"', "line 2: is not JSON; write a line"),
        (b'[{"path": "a.wav"},\n{"path" "b.wav"}]', "line 2: is not JSON; write a line"),
        (b"\xff", "is not text in UTF-8"),
    ],
)
def test_a_wrong_manifest_is_one_line(text, said, tmp_path):
    (tmp_path / "a.wav").touch()
    (tmp_path / "list.jsonl").write_bytes(text)
    with pytest.raises(ValueError, match=said) as raised:
        load_manifests([tmp_path / "list.jsonl"])
    assert "\n" not in str(raised.value)
    with pytest.raises(ValueError, match="No such file"):
        load_manifests([tmp_path / "nothing.json"])


def test_an_unreadable_recording_is_named(tmp_path):
    (tmp_path / "a.wav").write_bytes(b"no audio")
    with pytest.raises(InvalidAudio, match=r"a\.wav: no audio"):
        Recording(tmp_path / "a.wav").samples()


def test_an_engine_is_a_form_with_beams_and_a_precision():
    assert Spec.parse("batched-5@int8") == Spec("batched-5@int8", "batched", 5, "int8")
    assert Spec.parse("ours@bfloat16") == Spec("ours@bfloat16", "ours", 1, "bfloat16")
    assert [Spec.parse(name).beams for name in DEFAULT] == [1, 5, 1, 5, 1, 5, 1]
    assert {Spec.parse(name).form for name in DEFAULT} == set(FORMS)


@pytest.mark.parametrize("text", ["theirs", "ours-", "ours-x", "ours@", ""])
def test_a_text_that_is_no_engine_is_refused(text):
    with pytest.raises(ValueError, match="engine"):
        Spec.parse(text)


def test_english_is_scored_by_its_own_normaliser():
    recording = english("a", "The colour of two Hats isn't red.")
    assert score(recording, "the color of 2 hats is not red") == Count(0, 8)
    assert score(Recording(Path("a"), "fr", "Deux l'homme!"), "deux l homme").errors == 0


def test_errors_are_those_of_jiwer():
    random = np.random.default_rng(0)
    for _ in range(50):
        sizes = (random.integers(1, 9) for _ in range(2))
        expected, found = (" ".join(random.choice(list("abcdef"), size)) for size in sizes)
        rate = score(Recording(Path("x"), "fr", expected), found).rate
        assert rate == pytest.approx(jiwer.wer(expected, found))


def test_words_in_silence_count_as_errors():
    assert score(english("a", ""), "Thank you. Thank you.") == Count(4, 0)
    assert score(english("a", ""), " ...") == Count(0, 0)
    assert score(english("a"), "") == Count(4, 4)


def test_languages_without_spaces_are_scored_by_character():
    assert score(Recording(Path("a"), "zh", "你好、世界"), "你好世间。") == Count(1, 4)


class Repeats:
    """An engine that writes its own name, and the time of `Repeats.now`."""

    now = "first"

    def __init__(self, name, *_):
        self.name = name

    def call(self, method, recording):
        return f"{self.name} {self.now}", 1.0

    def close(self):
        pass


@pytest.fixture
def measure(tmp_path, monkeypatch):
    """Runs the command on two recordings by stand-ins of engines; the texts that it has kept."""
    for name in ("a.wav", "b.wav"):
        soundfile.write(tmp_path / name, np.zeros(SAMPLE_RATE), SAMPLE_RATE)
    path = manifest(tmp_path, *({"path": name, "text": "red"} for name in ("a.wav", "b.wav")))
    output = tmp_path / "kept.json"

    monkeypatch.setattr(bench, "Apart", Repeats)
    monkeypatch.setattr(bench, "setting_of", lambda _: Setting(tmp_path, tmp_path, "cpu"))

    def run_with(*options: str, now: str) -> dict[str, dict[str, str]]:
        monkeypatch.setattr(Repeats, "now", now)
        asked = ["--manifest", str(path), "--model", "whisper", "--output", str(output), *options]
        assert run(read_bench(["real", *asked])) == 0
        answers = json.loads(output.read_text())["answers"]
        return {key: {of: it["text"] for of, it in texts.items()} for key, texts in answers.items()}

    return run_with


def test_a_run_replaces_what_it_measures_and_nothing_else(measure):
    measure("--engines", "ours", now="first")
    kept = measure("--engines", "batched", now="second")
    batched = {"a.wav": "batched second", "b.wav": "batched second"}
    assert kept == {"ours": {"a.wav": "ours first", "b.wav": "ours first"}, "batched": batched}
    kept = measure("--engines", "ours", now="third")
    assert kept["ours"] == {"a.wav": "ours third", "b.wav": "ours third"}
    assert kept["batched"]["a.wav"] == "batched second"
    kept = measure("--engines", "batched", "--fresh", now="fourth")
    assert kept == {"batched": {"a.wav": "batched fourth", "b.wav": "batched fourth"}}


def test_other_recording_of_the_same_name_is_refused(measure, tmp_path, capsys):
    measure("--engines", "ours", now="first")
    soundfile.write(tmp_path / "a.wav", np.zeros(2 * SAMPLE_RATE), SAMPLE_RATE)
    with pytest.raises(AssertionError):
        measure("--engines", "batched", now="second")
    assert "a.wav lasts 2.000 s; the earlier results have another" in capsys.readouterr().err


@pytest.fixture(scope="module")
def spoken(tmp_path_factory) -> Path:
    """A manifest of one sentence that the demo's model recognises."""
    folder = tmp_path_factory.mktemp("spoken")
    samples = speak(Voice("espeak", "f5", "en-us", 50, 160), SENTENCE).samples
    soundfile.write(folder / "sentence.wav", samples, SAMPLE_RATE)
    return manifest(folder, {"audio": "sentence.wav", "language": "en", "text": SENTENCE})


@pytest.fixture
def imported_once(monkeypatch) -> None:
    """Engines' processes are forked from one that has imported what they need."""
    forks = get_context("forkserver")
    forks.set_forkserver_preload(["faster_whisper", "handler", "transformers.pipelines"])
    monkeypatch.setattr("benchmarks.apart.get_context", lambda _: forks)


@pytest.mark.reliability
@pytest.mark.slow
def test_engines_recognise_a_sentence_and_failures_are_left_out(
    spoken, tmp_path, monkeypatch, capsys, imported_once
):
    output = tmp_path / "real.json"
    options = ["--manifest", spoken, "--model", DEMO_MODELS / "asr", "--output", output]
    engines = ["ours", "sequential@nope", "batched", "sequential-5", "pipeline"]
    arguments = [*options, "--engines", *engines]
    assert run(read_bench(["real", *map(str, arguments)])) == 0
    printed = capsys.readouterr()
    assert re.search(r"^left out: sequential@nope: .*compute type.*$", printed.err, re.MULTILINE)
    results = json.loads(output.read_text())
    engines.remove("sequential@nope")
    assert list(results["answers"]) == engines
    (recording,) = load_manifests([spoken])
    for name, answers in results["answers"].items():
        answer = answers["sentence.wav"]
        # The demo's model may add a word without timestamps, which it was not trained for, and
        # where faster-whisper's fallback samples.
        may_add = name in ("batched", "sequential-5")
        assert score(recording, answer["text"]).errors <= may_add, name
    assert (tmp_path / "real.md").is_file()
    assert "<!--" not in printed.out
    assert NOTHING not in printed.out


def test_weights_are_converted_once(tmp_path, whisper_folder):
    first = convert(whisper_folder, tmp_path)
    files = {path.name for path in first.iterdir()}
    assert {"model.bin", "tokenizer.json", "preprocessor_config.json"} <= files
    written = (first / "model.bin").stat().st_mtime_ns
    assert convert(whisper_folder, tmp_path) == first
    assert (first / "model.bin").stat().st_mtime_ns == written
