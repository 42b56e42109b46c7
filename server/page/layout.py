"""What stands where on the page, and what happens on a click.

The one decision: a handler yields only the components that change, and everything that it shows is
made by `views`. What a session keeps is one `Result`: the answer, and the names given to speakers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.processing_utils import save_bytes_to_cache

from config import InferenceConfig, ServerSettings
from errors import EndpointError
from response import Answer
from server.admission import Admission
from server.engine_loop import Progress
from server.page import views
from server.page.downloads import FORMATS, file_stem, make_files
from server.page.parameters import ParameterForm, parameter_form
from server.page.recognition import Tick, follow, read_request, recording_bytes
from server.page.recording import recording_input
from server.page.speaker_names import clean_name, speakers_of
from server.service import Decoded, Event, Finished, Service
from transcript import Chunk

FOLDER = Path(__file__).resolve().parent
TITLE = "Who said what"
SWEEP_SECONDS, KEPT_SECONDS = 600, 3600

Updates = dict[Any, Any]  # components and their new values


@dataclass(frozen=True, slots=True)
class Result:
    """What a session keeps: the answer to its recording, and what its speakers are called."""

    answer: Answer
    config: InferenceConfig
    stem: str
    names: Mapping[str, str] = field(default_factory=dict)


class Page:
    """The components of the page and the handlers of their events."""

    def __init__(self, service: Service, admission: Admission, settings: ServerSettings) -> None:
        self.service, self.admission = service, admission
        self.seconds = settings.request_timeout
        # A recording is played and downloaded for a while after the longest request has ended.
        self.kept_seconds = int(settings.request_timeout) + KEPT_SECONDS
        self.blocks = gr.Blocks(
            title=TITLE, analytics_enabled=False, delete_cache=(SWEEP_SECONDS, self.kept_seconds)
        )
        with self.blocks:
            self.result = gr.State(None, time_to_live=self.kept_seconds)
            gr.HTML(f"<h1>{TITLE}</h1>", elem_id="title")
            with gr.Row(elem_id="columns"):
                with gr.Column(scale=2, min_width=320):
                    self.form = self._lay_out_form()
                with gr.Column(scale=5, min_width=360):
                    self._lay_out_result()
            self._connect()
        self.blocks.queue(
            max_size=settings.max_queue, default_concurrency_limit=None, api_open=False
        )

    def _lay_out_form(self) -> ParameterForm:
        self.recording = recording_input()
        with gr.Row():
            self.run = gr.Button("Transcribe", variant="primary", elem_id="run")
            self.stop = gr.Button("Stop", variant="stop", visible=False, elem_id="stop")
        return parameter_form(self.service.handler)

    def _lay_out_result(self) -> None:
        self.status = gr.HTML(elem_id="status")
        self.player = gr.HTML(elem_id="player-area")
        self.timeline = gr.HTML(
            elem_id="timeline", js_on_load=(FOLDER / "rename.js").read_text(encoding="utf-8")
        )
        with gr.Row(elem_id="downloads"):
            self.downloads = {
                name: gr.DownloadButton(
                    name.upper(), size="sm", visible=False, min_width=60, elem_id=f"download-{name}"
                )
                for name in FORMATS
            }
        self.transcript = gr.HTML(elem_id="transcript")

    def _connect(self) -> None:
        shown = [self.status, self.player, self.timeline, self.transcript, *self._buttons()]
        silent: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
        running = self.run.click(
            self.transcribe,
            inputs=[self.recording, *self.form.components.values()],
            outputs=[*shown, self.result],
            concurrency_limit=None,
            **silent,
        )
        self.stop.click(
            self.stopped, outputs=[self.status, self.run, self.stop], cancels=[running], **silent
        )
        # Gradio knows the event by its name in rename.js.
        self.timeline.rename(
            self.rename,
            inputs=[self.result],
            outputs=[self.result, self.transcript, *self.downloads.values()],
            trigger_mode="multiple",  # each event has every name: the last one counts
            concurrency_limit=1,
            **silent,
        )

    def _buttons(self) -> list[gr.Button | gr.DownloadButton]:
        return [self.run, self.stop, *self.downloads.values()]

    async def transcribe(self, recording: str | None, *values: Any) -> AsyncIterator[Updates]:  # noqa: ANN401
        """Follow one recording from its upload to its downloads, or to the line that says why
        not.
        """
        yield self._started(recording)
        started = time.perf_counter()
        heard: list[Chunk] = []
        with ExitStack() as held:
            try:
                place = held.enter_context(self.admission.place())
                place.grow(await recording_bytes(recording))
                request = await read_request(self.service, recording, self.form.read(values))
                async with aclosing(follow(self.service, request, self.seconds)) as events:
                    async for event in events:
                        if not isinstance(event, Finished):
                            yield self._advanced(event, heard)
                            continue
                        result = Result(event.answer, request.config, file_stem(recording or ""))
                        yield await self._finished(result, time.perf_counter() - started)
            except EndpointError as error:
                # With its place: a server that is about to end waits until this is sent.
                yield {self.status: views.failure(str(error)), **self._at_rest()}

    def stopped(self) -> Updates:
        """What is shown where the person has stopped a recording."""
        return {self.status: views.notice("Stopped."), **self._at_rest()}

    async def rename(self, result: Result | None, event: gr.EventData) -> Updates:
        """Call speakers what the timeline says, everywhere; an empty name brings the number back.

        Names are those of the browser: whatever else it sends is left out.
        """
        if result is None:
            return {self.result: None}
        given = event.names if isinstance(event.names, dict) else {}
        speakers = speakers_of(result.answer)
        names = {each: clean_name(str(given[each])) for each in speakers if each in given}
        result = replace(result, names={each: name for each, name in names.items() if name})
        return {
            self.result: result,
            self.transcript: views.transcript(result.answer, result.names),
            **await self._files(result),
        }

    def _started(self, recording: str | None) -> Updates:
        return {
            self.status: views.waiting("Waiting for a free place"),
            self.player: views.player(recording) if recording else views.NOTHING,
            self.timeline: views.NOTHING,
            self.transcript: views.NOTHING,
            self.result: None,
            self.run: gr.update(interactive=False),
            self.stop: gr.update(visible=True),
            **{button: gr.update(visible=False) for button in self.downloads.values()},
        }

    def _at_rest(self) -> Updates:
        return {self.run: gr.update(interactive=True), self.stop: gr.update(visible=False)}

    def _advanced(self, event: Event | Tick, heard: list[Chunk]) -> Updates:
        """What is new after an event; `heard` grows by its chunks."""
        if isinstance(event, Decoded):
            return {self.status: views.waiting(f"Listening: {views.clock(event.duration)}")}
        if isinstance(event, Progress):
            heard += event.chunks
            return {
                self.status: views.progress(event.done, event.total),
                self.transcript: views.heard(heard),
            }
        return {self.result: gr.skip()}

    async def _finished(self, result: Result, wall: float) -> Updates:
        answer, names = result.answer, result.names
        return {
            self.status: views.summary(answer, wall),
            self.timeline: views.timeline(answer, names),
            self.transcript: views.transcript(answer, names),
            self.result: result,
            **self._at_rest(),
            **await self._files(result),
        }

    async def _files(self, result: Result) -> Updates:
        """The downloads, written to Gradio's cache, which `delete_cache` sweeps."""
        files = make_files(result.answer, result.config, result.names)

        def write(name: str, text: str) -> str:
            cache = self.downloads[name].GRADIO_CACHE
            return str(save_bytes_to_cache(text.encode(), f"{result.stem}.{name}", cache))

        paths = {name: await asyncio.to_thread(write, name, text) for name, text in files.items()}
        return {
            self.downloads[name]: gr.update(value=path, visible=True)
            for name, path in paths.items()
        }
