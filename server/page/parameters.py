"""The form of parameters: its components, and what a request is sent of them.

The one decision: every component starts with the default of `InferenceConfig`, and what is left at
it is not sent, so that the page asks for nothing that its user did not ask for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from asr.checkpoint.languages import language_name
from config import MAX_PROMPT_CHARACTERS, InferenceConfig
from handler import EndpointHandler

# Made for every request, because downloads of all formats follow; they need the times of words.
OUTPUT = ["srt", "vtt", "txt", "tsv"]


@dataclass(frozen=True, slots=True)
class ParameterForm:
    """The components, by the names of the parameters that they set."""

    components: dict[str, gr.components.Component]

    def read(self, values: Sequence[Any]) -> dict[str, Any]:
        """The request's parameters for the components' values, in the components' order."""
        given = dict(zip(self.components, values, strict=True))
        given["return_timestamps"] = "word" if given.pop("words") else True
        given["num_beams"] = int(given["num_beams"])
        changed = {
            name: value
            for name, value in given.items()
            if value not in (None, "") and value != default_of(name)
        }
        return {**changed, "output": OUTPUT}


def default_of(name: str) -> Any:  # noqa: ANN401
    """The default of a parameter."""
    return InferenceConfig.model_fields[name].default


def parameter_form(handler: EndpointHandler) -> ParameterForm:
    """Lay out the form for what this endpoint's models can do, in the current Blocks."""
    tokens = handler.transcriber.models.special_tokens
    languages = sorted((language_name(code), code) for code in tokens.languages)
    components: dict[str, gr.components.Component] = {}
    with gr.Group():
        components["language"] = gr.Dropdown(
            [("Find out", ""), *languages], value="", label="Language", elem_id="language"
        )
        components["task"] = gr.Radio(
            [("Transcribe", "transcribe"), ("Translate to English", "translate")],
            value=default_of("task"),
            label="Task",
            visible=tokens.multilingual,
        )
    with gr.Accordion("Speakers", open=False, visible=handler.diarizer is not None):
        components |= _speaker_components(handler.diarizer is not None)
    with gr.Accordion("More", open=False):
        components |= _decoding_components(handler)
    return ParameterForm(components)


def _speaker_components(diarizer: bool) -> dict[str, gr.components.Component]:
    components: dict[str, gr.components.Component] = {
        "diarize": gr.Checkbox(
            value=default_of("diarize"), label="Tell speakers apart", visible=diarizer
        )
    }
    # Gradio makes 0 of a gr.Number that is left empty, which is no number of speakers.
    with gr.Row():
        for name, label in (("num", "Number"), ("min", "At least"), ("max", "At most")):
            components[f"{name}_speakers"] = gr.Textbox(
                label=label,
                placeholder="any",
                max_length=3,
                min_width=80,
                elem_id=f"{name}-speakers",
            )
    return components


def _decoding_components(handler: EndpointHandler) -> dict[str, gr.components.Component]:
    models = handler.transcriber.models
    return {
        "words": gr.Checkbox(value=False, label="Every word with its time in the JSON file"),
        "multilingual": gr.Checkbox(
            value=default_of("multilingual"),
            label="Several languages in one recording",
            visible=models.special_tokens.multilingual,
        ),
        "assisted": gr.Checkbox(
            value=default_of("assisted"),
            label="Assisted: a smaller model or Medusa heads draft (faster, same text)",
            visible=models.assistant is not None or models.medusa is not None,
        ),
        "num_beams": gr.Slider(
            minimum=1, maximum=8, step=1, value=1, label="Beams (1: greedy, more: slower)"
        ),
        "prompt": gr.Textbox(
            label="Prompt",
            info="Earlier text, whose style and spelling is followed",
            max_length=MAX_PROMPT_CHARACTERS,
            lines=2,
        ),
        "hotwords": gr.Textbox(label="Hot words", info="Names and terms, separated by commas"),
    }
