"""`/openapi.json`, as generators of clients read it."""

import json
import re

import httpx2
import pytest

from config import InferenceConfig
from tests.helpers.asgi import call, served
from tests.helpers.openai_answers import KnownAnswers
from whosaid.server import description
from whosaid.server.app import create_app
from whosaid.server.settings import ServerSettings

OPERATIONS = {
    *("health", "ready", "read_metrics", "root", "info", "transcribe", "predict", "create_job"),
    *("create_transcription", "create_translation", "list_models", "read_model", "list_jobs"),
    *("render_transcript", "read_job", "remove_job", "create_client_secret"),
}
TYPES = {"json": description.TextTranscription, "verbose_json": description.VerboseTranscription}
TYPES["diarized_json"] = description.DiarizedTranscription


@pytest.mark.parametrize("key", [None, "key"])
def test_every_route_is_described_even_if_disabled(key):
    described = served(api_key=key)[1].app.openapi()
    paths = described["paths"].values()
    found = {each["operationId"]: each for methods in paths for each in methods.values()}
    assert found.keys() == OPERATIONS
    assert described["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    for name, operation in found.items():
        for status, answer in operation["responses"].items():
            if status != "204":
                kinds = answer["content"].values()
                assert all("schema" in each and each["schema"] != {} for each in kinds), name
        security = operation.get("security", [])
        is_open = name in ("health", "ready", "root")
        assert security == ([] if is_open else [{"bearer": []}] if key else [{"bearer": []}, {}])
    assert found["create_client_secret"]["requestBody"]["content"]["application/json"]["schema"]
    for target in re.findall(r'"\$ref": "#/components/schemas/(\w+)"', json.dumps(described)):
        assert target in described["components"]["schemas"]


@pytest.mark.parametrize("channels", ["mix", "separate"])
def test_sent_defaults_of_the_json_body_change_nothing(channels):
    fields = description.PARAMETERS["properties"]
    defaults = {name: each["default"] for name, each in fields.items() if "default" in each}
    sent = InferenceConfig.read({**defaults, "channels": channels})
    plain = InferenceConfig.read({"channels": channels})
    assert (sent, sent.tells_voices_apart) == (plain, plain.tells_voices_apart)


@pytest.mark.parametrize("response_format", TYPES)
async def test_the_type_of_a_format_describes_whole_answers(response_format):
    app = create_app(KnownAnswers(speakers=True), ServerSettings(page=False))
    fields = {"response_format": response_format, "timestamp_granularities[]": ["word", "segment"]}
    sent = httpx2.Request("POST", "http://server/", files={"file": ("a", b"sound")}, data=fields)
    headers, body = {"content-type": sent.headers["content-type"]}, sent.read()
    reply = await call(app, path="/v1/audio/transcriptions", headers=headers, parts=(body,))
    typed = TYPES[response_format].model_validate_json(reply.body, strict=True)
    assert typed.model_dump(exclude_unset=True) == reply.json
