"""`GET /info`: the features and limits of this server and its models, for the page's form."""

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from config import DEMO_MODELS
from whosaid.endpoint import Endpoint
from whosaid.payload.languages import language_name
from whosaid.server.admission import Admission
from whosaid.server.description import refusals
from whosaid.server.openai_api.form import model_id


class Language(BaseModel):
    """A language that the model transcribes."""

    code: str = Field(description="Whisper's code, as parameter and answer have it")
    name: str = Field(description="Its English name")


class Info(BaseModel):
    """The models, limits and features of this server."""

    model: str = Field(description="The loaded model: a hub id, or the name of a folder")
    embedded: bool = Field(description="True for the demonstration model of 133 words")
    multilingual: bool = Field(description="True if the model knows languages besides English")
    languages: list[Language] = Field(description="The languages of the model, by name")
    tasks: list[str] = Field(description="The accepted values of `task`")
    prompts: bool = Field(description="True if `prompt` is accepted")
    drafts: Literal["assistant", "medusa"] | None = Field(
        description="The source of drafts, unless `assisted` is false; null: no drafts"
    )
    diarization: bool = Field(description="True if diarization is available")
    known_speakers: bool = Field(description="True if clips can name speakers")
    live_places: int | None = Field(
        description="The number of live sessions that can open now; null: no live sessions"
    )
    jobs: bool = Field(description="True if `/v1/jobs` accepts recordings")
    max_audio_seconds: float
    max_audio_bytes: int


def router(endpoint: Endpoint, admission: Admission, jobs: bool) -> APIRouter:
    routes = APIRouter()

    @routes.head("/info", include_in_schema=False)
    @routes.get("/info", summary="Features of the loaded models", responses=refusals(401))
    async def info() -> Info:
        return describe(endpoint, admission.free_live_places, jobs)

    return routes


def describe(endpoint: Endpoint, live_places: int | None = None, jobs: bool = False) -> Info:
    """Return the values that this endpoint accepts without refusal or warning. `live_places` is the
    number of live sessions that can open; `jobs` tells whether jobs are enabled.
    """
    can = endpoint.transcriber.capabilities
    languages = [Language(code=code, name=language_name(code)) for code in can.languages]
    return Info(
        model=model_id(endpoint),
        embedded=can.name == str(DEMO_MODELS / "asr"),
        multilingual=can.multilingual,
        languages=sorted(languages, key=lambda each: each.name),
        tasks=[*can.tasks],
        prompts=can.prompts,
        drafts=can.drafts,
        diarization=endpoint.diarizer is not None,
        known_speakers=endpoint.diarizer is not None and endpoint.diarizer.capabilities.voices,
        live_places=live_places,
        jobs=jobs,
        max_audio_seconds=endpoint.limits.max_seconds,
        max_audio_bytes=endpoint.limits.max_bytes,
    )
