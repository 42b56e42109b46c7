"""The component that takes a recording: Gradio's, without its own way to the network.

The one decision: Gradio downloads what a client names by URL instead of uploading it. This server
connects to nobody on a client's word, so only files that were uploaded here are taken.
"""

from __future__ import annotations

from pathlib import Path

import gradio as gr
from gradio.data_classes import FileData
from gradio.utils import abspath, is_in_or_equal


def recording_input() -> gr.Audio:
    """A component that takes an uploaded or recorded file, and nothing else.

    Its methods are replaced on the object: for a class that derives from a component, Gradio writes
    a stub beside the source file.
    """
    recording = gr.Audio(
        sources=["upload", "microphone"],
        type="filepath",
        editable=False,
        label="Recording",
        elem_id="recording",
        buttons=[],
    )
    move, preprocess = recording.async_move_resource_to_block_cache, recording.preprocess

    def check(named: str | Path) -> None:
        # A URL is no path in the cache either.
        if not is_in_or_equal(abspath(named), recording.GRADIO_CACHE):
            raise gr.Error("only uploaded files are taken", print_exception=False)

    async def move_uploaded(named: str | Path | None) -> str | None:
        if named is not None:
            check(named)
        moved: str | None = await move(named)
        return moved

    # What claims to be a stream is not moved before.
    def preprocess_uploaded(payload: FileData | None) -> object:
        if payload is not None:
            check(payload.path)
        return preprocess(payload)

    recording.async_move_resource_to_block_cache = move_uploaded  # type: ignore[method-assign, assignment]
    recording.preprocess = preprocess_uploaded  # type: ignore[method-assign, assignment]
    return recording
