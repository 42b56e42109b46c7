"""`scripts/transcribe --live`: transcribes audio while it is spoken, and shows words as they come.

Models in this process transcribe it, or with `--url` a running server.
"""

import asyncio
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from config import ModelSettings
from whosaid.answer import kept
from whosaid.answer.kept import RunRequest, for_keeping
from whosaid.cli.options import parameters
from whosaid.cli.parser import FAILED
from whosaid.server.settings import ServerSettings
from whosaid.transcribe.client import Unusable
from whosaid.transcribe.live_audio import SourceAudio, choose_source
from whosaid.transcribe.live_run import LiveRun
from whosaid.transcribe.live_transcript import LiveTranscript
from whosaid.transcribe.options import STANDARD_INPUT
from whosaid.transcribe.recordings import (
    InTheWay,
    Recording,
    RecordingWork,
    asked_formats,
    fitting,
    sparing,
    write_outputs,
)

ELSEWHERE = "--output-dir writes elsewhere"


def transcribe_live(
    options: Namespace, choose: Callable[[], ModelSettings], say: Callable[[str], None]
) -> int:
    """Show the transcript, write the requested files, and return the exit status. `choose` returns
    the models if there is no server. Raises Failed, or InTheWay for a file.
    """
    if options.output_format:
        _refuse_to_overwrite(options)
    source = choose_source(options.recordings, options.microphone, options.realtime)
    live = LiveRun(source, LiveTranscript(options.speaker_names or ()), say)
    if not options.url:
        source.check()  # before the models load
    transcribe = _on_server(options, live) if options.url else _on_models(options, choose, live)
    try:
        asyncio.run(live.run(transcribe))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        source.close()
        if live.seconds:
            _write_files(options, live.transcript, live.seconds)
    if not (live.seconds or live.failed or live.interrupted.is_set()):
        live.fail("no audio came")
    return FAILED if live.failed else 0


def _on_server(options: Namespace, live: LiveRun) -> Callable[[SourceAudio], Awaitable[None]]:
    try:
        from whosaid.transcribe.live_remote import RemoteSessions
    except ImportError as error:
        package = error.name
        raise Unusable(f"--live needs the package {package}: scripts/setup installs it") from error
    key = ServerSettings.from_environment().api_key
    secret = key.get_secret_value() if key else None
    return RemoteSessions(options.url, secret, options, live).transcribe


def _on_models(
    options: Namespace, choose: Callable[[], ModelSettings], live: LiveRun
) -> Callable[[SourceAudio], Awaitable[None]]:
    from whosaid.transcribe.local import load

    endpoint = load(choose)
    from whosaid.transcribe.live_local import transcribe_locally

    return partial(transcribe_locally, endpoint, options, live.take)


def _refuse_to_overwrite(options: Namespace) -> None:
    files = _output(options)
    if spared := sparing(RecordingWork(files, ["json", *options.output_format]), ELSEWHERE).spared:
        raise InTheWay(spared[0])
    before = files.kept_answer() or {}
    if "made_with" in before and "live" not in before["made_with"]:
        raise InTheWay(f"{files.output('json')} has the answer to the whole recording; {ELSEWHERE}")


def _write_files(options: Namespace, transcript: LiveTranscript, seconds: float) -> None:
    formats = options.output_format or ()
    if not formats:
        return
    given = parameters(options)
    asked = for_keeping({**given, "output": asked_formats(formats, True)})
    recording = _output(options)
    made = {"live": True, **RunRequest(None, given).to_json()}
    told = {"name": recording.name, "path_sha256": recording.path_digest}
    answer = {"recording": told, "made_with": made, **transcript.answer(seconds, asked)}
    answer = kept.with_documents(answer, formats, given)
    write_outputs(recording, answer, formats)


def _output(options: Namespace) -> Recording:
    """Return the outputs' path: named like the played file, or else by the time."""
    path = Path(time.strftime("live-%Y%m%d-%H%M%S"))
    if options.recordings and options.recordings != [STANDARD_INPUT]:
        path = options.recordings[0]
    folder = path.parent if options.output_dir is None else options.output_dir
    return Recording(path, folder / fitting(path.stem))
