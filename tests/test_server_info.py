"""`GET /info` offers exactly what the endpoint does without a refusal or a warning."""

import asyncio
import dataclasses
from contextlib import closing, nullcontext

import pytest

from tests.helpers.asgi import FakeEndpoint, call, served
from tests.helpers.live_stand_ins import Drivers, Socket
from tests.helpers.oracle import random_heads
from tests.support.audio_files import conversation
from whosaid.asr import DecodeOptions, Transcriber, TranscriptionOptions
from whosaid.errors import EndpointError
from whosaid.payload.languages import language_code
from whosaid.scheduling.steps import run_steps
from whosaid.server.app import create_app
from whosaid.server.info import describe
from whosaid.server.realtime.places import MOST_SLOWED
from whosaid.server.settings import ServerSettings

ASSISTED = TranscriptionOptions(language="en", decode=DecodeOptions(assisted=True))


def with_models(endpoint, monkeypatch, **changes) -> None:
    models = dataclasses.replace(endpoint.recogniser.transcriber.models, **changes)
    monkeypatch.setattr(endpoint.recogniser, "transcriber", Transcriber(models))


@pytest.mark.parametrize("drafts", [None, "assistant", "medusa"])
def test_drafting_is_offered_if_requests_get_it(tiny_endpoint, monkeypatch, drafts):
    loaded = tiny_endpoint.recogniser.transcriber.models
    alone = dataclasses.replace(loaded, assistant=None)
    models = {None: alone, "assistant": loaded, "medusa": random_heads(alone, 2)}[drafts]
    transcriber = Transcriber(models, fallback=None)
    monkeypatch.setattr(tiny_endpoint.recogniser, "transcriber", transcriber)
    with closing(run_steps(transcriber.start(conversation()[:32_000], ASSISTED))) as transcription:
        warnings = transcription.run().warnings
    assert describe(tiny_endpoint).drafts == drafts
    assert (drafts is not None) is (warnings == ())


@pytest.mark.parametrize("english_only", [False, True])
def test_requests_may_name_every_listed_language_and_task(tiny_endpoint, monkeypatch, english_only):
    if english_only:
        tokens = tiny_endpoint.recogniser.transcriber.models.special_tokens
        tokens = dataclasses.replace(tokens, multilingual=False, languages={}, tasks={})
        with_models(tiny_endpoint, monkeypatch, special_tokens=tokens)
    found = describe(tiny_endpoint)
    assert found.multilingual is (len(found.languages) > 1) is not english_only
    assert [each.name for each in found.languages] == sorted(each.name for each in found.languages)
    for language in found.languages:
        assert language_code(language.name) == language.code
        request({"language": language.code}, tiny_endpoint)
    for task in ("transcribe", "translate"):
        if task in found.tasks:
            request({"task": task}, tiny_endpoint)
        else:
            with pytest.raises(EndpointError):
                request({"task": task}, tiny_endpoint)


def request(parameters, endpoint) -> None:
    endpoint.parse({"inputs": b"", "parameters": parameters})


@pytest.mark.parametrize("prompts", [False, True])
def test_prompts_are_offered_where_they_are_not_refused(tiny_endpoint, monkeypatch, prompts):
    tokens = tiny_endpoint.recogniser.transcriber.models.special_tokens
    if not prompts:
        tokens = dataclasses.replace(tokens, start_of_previous=None)
        with_models(tiny_endpoint, monkeypatch, special_tokens=tokens)
    assert describe(tiny_endpoint).prompts is prompts
    with nullcontext() if prompts else pytest.raises(EndpointError, match="prompt"):
        request({"prompt": "Dear"}, tiny_endpoint)


def test_models_are_named_and_no_path_is(demo_endpoint, tiny_endpoint):
    demo, tiny = describe(demo_endpoint), describe(tiny_endpoint)
    assert (demo.model, demo.embedded, demo.diarization) == ("asr", True, True)
    assert (tiny.embedded, tiny.diarization) == (False, False)
    assert (demo.known_speakers, tiny.known_speakers) == (True, False)
    assert "/" not in demo.model + tiny.model
    assert demo.max_audio_seconds == demo_endpoint.limits.max_seconds


def test_the_key_is_asked_for():
    endpoint, app = served(api_key="secret")
    assert asyncio.run(call(app, "GET", "/info")).code == "UNAUTHORIZED"
    reply = asyncio.run(call(app, "GET", "/info/", {"authorization": "Bearer secret"}))
    assert reply.json == describe(endpoint).model_dump()
    assert asyncio.run(call(app, "HEAD", "/info")).code == "UNAUTHORIZED"


def test_places_of_live_sessions_are_counted():
    async def places(app) -> int | None:
        return (await call(app, "GET", "/info")).json["live_places"]

    async def count(app) -> list[int | None]:
        found = [await places(app)]
        async with Socket(app) as socket:
            await socket.read()
            found.append(await places(app))
            drivers.opened[0].slowed = MOST_SLOWED + 0.1  # nobody else is let in
            found.append(await places(app))
        found.append(await places(app))
        app.admission.draining = True
        return [*found, await places(app)]

    settings, drivers = ServerSettings(max_live_sessions=2), Drivers()
    app = create_app(FakeEndpoint(), settings, drivers)
    assert asyncio.run(count(app)) == [2, 1, 0, 2, 0]
    assert asyncio.run(places(create_app(FakeEndpoint(), settings))) is None
