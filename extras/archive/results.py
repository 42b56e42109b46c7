"""The output place: results, called as their recordings are; the rest is named by ids.

    manifest.jsonl           which recordings there are (archive/manifest.py)
    results/NAME.json        the endpoint's answer, with its record under "recording"
    results/NAME.srt, ...    the formats asked for, written before the json
    index/ID.json            the record of a recording that has a result, with its NAME
    shards/GROUP-SET.parquet results of many recordings, instead of those above
                             (archive/gathering.py)
    errors/ID.json           the record of a recording that failed
    attempts/ID.N            the N-th attempt of the run whose id it holds is running, or has died

A recording is done when its entry in the index, its shard or its error is there, and each of these
appears whole, last, and in the same place whoever writes it. Nothing else is remembered. A name
belongs to a path: a new result of the same recording, changed or under other settings, takes the
place of the old one, whose entry goes first; that of another never does.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import file_digest
from typing import Any

from answer.kept import CHANGED, NOT_SAID, Request, is_of
from config import InferenceConfig
from extras.archive import shards, storage
from extras.archive.manifest import Recording
from extras.archive.names import with_id
from extras.archive.records import NOT_FOUND, UNREADABLE, Record
from extras.archive.retries import patiently

RESULTS, INDEX, SHARDS = "results", "index", "shards"
ERRORS, ATTEMPTS = "errors", "attempts"
# Files of a store that are read or deleted at once.
PARALLEL = 16
# So many processes of one run may die of a recording. Each end of a driver that was killed leaves
# the marks of all that was computed then, so those of several runs name a recording only when there
# are more of them; a file that takes the whole machine with it has one from each run.
MOST_ATTEMPTS, MOST_MARKS = 3, 9


class Died(Exception):
    """A recording is not tried again: so many `attempts` did not end; one line."""

    def __init__(self, attempts: int, own: int) -> None:
        died = f"the process that computed it died {own} times"
        several = f"{attempts} attempts in several runs came to no end"
        super().__init__(died if own >= MOST_ATTEMPTS else several)
        self.attempts = attempts


def names_in(folder: str, ending: str = "") -> list[str]:
    """What the files there with this ending are called, without it. Raises OSError."""
    names = patiently(
        lambda: [storage.name_of(each.address) for each in storage.find_files(folder)]
    )
    return [name.removesuffix(ending) for name in names if name.endswith(ending)]


def result_address(out: str, name: str, ending: str) -> str:
    """Where a file of the result called `name` lies."""
    return storage.join(out, RESULTS, *f"{name}.{ending}".split("/"))


class Results:
    """The output place at the address `out`; for shards each result is one file, formats within.

    All methods but `take_back` raise OSError, where another try is in vain too.
    """

    def __init__(self, out: str, in_shards: bool = False) -> None:
        self.out, self.in_shards = out, in_shards

    def _address(self, kind: str, name: str) -> str:
        return storage.join(self.out, kind, name)

    def _names(self, kind: str, ending: str) -> list[str]:
        return names_in(storage.join(self.out, kind), ending)

    def done(self) -> set[str]:
        """The ids of all recordings that have a result.

        Files first: what is gathered meanwhile is found in its shard.
        """
        ids = set(self._names(INDEX, ".json"))
        names = self._names(SHARDS, shards.ENDING)
        addresses = [self._address(SHARDS, name + shards.ENDING) for name in names]
        with ThreadPoolExecutor(PARALLEL) as threads:
            return ids.union(*threads.map(shards.ids, addresses))

    def finished(self) -> set[str]:
        """The ids of all recordings that have a result or the record of an error."""
        return self.done().union(self._names(ERRORS, ".json"))

    def find(self, id: str) -> Record | None:
        """The record of a recording whose result or error lies in a file of its own."""
        for kind in (INDEX, ERRORS):
            try:
                content = patiently(storage.read, self._address(kind, f"{id}.json"))
            except FileNotFoundError:
                continue
            return Record.read(json.loads(content))
        return None

    def write(self, record: Record, answer: dict[str, Any], name: str) -> Record:
        """Write a result: its formats, its json, and last its entry in the index. The record with
        what it is called: `name`, or where the result of another path is called so, with its id.
        """
        record = self._claim(replace(record, result=name))
        self._put(record, answer)
        return record

    def _put(self, record: Record, answer: dict[str, Any]) -> None:
        body = {"recording": record.to_json(), **answer}
        if not self.in_shards:
            for ending, text in body.pop("output", {}).items():
                self._write(result_address(self.out, record.result, ending), text)
        content = json.dumps(body, indent=None if self.in_shards else 2, ensure_ascii=False)
        self._write(result_address(self.out, record.result, "json"), f"{content}\n")
        self._write_record(INDEX, record)

    def reuse(self, recording: Recording, request: Request) -> tuple[bool, str]:
        """Make the result of an earlier run that of this one, if it gives what is asked for: with
        new formats and layouts, and with its new entry in the index. Returns whether it does and,
        if it does not, why: what follows "the answer", or nothing if there is none.
        """
        try:
            address = result_address(self.out, recording.result, "json")
            answer = json.loads(patiently(storage.read, address))
            older = Record.read(answer.pop("recording"))
            record = replace(older, id=recording.id, modified=recording.modified)
        except FileNotFoundError:
            return False, ""
        except (ValueError, TypeError, KeyError, AttributeError):
            return False, NOT_SAID
        if older.path != recording.path:
            return False, ""
        if why := request.why_not(answer):
            return False, why
        told = {"recording": older.to_json()}
        if not is_of(told, recording.size, recording.modified, True, partial(_digest, older.path)):
            return False, CHANGED
        formats = InferenceConfig.read({"output": request.parameters.get("output", [])}).output
        answer = request.laid_out(self._with_turns(recording.result, answer), formats)
        output = answer.get("output", {})
        if missing := [name for name in formats if name not in output]:
            return False, f"does not give {', '.join(missing)}"
        _delete(self._address(INDEX, f"{older.id}.json"))
        self._put(record, answer)
        return True, ""

    def _with_turns(self, name: str, answer: dict[str, Any]) -> dict[str, Any]:
        """The answer with what lies beside it and does not follow from it; and with the subtitles
        there, so that they are laid out, too.
        """
        output = dict(answer.get("output", {}))
        for ending in shards.FORMATS:
            with suppress(FileNotFoundError):
                text = patiently(storage.read, result_address(self.out, name, ending)).decode()
                output[ending] = text
        return {**answer, "output": output}

    def _claim(self, record: Record) -> Record:
        older = self._holder(record.result)
        if older and older.path != record.path:
            record = replace(record, result=with_id(record.result, record.id))
            older = self._holder(record.result)
        if older and older.id != record.id:
            _delete(self._address(INDEX, f"{older.id}.json"))
            for ending in shards.FORMATS:
                _delete(result_address(self.out, record.result, ending))
        return record

    def _holder(self, name: str) -> Record | None:
        """The record in the result that is called so; one without a path where it is not ours."""
        try:
            content = patiently(storage.read, result_address(self.out, name, "json"))
            return Record.read(json.loads(content)["recording"])
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError):
            return Record("", "")

    def write_error(self, record: Record) -> None:
        """Write the record of a recording that failed."""
        self._write_record(ERRORS, record)

    def _write_record(self, kind: str, record: Record) -> None:
        content = json.dumps(record.to_json(), indent=2, ensure_ascii=False)
        self._write(self._address(kind, f"{record.id}.json"), f"{content}\n")

    def _write(self, address: str, text: str) -> None:
        patiently(storage.write, address, text.encode())

    def errors(self, ids: Collection[str]) -> list[Record]:
        """The records of those of these recordings that failed, and have no result either."""
        failed = set(self._names(ERRORS, ".json")).intersection(ids)
        if failed:
            failed -= self.done()
        with ThreadPoolExecutor(PARALLEL) as threads:
            return [each for each in threads.map(self._error, sorted(failed)) if each]

    def _error(self, id: str) -> Record | None:
        try:
            content = patiently(storage.read, self._address(ERRORS, f"{id}.json"))
        except FileNotFoundError:  # deleted by another run, which tries it again
            return None
        return Record.read(json.loads(content))

    def forget_errors(self, ids: Iterable[str]) -> None:
        """Delete the records of errors of these recordings, and their attempts."""
        wanted = set(ids).intersection(self._names(ERRORS, ".json"))
        if not wanted:
            return
        addresses = [self._address(ERRORS, f"{id}.json") for id in wanted]
        addresses += [address for id, address in self._marks() if id in wanted]
        with ThreadPoolExecutor(PARALLEL) as threads:
            list(threads.map(_delete, addresses))

    def forget_unread(self, ids: Collection[str]) -> None:
        """Delete the records of those of these recordings that could not be read."""
        unread = [each.id for each in self.errors(ids) if each.code in (NOT_FOUND, UNREADABLE)]
        self.forget_errors(unread)

    def begin(self, id: str, run: str) -> int:
        """Mark one more attempt of the run called `run`; its number.

        What was marked stays until `end`: the process of an attempt that did not come so far died.
        Raises Died after MOST_ATTEMPTS of this run, or MOST_MARKS of any.
        """
        own = 0
        for number in range(1, MOST_MARKS + 1):
            address = self._address(ATTEMPTS, f"{id}.{number}")
            try:
                own += patiently(storage.read, address) == run.encode()
            except FileNotFoundError:
                if own < MOST_ATTEMPTS:
                    self._write(address, run)
                    return number
                raise Died(number - 1, own) from None
        raise Died(MOST_MARKS, own)

    def end(self, id: str, attempt: int) -> None:
        """Take back the marks of all attempts up to this one."""
        for number in range(attempt, 0, -1):
            _delete(self._address(ATTEMPTS, f"{id}.{number}"))

    def take_back(self, id: str, attempt: int) -> None:
        """Take back the mark of an attempt that came to nothing, as well as may be: its process
        lives, and something else is told.
        """
        with suppress(OSError):
            _delete(self._address(ATTEMPTS, f"{id}.{attempt}"))

    def withdraw(self, run: str) -> None:
        """Take back what a run that has ended was trying, as if it had not begun."""
        latest: dict[str, str] = {}
        for id, address in sorted(self._marks()):
            latest[id] = address
        for address in latest.values():
            with suppress(FileNotFoundError):  # its worker came to an end meanwhile
                if patiently(storage.read, address) == run.encode():
                    _delete(address)

    def _marks(self) -> Iterator[tuple[str, str]]:
        for name in names_in(storage.join(self.out, ATTEMPTS)):
            yield name.rpartition(".")[0], self._address(ATTEMPTS, name)


def _digest(address: str) -> str:
    with storage.open_file(address) as file:
        return file_digest(file, "sha256").hexdigest()


def _delete(address: str) -> None:
    patiently(storage.delete, address)
