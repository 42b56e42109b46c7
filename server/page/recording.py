"""The component that takes a recording: Gradio's, without its own way to the network.

The one decision: Gradio downloads what a client names by URL instead of uploading it. This server
connects to nobody on a client's word, so only files that were uploaded here are taken.
"""

from __future__ import annotations

from pathlib import Path

import gradio as gr
from gradio.utils import abspath, is_in_or_equal


def recording_input() -> gr.Audio:
    """A component that takes an uploaded or recorded file, and nothing else.

    Its method is replaced on the object: for a class that derives from a component, Gradio writes a
    stub beside the source file.
    """
    recording = gr.Audio(
        sources=["upload", "microphone"],
        type="filepath",
        editable=False,
        label="Recording",
        elem_id="recording",
        buttons=[],
    )
    move = recording.async_move_resource_to_block_cache

    async def move_uploaded(url_or_file_path: str | Path | None) -> str | None:
        named = url_or_file_path
        # A URL is no path in the cache either.
        if named is not None and not is_in_or_equal(abspath(named), recording.GRADIO_CACHE):
            raise gr.Error("only uploaded files are taken", print_exception=False)
        moved: str | None = await move(named)
        return moved

    recording.async_move_resource_to_block_cache = move_uploaded  # type: ignore[method-assign]
    return recording
