"""`scripts/transcribe --live` against a server that holds sessions as the test wants."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx2
import numpy as np
import pytest
from realtime_server import RealtimeServer, Talk, realtime_server, words
from rich.console import Console
from transcription_server import fake_server

from audio.decode import AudioLimits, decode_audio
from config import ModelSettings
from errors import StartError
from testing import audio_files as files
from transcribe import live_audio
from transcribe.__main__ import main
from transcribe.client import Failed, Unusable
from transcribe.live import websocket_address
from transcribe.live_audio import Pipe, input_options
from transcribe.live_screen import LiveScreen
from transcribe.live_server import own_server
from transcribe.live_transcript import LiveTranscript

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
def standard_input(monkeypatch, data: bytes | None = None) -> Iterator[None]:
    """Standard input with `data`, or one that goes on with zeros and then never says a word."""
    if data is not None:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
        yield
        return
    reading, writing = os.pipe()
    with open(reading, "rb") as stream, open(writing, "wb") as speaker:
        speaker.write(bytes(6_400))
        speaker.flush()
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stream))
        yield


def run(server: RealtimeServer, *arguments: str) -> int:
    return main(["transcribe", "--live", *arguments, "--url", server.url])


# ---- the session


def test_a_file_is_sent_as_it_is_decoded_and_its_words_come_back(server, recording, capsys):
    assert run(server, str(recording), "--language", "en", "--hotwords", "Ada, Zuse") == 0
    decoded = decode_audio(recording.read_bytes(), RATE, AudioLimits(60, 2**20)).samples
    sent = np.frombuffer(bytes(server.audio), "<i2") / 32_768
    np.testing.assert_allclose(sent, decoded, atol=1 / 32_768)
    assert server.finals == 1
    assert server.paths == ["/v1/realtime?intent=transcription"]
    assert server.updates == [
        {
            "type": "transcription",
            "audio": {
                "input": {
                    "format": {"type": "audio/pcm", "rate": 16_000},
                    "transcription": {"language": "en", "keywords": ["Ada", "Zuse"]},
                    "turn_detection": {"type": "server_vad"},
                }
            },
            "include": [
                "item.input_audio_transcription.words",
                "item.input_audio_transcription.segments",
            ],
        }
    ]
    shown = capsys.readouterr()
    # In the order in which it was spoken, as it was completed.
    assert [line.split(maxsplit=1) for line in shown.out.splitlines()] == [
        ["0:00.5", "Good morning."],
        ["0:02.0", "how are you"],
    ]
    assert shown.err == ""


def test_files_are_those_of_a_recording(server, recording, tmp_path):
    out = tmp_path / "out"
    options = ["--output-dir", str(out), "--words", "--output-format", "json,srt,txt"]
    assert run(server, str(recording), *options) == 0
    assert {path.name for path in out.iterdir()} == {"talk.json", "talk.srt", "talk.txt"}
    answer = json.loads((out / "talk.json").read_text("utf-8"))
    assert answer["text"] == " Good morning. how are you"
    assert (answer["language"], answer["duration"]) == ("en", 3.5)
    assert [word["word"] for word in answer["words"]][:2] == [" Good", " morning."]
    assert answer["words"][2]["timestamp"] == [2.0, 2.4]
    assert answer["output"]["txt"] == "Good morning.\nhow are you\n"
    assert (out / "talk.srt").read_text("utf-8") == answer["output"]["srt"]


def test_subtitles_are_laid_out_as_a_recordings(server, recording, tmp_path):
    options = ["--output-dir", str(tmp_path / "out"), "--output-format", "srt"]
    options += ["--max_words_per_line", "1", "--highlight_words"]
    assert run(server, str(recording), *options) == 0
    cues = (tmp_path / "out" / "talk.srt").read_text("utf-8").split("\n\n")
    texts = [cue.split("\n")[2] for cue in cues]
    assert texts == [f"<u>{word}</u>" for word in ("Good", "morning.", "how", "are", "you")]


def test_speakers_come_with_segments_also_at_the_end(recording, tmp_path, capsys):
    """The lines stand once more, with names."""

    def reply(talk: Talk) -> None:
        talk.hear()
        talk.start("a", 400)
        talk.stop("a", 2_500)
        talk.complete("a", words("good morning hello", 0.5))
        parts = (("1", "good morning", "Ann", 0.5, 1.4), ("2", "hello", "Bob", 1.5, 1.9))
        for name, text, speaker, start, end in parts:
            talk.of("segment", "a", id=name, text=text, speaker=speaker, start=start, end=end)

    out = tmp_path / "out"
    with realtime_server(reply) as server:
        assert run(server, str(recording), "--output-dir", str(out), "--words") == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["0:00.5", "good", "morning", "hello"],
        [],
        ["0:00.5", "Ann", "good", "morning"],
        ["0:01.5", "Bob", "hello"],
    ]
    answer = json.loads((out / "talk.json").read_text("utf-8"))
    assert [(each["speaker"], each["text"]) for each in answer["speakers"]] == [
        ("Ann", "good morning"),
        ("Bob", "hello"),
    ]
    assert [word["word"] for word in answer["words"]] == [" good", " morning", " hello"]
    assert (out / "talk.txt").read_text("utf-8") == "Ann: good morning\nBob: hello\n"


def test_ctrl_c_ends_the_audio_and_waits_for_the_last_words(monkeypatch, capsys):
    """Of a standard input that never ends."""

    def reply(talk: Talk) -> None:
        talk.hear(6_400)
        os.kill(os.getpid(), signal.SIGINT)
        two_items(talk)

    with realtime_server(reply) as server, standard_input(monkeypatch):
        assert run(server, "-") == 0
        assert (server.finals, len(server.audio)) == (1, 6_400)
    assert "Good morning." in capsys.readouterr().out


def test_a_second_ctrl_c_waits_for_nothing(monkeypatch, capsys):
    """What was said is shown."""

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


# ---- what goes wrong


@pytest.mark.parametrize(
    ("status", "key", "reason"),
    [
        (401, None, "no (the server asks for its key: set API_KEY to it)"),
        (401, "x" * 40, "no (the server does not take the key that API_KEY holds)"),
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


def test_where_no_server_is_one_line(recording, capsys):
    with fake_server() as plain:
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
    talk.complete("b", words("how are you", 2.0))
    talk.tell("error", error={"message": "the session is over"})
    talk.connection.close(1001)


def give_up(talk: Talk) -> None:
    talk.hear()
    talk.complete("b", words("how are you", 2.0))
    talk.tell("error", error={"message": "DEADLINE_EXCEEDED: too late"})
    talk.connection.close(1011)


def vanish(talk: Talk) -> None:
    talk.hear(3_200)
    talk.complete("b", words("how are you", 2.0))
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
        (say_no_json, False, ["the server sent what is no event"]),
    ],
)
def test_what_goes_wrong_in_a_session_is_one_line_and_no_loss(
    recording, capsys, reply, shown, reasons
):
    with realtime_server(reply) as server:
        assert run(server, str(recording)) == 1
    found = capsys.readouterr()
    assert found.err.splitlines() == reasons
    assert ("how are you" in found.out) == shown


def test_a_file_that_is_none_is_told_before_anything_is_sent(server, tmp_path, capsys):
    none, notes = tmp_path / "none.wav", tmp_path / "notes.mp3"
    notes.write_text("no audio")
    assert run(server, str(none)) == 1
    assert capsys.readouterr().err == f"{none}: No such file or directory\n"
    assert run(server, str(notes)) == 1
    assert capsys.readouterr().err.startswith(f"{notes}: INVALID_AUDIO: ")
    assert server.audio == b""


# ---- where audio comes from


def chunk(name: bytes, content: bytes) -> bytes:
    return name + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)


def wav(rate: int, body: bytes, channels: int = 1, size: int | None = None) -> bytes:
    """A WAV file with another chunk before its samples."""
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
        (wav(24_000, b"\1\2\3\4"), 24_000, b"\1\2\3\4"),
        # As ffmpeg announces what it cannot know.
        (wav(16_000, b"\1\2" * 9_000, size=2**32 - 1), 16_000, b"\1\2" * 9_000),
    ],
)
def test_standard_input_has_samples_or_wav(data, rate, samples):
    pipe = Pipe(io.BytesIO(data))
    assert pipe.open() == rate
    read = b""
    while part := pipe.read():
        assert len(part) <= rate // 5
        read += part
    assert read == samples


@pytest.mark.parametrize(
    "data",
    [
        b"OggS" + bytes(100),
        bytes(4) + b"ftypisom" + bytes(20),
        wav(44_100, b""),
        wav(16_000, b"", channels=2),
        wav(16_000, b"")[:30],
    ],
)
def test_another_file_on_standard_input_is_told_what_makes_samples(data):
    with pytest.raises(Failed, match=r"standard input"):
        Pipe(io.BytesIO(data)).open()


def test_standard_input_is_sent_at_the_rate_it_has(server, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with standard_input(monkeypatch, wav(24_000, bytes(48_000))):
        assert run(server, "-", "--output-format", "json") == 0
    assert server.updates[0]["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 24_000}
    assert len(server.audio) == 48_000
    (written,) = tmp_path.iterdir()
    assert written.match("live-*.json")
    assert json.loads(written.read_text("utf-8"))["duration"] == 1.0


def test_a_file_in_real_time_is_sent_when_it_was_spoken(server, recording, monkeypatch):
    """Before each block the time is waited for at which it would have been spoken."""
    clock = SimpleNamespace(now=100.0)

    def sleep(seconds: float) -> None:
        clock.now += seconds

    fake = SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep)
    monkeypatch.setattr(live_audio, "time", fake)
    assert run(server, str(recording), "--realtime") == 0
    assert clock.now == pytest.approx(103.5)


def microphone(folder: Path, script: str, monkeypatch) -> None:
    """A program by the name of ffmpeg that does what `script` says."""
    program = folder / "ffmpeg"
    program.write_text(f"#!{sys.executable}\n{script}")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_the_microphone_is_what_ffmpeg_records_until_ctrl_c(tmp_path, monkeypatch):
    """Its last samples, which it gives as it is told to end, are sent."""
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


def test_a_microphone_that_is_not_there_is_one_line(server, tmp_path, monkeypatch, capsys):
    script = "import sys\nsys.exit('x\\ndefault: No such device\\n')"
    microphone(tmp_path, script, monkeypatch)
    assert run(server) == 1
    assert capsys.readouterr().err == (
        "ffmpeg hears no microphone: default: No such device; --microphone NAME names another\n"
    )
    (tmp_path / "ffmpeg").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(server) == 1
    assert capsys.readouterr().err.startswith("the microphone is read by the ffmpeg program, which")


def test_each_system_has_its_microphones():
    assert input_options("darwin", None) == ["-f", "avfoundation", "-i", ":default"]
    assert input_options("win32", "Desk") == ["-f", "dshow", "-i", "audio=Desk"]
    with pytest.raises(Unusable, match="--microphone"):
        input_options("win32", None)
    assert input_options("linux", None)[::2] == ["-f", "-i"]
    assert input_options("linux", "hw:1")[3] == "hw:1"


# ---- the terminal


def event(kind: str, **fields: object) -> dict:
    kind = f"conversation.item.input_audio_transcription.{kind}"
    return {"type": kind, "item_id": "a", "content_index": 0, **fields}


def test_a_terminal_shows_the_guess_dimmed_and_takes_it_back():
    transcript, shown = LiveTranscript(), io.StringIO()
    console = Console(file=shown, force_terminal=True, color_system="standard", width=60)
    with LiveScreen(transcript, console) as screen:
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


def test_words_have_speakers_before_the_text_is_complete():
    transcript, shown = LiveTranscript(), io.StringIO()
    said = [*words("good morning", 0.5, "Ann"), *words("hello", 1.5, "Bob")]
    transcript.take(event("delta", delta=" good morning hello"))
    transcript.take(event("words", words=said, unstable=" you"))
    transcript.take(event("segment", id="1", text="good", speaker="Ann", start=0.5, end=0.9))
    with LiveScreen(transcript, Console(file=shown, width=60)) as screen:
        screen.show()
        assert shown.getvalue() == ""
    # The guess is no text of a session that is over.
    assert [line.split() for line in shown.getvalue().splitlines()] == [
        ["0:00.5", "Ann", "good", "morning"],
        ["0:01.5", "Bob", "hello"],
    ]


def test_the_segments_of_a_text_replace_those_of_its_words():
    transcript = LiveTranscript()
    said = words("good morning", 0.5, None)
    transcript.take(event("delta", delta=" good morning"))
    transcript.take(event("words", words=said, unstable=""))
    transcript.take(event("segment", id="1", text="good", speaker="Ann", start=0.5, end=0.9))
    transcript.take(event("completed", transcript="good morning", words=said))
    fields = {"id": "2", "text": "good morning", "speaker": "Bob", "start": 0.5, "end": 1.5}
    transcript.take(event("segment", **fields))
    (item,) = transcript.items.values()
    assert [(each.speaker, each.text.strip()) for each in item.blocks()] == [
        ("Bob", "good morning")
    ]


# ---- a server of this process


def test_a_server_of_this_process_lets_nobody_else_in(monkeypatch, tiny_endpoint):
    monkeypatch.setattr("server.serving.load_endpoint", lambda *_, **__: tiny_endpoint)
    monkeypatch.setattr(type(tiny_endpoint), "close", lambda _: None)
    with own_server(ModelSettings.for_embedded) as (url, key):
        assert url.startswith("http://127.0.0.1:")
        asked = [
            httpx2.get(f"{url}/v1/models", headers=headers).status_code
            for headers in ({}, {"Authorization": f"Bearer {key}"})
        ]
        assert asked == [401, 200]
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(url)


def test_models_that_do_not_load_are_one_line(recording, monkeypatch, capsys):
    def fail(*_: object, **__: object) -> None:
        raise StartError("no such model")

    monkeypatch.setattr("server.serving.load_endpoint", fail)
    assert main(["transcribe", "--live", str(recording), "--embedded"]) == 1
    assert "no such model\n" in capsys.readouterr().err


def test_addresses_are_those_that_a_browser_shows():
    for url in ("http://a:1", "http://a:1/", "http://a:1/app"):
        assert websocket_address(url) == "ws://a:1/v1/realtime?intent=transcription"
    assert websocket_address("https://a/b").startswith("wss://a/b/v1/realtime?")


@pytest.mark.parametrize(
    "wrong",
    [
        ["--live", "a", "b"],
        ["--live", "--task", "translate"],
        ["--live", "--temperature", "0"],
        ["--live", "--no-vad-filter"],
        ["--live", "--force"],
        ["--live", "--realtime"],
        ["--live", "-", "--realtime"],
        ["--live", "-", "--microphone", "x"],
        ["a", "--realtime"],
        ["a", "--microphone", "x"],
        [],
    ],
)
def test_a_wrong_command_line_ends_before_anything_is_heard(wrong, capsys):
    with pytest.raises(SystemExit) as end:
        main(["transcribe", *wrong])
    assert end.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
