"""Settings and parameters: every bound from both sides, and what error messages say and hide."""

import itertools
import json
import os
import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import config
from config import DEMO_MODELS, MAX_SPEAKERS, InferenceConfig, ModelReference, ModelSettings
from tests.helpers.programs import run_python
from whosaid.payload.encodings import parse_json
from whosaid.payload.languages import language_code
from whosaid.payload.parameters import HotWord, VadParameters
from whosaid.runtime.environment import nvidia_device_present
from whosaid.server.settings import ServerSettings

FIELDS = InferenceConfig.model_fields
BOUNDS = {
    "batch_size": (1, 128),
    "num_beams": (1, 8),
    "chunk_length_s": (1, 30),
    "sampling_rate": (8_000, 48_000),
    **dict.fromkeys(("num_speakers", "min_speakers", "max_speakers"), (1, MAX_SPEAKERS)),
    **dict.fromkeys(("max_line_width", "max_line_count", "max_words_per_line"), (1, 1000)),
}
FLOATS = {
    **dict.fromkeys(("length_penalty", "temperature", "no_speech_threshold"), (0.0, 1.0)),
    "known_speaker_threshold": (0.0, 1.0),
    "compression_ratio_threshold": (0.0, 1000.0),
    "logprob_threshold": (-1000.0, 0.0),
}
BOOLEANS = ("diarize", "group_by_speaker", "multilingual", "highlight_words", "subtitle_speakers")
BOOLEANS += ("assisted", "return_timestamps", "vad_filter")
LISTS = ("hotwords", "output", "channel_names", "channel_starts")
VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
SECRET = "hf_do_not_show_me"

json_values = st.recursive(
    st.one_of(
        *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
        st.sampled_from(["24", " 1.5", "True", "word", "srt, vtt"]),
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
# Texts that mean a number or a boolean: decimal digits with an optional sign, and "true" or "false"
# in any case. Spaces are allowed around numbers, as in pydantic.
INTEGER_TEXTS = re.compile(r"\s*[+-]?[0-9]+\s*", re.ASCII)
NUMBER_TEXTS = re.compile(r"\s*[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\s*", re.ASCII)


def typed(name, value):
    if name in LISTS and isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if name == "channel_starts" and isinstance(value, list):
        return [float(part) for part in value]
    if isinstance(value, str) and name in BOUNDS and INTEGER_TEXTS.fullmatch(value):
        return int(value)
    if isinstance(value, str) and name in FLOATS and NUMBER_TEXTS.fullmatch(value):
        return float(value)
    if isinstance(value, str) and name in BOOLEANS and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if name == "vad_parameters" and isinstance(value, dict):
        return VadParameters(**value)
    if name == "channel_names" and isinstance(value, list):
        return [each.strip() for each in value]
    return language_code(value) if name == "language" and value is not None else value


def outcome(parameters, *, as_text=False):
    """Return the parsed `parameters`, values with types, or the error's text."""
    try:
        values = InferenceConfig.read(parameters, as_text=as_text).model_dump()
    except ValueError as error:
        return str(error)
    return [(name, type(value), value) for name, value in values.items()]


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    for name in (*(field.upper() for field in ModelSettings.model_fields), VISIBLE_DEVICES):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("name", "bounds"), (BOUNDS | FLOATS).items())
def test_bounds_are_inclusive_for_numbers_and_text(name, bounds):
    step = 1 if name in BOUNDS else 0.1
    for convert in (lambda value: value, str, " {} ".format):
        for value in bounds:
            assert getattr(InferenceConfig.read({name: convert(value)}), name) == value
        huge = (10**400, -(10**400)) if name in BOUNDS else ()
        for value in (bounds[0] - step, bounds[1] + step, *huge):
            with pytest.raises(ValueError, match=f"^{name}: should be (greater|less) than"):
                InferenceConfig.read({name: convert(value)})


@pytest.mark.parametrize("name", [*BOUNDS, *FLOATS, *BOOLEANS])
def test_nothing_else_is_a_number_or_a_boolean(name):
    others = ("0x1", "1_0", "2 4", "", "+", "\u0662", "9" * 5000, "nan", "inf", [24], {"n": 24})
    more = (0, 1, 1.0, "yes", "1", " true") if name in BOOLEANS else (True, "true", "1,5")
    fractions = (24.0, 2.5, "24.0") if name in BOUNDS else ()
    for value in (*others, *more, *fractions):
        with pytest.raises(ValueError, match=f"^{name}: should be "):
            InferenceConfig.read({name: value})
    if FIELDS[name].default is None:
        assert getattr(InferenceConfig.read({name: None}), name) is None


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "should be an object of threshold, "),
        ({"threshold": 1.5}, "threshold: should be less than 1"),
        ("{", "should be an object of "),
        ("[" * 100_000, ""),
        ({"threshold": "0.5"}, "threshold: should be a valid number"),
        ({"speech_pad_ms": -1}, "speech_pad_ms: should be greater than"),
        ({"speech_pad_ms": True}, "speech_pad_ms: should be a valid integer"),
        ({"min_speech_duration_ms": 10**400}, "min_speech_duration_ms: should be less than"),
        ({"max_speech_duration_s": 10}, "max_speech_duration_s: is chunk_length_s here"),
        ({"onset\n": 0.5}, r"onset\\n: is none of threshold, "),
    ],
)
def test_other_vad_parameters_are_refused_by_name(value, reason):
    with pytest.raises(ValueError, match=f"^vad_parameters: {reason}"):
        InferenceConfig.read({"vad_parameters": value})


def test_vad_parameters_are_an_object_or_its_json():
    given = {"threshold": 0.25, "min_silence_duration_ms": 500}
    for value, as_text in itertools.product((given, json.dumps(given)), (False, True)):
        read = InferenceConfig.read({"vad_parameters": value}, as_text=as_text).vad_parameters
        assert read.model_dump(exclude_none=True) == given


@pytest.mark.parametrize(
    "parameters",
    [
        {"output": ["srt", "pdf"]}, {"output": "pdf"}, {"output": ["srt", 1]}, {"hotwords": [""]},
        {"hotwords": ["x" * 101]},
        {"hotwords": [f"x{place}" for place in range(config.MAX_HOTWORDS + 1)]}, {"hotwords": [1]},
        {"hotwords": [{"text": "Ada", "sounds": []}]}, {"hotwords": [{"sounds_like": ["aida"]}]},
        {"hotwords": [{"text": "Ada", "sounds_like": ["aida"] * 6}]},
        {"hotwords": ["Ada", {"text": "Ada"}]},
        {"prompt": "x" * (config.MAX_PROMPT_CHARACTERS + 1)}, {"prompt": ["x"]},
        {"return_timestamps": "Word"}, {"return_timestamps": None},
        {"temperature": [0.0, 0.2, 0.4]}, {"vad_parameters": {}, "vad_filter": False},
        {"num_speakers": 1, "min_speakers": 2}, {"num_speakers": 3, "max_speakers": 2},
        {"min_speakers": 3, "max_speakers": 2}, {"text": "x" * (config.MAX_SCRIPT_CHARACTERS + 1)},
        {"text": " ... \n"}, {"text": "Good morning", "task": "translate"},
        {"text": "Good morning", "channels": "separate"}, {"output": ["srt", "srt"]},
        {"output": "srt,vtt,srt"}, {"hotwords": "Ada, Ada"},
    ],
)  # fmt: skip
def test_lists_and_texts_have_bounds_and_no_contradictions(parameters):
    with pytest.raises(ValueError, match=f"^{next(iter(parameters))}: "):
        InferenceConfig.read(parameters)


def test_a_long_text_of_a_body_is_a_text():
    given = {"text": "so \n" * 9000}
    assert InferenceConfig.read(parse_json(json.dumps(given))).text == given["text"]


MUCH = {
    "a format again and again": {"output": ["srt"] * 200_000},
    "wrong values": {"output": [1] * 200_000},
    "wrong words": {"hotwords": [1] * 200_000},
    "words in a text": {"hotwords": "a," * 200_000},
    "clips": {"known_speakers": [{}] * 200_000},
    "a language": {"language": "e" * 400_000},
    "a number": {"batch_size": "1" * 400_000},
    "what is said": {"text": "e" * 400_000},
    "a boolean": {"assisted": "t" * 400_000},
    "a list for a number": {"batch_size": [1] * 200_000},
}


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("name", MUCH)
def test_oversized_values_are_refused_unparsed(monkeypatch, name, as_text):
    """Neither pydantic nor a conversion sees large values, and there is no error for each entry."""
    ((parameter, value),) = MUCH[name].items()
    if parameter != "known_speakers":
        monkeypatch.setattr(InferenceConfig, "model_validate", None)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=f"^{parameter}: should have at most [0-9]+ "):
            InferenceConfig.read({parameter: value}, as_text=as_text)
        assert tracemalloc.get_traced_memory()[1] < 2**17
    finally:
        tracemalloc.stop()


@given(st.dictionaries(st.sampled_from([*FIELDS]), json_values, max_size=3))
def test_any_json_is_either_accepted_unchanged_or_refused_by_name(parameters):
    refusal = ""
    try:
        accepted = InferenceConfig.read(parameters)
    except ValueError as error:
        refusal = str(error)
    if refusal:
        place = rf"({'|'.join(parameters)})(\[\d+\](\.\w+)*)?"
        assert re.fullmatch(f"{place}: .{{1,200}}", refusal)
    else:
        for name, value in parameters.items():
            assert getattr(accepted, name) == typed(name, value)


@given(st.dictionaries(st.text(max_size=10), json_values, max_size=5))
def test_unknown_names_change_nothing_and_are_reported(parameters):
    unknown = {name: value for name, value in parameters.items() if name not in FIELDS}
    assert InferenceConfig.read(unknown) == InferenceConfig()
    assert InferenceConfig.unknown({**unknown, "task": "translate"}) == tuple(unknown)


def test_a_refused_value_is_not_repeated():
    with pytest.raises(ValueError, match=r"^language: ") as caught:
        InferenceConfig.read({"language": SECRET * 10_000})
    assert "do_not" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ({"assisted": "1"}, "assisted", True),
        ({"diarize": "no"}, "diarize", False),
        ({"return_timestamps": "word"}, "return_timestamps", "word"),
        ({"output": "srt, vtt"}, "output", ["srt", "vtt"]),
        ({"hotwords": "Ada,Mr Lovelace\nZuse\n"}, "hotwords", ["Ada", "Mr Lovelace", "Zuse"]),
        (
            {"hotwords": '["Ada, Inc.", {"text": "Siobhan", "sounds_like": ["shivawn"]}]'},
            "hotwords",
            ["Ada, Inc.", HotWord(text="Siobhan", sounds_like=("shivawn",))],
        ),
        ({"hotwords": "[Ada], Bo"}, "hotwords", ["[Ada]", "Bo"]),
    ],
)
def test_a_query_string_delivers_text(text, name, value):
    accepted = getattr(InferenceConfig.read(text, as_text=True), name)
    assert (accepted, type(accepted)) == (value, type(value))


def test_typed_parameters_beside_decoded_bytes_mean_the_same():
    typed = {"output": ["srt", "txt"], "hotwords": [], "batch_size": 8, "assisted": True}
    typed |= {"language": None, "return_timestamps": False, "num_speakers": None}
    assert InferenceConfig.read(typed, as_text=True) == InferenceConfig.read(typed)


@pytest.mark.parametrize(
    ("text", "name", "revision"),
    [
        ("openai/whisper-large-v3", "openai/whisper-large-v3", None),
        (" openai/whisper-tiny ", "openai/whisper-tiny", None),
        ("large-v3", "openai/whisper-large-v3", None),
        ("Large-V3@main", "openai/whisper-large-v3", "main"),
        ("whisper-base", "openai/whisper-base", None),
        ("small.en", "openai/whisper-small.en", None),
        ("large", "openai/whisper-large-v3", None),
        ("whisper-large", "openai/whisper-large", None),
        ("turbo", "openai/whisper-large-v3-turbo", None),
        ("distil-large-v3", "distil-whisper/distil-large-v3", None),
        ("speaker-diarization-3.1", "pyannote/speaker-diarization-3.1", None),
        ("pyannote/speaker-diarization-3.1@v2.1", "pyannote/speaker-diarization-3.1", "v2.1"),
        ("a/b@refs/pr/7", "a/b", "refs/pr/7"),
        ("models/asr", "models/asr", None),
    ],
)
def test_hub_ids(tmp_path, text, name, revision):
    assert ModelReference.parse(text, tmp_path) == ModelReference(name, revision)


@pytest.mark.parametrize(
    "text", ["models/asr", "./models/asr", "models/../models/asr", "{root}/models/asr"]
)
def test_existing_folder_is_relative_to_the_repository(tmp_path, text):
    (tmp_path / "models" / "asr").mkdir(parents=True)
    read = ModelReference.parse(text.format(root=tmp_path), tmp_path)
    assert read.name == str(tmp_path / "models" / "asr")


@pytest.mark.parametrize(
    "text",
    ["", " ", "/no/such/folder", "../x", "a/b/c", "a/b@", "a/b@../x", "a b", "https://x/y", "gpt2"],
)
def test_text_that_names_no_model_is_refused(tmp_path, text):
    with pytest.raises(ValueError, match=r"hub id .* nor an existing folder"):
        ModelReference.parse(text, tmp_path)


def test_misspelt_model_is_refused_with_the_known_one(tmp_path):
    for text in ("large_v3", "larg-v3", "whisper-largev3"):
        with pytest.raises(ValueError, match=r"; did you mean openai/whisper-large-v3\?$"):
            ModelReference.parse(text, tmp_path)
    (tmp_path / "large-v3").mkdir()
    assert ModelReference.parse("large-v3", tmp_path).name == str(tmp_path / "large-v3")


def settings(monkeypatch, **variables: str) -> ModelSettings:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return ModelSettings.from_environment()


def test_every_variable_is_read_and_an_empty_one_is_unset(monkeypatch):
    models = {"ASR_MODEL": "a/b@main", "ASSISTANT_MODEL": "", "DIARIZATION_MODEL": "c/d"}
    device = {"DEVICE": "cuda", "DTYPE": "bfloat16", "CUDA_GRAPHS": "false"}
    others = {"MAX_AUDIO_SECONDS": "12.5", "MAX_AUDIO_BYTES": "", "HF_TOKEN": f"{SECRET}\n"}
    read = settings(monkeypatch, **models, **device, **others)
    assert read.asr_model == ModelReference("a/b", "main")
    assert SECRET not in repr(read)
    assert (read.assistant_model, read.diarization_model) == (None, ModelReference("c/d"))
    assert (read.token, read.max_audio_seconds, read.max_audio_bytes) == (SECRET, 12.5, 512 * 2**20)
    assert (read.device, read.dtype, read.cuda_graphs) == ("cuda", "bfloat16", False)


@pytest.mark.parametrize(
    ("variables", "culprit"),
    [
        ({"ASR_MODEL": ""}, "ASR_MODEL: is required"),
        ({"ASR_MODEL": "", "ASSISTANT_MODEL": "a/b"}, "ASR_MODEL: is required"),
        ({"ASR_MODEL": "/no/such/folder"}, "ASR_MODEL: neither a hub id"),
        ({"DIARIZATION_MODEL": "x y"}, "DIARIZATION_MODEL: neither a hub id"),
        ({"MAX_AUDIO_SECONDS": "two hours"}, "MAX_AUDIO_SECONDS: should be a valid number"),
        ({"MAX_AUDIO_SECONDS": "inf"}, "MAX_AUDIO_SECONDS: should be a finite number"),
        ({"DEVICE": "cuda:1"}, "DEVICE: should be 'auto', 'cuda' or 'cpu'"),
        ({"DTYPE": "int4"}, "DTYPE: should be 'auto', 'float32', 'bfloat16'"),
        ({"CUDA_GRAPHS": "maybe"}, "CUDA_GRAPHS: should be a valid boolean"),
        *(
            ({name: "0"}, f"{name}: should be greater than 0")
            for name in ("MAX_AUDIO_BYTES", "MAX_AUDIO_SECONDS", "IDLE_UNLOAD_SECONDS")
        ),
    ],
)
def test_a_wrong_environment_names_the_variable(monkeypatch, variables, culprit):
    with pytest.raises(ValueError, match=f"^{culprit}") as caught:
        settings(monkeypatch, **{"HF_TOKEN": SECRET, "ASR_MODEL": "a/b"} | variables)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("files", "present"),
    [
        ([], False),
        (["null", "dri", "nvidiactl", "nvidia-uvm", "nvidia-modeset"], False),
        (["nvidia0"], True),
        (["nvidiactl", "nvidia12"], True),
    ],
)
def test_a_gpu_is_seen_by_its_device_file_or_variable(monkeypatch, tmp_path, files, present):
    for name in files:
        (tmp_path / name).touch()
    assert nvidia_device_present(tmp_path) is present
    for text, named in (*dict.fromkeys(("", "void", "none", "all"), False).items(), ("1,2", True)):
        monkeypatch.setenv(VISIBLE_DEVICES, text)
        assert nvidia_device_present(tmp_path / "missing") is named


def test_demo_uses_its_models_unless_the_environment_names_any(monkeypatch):
    monkeypatch.setenv("MAX_AUDIO_SECONDS", "60")
    demo = ModelSettings.for_demo()
    assert {Path(model.name).parent for model in demo.models} == {DEMO_MODELS}
    assert (len(demo.models), demo.max_audio_seconds) == (3, 60)
    monkeypatch.setenv("DIARIZATION_MODEL", "a/b")
    with pytest.raises(ValueError, match=r"^ASR_MODEL: is required"):
        ModelSettings.for_demo()
    monkeypatch.setenv("ASR_MODEL", "a/b")
    assert ModelSettings.for_demo() == ModelSettings.from_environment()


def test_no_env_file_is_read(monkeypatch, tmp_path):
    (tmp_path / ".env").write_text("ASR_MODEL=a/b\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"^ASR_MODEL: is required"):
        ModelSettings.from_environment()


@pytest.mark.parametrize(
    "entry",
    [
        "handler",
        pytest.param("whosaid.server.__main__", marks=pytest.mark.reliability),
        pytest.param("whosaid.transcribe.__main__", marks=pytest.mark.reliability),
    ],
)
def test_entry_points_disable_telemetry_before_large_imports(entry):
    """Variables that turn telemetry on are overridden. Stand-ins replace the large libraries."""
    script = (
        "import contextlib, json, os, sys\n"
        "sys.modules |= dict.fromkeys(('torch', 'onnxruntime', 'pyannote.audio'))\n"
        f"with contextlib.suppress(ModuleNotFoundError): import {entry}\n"
        "print(json.dumps(dict(os.environ)))"
    )
    told = {"PYANNOTE_METRICS_ENABLED": "true", "ORT_DISABLE_TELEMETRY": "0"}
    done = run_python("-c", script, env=told, check=True)
    assert json.loads(done.stdout).items() >= config.NO_TELEMETRY.items()
    assert set(config.NO_TELEMETRY.values()) == {"false", "1"}


def test_settings_of_another_machine_have_this_ones_token(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_here")
    monkeypatch.setenv("ASR_MODEL", "owner/here")
    there = ModelSettings.for_models("owner/there@main", diarization_model="owner/pipeline")
    values = {name: value for name, value in there if name != "hf_token"}
    assert ModelSettings.from_environment(**values) == there
    assert ModelSettings.from_environment(**values).token == "hf_here"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ASR_MODL", "ASR_MODEL"), ("ARS_MODEL", "ASR_MODEL"), ("asr_modle", "ASR_MODEL"),
        ("DIARISATION_MODEL", "DIARIZATION_MODEL"), ("API_KEYS", "API_KEY"), ("PAGER", None),
        ("HOSTNAME", None), ("GH_TOKEN", None), ("asr_model", None),
    ],
)  # fmt: skip
def test_misspelt_variable_is_reported(monkeypatch, name, meant):
    monkeypatch.setattr(config.os, "environ", {"PATH": "/bin", name: "x"})
    told = config.misspelt_variables(ModelSettings, ServerSettings)
    expected = f"{name} is not a variable of this endpoint; did you mean {meant}?"
    assert told == ([expected] if meant else [])


def test_user_missing_from_passwd_gets_name_and_home():
    """OpenShift starts containers so; torch and pyannote ask for both when they are imported."""
    script = (
        "import pwd, getpass, pathlib\n"
        "def refuse(uid): raise KeyError(f'getpwuid(): uid not found: {uid}')\n"
        "pwd.getpwuid = refuse\n"
        "import config\n"
        "print(getpass.getuser(), pathlib.Path.home())\n"
    )
    for variables, expected in (({}, f"{os.getuid()} /"), ({"USER": "a", "HOME": "/b"}, "a /b")):
        assert run_python("-c", script, env=variables).stdout.strip() == expected
