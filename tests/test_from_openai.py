"""docs/from-openai.md against the SDK's own types: every field, value, key and event."""

import io
import json
import re
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import openai
import pytest
from openai.types import AudioModel, AudioResponseFormat, audio

from config import REPOSITORY
from tests.helpers.openai_answers import KnownAnswers, openai_client
from whosaid.server.openai_api.form import TranslationForm

SOUND = ("talk.wav", b"never decoded", "audio/wav")
PAGE = (REPOSITORY / "docs" / "from-openai.md").read_text(encoding="utf-8")
TABLES = ("field", "model", "response_format", "event")
FIELDS = audio.transcription_create_params.TranscriptionCreateParamsStreaming
VAD = audio.transcription_create_params.ChunkingStrategyVadConfig
# Rows by their first cell, with the type whose keys they tell.
ANSWERS = {
    "json": audio.Transcription,
    "verbose_json": audio.TranscriptionVerbose,
    "its segments": audio.TranscriptionSegment,
    "its words": audio.TranscriptionWord,
    "diarized_json": audio.TranscriptionDiarized,
    "a diarized segment": audio.TranscriptionDiarizedSegment,
    "transcript.text.delta": audio.TranscriptionTextDeltaEvent,
    "transcript.text.segment": audio.TranscriptionTextSegmentEvent,
    "transcript.text.done": audio.TranscriptionTextDoneEvent,
}
# Told of in the other column: it never comes.
NEVER = {"segment_id"}


def rows() -> Iterator[tuple[str, list[str]]]:
    """The cells of each row of these tables, with the table's first heading."""
    heading = None
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            heading = None
        elif heading is None:
            heading = cells
        elif not line.startswith("|---") and heading[0].strip("`") in TABLES:
            assert len(cells) == len(heading), line
            yield heading[0].strip("`"), cells


ROWS = list(rows())


def words(text: str) -> set[str]:
    """Return the code spans of a text."""
    return set(re.findall(r"`([^`]+)`", text))


def first_cells(table: str) -> set[str]:
    return {word for kind, cells in ROWS if kind == table for word in words(cells[0])}


def row(name: str) -> list[str]:
    """The row whose first cell is this name, be it code or not."""
    (found,) = (cells for _, cells in ROWS if name in (cells[0], *words(cells[0])))
    return found


def values(annotation: Any) -> set[str]:
    if get_origin(annotation) is Literal:
        return set(get_args(annotation))
    return set().union(*map(values, get_args(annotation)))


@pytest.fixture(scope="module")
def endpoint() -> KnownAnswers:
    return KnownAnswers(speakers=True)


@pytest.fixture(scope="module")
def client(endpoint) -> Iterator[openai.OpenAI]:
    with openai_client(endpoint) as client:
        yield client


def test_rows_are_exactly_the_sdks_fields():
    hints = get_type_hints(FIELDS, include_extras=True)
    nested = {f"chunking_strategy.{name}" for name in get_type_hints(VAD)}
    assert first_cells("field") == hints.keys() | nested
    assert nested  # the SDK still has them


def test_page_names_the_fields_of_translations():
    told = re.search(r"OpenAI's translations have only .*?\n\n", PAGE, re.DOTALL)
    names = get_type_hints(audio.TranslationCreateParams).keys()
    assert len(names) == 5
    assert names <= words(told[0])
    formats = values(get_type_hints(audio.TranslationCreateParams)["response_format"])
    ours = values(TranslationForm.model_fields["response_format"].annotation)
    assert formats == ours == values(AudioResponseFormat) - {"diarized_json"}


def test_page_names_every_value_of_the_sdk():
    hints = get_type_hints(FIELDS)
    for name in ("timestamp_granularities", "include", "chunking_strategy"):
        assert values(hints[name]) <= words("".join(row(name)))
    assert values(hints["include"]) == values(audio.TranscriptionInclude)
    assert first_cells("model") == values(AudioModel)
    assert first_cells("response_format") == values(AudioResponseFormat)


@pytest.mark.parametrize("name", ANSWERS)
def test_page_names_every_key_of_an_answer(name):
    keys = set(ANSWERS[name].model_fields)
    cells = row(name)
    assert words(cells[1]) == keys - NEVER
    assert words(cells[2]) >= keys & NEVER


def test_page_names_every_event_of_the_sdk():
    union, *_ = get_args(audio.TranscriptionStreamEvent)
    kinds = [values(each.model_fields["type"].annotation) for each in get_args(union)]
    assert first_cells("event") == set().union(*kinds)


@pytest.mark.parametrize("model", sorted(values(AudioModel)))
def test_every_model_of_the_sdk_is_the_loaded_one(client, model):
    assert client.models.retrieve(model) == client.models.list().data[0]
    assert client.audio.transcriptions.create(file=SOUND, model=model).text


def test_a_file_needs_no_name_or_type(client, endpoint):
    for file in (b"sound", ("a.txt", b"sound", "text/plain"), io.BytesIO(b"sound")):
        assert client.audio.transcriptions.create(file=file, model="whisper-1").text
        assert endpoint.asked.upload.take() == [b"sound"]


@pytest.mark.parametrize("name", sorted(get_type_hints(VAD).keys() - {"type"}))
def test_the_vads_options_are_served(client, endpoint, name):
    def create(**options):
        return client.audio.transcriptions.create(
            file=SOUND, model="whisper-1", chunking_strategy={"type": "server_vad", **options}
        )

    assert create().text
    assert endpoint.asked.config.vad_parameters is None
    value = 0.25 if name == "threshold" else 150
    assert create(**{name: value}).text
    served = endpoint.asked.config.vad_parameters.model_dump(exclude_none=True)
    assert [*served.values()] == [value]
    with pytest.raises(openai.BadRequestError) as refused:
        create(**{name: -1})
    param = f"chunking_strategy[{name}]"
    assert (refused.value.code, refused.value.param) == ("INVALID_PARAMETER", param)


def test_every_key_of_the_sdks_types_comes(client):
    def create(**fields):
        create = client.audio.transcriptions.with_raw_response.create
        answer = create(file=SOUND, model="whisper-1", **fields)
        return json.loads(answer.text)

    plain = create(include=["logprobs"])
    verbose = create(response_format="verbose_json", timestamp_granularities=["word", "segment"])
    diarized = create(response_format="diarized_json")
    assert plain.keys() == audio.Transcription.model_fields.keys()
    assert verbose.keys() >= audio.TranscriptionVerbose.model_fields.keys()
    assert verbose["segments"][0].keys() >= audio.TranscriptionSegment.model_fields.keys()
    assert verbose["words"][0].keys() >= audio.TranscriptionWord.model_fields.keys()
    assert diarized.keys() == audio.TranscriptionDiarized.model_fields.keys()
    assert diarized["segments"][0].keys() == audio.TranscriptionDiarizedSegment.model_fields.keys()


@pytest.mark.parametrize("response_format", ["json", "diarized_json"])
def test_every_key_of_the_sdks_events_comes(client, response_format):
    included = ["logprobs"] if response_format == "json" else openai.omit
    asked = {"stream": True, "response_format": response_format, "include": included}
    events = client.audio.transcriptions.create(file=SOUND, model="whisper-1", **asked)
    for event in events:
        keys = ANSWERS[event.type].model_fields.keys() - NEVER
        assert event.to_dict().keys() == keys - (set() if included else {"logprobs"})


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
def test_every_key_of_a_translation_comes(client):
    create = client.audio.translations.with_raw_response.create
    plain = create(file=SOUND, model="whisper-1", temperature=0)
    verbose = create(file=SOUND, model="whisper-1", response_format="verbose_json")
    assert json.loads(plain.text).keys() == audio.Translation.model_fields.keys()
    assert json.loads(verbose.text).keys() >= audio.TranslationVerbose.model_fields.keys()
