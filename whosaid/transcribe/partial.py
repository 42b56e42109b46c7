"""Keeps the windows of a recording while it is transcribed, so that another run can go on.

They stand in NAME.partial.jsonl beside the outputs until these are written. The first line says
that the answer is incomplete, of which recording, and how it is made; every other line has one
window, so a broken line costs only its window.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from whosaid.answer import kept
from whosaid.asr import DecodedWindow, Journal
from whosaid.asr.frontend.windows import Window
from whosaid.runtime.files import write_file
from whosaid.transcribe.recordings import PARTIAL, Recording

INCOMPLETE = "an interrupted transcription; the same command goes on from here"


@dataclass(frozen=True, slots=True)
class PartialLine:
    """A decoded window of a channel, and its text for readers of the file."""

    text: str
    channel: int | None
    decoded: DecodedWindow


LINE = TypeAdapter(PartialLine)


class PartialAnswer:
    """The decoded windows of a recording, described as in its JSON file, for a `request`.

    `resumes`: an interrupted run has decoded some. Nothing is written if a file of another program
    is at `path`, or if the disk fails.
    """

    def __init__(
        self, recording: Recording, described: Mapping[str, Any], request: kept.RunRequest
    ) -> None:
        self.path = recording.output(PARTIAL)
        self._recording, self._request = described, request
        self.windows: dict[tuple[int | None, Window], PartialLine] = {}
        self._begun, self._writes = False, True
        with suppress(OSError):
            self._read(self.path.read_bytes())
        self.resumes = bool(self.windows)

    def journal(self, channel: int | None) -> Journal:
        return ChannelJournal(self, channel)

    def add(self, line: PartialLine) -> None:
        self.windows[line.channel, line.decoded.window] = line
        if self._writes:
            try:
                self._append(line)
            except OSError:  # the outputs' error will be shown
                self._writes = False

    def remove(self) -> None:
        """Remove the file, if it is ours."""
        if self._writes:
            self.path.unlink(missing_ok=True)

    def _read(self, data: bytes) -> None:
        head, *lines = data.split(b"\n")
        try:
            found = json.loads(head)
            self._writes = found["partial"] == INCOMPLETE
            same = found["recording"]["sha256"] == self._recording["sha256"]
        except (ValueError, LookupError, TypeError):
            self._writes = False
            return
        if not (self._writes and same) or self._request.why_not(found):
            return
        for each in lines:
            with suppress(ValueError):
                line = LINE.validate_json(each)
                self.windows[line.channel, line.decoded.window] = line

    def _append(self, line: PartialLine) -> None:
        if self._begun:
            with self.path.open("ab") as file:
                file.write(_written(line))
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        made = self._request.to_json()
        head = {"partial": INCOMPLETE, "recording": self._recording, "made_with": made}
        first = json.dumps(head, ensure_ascii=False).encode() + b"\n"
        write_file(self.path, b"".join([first, *map(_written, self.windows.values())]))
        self._begun = True


class ChannelJournal(NamedTuple):
    """The windows of one channel, None if channels are mixed."""

    answer: PartialAnswer
    channel: int | None

    def find(self, window: Window) -> DecodedWindow | None:
        line = self.answer.windows.get((self.channel, window))
        return None if line is None else line.decoded

    def add(self, decoded: DecodedWindow) -> None:
        text = "".join(chunk.text for chunk in decoded.chunks)
        self.answer.add(PartialLine(text, self.channel, decoded))


def _written(line: PartialLine) -> bytes:
    return LINE.dump_json(line) + b"\n"
