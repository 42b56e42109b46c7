"""The command lines have a common style."""

import argparse

import pytest

import deploy
from config import ModelSettings
from whosaid.cli import __main__ as check
from whosaid.cli.__main__ import COMMANDS, function
from whosaid.cli.options import VARIABLES, option_name, parameters
from whosaid.cli.parser import model
from whosaid.server.options import SETTINGS
from whosaid.server.options import read as read_serve
from whosaid.server.settings import ServerSettings
from whosaid.transcribe.options import read_demo, read_transcribe


def refused(capsys, read, *arguments: str) -> str:
    """The one line that a wrong command line ends with; its status is 2."""
    with pytest.raises(SystemExit, match="2"):
        read(list(arguments))
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert printed.out == ""
    return line


BOTH = [
    ("--ouput-format srt", "unknown option --ouput-format; did you mean --output-format?"),
    ("--outputformat=srt", "unknown option --outputformat; did you mean --output-format?"),
    ("--lang de", "unknown option --lang; did you mean --language?"),
    ("-x", "unknown option -x ("),
    ("--output_format str", "'str' is none of json, .*; did you mean srt?"),
    ("--task Translate", "--task: 'Translate' is none of .*; did you mean translate?"),
    ("--num-speakers 0", "--num-speakers: should be a whole number, at least 1"),
    ("--num-speakers 1e9", "--num-speakers: should be a whole number"),
    ("--url 127.0.0.1:8000", "--url: should begin with http:// or https://"),
    ("--url http://[::1", "--url: is not an address"),
    ("--speaker-names Katie,", "--speaker-names: should be LABEL=NAME or NAME"),
    ("-", "-: beside other recordings needs --output-dir"),
    ("- -", "-: standard input can be read only once"),
    ("- --text -", "-: standard input can be read only once"),
    ("--parallel 2", "--parallel: needs --url"),
    ("--parallel 0 --url http://a", "--parallel: should be a whole number, from 1 to 64"),
    ("--embedded --model a/b", "--embedded: cannot be used with other models"),
    ("--url http://a --embedded", "--embedded: the server of --url has its own models"),
    ("--url http://a --model a/b", "--model: the server of --url has its own models"),
    ("--text /no/such/script.txt", "--text: /no/such/script.txt: No such file"),
    (f"b.mp3 --text {__file__}", "--text: needs exactly one recording"),
    ("b.mp3 --speaker-names A=B", "--speaker-names: needs exactly one recording"),
    ("--job", "--job: needs --url"),
]
TRANSCRIBE = [
    ("", "FILE_OR_FOLDER"),
    ("a --realtime", "--realtime: needs --live"),
    ("a --microphone x", "--microphone: needs --live"),
    ("--live a b", "--live: takes one file"),
    ("--live --task translate", "--task: cannot be used with --live"),
    ("--live --temperature 0", "--temperature: cannot be used with --live"),
    ("--live --no-vad-filter", "--no-vad-filter: cannot be used with --live"),
    ("--live --force", "--force: cannot be used with --live"),
    ("--live --realtime", "--realtime: needs a file"),
    ("--live - --realtime", "--realtime: needs a file"),
    ("--live - --microphone x", "--microphone: cannot be used with a file"),
]
DEMO = [("--output-format srt,vtt", "several need --output-dir")]
DEMO.append(("--parallel 2 --url http://a", "--parallel: needs --output-dir"))
SERVE = [
    ("--data_dir jobs --no-jobs", "--no-jobs: cannot be used with --data-dir"),
    ("--key-file x", "; did you mean --api-key-file?"),
    ("--prot 1", "; did you mean --port?"),
]
DEPLOY = [
    ("--env DTYPE", "--env: not of the form NAME=VALUE"),
    ("--env HF_TOKEN=hf_shown", "set ENDPOINT_HF_TOKEN in the environment"),
    ("--env api_key=hf_shown", "set ENDPOINT_API_KEY in the environment"),
    ("--env ASR_MODEL=a/b", "ASR_MODEL is given by --model"),
    ("--env DTYPE=float8", "--env: DTYPE: should be 'auto'"),
    ("--env max_audio_seconds=-1", "--env: MAX_AUDIO_SECONDS: should be greater"),
    ("--env MAX_ROWS=many", "--env: MAX_ROWS: should be a valid integer"),
    ("--env MAX_AUDIO_SECOND=60", "did you mean MAX_AUDIO_SECONDS?"),
    ("--asr-model a", "--asr-model: neither a hub id"),
    ("--diarization larg-v3", "; did you mean openai/whisper-large-v3?"),
    ("--repository handler", "--repository: should be the id of a repository"),
    ("--scale-to-zer 15", "did you mean --scale-to-zero?"),
    ("--container custom", "needs --image"),
    ("--image registry/ours:1", "needs --image"),
    ("--scale-to-zero 15 --min-replica 1", "--scale-to-zero needs"),
    ("--scale-to-zero 0", "--scale-to-zero: should be a whole number"),
    ("--min-replica 2", "--max-replica must be at least --min-replica"),
    ("--dry-run --no-wait", "not allowed with"),
]
ENDPOINT = "name --repository me/handler --asr-model a/b"
SETUP = [("--tolkit", "did you mean --toolkit?"), ("nope", "unrecognized arguments: nope")]
REFUSED = [
    *((read_transcribe, f"talk.mp3 {line}", said) for line, said in BOTH),
    *((read_transcribe, line, said) for line, said in TRANSCRIBE),
    *((read_demo, line, said) for line, said in DEMO),
    *((read_serve, line, said) for line, said in SERVE),
    *((deploy.read, f"{ENDPOINT} {line}", said) for line, said in DEPLOY),
    *((check.read_setup, line, said) for line, said in SETUP),
]


@pytest.mark.parametrize(("read", "line", "said"), REFUSED)
def test_wrong_option_gives_one_line_with_the_nearest(capsys, read, line, said):
    told = refused(capsys, read, *line.split())
    before, _, after = said.partition(".*")
    assert before in told
    assert after in told
    assert "hf_shown" not in told
    assert told.startswith(("scripts/", "deploy.py: "))
    assert told.endswith("--help lists the options)")


# Options of openai/whisper, whisperX and faster-whisper's commands, and guesses, with the options
# that a suggestion may name.
GUESSES = {
    **dict.fromkeys(
        ("--model_dir", "--best_of", "--patience", "--suppress_tokens", "--threads"), ()
    ),
    **dict.fromkeys(("--condition_on_previous_text", "--clip_timestamps", "--chunk_size"), ()),
    **dict.fromkeys(("--hallucination_silence_threshold", "--batched", "--quiet", "--stream"), ()),
    **dict.fromkeys(("--diarize_model", "--vad_onset", "--vad_threshold", "--align_model"), ()),
    "--rename": ("--speaker-names",),
    "--names": ("--speaker-names", "--channel-names"),
    "--speakers": ("--num-speakers", "--min-speakers", "--max-speakers", "--known-speakers"),
    "--num_speaker": ("--num-speakers",),
    "--beams": ("--num-beams",),
    "--format": ("--output-format",),
    "--output": ("--output-format", "--output-dir"),
    "--channel": ("--channels", "--channel-names", "--channel-starts"),
    "--prot": ("--prompt",),
}


@pytest.mark.parametrize("guess", GUESSES)
def test_a_suggestion_names_nothing_that_does_something_else(capsys, guess):
    line = refused(capsys, read_transcribe, "talk.mp3", guess, "5")
    _, _, suggested = line.partition(" (")[0].partition("; did you mean ")
    named = suggested.rstrip("?").split(" or ") if suggested else []
    assert set(named) == set(GUESSES[guess])


def test_the_names_that_people_know_are_understood():
    given = "--beam_size 5 --word_timestamps True --highlight_words=True -f srt -o out -f vtt"
    known = read_transcribe(["talk.mp3", *given.split(), "--initial_prompt", "Dr. Who"])
    ours = "--num-beams 5 --words --highlight-words --output-format vtt --output-dir out"
    options = read_transcribe(["talk.mp3", *ours.split(), "--prompt", "Dr. Who"])
    assert vars(known) | {"written": {}} == vars(options) | {"written": {}}
    assert option_name("num_beams", known) == "--beam-size"
    assert read_transcribe(["talk.mp3", "-fsrt"]).output_format == ["srt"]
    for off in ("--vad_filter False", "--no-vad-filter", "--vad-filter=false"):
        assert parameters(read_demo(off.split())) == {"vad_filter": False}
    for off in ("--diarize False", "--no-speakers", "--no_diarize True"):
        assert parameters(read_demo(off.split())) == {"diarize": False}
    assert parameters(read_demo(["--word_timestamps", "False", "--diarize"])) == {"diarize": True}
    recordings = read_demo(["--words", "true.mp3", "--prompt", "True"]).recordings
    assert [path.name for path in recordings] == ["true.mp3"]


def test_clips_of_known_speakers_are_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "anna.wav").write_bytes(b"Anna's voice")
    (tmp_path / "b=1.wav").write_bytes(b"Bob's voice")
    given = ["--known-speakers", "anna.wav=Smith, Anna,b=1.wav=Bob", "--known_speakers"]
    options = read_demo([*given, "anna.wav=Anna"])
    assert parameters(options) == {
        "known_speakers": [
            {"name": "Smith, Anna", "reference": "QW5uYSdzIHZvaWNl"},
            {"name": "Bob", "reference": "Qm9iJ3Mgdm9pY2U="},
            {"name": "Anna", "reference": "QW5uYSdzIHZvaWNl"},
        ]
    }


def test_other_parameters_are_given_as_json():
    options = read_demo(["--parameters", '{"chunk_length_s": 15, "language": "de"}'])
    assert parameters(options) == {"chunk_length_s": 15, "language": "de"}
    assert option_name("language", options) == "--parameters: language"
    options = read_demo(["--parameters", '{"language": "de"}', "--language", "fr", "--no-speakers"])
    assert parameters(options) == {"language": "fr", "diarize": False}
    names = ("language", "diarize", "return_timestamps", "num_speakers")
    shown = [option_name(name, options) for name in names]
    assert shown == ["--language", "--no-speakers", "--return-timestamps", "--num-speakers"]
    assert option_name("return_timestamps", read_demo(["--words"])) == "--words"


def test_variables_that_are_suggested_are_settings():
    names = {name for name in ModelSettings.model_fields if not name.endswith("_model")}
    assert set(VARIABLES.values()) == {name.upper() for name in names}


def test_settings_of_the_server_have_an_option_or_are_suggested(capsys):
    assert "did you mean --api-key-file?" not in refused(capsys, read_serve, "--api-key", "x")
    options = {"host", "port", "data_dir"}
    assert {name.lower() for name in SETTINGS} | options == ServerSettings.model_fields.keys()


def test_a_command_line_may_be_short():
    assert read_demo([]).recordings == []
    assert parameters(read_demo([])) == {}
    options = read_demo(["--output-format", "all", "--output-dir", "out"])
    assert ",".join(options.output_format) == "json,srt,vtt,txt,md,docx,html,tsv,rttm"
    assert all(value in (None, False) for value in vars(read_serve([])).values())


def test_names_with_underscores_and_values_like_options_are_read():
    given = ["--output_format=srt", "--num_speakers", "2", "--prompt", "- a list", "--", "--x.mp3"]
    options = read_demo(given)
    assert (options.output_format, options.num_speakers, options.prompt) == (["srt"], 2, "- a list")
    assert [path.name for path in options.recordings] == ["--x.mp3"]


def test_model_folder_is_relative_to_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "whisper").mkdir()
    monkeypatch.chdir(tmp_path)
    assert model("whisper") == str(tmp_path / "whisper")
    assert model("owner/whisper@v1") == "owner/whisper@v1"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_that_are_right_and_names_the_variables(name, monkeypatch, capsys):
    read = function(COMMANDS[name].read)
    with pytest.raises(SystemExit, match="0"):
        read(["--help"])
    text = capsys.readouterr().out
    if "\n  --model" in text:
        assert "[ASR_MODEL]" in text
        assert "A name in brackets is the variable" in text
    assert max(map(len, text.splitlines())) <= 120
    examples = [line.split()[1:] for line in text.splitlines() if line.startswith("  scripts/")]
    assert examples
    for example in examples:
        if "--help" in example:
            continue
        assert isinstance(read(example), argparse.Namespace)


def test_a_command_reads_its_line_prepares_its_packages_and_runs(monkeypatch):
    """A ready .venv needs no second reading; a server's client needs no .venv."""
    ran = []
    monkeypatch.setattr(check, "make_ready", lambda layer: ran.append(layer))
    monkeypatch.setattr(check, "require", lambda program, packages, status: ran.append(program))
    monkeypatch.setattr("whosaid.transcribe.__main__.run", lambda it: ran.append(it.program) or 1)
    monkeypatch.setattr("benchmarks.options.run", lambda options: ran.append(options.benchmark))
    remote = (1, "transcribe", "a.wav", "--url", "http://a")
    for status, *arguments in ((1, "demo"), remote, (0, "bench", "load")):
        monkeypatch.setattr(check.sys, "argv", ["commands", *arguments])
        assert check.main() == status
    assert ran == ["use", "scripts/demo", *["scripts/transcribe"] * 2, "dev", "load"]


def test_a_missing_package_of_a_client_is_one_line(capsys):
    with pytest.raises(SystemExit, match="1"):
        check.require("scripts/demo", ("sys", "no_such_package"), 1)
    told = "scripts/demo: first pip install no-such-package, or run scripts/setup\n"
    assert capsys.readouterr().err == told
