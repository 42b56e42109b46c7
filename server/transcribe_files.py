"""`scripts/transcribe`: sends files and folders to a running server, and writes what it answers.

The one decision: a run may stop anywhere and be started again. A file is written under another name
and then renamed, so that what exists is complete, and a recording whose files all exist and are no
older than it is left alone.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config import InferenceConfig, ServerSettings
from recording_files import ENDING
from server.client import Client, Failed
from server.transcribe_progress import Screen, screen

FORMATS = ("json", "srt", "vtt", "txt", "tsv", "rttm")


@dataclass(frozen=True, slots=True)
class Recording:
    """A file to be sent, and the path of its outputs without their ending."""

    path: Path
    stem: Path

    def output(self, name: str) -> Path:
        """Where the format `name` is written."""
        return self.stem.with_name(f"{self.stem.name}.{name}")

    def is_done(self, formats: Iterable[str]) -> bool:
        """Whether all outputs exist and none is older than the recording."""
        recorded = self.path.stat().st_mtime
        paths = [self.output(name) for name in formats]
        return all(path.is_file() and path.stat().st_mtime >= recorded for path in paths)


def find_recordings(named: Sequence[Path], output: Path | None) -> list[Recording]:
    """The files named and those in the folders named, each once, in order.

    Outputs stand beside a file, or under `output` as the file stands under the folder that was
    named. Where two would share a name, theirs keep the recordings' endings. Raises Failed for what
    does not exist, or holds none.
    """
    found: dict[Path, Path] = {}
    for path in named:
        if not path.exists():
            raise Failed(f"{path}: there is no such file or folder")
        top = path if path.is_dir() else path.parent
        if not (files := list(_files(path))):
            raise Failed(f"{path}: there is no recording in it")
        for file in files:
            folder = file.parent if output is None else output / file.parent.relative_to(top)
            found.setdefault(file, folder)
    stems = Counter((folder, file.stem) for file, folder in found.items())
    return [
        Recording(file, folder / (file.stem if stems[folder, file.stem] == 1 else file.name))
        for file, folder in found.items()
    ]


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if ENDING.fullmatch(file.suffix) and not hidden and file.is_file():
            yield file


def write_outputs(recording: Recording, answer: dict[str, Any], formats: Sequence[str]) -> None:
    """Write every format, each at once. Raises Failed where the server sent none of it, OSError."""
    made = answer.pop("output", {})
    texts = {"json": json.dumps(answer, indent=2, ensure_ascii=False) + "\n", **made}
    missing = [name for name in formats if name not in texts]
    if missing:
        raise Failed(f"the server did not send {', '.join(missing)}")
    recording.stem.parent.mkdir(parents=True, exist_ok=True)
    for name in formats:
        _write(recording.output(name), texts[name])


def _write(path: Path, text: str) -> None:
    """Write a file that is either whole or not there. No two threads write the same."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Job:
    """What is asked for every recording."""

    client: Client
    parameters: dict[str, Any]
    formats: Sequence[str]

    def run(self, recording: Recording, shown: Screen) -> str | None:
        """Transcribe one recording; the reason, on one line, where that was not possible."""
        started = time.monotonic()
        try:
            shown.begin(recording.path)
            answer = self.client.transcribe(
                recording.path.read_bytes(),
                self.parameters,
                lambda done, total: shown.advance(recording.path, done, total),
            )
            write_outputs(recording, answer, self.formats)
            shown.finish(recording.path, _duration(answer), time.monotonic() - started)
        except Failed as failure:
            return str(failure)
        except OSError as error:
            return error.strerror or type(error).__name__
        except Exception as error:
            return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
        return None


def _duration(answer: dict[str, Any]) -> float | None:
    """The recording's seconds; None where the server did not send them."""
    seconds = answer.get("duration")
    return float(seconds) if isinstance(seconds, int | float) and math.isfinite(seconds) else None


def run_all(job: Job, recordings: Sequence[Recording], parallel: int, shown: Screen) -> int:
    """Transcribe the recordings, `parallel` at a time; how many failed.

    The threads are daemons, so that Ctrl+C ends the process at once: nothing is half written.
    """
    waiting: queue.SimpleQueue[Recording | None] = queue.SimpleQueue()
    ended: queue.SimpleQueue[tuple[Recording, str | None]] = queue.SimpleQueue()

    def work() -> None:
        while (recording := waiting.get()) is not None:
            ended.put((recording, job.run(recording, shown)))

    workers = min(parallel, len(recordings))
    for recording in (*recordings, *[None] * workers):
        waiting.put(recording)
    for _ in range(workers):
        threading.Thread(target=work, daemon=True).start()
    failures = 0
    for _ in recordings:
        recording, reason = ended.get()
        if reason is not None:
            failures += 1
            shown.fail(recording.path, reason)
    return failures


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; ends the process with status 2 where it is wrong."""
    parser = argparse.ArgumentParser(
        prog="scripts/transcribe",
        description="Send recordings to a running server and write what it answers beside them."
        " Recordings whose files are there already are skipped.",
        epilog="The server's key, if it has one, is read from API_KEY in the environment.",
    )
    parser.add_argument("recordings", nargs="+", type=Path, metavar="FILE_OR_FOLDER")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="default: %(default)s")
    parser.add_argument("--output", type=Path, metavar="DIR", help="write there instead")
    parser.add_argument(
        "--formats",
        default="json,srt,vtt,txt",
        help=f"of {','.join(FORMATS)}; default: %(default)s",
    )
    parser.add_argument("--parallel", type=int, default=4, help="files at a time; default: 4")
    parser.add_argument("--force", action="store_true", help="transcribe again what is done")
    _add_parameters(parser.add_argument_group("parameters", "as in docs/api.md"))
    options = parser.parse_args(arguments)
    options.formats = list(dict.fromkeys(each.strip() for each in options.formats.split(",")))
    if unknown := [each for each in options.formats if each not in FORMATS]:
        parser.error(f"--formats: {unknown[0]!r} is none of {', '.join(FORMATS)}")
    if options.parallel < 1:
        parser.error("--parallel: at least 1")
    options.parameters = {
        name: value
        for name, value in vars(options).items()
        if name in InferenceConfig.model_fields and value is not None
    }
    options.parameters["output"] = [each for each in options.formats if each != "json"]
    try:
        InferenceConfig.read(options.parameters)
    except ValueError as error:
        parser.error(str(error))
    return options


def _add_parameters(group: argparse._ArgumentGroup) -> None:
    """An option for each parameter; what is not given is not sent."""
    switch: dict[str, Any] = {"action": "store_const", "const": True}
    group.add_argument("--language", help="a code or an English name; default: found out")
    group.add_argument("--task", choices=("transcribe", "translate"))
    group.add_argument(
        "--words",
        dest="return_timestamps",
        action="store_const",
        const="word",
        help="every word with its time in the JSON file",
    )
    for name in ("num-speakers", "min-speakers", "max-speakers", "num-beams", "batch-size"):
        group.add_argument(f"--{name}", type=int, metavar="N")
    group.add_argument(
        "--no-diarize", dest="diarize", action="store_const", const=False, help="no speakers"
    )
    group.add_argument("--assisted", **switch, help="speculative decoding")
    group.add_argument("--multilingual", **switch, help="several languages in one recording")
    group.add_argument("--prompt", help="earlier text, whose style and spelling is followed")
    group.add_argument("--hotwords", help="names and terms, separated by commas")


def run(options: argparse.Namespace) -> int:
    """Answer the command line; the exit status is 1 where a recording failed."""
    key = ServerSettings.from_environment().api_key
    client = Client(options.url, key.get_secret_value() if key else None)
    found = find_recordings(options.recordings, options.output)
    left = [each for each in found if options.force or not each.is_done(options.formats)]
    with screen(len(left), len(found) - len(left)) as shown:
        job = Job(client, options.parameters, options.formats)
        return 1 if run_all(job, left, options.parallel, shown) else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the client; the exit status is 1 where anything failed, 2 for a wrong command line."""
    options = parse_arguments(arguments)
    try:
        return run(options)
    except (Failed, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
