"""The output place: results, called as their recordings are; the rest is named by ids.

    manifest.jsonl           which recordings there are (extras/archive/manifest.py)
    results/NAME.json        the endpoint's answer, with its record under "recording"
    results/NAME.srt, ...    the requested formats, written before the JSON
    index/ID.json            the record of a recording that has a result, with its NAME
    shards/*.parquet         results of many recordings, instead of those above
    errors/ID.json           the record of a recording that failed
    attempts/ID.N            the N-th attempt, of the run whose id it holds, is running or has died

A recording is done if its entry in the index, its shard or its error is there, and each of these
appears whole, last, and in the same place whoever writes it. Nothing else is remembered. A name
belongs to a path: a new result of the same recording, changed or under other settings, replaces the
old one, whose entry goes first; a result of another path is never replaced.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from config import InferenceConfig
from extras.archive import shards, storage
from extras.archive.manifest import Recording
from extras.archive.names import with_id
from extras.archive.records import Record
from extras.archive.shards import INDEX, result_address
from extras.archive.storage import PARALLEL
from whosaid.answer.kept import CHANGED, NOT_SAID, Request, is_of

ERRORS, ATTEMPTS = "errors", "attempts"
# So many processes of one run may die of a recording. Each end of a driver that was killed leaves
# the marks of all that was computed then, so those of several runs name a recording only if there
# are more of them; a file that takes the whole machine with it has one from each run.
MOST_ATTEMPTS, MOST_MARKS = 3, 9


class Died(Exception):
    """A recording is not tried again: so many `attempts` did not end; one line."""

    def __init__(self, attempts: int, own: int) -> None:
        died = f"the process that computed it died {own} times"
        several = f"{attempts} attempts in several runs came to no end"
        super().__init__(died if own >= MOST_ATTEMPTS else several)
        self.attempts = attempts


class Results:
    """The output place at the address `out`; for shards each result is one file, formats within.

    Every method raises OSError if another try is in vain.
    """

    def __init__(self, out: str, in_shards: bool = False) -> None:
        self.out, self.in_shards = out, in_shards

    def _address(self, kind: str, name: str) -> str:
        return storage.join(self.out, kind, name)

    def _names(self, kind: str) -> set[str]:
        found = storage.find_files(storage.join(self.out, kind))
        return {storage.name_of(each.address).removesuffix(".json") for each in found}

    def done(self) -> set[str]:
        """Return the ids of all recordings that have a result."""
        ids = self._names(INDEX)  # before shards: results that are gathered meanwhile are in these
        return ids | shards.ids_in(self.out)

    def finished(self) -> set[str]:
        """Return the ids of all recordings that have a result or the record of an error."""
        return self.done() | self._names(ERRORS)

    def find(self, id: str) -> Record | None:
        """Return the record of a recording whose result or error lies in a file of its own."""
        return self._read(INDEX, id) or self._read(ERRORS, id)

    def _read(self, kind: str, id: str) -> Record | None:
        try:
            return Record.read(json.loads(storage.read(self._address(kind, f"{id}.json"))))
        except FileNotFoundError:
            return None

    def write(self, record: Record, answer: dict[str, Any], name: str) -> Record:
        """Write a result: its formats, its JSON, and last its entry in the index. Return the record
        with the result's name: `name`, or if that is the result of another path, with its id.
        """
        record = self._claim(replace(record, result=name))
        self._put(record, answer)
        return record

    def _put(self, record: Record, answer: dict[str, Any]) -> None:
        body = {"recording": record.to_json(), **answer}
        if not self.in_shards:
            for ending, text in body.pop("output", {}).items():
                storage.write(result_address(self.out, record.result, ending), text.encode())
        content = json.dumps(body, indent=None if self.in_shards else 2, ensure_ascii=False)
        storage.write(result_address(self.out, record.result, "json"), f"{content}\n".encode())
        self._write(INDEX, record)

    def _write(self, kind: str, record: Record) -> None:
        content = json.dumps(record.to_json(), indent=2, ensure_ascii=False)
        storage.write(self._address(kind, f"{record.id}.json"), f"{content}\n".encode())

    def write_error(self, record: Record) -> None:
        """Write the record of a recording that failed."""
        self._write(ERRORS, record)

    def _claim(self, record: Record) -> Record:
        """Return the record with a name of its own, and delete an older result of that name."""
        older = self._holder(record.result)
        if older and older.path != record.path:
            record = replace(record, result=with_id(record.result, record.id))
            older = self._holder(record.result)
        if older and older.id != record.id:
            storage.delete(self._address(INDEX, f"{older.id}.json"))
            for ending in shards.FORMATS:
                storage.delete(result_address(self.out, record.result, ending))
        return record

    def _holder(self, name: str) -> Record | None:
        """Return the record in the result of that name; one without a path if it is not ours."""
        try:
            content = storage.read(result_address(self.out, name, "json"))
            return Record.read(json.loads(content)["recording"])
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError):
            return Record("", "")

    def reuse(self, recording: Recording, request: Request) -> tuple[bool, str]:
        """Make the result of an earlier run that of this one, if it gives what is asked for: with
        new formats and layouts, and with its new entry in the index. Return whether it does and, if
        it does not, why: the end of a sentence about the answer, "" if there is none.
        """
        try:
            content = storage.read(result_address(self.out, recording.result, "json"))
            answer = json.loads(content)
            older = Record.read(answer.pop("recording"))
        except FileNotFoundError:
            return False, ""
        except (ValueError, TypeError, KeyError, AttributeError):
            return False, NOT_SAID
        if older.path != recording.path:
            return False, ""
        if why := request.why_not(answer):
            return False, why
        told, digest = {"recording": older.to_json()}, partial(storage.digest, older.path)
        if not is_of(told, recording.size, recording.modified, True, digest):
            return False, CHANGED
        formats = InferenceConfig.read({"output": request.parameters.get("output", [])}).output
        answer["output"] = self._formats(recording.result, answer)
        answer = request.laid_out(answer, formats)
        if missing := [name for name in formats if name not in answer["output"]]:
            return False, f"does not give {', '.join(missing)}"
        storage.delete(self._address(INDEX, f"{older.id}.json"))
        self._put(replace(older, id=recording.id, modified=recording.modified), answer)
        return True, ""

    def _formats(self, name: str, answer: dict[str, Any]) -> dict[str, str]:
        """Return an answer's formats, those that lie beside it too."""
        output = dict(answer.get("output", {}))
        for ending in shards.FORMATS:
            with suppress(FileNotFoundError):
                output[ending] = storage.read(result_address(self.out, name, ending)).decode()
        return output

    def errors(self, ids: Collection[str]) -> list[Record]:
        """Return the records of errors of these recordings, but for those that have a result."""
        failed = self._names(ERRORS).intersection(ids)
        if failed:
            failed -= self.done()
        with ThreadPoolExecutor(PARALLEL) as threads:
            # Another run may have deleted one, to try it again.
            found = threads.map(partial(self._read, ERRORS), sorted(failed))
            return [each for each in found if each]

    def forget_errors(self, ids: Iterable[str]) -> None:
        """Delete the records of errors of these recordings, and their attempts."""
        wanted = self._names(ERRORS).intersection(ids)
        if not wanted:
            return
        addresses = [self._address(ERRORS, f"{id}.json") for id in wanted]
        addresses += [address for id, address in self._marks() if id in wanted]
        with ThreadPoolExecutor(PARALLEL) as threads:
            list(threads.map(storage.delete, addresses))

    def begin(self, id: str, run: str) -> int:
        """Mark one more attempt of the run called `run`, and return its number.

        A mark stays until `end`: the process of an attempt that did not come so far died. Raises
        Died after MOST_ATTEMPTS of this run, or MOST_MARKS of any.
        """
        own = 0
        for number in range(1, MOST_MARKS + 1):
            address = self._address(ATTEMPTS, f"{id}.{number}")
            try:
                own += storage.read(address) == run.encode()
            except FileNotFoundError:
                if own < MOST_ATTEMPTS:
                    storage.write(address, run.encode())
                    return number
                raise Died(number - 1, own) from None
        raise Died(MOST_MARKS, own)

    def end(self, id: str, attempt: int) -> None:
        """Take back the marks of all attempts up to this one."""
        for number in range(attempt, 0, -1):
            storage.delete(self._address(ATTEMPTS, f"{id}.{number}"))

    def take_back(self, id: str, attempt: int) -> None:
        """Delete the mark of an attempt that failed by an exception, if possible. Marks that stay
        are for attempts whose process died.
        """
        with suppress(OSError):
            storage.delete(self._address(ATTEMPTS, f"{id}.{attempt}"))

    def withdraw(self, run: str) -> None:
        """Take back what a run that has ended was trying, as if it had not begun."""
        latest = dict(sorted(self._marks()))
        for address in latest.values():
            with suppress(FileNotFoundError):  # its worker came to an end meanwhile
                if storage.read(address) == run.encode():
                    storage.delete(address)

    def _marks(self) -> Iterator[tuple[str, str]]:
        for each in storage.find_files(storage.join(self.out, ATTEMPTS)):
            yield storage.name_of(each.address).rpartition(".")[0], each.address
