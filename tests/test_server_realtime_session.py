"""A session's events, one after the other: the effect of each, and the errors."""

import asyncio
import base64
import json
import typing
from contextlib import asynccontextmanager
from dataclasses import replace

import openai.types.realtime as sdk
import pytest
from openai.types.realtime import RealtimeClientEvent
from pydantic import TypeAdapter

from tests.helpers.live_stand_ins import Drivers, Socket, error_of, live
from whosaid.errors import InvalidParameter
from whosaid.live.events import SegmentEvent
from whosaid.live.settings import AudioFormat, LiveSettings, TurnSettings
from whosaid.payload.parameters import HotWord
from whosaid.server.realtime.client_events import MOST_VALUES, REFUSED, SERVED
from whosaid.server.realtime.server_events import EventEncoder
from whosaid.server.realtime.session import Ahead
from whosaid.transcript import Word

TRANSCRIPTION = "conversation.item.input_audio_transcription"
ALL = [f"item.input_audio_transcription.{name}" for name in ("logprobs", "words", "segments")]


def audio(count: int) -> str:
    return base64.b64encode(bytes(count)).decode()


@asynccontextmanager
async def opened(drivers=None, **settings):
    """A socket on a new app; it has the session as `created`, and its `driver`."""
    drivers = drivers or Drivers()
    async with Socket(live(drivers, **settings)) as socket:
        created = await socket.read()
        assert created["type"] == "session.created"
        socket.created, socket.driver = created["session"], drivers.opened[0]
        yield socket


async def test_appends_and_commits_are_answered_in_order():
    async with opened() as socket:
        socket.send("input_audio_buffer.append", audio=audio(4))
        socket.send("input_audio_buffer.append", audio=audio(30_000))
        socket.send_bytes(bytes(96))
        socket.send("input_audio_buffer.commit", event_id="mine")
        first = await socket.read_until("conversation.item.done")
        socket.send("input_audio_buffer.append", audio=audio(2))
        socket.send("input_audio_buffer.commit", final=None or False)
        second = await socket.read_until("conversation.item.done")
    assert [event["type"] for event in first] == [
        "input_audio_buffer.committed",
        "conversation.item.added",
        f"{TRANSCRIPTION}.delta",
        f"{TRANSCRIPTION}.completed",
        "conversation.item.done",
    ]
    assert first[2]["delta"] == first[3]["transcript"] == "30100 bytes"
    assert first[3]["usage"] == {"type": "duration", "seconds": 0.5}
    assert (first[3]["languages"], first[3]["warnings"]) == ([{"code": "en"}], ["cut short"])
    assert second[0]["previous_item_id"] == first[0]["item_id"] == "item_1"
    assert first[0]["previous_item_id"] is None
    names = [event["event_id"] for event in first + second]
    assert len(set(names)) == len(names)
    assert socket.driver.closed == 1


async def test_every_event_has_a_type_of_the_sdk():
    """Types are checked strictly, because the SDK itself checks nothing. Two are ours alone."""
    async with opened() as socket:
        socket.send("session.update", session={"type": "transcription", "include": ALL})
        socket.send("input_audio_buffer.append", audio=audio(4))
        socket.send("input_audio_buffer.commit")
        socket.send("input_audio_buffer.clear")
        socket.send("response.create")
        events = await socket.read_until("error")
    reader = TypeAdapter(sdk.RealtimeServerEvent)
    ours = {"session.updated", f"{TRANSCRIPTION}.words"}
    for event in events:
        if event["type"] not in ours:
            read = reader.validate_python(event, strict=True)
            assert read.type == event["type"]
            ours_too = {"words", "warnings"}
            assert set(event) <= {*read.to_dict(mode="json", exclude_unset=False)} | ours_too
    delta = next(event for event in events if event["type"].endswith(".delta"))
    first = {"token": "A", "bytes": [65], "logprob": -0.5}
    assert delta["logprobs"] == [first, {"token": "B", "bytes": [66], "logprob": -0.25}]
    words = next(event for event in events if event["type"].endswith(".words"))
    said = {"word": "4 bytes", "start": 0.0, "end": 0.5, "probability": 0.75, "speaker": None}
    assert (words["words"], words["unstable"], words["content_index"]) == ([said], " and", 0)
    completed = next(event for event in events if event["type"].endswith(".completed"))
    assert (completed["words"], completed["logprobs"]) == ([said], delta["logprobs"])
    segment = next(event for event in events if event["type"].endswith(".segment"))
    assert (segment["speaker"], segment["start"], segment["end"]) == ("A", 0.0, 0.5)


def test_segments_hold_words_only_if_included():
    word = Word(" no", 0.8, 1.2, "B", 0.75)
    plain = SegmentEvent("item", "seg_1", " no", "B", 0.8, 1.2)
    said = {"word": " no", "start": 0.8, "end": 1.2, "probability": 0.75, "speaker": "B"}
    for include, segment, expected in (
        (ALL, replace(plain, words=(word,)), [said]),
        (ALL, plain, None),
        (ALL[2:], replace(plain, words=(word,)), None),
    ):
        message = EventEncoder(include, None).message(segment)
        assert message.get("words") == expected
        assert (message["id"], message["end"]) == ("seg_1", 1.2)


async def test_updates_change_named_fields_and_null_turns_off():
    def update(socket, **given):
        socket.send("session.update", session={"type": "transcription", "audio": {"input": given}})
        return socket.read()

    siobhan = {"text": "Siobhan", "sounds_like": ["shivawn"]}
    async with opened() as socket:
        transcription = {"language": "en", "prompt": "Hello.", "keywords": ["Ada", siobhan]}
        more = {"model": "whisper-1", "delay": "high"}
        events = [
            await update(socket, transcription=transcription),
            await update(socket, transcription=more),
            await update(socket, turn_detection={"type": "server_vad", "threshold": 0.75}),
            await update(socket, turn_detection={"silence_duration_ms": 200}),
            await update(socket, transcription={"prompt": None, "keywords": None}),
            await update(socket, turn_detection=None, format={"type": "audio/pcmu"}),
            await update(socket, turn_detection={"type": "server_vad"}, noise_reduction=None),
            await update(socket, format={"type": "audio/pcm", "rate": 16000}),
            await update(socket, format=None, transcription={"language": None, "delay": None}),
        ]
    told = [event["session"]["audio"]["input"] for event in events]
    assert {event["type"] for event in events} == {"session.updated"}
    unknown = {"known_speaker_names": [], "known_speaker_threshold": None}
    assert told[1]["transcription"] == transcription | more | unknown
    turns = [each["turn_detection"] for each in told]
    assert (turns[2]["threshold"], turns[2]["silence_duration_ms"]) == (0.75, 500)
    assert (turns[3]["threshold"], turns[3]["silence_duration_ms"]) == (0.75, 200)
    assert (turns[5], turns[6]["threshold"]) == (None, 0.5)
    formats = [each["format"] for each in told]
    assert formats[5] == {"type": "audio/pcmu"}
    assert formats[7:] == [{"type": "audio/pcm", "rate": rate} for rate in (16000, 24000)]
    heard = [call[1:] for call in socket.driver.calls]
    first = LiveSettings("en", "Hello.", ("Ada", HotWord(**siobhan)), TurnSettings())
    assert heard[0] == (first, AudioFormat.PCM_24000)
    assert heard[4][0] == LiveSettings("en", None, (), TurnSettings(0.75, 300, 200), "high")
    assert heard[5] == (LiveSettings("en", None, (), None, "high"), AudioFormat.PCMU)
    assert heard[8] == (LiveSettings(), AudioFormat.PCM_24000)


KNOWN = {"known_speaker_names": ["Ada", "Ada"], "known_speaker_threshold": 0.7}
KNOWN["known_speaker_references"] = ["AAAA", "A" * 20_000]


async def test_segments_ask_for_speakers_and_known_names():
    async with opened() as socket:
        told = []
        for session in (
            {"audio": {"input": {"transcription": KNOWN}}},
            {"include": ALL, "audio": {"input": {"transcription": KNOWN}}},
            {"audio": {"input": {"transcription": {"known_speaker_names": ["Ada"]}}}},
            {"audio": {"input": {"transcription": KNOWN | {"known_speaker_names": ["", "B"]}}}},
            {"audio": {"input": {"transcription": {"known_speaker_threshold": 1.01}}}},
            {"audio": {"input": {"transcription": {"known_speaker_threshold": True}}}},
            {"audio": {"input": {"transcription": dict.fromkeys(KNOWN)}}, "include": None},
        ):
            socket.send("session.update", session=session)
            told.append(await socket.read())
        socket.driver.error = InvalidParameter("should be asked for before", "speakers")
        socket.send("session.update", session={"include": ALL})
        late = await socket.read()
    field = f"{INPUT}.transcription.known_speaker_references"
    assert error_of(told[0]) == ("unsupported_value", field, None)
    assert told[1]["session"]["include"] == ALL
    known = told[1]["session"]["audio"]["input"]["transcription"]
    assert (known["known_speaker_names"], known["known_speaker_threshold"]) == (["Ada"] * 2, 0.7)
    assert "AAAA" not in json.dumps(told)
    assert error_of(told[2]) == ("invalid_value", field, None)
    names = f"{INPUT}.transcription.known_speaker_names[0]"
    assert error_of(told[3]) == ("invalid_value", names, None)
    threshold = f"{INPUT}.transcription.known_speaker_threshold"
    assert error_of(told[4]) == ("invalid_value", threshold, None)
    assert error_of(told[5]) == ("invalid_type", threshold, None)
    assert told[6]["session"]["include"] is None
    first, second, _ = (call[1] for call in socket.driver.calls)
    assert (first.speakers, len(first.known_speakers)) == (True, 2)
    assert first.known_speaker_threshold == 0.7
    assert second == LiveSettings()
    assert error_of(late) == ("invalid_value", "session.include", None)


async def test_segments_without_diarization_only_warn():
    async with opened(diarizer=None) as socket:
        socket.send("session.update", session={"include": ALL})
        updated = await socket.read()
        clip = {"known_speaker_names": ["Ann"], "known_speaker_references": ["AAAA"]}
        update = {"audio": {"input": {"transcription": clip}}}
        socket.send("session.update", session=update, event_id="clip")
        refused = await socket.read()
    assert updated["type"] == "session.updated"
    (changed,) = socket.driver.calls
    assert not changed[1].speakers
    code, param, event_id = error_of(refused)
    assert (code, event_id) == ("unsupported_value", "clip")
    assert param == "session.audio.input.transcription.known_speaker_references"


async def test_every_sdk_event_is_served_or_refused_by_name():
    union = typing.get_args(typing.get_args(RealtimeClientEvent)[0])
    kinds = {typing.get_args(each.model_fields["type"].annotation)[0] for each in union}
    assert len(kinds) >= 11
    assert kinds <= SERVED.keys() | REFUSED.keys()

    async with opened() as socket:
        told = []
        for kind in sorted(REFUSED):
            socket.send(kind, event_id=kind)
            told.append(await socket.read())
        socket.send("input_audio_buffer.clear")
        after = await socket.read()
    assert after["type"] == "input_audio_buffer.cleared"
    for event, kind in zip(told, sorted(REFUSED), strict=True):
        assert error_of(event) == ("unsupported_event", "type", kind)
        assert f"type: {kind} is not served" in event["error"]["message"]
        assert event["error"]["type"] == "invalid_request_error"


def update(**given) -> dict:
    return {"type": "session.update", "event_id": "e", "session": given}


def of_input(**given) -> dict:
    return update(type="transcription", audio={"input": given})


def turns(**given) -> dict:
    return of_input(turn_detection={"type": "server_vad", **given})


def heard(**given) -> dict:
    return of_input(transcription=given)


def append(audio: object, **more) -> dict:
    return {"type": "input_audio_buffer.append", "event_id": "e", "audio": audio, **more}


INPUT = "session.audio.input"
WRONG = [
    ({"event_id": "e"}, "missing_required_parameter", "type"),
    ({"type": 5, "event_id": "e"}, "invalid_type", "type"),
    ({"type": "\ud800", "event_id": "e"}, "unknown_event", "type"),
    ({"type": "input_audio_buffer.flush", "event_id": "e"}, "unknown_event", "type"),
    ({"type": "input_audio_buffer.append", "event_id": "e"}, "missing_required_parameter", "audio"),
    (append(1), "invalid_type", "audio"),
    (append("AAAAA"), "invalid_base64", "audio"),
    (append("A==="), "invalid_base64", "audio"),
    (append("é==="), "invalid_base64", "audio"),
    (append("?" * 40_000), "invalid_base64", "audio"),
    (append("AAAA", x=1), "unknown_parameter", "x"),
    (append("A" * 90_000), "append_too_large", "audio"),
    ({"type": "input_audio_buffer.commit", "event_id": "e", "final": 1}, "invalid_type", "final"),
    ({"type": "session.update", "event_id": "e", "session": []}, "invalid_type", "session"),
    (update(type="translation"), "unsupported_value", "session.type"),
    (update(include=["item.logprobs"]), "invalid_value", "session.include[0]"),
    (of_input(format={"type": "audio/mp3"}), "invalid_value", f"{INPUT}.format.type"),
    (of_input(format={"rate": 24000}), "missing_required_parameter", f"{INPUT}.format.type"),
    (of_input(format={"type": "audio/pcm", "rate": 8001}), "invalid_value", f"{INPUT}.format.rate"),
    (of_input(format={"type": "audio/pcm", "rate": True}), "invalid_type", f"{INPUT}.format.rate"),
    (of_input(format={"type": ["pcm16"]}), "invalid_type", f"{INPUT}.format.type"),
    (update(input_audio_format=[1]), "invalid_type", f"{INPUT}.format"),
    (update(turn_detection="server_vad"), "invalid_type", f"{INPUT}.turn_detection"),
    (update(model=1), "invalid_type", f"{INPUT}.transcription.model"),
    (update(model="a", audio=[]), "invalid_type", "session.audio"),
    (of_input(format="mp3"), "invalid_value", f"{INPUT}.format.type"),
    (update(input_audio_format="opus"), "invalid_value", f"{INPUT}.format.type"),
    (update(turn_detection={"threshold": 2}), "invalid_value", f"{INPUT}.turn_detection.threshold"),
    (turns(type="push_to_talk"), "unsupported_value", f"{INPUT}.turn_detection.type"),
    (turns(threshold=1.5), "invalid_value", f"{INPUT}.turn_detection.threshold"),
    (turns(threshold=float("nan")), "invalid_value", f"{INPUT}.turn_detection.threshold"),
    (turns(silence_duration_ms=-1), "invalid_value", f"{INPUT}.turn_detection.silence_duration_ms"),
    (turns(prefix_padding_ms=0.5), "invalid_type", f"{INPUT}.turn_detection.prefix_padding_ms"),
    (heard(language="klingon"), "invalid_value", f"{INPUT}.transcription.language"),
    (heard(delay="none"), "invalid_value", f"{INPUT}.transcription.delay"),
    (heard(prompt="x" * 4001), "invalid_value", f"{INPUT}.transcription.prompt"),
    (heard(prompt="\ud800"), "invalid_value", f"{INPUT}.transcription.prompt"),
    (heard(keywords=["a"] * 2001), "invalid_value", f"{INPUT}.transcription.keywords"),
    (heard(keywords=[""]), "invalid_value", f"{INPUT}.transcription.keywords[0]"),
    (heard(keywords=["a", {"text": ""}]), "invalid_value", f"{INPUT}.transcription.keywords[1]"),
    (heard(keywords=["a", "a"]), "invalid_value", f"{INPUT}.transcription.keywords"),
    (heard(languages=["en", "de"]), "unsupported_value", f"{INPUT}.transcription.languages"),
    (heard(language="en", languages=["de"]), "invalid_value", f"{INPUT}.transcription.languages"),
]  # fmt: skip


async def test_errors_are_named_and_change_nothing():
    """All errors occur in one session, which goes on unchanged."""
    async with opened(max_append_bytes=60000) as socket:
        told = []
        for event, _, _ in WRONG:
            socket.send(**event)
            told.append(await socket.read())
        socket.send("session.update", session={"type": "transcription"})
        after, created = await socket.read(), socket.created
    assert [error_of(each) for each in told] == [(code, param, "e") for _, code, param in WRONG]
    for each in told:
        assert each["error"]["message"].isascii()
        assert len(each["error"]["message"]) <= 500
    assert after["session"] == created
    calls = {call if isinstance(call, str) else call[0] for call in socket.driver.calls}
    assert calls == {"change"}


IGNORED = [
    (turns(type="semantic_vad", eagerness="low"), ["is server_vad here", "eagerness"]),
    (turns(type="azure_semantic_vad"), ["is server_vad here"]),
    (turns(eagerness="auto"), ["turn_detection.eagerness"]),
    (turns(idle_timeout_ms=6000), ["turn_detection.idle_timeout_ms"]),
    (turns(type="server_vad", create_response=True), []),
    (of_input(noise_reduction={"type": "near_field"}), ["ignored: audio.input.noise_reduction"]),
    (of_input(noise_reduction=None), []),
    (of_input(format="pcm16"), []),
    (of_input(format={"type": "pcm16", "rate": 24000}), []),
    (of_input(transcription=None), ["transcription: null is ignored"]),
    (heard(model="parakeet"), ["parakeet is not loaded; this server has org/whisper alone"]),
    (heard(model="gpt-4o-transcribe"), []),
    (heard(model="openai/whisper-1"), []),
    (heard(language="zh-TW"), ["Whisper chooses the script of Chinese"]),
    (heard(languages=["zh-TW", "zh"]), ["Whisper chooses the script of Chinese"]),
    (heard(temperature=0), ["audio.input.transcription.temperature"]),
    (update(type="realtime", instructions="x", voice="alloy", tools=[{"a": {}}],
            audio={"output": {"voice": "alloy"}}),
     ["type: is transcription here", "are ignored: instructions, voice, tools, audio.output"]),
    ({"type": "session.update", "event_id": "e"}, []),
    ({"type": "session.update", "event_id": "e", "model": "org/whisper"}, []),
]  # fmt: skip


async def test_fields_without_meaning_are_ignored_with_a_warning():
    """Clients of conversations and of other servers send such fields; none causes an error."""
    async with opened() as socket:
        told = []
        for event, _ in IGNORED:
            socket.send(**event)
            told.append(await socket.read())
    assert {each["type"] for each in told} == {"session.updated"}
    for each, (event, parts) in zip(told, IGNORED, strict=True):
        warnings = each.get("warnings", [])
        assert bool(warnings) is bool(parts), event
        assert all(part in "; ".join(warnings) for part in parts), warnings
        assert "".join(warnings).isascii()
        assert each["session"]["type"] == "transcription"
        assert each["session"]["audio"]["input"]["turn_detection"]["type"] == "server_vad"
        assert each["session"]["audio"]["input"]["noise_reduction"] is None


FLAT = {
    "input_audio_format": "g711_ulaw",
    "input_audio_transcription": {"model": "whisper-1", "language": "de-DE", "prompt": "Hm."},
    "turn_detection": {"type": "server_vad", "threshold": 0.25},
    "input_audio_noise_reduction": {"type": "far_field"},
    "include": ["item.input_audio_transcription.logprobs"],
}


@pytest.mark.parametrize("kind", ["session.update", "transcription_session.update"])
@pytest.mark.parametrize("around", [True, False], ids=["session", "bare"])
async def test_the_flat_form_of_the_beta_is_read(kind, around):
    async with opened() as socket:
        socket.send(kind, **({"session": FLAT} if around else FLAT))
        told = [await socket.read()]
        if kind != "session.update":  # such clients may wait for the name that they know
            told.append(await socket.read())
    assert [each["type"] for each in told] == [*dict.fromkeys(["session.updated", f"{kind}d"])]
    assert told[0]["session"]["audio"]["input"]["format"] == {"type": "audio/pcmu"}
    ignored = "unknown session fields are ignored: audio.input.noise_reduction"
    assert told[0]["warnings"] == [ignored]
    assert told[0]["session"]["include"] == FLAT["include"]
    assert socket.driver.calls == [
        ("change", LiveSettings("de", "Hm.", (), TurnSettings(0.25)), AudioFormat.PCMU)
    ]


async def test_an_empty_commit_warns_with_turn_detection_and_fails_without():
    async with opened() as socket:
        socket.send("input_audio_buffer.commit", event_id="mine")
        behind = await socket.read()
        socket.send(**of_input(turn_detection=None))
        await socket.read()
        socket.send("input_audio_buffer.commit", event_id="mine")
        alone = await socket.read()
    empty = "input_audio_buffer_commit_empty"
    assert behind["type"] == "warning"
    assert (behind["warning"]["code"], behind["warning"]["event_id"]) == (empty, "mine")
    assert error_of(alone) == (empty, None, "mine")


NO_JSON = [
    *("", "{", "[]", "null", '"input_audio_buffer.clear"', "NaN", "[" * 100_000, '{"a":' * 5_000),
    '{"type": "session.update", "n": 1' + "0" * 5_000 + "}",
    '{"x": "' + "\\" * 5,
    " " * 2_000_000,
    json.dumps({str(number): number for number in range(MOST_VALUES + 1)}),
    json.dumps({"a": [[0] * (MOST_VALUES // 2 + 1)] * 2}),
]


async def test_malformed_json_is_an_error_and_the_session_continues():
    async with opened() as socket:
        told = []
        for text in NO_JSON:
            socket.send_text(text)
            told.append(await socket.read())
        socket.send("input_audio_buffer.clear")
        after = await socket.read()
    assert {error_of(each) for each in told} == {("invalid_json", None, None)}
    assert after["type"] == "input_audio_buffer.cleared"


async def test_the_final_commit_completes_and_closes():
    drivers = Drivers(lambda driver: driver.done.clear())
    async with opened(drivers) as socket:
        socket.send("input_audio_buffer.append", audio=audio(4))
        socket.send("input_audio_buffer.commit", final=True)
        socket.send("input_audio_buffer.append", audio=audio(4), event_id="late")
        told = await socket.read()
        socket.driver.done.set()
        rest = await socket.read_until("closed")
    assert error_of(told) == ("session_ending", None, "late")
    assert rest[-2]["type"] == "conversation.item.done"
    assert socket.closed == 1000
    assert [call for call in socket.driver.calls if call != "finish"] == [("append", bytes(4))]


async def test_a_session_not_completed_in_time_closes_as_failed():
    """The limit is a request's; a drain has its own."""
    drivers = Drivers(lambda driver: driver.done.clear())
    async with opened(drivers, request_timeout=0.2, drain_timeout=0.1) as socket:
        socket.send_bytes(bytes(4))
        socket.send("input_audio_buffer.commit", final=True)
        (told, _), status = await socket.read_until("closed"), socket.closed
    assert told["error"]["type"] == "server_error"
    assert error_of(told) == ("DEADLINE_EXCEEDED", None, None)
    assert status == 1011
    assert socket.driver.closed == 1


async def test_a_client_that_leaves_frees_what_it_had():
    drivers = Drivers(lambda driver: driver.free.clear())
    app = live(drivers)
    async with Socket(app) as socket:
        await socket.read()
        socket.send("input_audio_buffer.append", audio=audio(4))
        while not drivers.opened[0].calls:
            await asyncio.sleep(0)
        assert len(app.admission.live.taken) == 1
        drivers.opened[0].free.set()
    driver, places = drivers.opened[0], app.admission.live
    assert (driver.closed, len(places.taken), places.opened) == (1, 0, 1)
    assert "finish" not in driver.calls
    assert places.audio_seconds == 4 / 48_000


async def test_a_client_that_leaves_ends_its_completion():
    drivers = Drivers(lambda driver: driver.done.clear())
    async with Socket(live(drivers)) as socket:
        await socket.read()
        socket.send("input_audio_buffer.commit", final=True)
        while "finish" not in drivers.opened[0].calls:
            await asyncio.sleep(0)
    assert (drivers.opened[0].closed, socket.closed) == (1, None)


async def test_a_client_that_takes_nothing_stalls_itself_alone():
    """The driver waits for its client, and the session reads nothing more."""
    app = live(Drivers())
    async with Socket(app) as slow, Socket(app) as other:
        for each in (slow, other):
            await each.read()
        slow.takes.clear()
        slow.send_bytes(bytes(4))
        for _ in range(50):
            slow.send("input_audio_buffer.commit")
        for number in range(1, 40):
            other.send_bytes(bytes(4))
            other.send("input_audio_buffer.commit")
            (*_, done) = await other.read_until("conversation.item.done")
            assert done["item"]["id"] == f"item_{number}"
        stalled = slow.received
        slow.takes.set()
        for _ in range(50 - 1):
            await slow.read_until("warning")
    assert stalled == 3  # connect, audio, and the commit that is told


async def test_a_client_far_ahead_is_read_as_time_passes(monkeypatch):
    class Clocked(Ahead):
        def __init__(self, most):
            super().__init__(most, lambda: now[0])

        @property
        def wait(self):
            asked.set()
            return min(super().wait, 1e-3)

    now, asked = [0.0], asyncio.Event()
    monkeypatch.setattr("whosaid.server.realtime.session.Ahead", Clocked)

    async with opened(live_ahead_seconds=60) as socket:
        for _ in range(4):
            socket.send_bytes(bytes(48_000 * 25))
        socket.send("input_audio_buffer.commit")
        read = []
        for seconds in (14, 1, 24, 1):
            for _ in range(20):
                asked.clear()
                await asked.wait()
            read.append(sum(len(call[1]) for call in socket.driver.calls) / 48_000)
            now[0] += seconds
        events = await socket.read_until("conversation.item.done")
    assert read == [75, 75, 100, 100]
    assert events[-1]["type"] == "conversation.item.done"


@pytest.mark.parametrize(
    ("limit", "code"),
    [("live_idle_seconds", "session_idle"), ("live_session_seconds", "session_expired")],
)
async def test_a_session_ends_in_order_at_its_limit(limit, code):
    drivers = Drivers()
    async with Socket(live(drivers, **{limit: 0.3})) as socket:
        socket.send_bytes(bytes(4))  # before the time begins
        events, status = await socket.read_until("closed"), socket.closed
    assert error_of(events[1]) == (code, None, None)
    assert events[-2]["type"] == "conversation.item.done"
    assert (status, drivers.opened[0].calls[-1]) == (1001, "finish")


@pytest.mark.parametrize("last", [False, True])
async def test_a_failing_driver_ends_only_its_session(last, caplog):
    async with opened() as socket:
        socket.driver.error = RuntimeError("broken " + "secret")
        socket.send("input_audio_buffer.commit", final=last)
        (told, _), status = await socket.read_until("closed"), socket.closed
    assert error_of(told)[0] == "MODEL_ERROR"
    assert "broken secret" not in f"{told}{caplog.text}"
    assert (status, socket.driver.closed) == (1011, 1)
