"""The output folder: results are named like their recordings, other files by ids.

    results/NAME.json        the endpoint's answer, with its record under "recording"
    results/NAME.srt, ...    the requested formats, written before the JSON, which keeps their texts
    index/ID.json            the record of a recording that has a result, with its NAME
    errors/ID.json           the record of a recording that failed

A recording is done if its entry in the index or its error is there, and each of these appears
whole, last, and in the same place whoever writes it. Nothing else is remembered. A name belongs to
a path: a new result of the same recording, changed or under other settings, replaces the old one,
whose entry goes first. A result of another path, and a file whose text the JSON does not keep,
because the user edited it, are never replaced: then the new result's name ends with the id.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, get_args

from config import InferenceConfig, OutputFormat
from extras.archive import storage
from extras.archive.manifest import Recording
from extras.archive.names import with_id
from extras.archive.records import Record
from whosaid.answer.formats import file_bytes
from whosaid.answer.kept import CHANGED, NOT_SAID, RunRequest, is_of

RESULTS, INDEX, ERRORS = "results", "index", "errors"
FORMATS: tuple[str, ...] = get_args(OutputFormat)


class Results:
    """The output folder at `out`. Methods raise OSError for errors that a retry cannot cure."""

    def __init__(self, out: str) -> None:
        self._out = out

    def _address(self, kind: str, name: str) -> str:
        return storage.join(self._out, kind, name)

    def _ids(self, kind: str) -> set[str]:
        found = storage.find_files(storage.join(self._out, kind))
        return {storage.name_of(each.address).removesuffix(".json") for each in found}

    def finished(self) -> set[str]:
        """Return the ids of all recordings with a result or an error's record."""
        return self._ids(INDEX) | self._ids(ERRORS)

    def find(self, id: str) -> Record | None:
        """Return the record of a finished recording."""
        return self._read(INDEX, id) or self._read(ERRORS, id)

    def _read(self, kind: str, id: str) -> Record | None:
        try:
            return Record.read(json.loads(storage.read(self._address(kind, f"{id}.json"))))
        except FileNotFoundError:
            return None

    def write(self, record: Record, answer: dict[str, Any], name: str) -> Record:
        """Write formats, JSON, and last the entry in the index; return the record with its name."""
        record = self._claim(replace(record, result=name), answer.get("output", {}))
        self._put(record, answer)
        return record

    def _put(self, record: Record, answer: dict[str, Any], stay: Collection[str] = ()) -> None:
        """Write a result, except the formats that `stay` as they are."""
        for ending, text in answer.get("output", {}).items():
            if ending not in stay:
                storage.write(self._result(record.result, ending), file_bytes(ending, text))
        body = {"recording": record.to_json(), **answer}
        self._write_json(self._result(record.result, "json"), body)
        self._write_json(self._address(INDEX, f"{record.id}.json"), record.to_json())

    def _result(self, name: str, ending: str) -> str:
        return self._address(RESULTS, f"{name}.{ending}")

    def _write_json(self, address: str, content: dict[str, Any]) -> None:
        text = json.dumps(content, indent=2, ensure_ascii=False)
        storage.write(address, f"{text}\n".encode())

    def write_error(self, record: Record) -> None:
        self._write_json(self._address(ERRORS, f"{record.id}.json"), record.to_json())

    def _claim(self, record: Record, output: Mapping[str, str]) -> Record:
        """Return the record with a unique name, and delete an older result of that name."""
        older, answer = self._stored(record.result)
        ours = older is None or older.path == record.path
        formats = output if older is None else FORMATS
        if not ours or self._edited(record.result, formats, answer.get("output", {}), output):
            record = replace(record, result=with_id(record.result, record.id))
            older, _ = self._stored(record.result)
        if older and older.id != record.id:
            storage.delete(self._address(INDEX, f"{older.id}.json"))
            for ending in FORMATS:
                storage.delete(self._result(record.result, ending))
        return record

    def _edited(self, name: str, formats: Iterable[str], *outputs: Mapping[str, str]) -> set[str]:
        """Return the formats of which a file exists whose text is in none of the `outputs`."""
        found = set()
        for ending in formats:
            with suppress(FileNotFoundError):
                content = storage.read(self._result(name, ending))
                texts = [each[ending] for each in outputs if ending in each]
                if content not in [file_bytes(ending, text) for text in texts]:
                    found.add(ending)
        return found

    def _stored(self, name: str) -> tuple[Record | None, dict[str, Any]]:
        """Return the result of that name; the record has no path if the result is not ours."""
        try:
            answer = json.loads(storage.read(self._result(name, "json")))
            return Record.read(answer.pop("recording")), answer
        except FileNotFoundError:
            return None, {}
        except (ValueError, TypeError, KeyError, AttributeError):
            return Record("", ""), {}

    def reuse(self, recording: Recording, request: RunRequest) -> Record | str:
        """Return the record of an earlier run's result that suffices for this request, after adding
        formats and layouts, and an entry in the index. Otherwise return the reason, as the end of a
        sentence about the answer; "" if there is no result.
        """
        older, answer = self._stored(recording.result)
        if older and not older.path:
            return NOT_SAID
        if older is None or older.path != recording.path:
            return ""
        if why := request.why_not(answer):
            return why
        told, digest = {"recording": older.to_json()}, partial(storage.digest, older.path)
        if not is_of(told, recording.size, recording.modified, True, digest):
            return CHANGED
        formats = InferenceConfig.read({"output": request.parameters.get("output", [])}).output
        before = answer.get("output", {})
        answer = request.laid_out(answer, formats)
        output = answer.get("output", {})
        if missing := [name for name in formats if name not in output]:
            return f"does not give {', '.join(missing)}"
        record = replace(older, id=recording.id, modified=recording.modified)
        edited = self._edited(recording.result, output, before, output)
        if any(output[name] != before.get(name) for name in edited):
            record, edited = replace(record, result=with_id(recording.result, record.id)), set()
        else:
            storage.delete(self._address(INDEX, f"{older.id}.json"))
        self._put(record, answer, edited)
        return record

    def errors(self, ids: Collection[str]) -> list[Record]:
        """Return the records of errors of these recordings, except those with a result."""
        failed = self._ids(ERRORS).intersection(ids)
        if failed:
            failed -= self._ids(INDEX)
        # Another run may have deleted a record, to try again.
        found = storage.in_parallel(partial(self._read, ERRORS), sorted(failed))
        return [each for each in found if each]

    def forget_errors(self, ids: Iterable[str]) -> None:
        """Delete the records of errors of these recordings."""
        wanted = self._ids(ERRORS).intersection(ids)
        addresses = [self._address(ERRORS, f"{id}.json") for id in wanted]
        storage.in_parallel(storage.delete, addresses)
