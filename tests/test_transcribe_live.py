"""`scripts/transcribe --live`, on models of this process and on a server with scripted sessions."""

import io
import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from websockets.exceptions import ConnectionClosed

from config import REPOSITORY
from tests.helpers.realtime_server import RealtimeServer, Talk, realtime_server, words
from tests.helpers.transcription_server import FakeServer
from tests.support import audio_files as files
from whosaid.audio.decode import AudioLimits, decode_audio
from whosaid.transcribe import live_audio, live_local, live_remote
from whosaid.transcribe.__main__ import main
from whosaid.transcribe.client import Failed
from whosaid.transcribe.live_audio import input_options, piped
from whosaid.transcribe.live_transcript import LiveTranscript
from whosaid.transcribe.printing import LiveScreen

RATE = 16_000


def two_items(talk: Talk) -> None:
    """The second one is complete before the first."""
    talk.hear()
    first, second = words("good morning", 0.5), words("how are you", 2.0)
    talk.start("a", 400)
    talk.say("a", first[:1], unstable=" mourning")
    talk.say("a", first[1:])
    talk.stop("a", 1_500)
    talk.start("b", 1_900)
    talk.stop("b", 3_400, "a")
    talk.complete("b", second)
    talk.complete("a", words("Good morning.", 0.5))


@pytest.fixture
def server() -> Iterator[RealtimeServer]:
    with realtime_server(two_items) as held:
        yield held


@pytest.fixture
def recording(tmp_path) -> Path:
    path = tmp_path / "talk.wav"
    path.write_bytes(files.wav_file(files.chirp(RATE, 3.5), RATE))
    return path


@contextmanager
def written(data: bytes) -> Iterator[int]:
    """The end of a pipe from which `data` can be read, and then its end."""
    reading, writing = os.pipe()

    def write() -> None:
        with open(writing, "wb") as speaker, suppress(BrokenPipeError):
            speaker.write(data)

    speaking = threading.Thread(target=write)
    speaking.start()
    try:
        yield reading
    finally:
        os.close(reading)
        speaking.join()


@contextmanager
def standard_input(monkeypatch, data: bytes | None = None) -> Iterator[None]:
    """Standard input with `data`, or one that goes on with zeros and then never says a word."""
    if data is not None:
        with written(data) as reading:
            monkeypatch.setattr(sys, "stdin", SimpleNamespace(fileno=lambda: reading))
            yield
        return
    reading, writing = os.pipe()
    os.write(writing, bytes(6_400))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(fileno=lambda: reading))
    monkeypatch.setattr("whosaid.transcribe.live_run.SECONDS_TO_CLOSE", 0.1)
    try:
        yield
    finally:
        # The thread that waits in a read of it goes before its number is another's.
        os.close(writing)


@pytest.fixture
def at_once(monkeypatch) -> None:
    monkeypatch.setattr(live_remote, "LEAST_PAUSE", 0.0)
    monkeypatch.setattr(live_remote, "MOST_PAUSE", 0.01)


@pytest.fixture
def once(monkeypatch) -> None:
    monkeypatch.setattr(live_remote, "SECONDS_TO_RETRY", 0.0)


def run(server: RealtimeServer, *arguments: str) -> int:
    return main(["transcribe", "--live", *arguments, "--url", server.url])


def test_a_file_is_sent_as_decoded_and_its_words_written(server, recording, capsys):
    words = ["Ada", {"text": "Zuse", "sounds_like": ["tsooza"]}]
    assert run(server, str(recording), "--language", "en", "--hotwords", json.dumps(words)) == 0
    decoded = decode_audio(recording.read_bytes(), RATE, AudioLimits(60, 2**20)).samples
    sent = np.frombuffer(bytes(server.audio), "<i2") / 32_768
    np.testing.assert_allclose(sent, decoded, atol=1 / 32_768)
    assert server.finals == 1
    assert server.paths == ["/v1/realtime?intent=transcription"]
    audio = {"format": {"type": "audio/pcm", "rate": 16_000}}
    audio["transcription"] = {"language": "en", "keywords": words}
    audio["turn_detection"] = {"type": "server_vad"}
    include = [f"item.input_audio_transcription.{each}" for each in ("words", "segments")]
    update = {"type": "transcription", "audio": {"input": audio}, "include": include}
    assert server.updates == [update]
    shown = capsys.readouterr()
    # In the order in which it was spoken, as it was completed.
    lines = [line.split(maxsplit=1) for line in shown.out.splitlines()]
    assert lines == [["0:00.5", "Good morning."], ["0:02.0", "how are you"]]
    assert shown.err == ""


def test_files_are_those_of_a_recording(server, recording, tmp_path):
    out = tmp_path / "out"
    options = ["--output-dir", str(out), "--words", "--output-format", "json,srt,txt,md"]
    options += ["--max_words_per_line", "1", "--highlight_words"]
    assert run(server, str(recording), *options) == 0
    assert {path.suffix for path in out.iterdir()} == {".json", ".srt", ".txt", ".md"}
    assert (out / "talk.md").read_text("utf-8").startswith(f"# {recording.name}\n\n**")
    answer = json.loads((out / "talk.json").read_text("utf-8"))
    assert answer["text"] == " Good morning. how are you"
    assert (answer["language"], answer["duration"]) == ("en", 3.5)
    assert [word["word"] for word in answer["words"]][:2] == [" Good", " morning."]
    assert answer["words"][2]["timestamp"] == [2.0, 2.4]
    assert answer["output"]["txt"] == "Good morning.\nhow are you\n"
    cues = (out / "talk.srt").read_text("utf-8").split("\n\n")
    texts = [cue.split("\n")[2] for cue in cues]
    assert texts == [f"<u>{word}</u>" for word in ("Good", "morning.", "how", "are", "you")]
    other = tmp_path / "other" / recording.name
    other.parent.mkdir()
    other.write_bytes(recording.read_bytes())
    assert run(server, str(other), *options) == 2  # another file of this name


def test_clips_and_options_name_the_speakers(recording, tmp_path, capsys):
    """Segments with speakers follow the text at the end: the lines stand once more, with names."""
    (tmp_path / "ann.wav").write_bytes(b"Ann")

    def reply(talk: Talk) -> None:
        talk.hear()
        talk.start("a", 400)
        talk.stop("a", 2_500)
        talk.complete("a", words("good morning hello", 0.5))
        parts = (("1", "good morning", "Ann", 0.5, 1.4), ("2", "hello", "SPEAKER_01", 1.5, 1.9))
        for name, text, speaker, start, end in parts:
            talk.of("segment", "a", id=name, text=text, speaker=speaker, start=start, end=end)
        talk.tell("session.speakers", warnings=["known_speakers: noise"])

    clips = ["--known-speakers", f"{tmp_path / 'ann.wav'}=Ann", "--known-speaker-threshold", "0.5"]
    names = ["--speaker-names", "SPEAKER_01=Bob,SPEAKER_07=Eve"]
    with realtime_server(reply) as server:
        assert run(server, str(recording), "-o", str(tmp_path), "--words", *clips, *names) == 0
        transcription = server.updates[0]["audio"]["input"]["transcription"]
    people = {"known_speaker_names": ["Ann"], "known_speaker_references": ["QW5u"]}
    assert transcription == people | {"known_speaker_threshold": 0.5}
    named = [["0:00.5", "Ann", "good", "morning"], ["0:01.5", "Bob", "hello"]]
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [["0:00.5", "good", "morning", "hello"], [], *named]
    assert (tmp_path / "talk.txt").read_text("utf-8") == "Ann: good morning\nBob: hello\n"
    answer = json.loads((tmp_path / "talk.json").read_text("utf-8"))
    blocks = [(each["speaker"], each["text"]) for each in answer["speakers"]]
    assert blocks == [("Ann", "good morning"), ("Bob", "hello")]
    assert [word["speaker"] for word in answer["words"]] == ["Ann", "Ann", "Bob"]
    unknown = "--speaker-names: no SPEAKER_07; the speakers are Ann, SPEAKER_01"
    assert answer["warnings"] == ["known_speakers: noise", unknown]


def test_a_second_ctrl_c_waits_for_nothing(monkeypatch, capsys):
    """The text so far is shown."""

    def reply(talk: Talk) -> None:
        talk.hear(6_400)
        talk.say("a", words("good morning", 0.5))
        os.kill(os.getpid(), signal.SIGINT)
        talk.hear()
        os.kill(os.getpid(), signal.SIGINT)
        talk.connection.recv()

    with realtime_server(reply) as server, standard_input(monkeypatch):
        assert run(server, "-") == 130
    assert "good morning" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("status", "key", "reason"),
    [
        (401, None, "no (the server needs a key: set API_KEY)"),
        (401, "x" * 40, "no (the server does not accept the key in API_KEY)"),
        (404, None, "no: the server has no live sessions"),
        (503, None, "no"),
    ],
)
def test_a_refused_session_is_one_line(server, recording, monkeypatch, capsys, status, key, reason):
    if key:
        monkeypatch.setenv("API_KEY", key)
    server.status, server.body = status, {"error": {"message": "no", "code": "x"}}
    before = set(recording.parent.iterdir())
    assert run(server, str(recording), "--output-format", "srt") == 1
    assert capsys.readouterr() == ("", f"{reason}\n")
    assert set(recording.parent.iterdir()) == before
    assert server.headers[0].get("authorization") == (f"Bearer {key}" if key else None)


def test_a_missing_server_is_one_line(recording, capsys):
    with FakeServer() as plain:
        assert main(["transcribe", "--live", str(recording), "--url", plain.url]) == 1
        refused = capsys.readouterr().err
    assert refused == f"{plain.url} does not answer as a transcription server\n"
    assert main(["transcribe", "--live", str(recording), "--url", plain.url]) == 1
    assert capsys.readouterr().err == (
        f"{plain.url}: Connection refused; is a server running there? scripts/serve starts one\n"
    )


def refuse_update(talk: Talk) -> None:
    talk.tell("error", error={"message": "language: is none", "code": "invalid_value"})
    talk.connection.recv()


def fail_one(talk: Talk) -> None:
    talk.hear()
    talk.stop("a", 900)
    talk.of("failed", "a", error={"message": "OUT_OF_MEMORY: none is left"})
    talk.complete("b", words("how are you", 2.0))


def go_away(talk: Talk) -> None:
    talk.hear(3_200)
    talk.complete("b", words("how are you", 60.0))  # behind all audio: none is lost
    talk.tell("error", error={"message": "the session is over"})
    talk.connection.close(1001)


def give_up(talk: Talk) -> None:
    talk.hear()
    talk.complete("b", words("how are you", 2.0))
    talk.tell("error", error={"message": "DEADLINE_EXCEEDED: too late"})
    talk.connection.close(1011)


def vanish(talk: Talk) -> None:
    talk.hear(3_200)
    talk.complete("b", words("how are you", 60.0))
    talk.connection.socket.shutdown(socket.SHUT_RDWR)


def say_nonsense(talk: Talk) -> None:
    talk.hear()
    talk.of("delta", "a", text="none")
    talk.connection.recv()


def say_no_json(talk: Talk) -> None:
    talk.hear()
    talk.connection.send("good morning")
    talk.connection.recv()


@pytest.mark.parametrize(
    ("reply", "shown", "reasons"),
    [
        (refuse_update, False, ["language: is none"]),
        (fail_one, True, ["OUT_OF_MEMORY: none is left"]),
        (go_away, True, ["the session is over", "the server has ended the session"]),
        (give_up, True, ["DEADLINE_EXCEEDED: too late", "the server has ended the session"]),
        (vanish, True, ["the server is gone"]),
        (
            say_nonsense,
            False,
            ["the server sent 'conversation.item.input_audio_transcription.delta' in another form"],
        ),
        (say_no_json, False, ["the server sent an invalid event"]),
    ],
)
@pytest.mark.usefixtures("once")
def test_errors_of_a_session_are_a_line_and_lose_nothing(recording, capsys, reply, shown, reasons):
    with realtime_server(reply) as server:
        assert run(server, str(recording)) == 1
    found = capsys.readouterr()
    assert found.err.splitlines() == reasons
    assert ("how are you" in found.out) == shown


def test_a_missing_file_is_an_error_before_sending(server, tmp_path, capsys):
    none, notes = tmp_path / "none.wav", tmp_path / "notes.mp3"
    notes.write_text("no audio")
    assert run(server, str(none)) == 1
    assert capsys.readouterr().err == f"{none}: No such file or directory\n"
    assert run(server, str(notes)) == 1
    assert capsys.readouterr().err.startswith(f"{notes}: INVALID_AUDIO: ")
    assert server.audio == b""


SECOND = 2 * RATE
# In the n-th second all samples are n.
COUNTED = b"".join(struct.pack("<h", n) * RATE for n in range(1, 11))
Lose = Callable[[Talk, str, list[dict]], None]


class Counting:
    """Sessions on COUNTED, which comes through standard input: so much of it for each session.

    Each says `wn` for each second of n that it hears all of, and is lost by `lose`, but the last.
    """

    def __init__(self, monkeypatch, lose: Lose, *seconds: float) -> None:
        self._lose, self._seconds = lose, list(seconds)
        self._reading, writing = os.pipe()
        self._speaker = os.fdopen(writing, "wb")
        self.heard = bytearray()
        self.include: list[list[str]] = []
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(fileno=lambda: self._reading))
        self._say()

    def _say(self) -> None:
        """Write the audio of the next session, in a thread: a pipe holds two seconds."""
        start, is_last = len(self.heard), len(self._seconds) == 1
        audio = COUNTED[start : start + int(SECOND * self._seconds[0])]

        def write() -> None:
            self._speaker.write(audio)
            self._speaker.flush()
            if is_last:
                self._speaker.close()

        self._speaking = threading.Thread(target=write)
        self._speaking.start()

    def close(self) -> None:
        os.close(self._reading)
        self._speaking.join()
        with suppress(BrokenPipeError):
            self._speaker.close()

    def __call__(self, talk: Talk) -> None:
        talk.audio = bytearray()
        is_last = len(self._seconds) == 1
        talk.hear(None if is_last else int(SECOND * self._seconds.pop(0)))
        self.heard += talk.audio
        self.include.append(talk.updates[-1]["include"])
        heard = np.frombuffer(bytes(talk.audio), "<i2")
        whole = [n for n in range(1, 11) if np.count_nonzero(heard == n) == RATE]
        starts = [int(np.argmax(heard == n)) / RATE for n in whole]
        spans = [(n, {"start": at, "end": at + 1.0}) for n, at in zip(whole, starts, strict=True)]
        said = [{"word": f" w{n}", **span, "probability": 0.9} for n, span in spans]
        item = f"item_{len(self.include)}"
        talk.start(item, 0)
        talk.say(item, said, unstable=" a guess")
        if is_last:
            talk.complete(item, said)
        else:
            self._speaking.join()
            self._lose(talk, item, said)
            self._say()


def expire(talk: Talk, item: str, said: list[dict]) -> None:
    """Complete the received audio, and refuse later events one by one."""
    talk.tell("error", error={"message": "the session is over", "code": "session_expired"})
    talk.tell("error", error={"message": "nothing more is taken", "code": "session_ending"})
    talk.complete(item, said)
    talk.connection.close(1001)


def shut(talk: Talk, item: str, said: list[dict]) -> None:
    """Accept messages until the client leaves: a refusal could arrive before the words."""
    talk.connection.socket.shutdown(socket.SHUT_WR)
    with suppress(ConnectionClosed):
        while True:
            talk.connection.recv()


def time_out(talk: Talk, item: str, said: list[dict]) -> None:
    """Close like a web server whose pings are not answered."""
    talk.connection.close(1011, "keepalive ping timeout")


def answered(folder: Path) -> dict:
    (path,) = folder.glob("*.json")
    return json.loads(path.read_text("utf-8"))


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("lose", "reason", "is_live"),
    [
        (expire, "the session is over", True),
        (shut, "the server is gone", True),
        pytest.param(expire, "the session is over", False, marks=pytest.mark.reliability),
        pytest.param(
            time_out, "the server has ended the session", True, marks=pytest.mark.reliability
        ),
    ],
)
def test_a_lost_session_keeps_its_text_and_another_continues(
    tmp_path, monkeypatch, capsys, lose, reason, is_live
):
    """No audio is sent again, times count over all the audio, and the gap is reported."""
    if is_live:  # no audio is sent ahead of real time, and so the server has read all
        monkeypatch.setattr(live_remote, "LEAST_AHEAD", 60.0)
    sessions = Counting(monkeypatch, lose, 5.5, 2.25, 2.25)
    out = tmp_path / "out"
    with closing(sessions), realtime_server(sessions) as server:
        status = run(server, "-", "--words", "--output-dir", str(out))
    complete = lose is expire and is_live
    assert status == (0 if complete else 1)
    assert bytes(sessions.heard) == COUNTED
    answer = answered(out)
    # Between the sessions two seconds are cut.
    assert answer["text"].split() == ["w1", "w2", "w3", "w4", "w5", "w7", "w9", "w10"]
    times = {word["word"].strip(): word["timestamp"] for word in answer["words"]}
    assert times == {f"w{n}": [n - 1.0, float(n)] for n in (1, 2, 3, 4, 5, 7, 9, 10)}
    gaps = [] if complete else ["from 0:05 to 0:06", "from 0:07 to 0:08"]
    missing = [f"{gap} words may be missing" for gap in gaps]
    lost = "the live session was lost"
    assert (answer["duration"], answer["warnings"]) == (10.0, [f"{gap}: {lost}" for gap in missing])
    # Speakers are told of the first session alone: another calls the same people something else.
    assert [len(each) for each in sessions.include] == [2, 1, 1]
    shown = capsys.readouterr()
    on = [f"{reason}; its text stays, a new session continues from {at}" for at in ("0:06", "0:08")]
    assert [line for line in shown.err.splitlines() if line not in missing] == on
    assert shown.out.split().count("w5") == 1
    assert "guess" not in shown.out


@pytest.mark.usefixtures("at_once")
def test_microphone_audio_waits_for_the_next_session(tmp_path, monkeypatch, capsys):
    """The next session gets what was said since."""
    samples, everything = tmp_path / "samples", tmp_path / "everything"
    samples.write_bytes(COUNTED)
    os.mkfifo(tmp_path / "lost")
    microphone(
        tmp_path,
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(255))\n"
        f"samples, out = open({str(samples)!r}, 'rb'), sys.stdout.buffer\n"
        f"out.write(samples.read({SECOND})); out.flush()\n"
        f"open({str(tmp_path / 'lost')!r}).read()\n"
        "out.write(samples.read()); out.flush()\n"
        f"open({str(everything)!r}, 'w').close()\n"
        "signal.pause()\n",
        monkeypatch,
    )
    heard: list[bytes] = []
    refused: list[object] = []

    def admit(connection, request):
        if not heard or (refused and everything.exists()):
            return None
        refused.append(request)
        return connection.respond(503, json.dumps({"error": {"message": "full"}}))

    def reply(talk: Talk) -> None:
        talk.audio = bytearray()
        talk.hear(9 * SECOND if heard else SECOND)
        heard.append(bytes(talk.audio))
        if len(heard) == 1:
            shut(talk, "", [])
            (tmp_path / "lost").write_bytes(b"")
        else:
            os.kill(os.getpid(), signal.SIGINT)
            talk.hear()
            talk.complete("a", words("and so on", 0.0))

    monkeypatch.setattr(RealtimeServer, "refuse", lambda _, *given: admit(*given))
    with realtime_server(reply) as server:
        assert run(server) == 1
    assert heard == [COUNTED[:SECOND], COUNTED[SECOND:]]
    shown = capsys.readouterr()
    assert shown.out.split() == ["0:01.0", "and", "so", "on"]
    assert shown.err.splitlines() == [
        "from 0:00 to 0:01 words may be missing",
        "the server is gone; trying a new session, Ctrl+C stops",
        "the server is gone; its text stays, a new session continues from 0:01",
    ]


@pytest.mark.usefixtures("at_once")
def test_an_idle_session_is_replaced_when_audio_comes(monkeypatch, capsys):
    """Servers end those in which nothing comes for long, and it may be hours."""
    reading, writing = os.pipe()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(fileno=lambda: reading))
    os.write(writing, COUNTED[:6_400])
    goes_on = threading.Event()
    was_silent: list[bool] = []

    def idle(talk: Talk) -> None:
        was_silent.append(not goes_on.is_set())
        talk.hear(None if goes_on.is_set() else 6_400)
        if not goes_on.is_set():
            talk.tell("error", error={"message": "nothing came", "code": "session_idle"})
            talk.connection.close(1001)
            goes_on.set()
            os.write(writing, COUNTED[:6_400])
            os.close(writing)

    with realtime_server(idle) as server:
        assert run(server, "-") == 0
    os.close(reading)
    assert was_silent == [True, False]
    told = "nothing came; its text stays, a new session continues from 0:00\n"
    assert capsys.readouterr().err == told


@pytest.mark.usefixtures("at_once")
def test_a_server_that_stays_away_is_given_up(monkeypatch, capsys):
    monkeypatch.setattr(live_remote, "SECONDS_TO_RETRY", 0.3)

    def lose(talk: Talk, item: str, said: list[dict]) -> None:
        server.status, server.body = 503, {"error": {"message": "full"}}
        shut(talk, item, said)

    sessions = Counting(monkeypatch, lose, 2.0, 2.0)
    with closing(sessions), realtime_server(sessions) as server:
        assert run(server, "-") == 1
    shown = capsys.readouterr()
    assert shown.err.splitlines()[-1] == "full"
    assert shown.out.split()[-2:] == ["w1", "w2"]


@pytest.mark.parametrize("proxy", ["socks5h://127.0.0.1:9", "nonsense://127.0.0.1:9"])
def test_an_unusable_proxy_is_one_line(server, recording, monkeypatch, capsys, proxy):
    for name in ("ws_proxy", "socks_proxy", "https_proxy", "http_proxy"):
        monkeypatch.setenv(name, proxy)
    monkeypatch.setitem(sys.modules, "python_socks", None)
    assert run(server, str(recording)) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{server.url}: ")
    assert "proxy" in line


def test_the_process_ends_while_standard_input_waits():
    """The waiting thread holds no lock that the interpreter needs (python/cpython#86883)."""

    def reply(talk: Talk) -> None:
        talk.hear(6_400)
        talk.tell("error", error={"message": "MODEL_ERROR: none"})
        talk.connection.close(1011)

    command = [sys.executable, "-m", "whosaid.transcribe", "transcribe", "--live", "-", "--url"]
    with (
        realtime_server(reply) as server,
        subprocess.Popen(
            [*command, server.url], cwd=REPOSITORY, stdin=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process,
    ):
        process.stdin.write(bytes(6_400))
        process.stdin.flush()
        told = process.stderr.read()
        status = process.wait()
    assert (status, told) == (1, b"MODEL_ERROR: none\nthe server has ended the session\n")


def chunk(name: bytes, content: bytes) -> bytes:
    return name + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)


def wav(rate: int, body: bytes, channels: int = 1, size: int | None = None) -> bytes:
    form = struct.pack("<HHIIHH", 1, channels, rate, rate * 2, 2, 16)
    size = len(body) if size is None else size
    inside = b"WAVE" + chunk(b"LIST", b"odd") + chunk(b"fmt ", form)
    return b"RIFF" + struct.pack("<I", size) + inside + b"data" + struct.pack("<I", size) + body


@pytest.mark.parametrize(
    ("data", "rate", "samples"),
    [
        (b"", 16_000, b""),
        (b"\1\2\3", 16_000, b"\1\2\3"),
        (bytes(range(256)) * 100, 16_000, bytes(range(256)) * 100),
        # Samples that begin like MPEG.
        *((start * 5_000, 16_000, start * 5_000) for start in (b"\xff\xfb", b"\xff\xf1")),
        (b"\xff\xfb\x90\xc4", 16_000, b"\xff\xfb\x90\xc4"),
        (wav(24_000, b"\1\2\3\4"), 24_000, b"\1\2\3\4"),
        # As ffmpeg announces what it cannot know.
        (wav(16_000, b"\1\2" * 9_000, size=2**32 - 1), 16_000, b"\1\2" * 9_000),
    ],
)
def test_standard_input_has_samples_or_wav(data, rate, samples):
    with written(data) as reading:
        first, *parts = piped(reading)
    assert first == rate
    assert max(map(len, parts), default=0) <= rate // 5
    assert b"".join(parts) == samples


@pytest.mark.parametrize(
    "data",
    [
        b"OggS" + bytes(100),
        bytes(4) + b"ftypisom" + bytes(20),
        b"RIFF" + bytes(4) + b"AVI " + bytes(20),
        (b"\xff\xfb\x90\xc4" + bytes(413)) * 3,  # MP3 of 128 kbit/s at 44.1 kHz
        (b"\xff\xf3\x5a\xc0" + bytes(177)) * 3,  # of 40 kbit/s at 16 kHz, with padding
        (b"\xff\xf1\x4c\x40\x02\x1f\xfc" + bytes(9)) * 3,  # ADTS
        wav(44_100, b""),
        wav(16_000, b"", channels=2),
        wav(16_000, b"")[:30],
    ],
)
def test_files_on_standard_input_are_refused_with_advice(data):
    with written(data) as reading, pytest.raises(Failed, match=r"standard input"):
        next(piped(reading))


def test_standard_input_is_sent_at_its_own_rate(server, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with standard_input(monkeypatch, wav(24_000, bytes(48_000))):
        assert run(server, "-", "--output-format", "json") == 0
    assert server.updates[0]["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 24_000}
    assert len(server.audio) == 48_000
    (written,) = tmp_path.iterdir()
    assert written.match("live-*.json")
    assert json.loads(written.read_text("utf-8"))["duration"] == 1.0


def test_a_file_in_real_time_is_sent_as_spoken(server, recording, monkeypatch):
    """Each block waits for the time at which it would have been spoken."""
    clock = SimpleNamespace(now=100.0)

    def sleep(seconds: float) -> None:
        clock.now += seconds

    fake = SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep)
    monkeypatch.setattr(live_audio, "time", fake)
    assert run(server, str(recording), "--realtime") == 0
    assert clock.now == pytest.approx(103.5)


def test_little_is_sent_ahead_of_real_time(server, recording, monkeypatch):
    """Audio that a server has not read is lost with its session."""
    monkeypatch.setattr(live_remote, "MOST_AHEAD_SECONDS", 3.0)
    began = time.monotonic()
    assert run(server, str(recording)) == 0
    assert time.monotonic() - began >= 0.5


def microphone(folder: Path, script: str, monkeypatch) -> None:
    """Put a program named ffmpeg on the path that runs `script`."""
    program = folder / "ffmpeg"
    program.write_text(f"#!{sys.executable}\n{script}")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_ffmpeg_records_the_microphone_until_ctrl_c(tmp_path, monkeypatch):
    """Samples that ffmpeg delivers after its signal are sent too."""
    monkeypatch.setattr("whosaid.transcribe.live_run.SECONDS_TO_CLOSE", 60.0)
    given = tmp_path / "arguments"
    microphone(
        tmp_path,
        "import signal, sys\n"
        "def end(*_):\n"
        "    sys.stdout.buffer.write(bytes(320)); sys.stdout.flush(); sys.exit(255)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        f"open({str(given)!r}, 'w').write(' '.join(sys.argv[1:]))\n"
        "sys.stdout.buffer.write(bytes(6400)); sys.stdout.flush()\n"
        "while True: signal.pause()\n",
        monkeypatch,
    )

    def reply(talk: Talk) -> None:
        talk.hear(6_400)
        os.kill(os.getpid(), signal.SIGINT)
        talk.hear()

    with realtime_server(reply) as server:
        assert run(server, "--microphone", "desk") == 0
        assert (server.finals, len(server.audio)) == (1, 6_720)
    assert "-i desk -f s16le -ar 16000 -ac 1" in given.read_text()


@pytest.mark.parametrize("local", [True, False])
def test_a_missing_microphone_is_one_line(server, tmp_path, monkeypatch, capsys, local):
    """Models of this process do not load for it."""
    microphone(tmp_path, "import sys\nsys.exit('x\\ndefault: No such device\\n')", monkeypatch)
    monkeypatch.setattr("whosaid.transcribe.local.load", None)
    assert (main(["transcribe", "--live"]) if local else run(server)) == 1
    assert capsys.readouterr().err == (
        "ffmpeg finds no microphone: default: No such device;"
        " --list-microphones has the names for --microphone\n"
    )
    (tmp_path / "ffmpeg").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(server) == 1
    assert capsys.readouterr().err.startswith("the microphone needs the ffmpeg program, which")
    assert input_options("darwin", None) == ["-f", "avfoundation", "-i", ":default"]


ALSA = """Auto-detected sources for alsa:
* default [Default ALSA Output] (none)
  hw:CARD=PCH,DEV=0 [HDA Intel PCH, ALC Analog] (none)
"""
APPLE = """[AVFoundation indev @ 0x7f8] AVFoundation video devices:
[AVFoundation indev @ 0x7f8] [0] FaceTime HD Camera
[AVFoundation indev @ 0x7f8] AVFoundation audio devices:
[AVFoundation indev @ 0x7f8] [0] MacBook Pro Microphone
[AVFoundation indev @ 0x7f8] [1] Anna's AirPods
: Input/output error
"""
LISTS = [
    ("linux", "stdout", ALSA, "default\nhw:CARD=PCH,DEV=0\n", 0),
    ("darwin", "stderr", APPLE, "MacBook Pro Microphone\nAnna's AirPods\n", 0),
    ("linux", "stderr", "Cannot list sources: Generic error\n", "", 1),
]


@pytest.mark.parametrize(("platform", "stream", "listing", "names", "status"), LISTS)
def test_microphones_are_listed_by_ffmpegs_names(
    tmp_path, monkeypatch, capsys, platform, stream, listing, names, status
):
    monkeypatch.setattr(sys, "platform", platform)
    microphone(tmp_path, f"import sys\nsys.{stream}.write({listing!r})", monkeypatch)
    assert main(["transcribe", "--list-microphones"]) == status
    said = capsys.readouterr()
    assert (said.out, said.err) == (names, "ffmpeg finds no microphone\n" if status else "")


def event(kind: str, **fields: object) -> dict:
    kind = f"conversation.item.input_audio_transcription.{kind}"
    return {"type": kind, "item_id": "a", "content_index": 0, **fields}


def test_a_terminal_shows_unstable_words_dimmed():
    transcript, shown = LiveTranscript(), io.StringIO()
    console = Console(file=shown, force_terminal=True, color_system="standard", width=60)
    screen = LiveScreen(transcript, console)
    with screen.shown():
        for given in (
            event("delta", delta=" good"),
            event("words", words=words("good", 0.5), unstable=" mourning"),
        ):
            transcript.take(given)
            screen.show()
        assert "good\x1b[2m mourning\x1b[0m" in shown.getvalue()
        before = len(shown.getvalue())
        transcript.take(event("completed", transcript="Good morning.", words=[]))
        screen.show()
        last = shown.getvalue()[before:]
        assert "\x1b[2K" in last
        assert "Good morning." in last
        assert "mourning" not in last


def test_segments_replace_words_with_speakers():
    transcript, shown = LiveTranscript(), io.StringIO()
    said = [*words("good morning", 0.5, "Ann"), *words("hello", 1.5, "Bob")]
    transcript.take(event("delta", delta=" good morning hello"))
    transcript.take(event("words", words=said, unstable=" you"))
    transcript.take(event("segment", id="1", text="good", speaker="Ann", start=0.5, end=0.9))
    screen = LiveScreen(transcript, Console(file=shown, width=60))
    with screen.shown():
        screen.show()
        assert shown.getvalue() == ""
    # The guess is no text of a session that is over.
    lines = [line.split() for line in shown.getvalue().splitlines()]
    assert lines == [["0:00.5", "Ann", "good", "morning"], ["0:01.5", "Bob", "hello"]]
    transcript.take(event("completed", transcript="good morning hello", words=said))
    fields = {"id": "2", "text": "good morning hello", "speaker": "Cid", "start": 0.5, "end": 1.9}
    transcript.take(event("segment", **fields))
    (item,) = transcript.items.values()
    assert [(each.speaker, each.text) for each in item.blocks()] == [("Cid", fields["text"])]


@pytest.mark.parametrize("broken", [True, False])
def test_early_segments_hide_no_words_of_a_lost_item(broken):
    """Early segments name words that came without a speaker."""
    transcript = LiveTranscript()
    transcript.take(event("delta", delta="one two three four"))
    said = [*words("one two", 0.5), *words("three", 1.5, "Bob"), *words("four", 2.0)]
    transcript.take(event("words", words=said, unstable=""))
    fields = {"id": "1", "text": "one two", "speaker": "Ann", "start": 0.5, "end": said[1]["end"]}
    transcript.take(event("segment", **fields))
    if broken:
        transcript.break_off(6.0)
    else:
        transcript.take(event("failed", error={"message": "broken"}))
    told = transcript.answer(6.0, {"return_timestamps": "word"})["speakers"]
    named = [(each["speaker"], each["text"].strip()) for each in told]
    assert named == [("Ann", "one two"), ("Bob", "three"), (None, "four")]


def test_overlapping_words_are_written_for_both_speakers():
    transcript = LiveTranscript()
    transcript.take(event("completed", transcript="I say yes", words=words("I say yes", 0.5)))
    for number, name, text, start in (("1", "Ann", " I say yes", 0.5), ("2", "Bob", " no", 0.8)):
        said = words(text, start, name)
        span = {"start": said[0]["start"], "end": said[-1]["end"]}
        fields = {"id": number, "text": text, "speaker": name, "words": said}
        transcript.take(event("segment", **fields, **span))
    later = event("completed", transcript="so", words=words("so", 5.0))
    transcript.take({**later, "item_id": "b"})
    last = event("segment", id="3", text=" so", speaker="Ann", start=5.0, end=5.4)
    transcript.take({**last, "item_id": "b"})
    answer = transcript.answer(6.0, {"output": ["srt"], "return_timestamps": "word"})
    told = [(each["speaker"], each["text"].strip()) for each in answer["speakers"]]
    assert told == [("Ann", "I say yes"), ("Bob", "no"), ("Ann", "so")]
    assert answer["speakers"][1]["timestamp"] == [0.8, pytest.approx(1.2)]
    assert answer["text"].split() == ["I", "say", "yes", "no", "so"]
    named = [(each["word"].strip(), each["speaker"]) for each in answer["words"]]
    assert sorted(named) == sorted(
        [("I", "Ann"), ("say", "Ann"), ("yes", "Ann"), ("no", "Bob"), ("so", "Ann")]
    )
    for spoken in ("Ann: I say yes", "Bob: no", "Ann: so"):
        assert spoken in answer["output"]["srt"]


def test_final_text_stays_when_a_session_is_lost():
    """An incomplete item before a complete one stays too."""
    transcript = LiveTranscript()
    for item, start, said in (("a", 1.0, "one two"), ("b", 3.0, "three"), ("c", 5.0, "four")):
        begun = {"type": "input_audio_buffer.speech_started", "item_id": item}
        transcript.take({**begun, "audio_start_ms": 1000 * start})
        transcript.take(event("delta", item_id=item, delta=f" {said}"))
        transcript.take(event("words", item_id=item, words=words(said, start), unstable=" perhaps"))
        if item != "b":
            done = event("completed", item_id=item, transcript=said, words=words(said, start))
            transcript.take(done)
    transcript.take(event("words", item_id="e", words=[], unstable=" a guess"))
    assert transcript.break_off(6.0) == 5.4
    transcript.take(event("completed", item_id="d", transcript="five", words=words("five", 1.0)))
    assert [item.text.strip() for item in transcript.items.values()] == [
        *("one two", "three", "four", "five")
    ]
    assert [item.start for item in transcript.items.values()] == [1.0, 3.0, 5.0, 7.0]
    assert all(item.done and not item.unstable for item in transcript.items.values())
    assert transcript.break_off(8.0) == 7.4


@pytest.fixture
def tiny(monkeypatch, tiny_endpoint) -> None:
    monkeypatch.setattr("handler.load_endpoint", lambda _: tiny_endpoint)


@pytest.mark.slow
def test_models_of_this_process_need_no_server(tmp_path, monkeypatch, capsys, demo_endpoint):
    """A conversation, as it is said, with its speakers."""
    monkeypatch.setattr("handler.load_endpoint", lambda _: demo_endpoint)
    path = tmp_path / "talk.wav"
    path.write_bytes(files.wav_file(files.conversation()[: int(10.2 * RATE)], RATE))
    options = ["--embedded", "-o", str(tmp_path / "out"), "--words"]
    assert main(["transcribe", "--live", str(path), *options]) == 0
    answer = answered(tmp_path / "out")
    text = (
        "good morning how can i help you my name is david and i live in london"
        " i would like to book a ticket for two people on friday at nine"
    )
    assert answer["text"].strip() == text
    assert (answer["language"], answer["duration"], answer["warnings"]) == ("en", 10.2, [])
    assert [each["speaker"] for each in answer["speakers"]] == ["SPEAKER_00", "SPEAKER_01"]
    assert all(word["speaker"] for word in answer["words"])
    shown = capsys.readouterr()
    assert "Loading the demo models ...\n" in shown.err
    _, *named = shown.out.split("\n\n")  # the lines once more, with names
    assert [line.split()[1] for line in named[0].splitlines()] == ["SPEAKER_00", "SPEAKER_01"]


@pytest.mark.usefixtures("tiny")
def test_ctrl_c_ends_the_audio_of_embedded_models(tmp_path, monkeypatch):
    """Standard input never ends; the audio read so far is transcribed."""
    monkeypatch.chdir(tmp_path)
    append = live_local.LiveDrivers.__call__

    def interrupt(drivers, send):
        os.kill(os.getpid(), signal.SIGINT)
        return append(drivers, send)

    monkeypatch.setattr(live_local.LiveDrivers, "__call__", interrupt)
    with standard_input(monkeypatch):
        assert main(["transcribe", "--live", "-", "--embedded", "-f", "json"]) == 0
    assert answered(tmp_path)["duration"] == 0.2


@pytest.mark.usefixtures("tiny")
def test_no_audio_is_a_failure(monkeypatch, capsys):
    with standard_input(monkeypatch, b""):
        assert main(["transcribe", "--live", "-", "--embedded"]) == 1
    assert "no audio came" in capsys.readouterr().err


@pytest.mark.usefixtures("tiny")
def test_speakers_without_diarization_are_one_line(recording, tmp_path, capsys):
    (tmp_path / "ann.wav").write_bytes(files.two_seconds())
    clips = ["--known-speakers", f"{tmp_path / 'ann.wav'}=Ann"]
    assert main(["transcribe", "--live", str(recording), "--embedded", *clips]) == 1
    *_, line = capsys.readouterr().err.splitlines()
    assert line == "UNSUPPORTED: speakers: no diarization model is loaded"
