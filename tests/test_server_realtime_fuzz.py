"""Sessions whose clients send anything in any order: each event has its answer, no event ends
another session, and a session's settings are those of its updates."""

import asyncio
import base64
import json
import random
from collections import Counter

import pytest

from tests.helpers.live_stand_ins import Drivers, Socket, live
from whosaid.server.realtime.client_events import REFUSED, SERVED

EVENTS = 12
CODES = {
    *("append_too_large", "input_audio_buffer_commit_empty", "invalid_base64", "invalid_json"),
    *("invalid_type", "invalid_value", "missing_required_parameter", "session_ending"),
    *("unknown_event", "unknown_parameter", "unsupported_event", "unsupported_value"),
}
FIELDS = {
    "format": ("type", "rate"),
    "transcription": ("model", "language", "languages", "prompt", "keywords", "delay"),
    "turn_detection": ("type", "threshold", "prefix_padding_ms", "silence_duration_ms"),
    "noise_reduction": ("type",),
}
NAMES = (
    *("type", "event_id", "session", "audio", "input", "include", "final", "idle_timeout_ms"),
    *("x", "__class__", "\ud800", "\x00", *FIELDS),
)
VALUES = (
    None, True, False, 0, -1, 24000, 16000, 0.5, 1e308, float("nan"), "", "a", "en", "audio/pcm",
    "audio/pcmu", "server_vad", "semantic_vad", "transcription", "whisper-1", "AAAA", "\ud800",
    "item.input_audio_transcription.words", "x" * 20_000, 10**30, [], {}, [None], ["a", "a"],
)  # fmt: skip


def anything(chance: random.Random, depth: int = 4) -> object:
    """A value of JSON, of which names and texts are often those of events."""
    kind = chance.random()
    if depth == 0 or kind < 0.4:
        return chance.choice(VALUES)
    if kind < 0.5:
        return [anything(chance, depth - 1) for _ in range(chance.randrange(4))]
    count = chance.randrange(5)
    return {chance.choice(NAMES): anything(chance, depth - 1) for _ in range(count)}


def change(chance: random.Random) -> dict:
    """Return the fields of `audio.input` for an update."""
    if chance.random() < 0.2:
        return {chance.choice(NAMES): anything(chance, 2)}
    part = chance.choice([*FIELDS])
    if chance.random() < 0.1:
        return {part: None}
    names = chance.sample(FIELDS[part], chance.randint(1, len(FIELDS[part])))
    return {part: {name: chance.choice(VALUES) for name in names}}


def plausible(chance: random.Random) -> dict:
    """An event as clients send them, or nearly."""
    kind = chance.choice((*SERVED, *SERVED, *SERVED, *REFUSED))
    event: dict = {"type": kind}
    if kind == "input_audio_buffer.append":
        event["audio"] = base64.b64encode(chance.randbytes(chance.randrange(3_000))).decode()
    elif kind == "input_audio_buffer.commit" and chance.random() < 0.05:
        event["final"] = True
    elif kind == "session.update":
        event["session"] = {"type": "transcription", "audio": {"input": change(chance)}}
    if chance.random() < 0.2:
        event[chance.choice(NAMES)] = anything(chance)
    return event


def message(chance: random.Random) -> str | bytes:
    kind = chance.random()
    if kind < 0.1:
        return chance.randbytes(chance.randrange(2_000))
    if kind < 0.65:
        return json.dumps(plausible(chance))
    if kind < 0.9:
        return json.dumps(anything(chance))
    text = json.dumps(plausible(chance))
    place = chance.randrange(len(text))
    return text[:place] + chance.choice(('"', "\\", "{", "", "\u2028", "]")) + text[place + 1 :]


async def hold(app, drivers: Drivers, opening: asyncio.Lock, chance: random.Random) -> Counter[str]:
    """Run one session; return its events with their counts."""
    told: Counter[str] = Counter()
    async with opening:
        socket = await Socket(app).__aenter__()
        shown = (await socket.read())["session"]
        driver = drivers.opened.pop()
    for _ in range(EVENTS):
        sent = message(chance)
        (socket.send_bytes if isinstance(sent, bytes) else socket.send_text)(sent)
    socket.send("response.cancel", event_id="the last")
    ending = over = False
    while not over:
        event = await socket.read()
        kind = event["type"]
        if kind == "error":
            kind, text = event["error"]["code"], event["error"]["message"]
            assert kind in CODES
            assert text.isascii()
            assert len(text) <= 500
            ending = ending or kind == "session_ending"
            over = event["error"]["event_id"] == "the last" and not ending
        elif kind == "session.updated":
            shown = event["session"]
        elif kind == "closed":
            assert socket.closed == 1000
            over = True
        told[kind] += 1
    given = shown["audio"]["input"]
    assert (driver.settings.turn_detection is None) == (given["turn_detection"] is None)
    assert driver.settings.language == given["transcription"]["language"]
    assert driver.format.value[0] == given["format"]["type"]
    await socket.__aexit__()
    assert driver.closed == 1
    return told


async def hold_all(sequences: int, chance: random.Random) -> Counter[str]:
    """Ten sessions at a time, beside one that does nothing wrong."""
    drivers, opening = Drivers(), asyncio.Lock()
    app = live(drivers, max_live_sessions=11, max_append_bytes=2_500)
    found: Counter[str] = Counter()
    async with Socket(app) as good:
        assert (await good.read())["type"] == "session.created"
        drivers.opened.clear()
        for number in range(sequences // 10):
            seeds = [random.Random(chance.random()) for _ in range(10)]
            for told in await asyncio.gather(*(hold(app, drivers, opening, it) for it in seeds)):
                found += told
            good.send_bytes(bytes(2))
            good.send("input_audio_buffer.commit")
            events = await good.read_until("conversation.item.done")
            assert events[0]["item_id"] == f"item_{number + 1}"
        assert len(app.admission.live.taken) == 1
    return found


@pytest.mark.parametrize("sequences", [1_000, pytest.param(3_000, marks=pytest.mark.reliability)])
def test_random_sequences_of_events_are_answered(sequences):
    found = asyncio.run(hold_all(sequences, random.Random(27)))
    told = {"closed", "session.updated"}
    told |= {f"input_audio_buffer.{each}" for each in ("cleared", "committed")}
    assert found.keys() >= CODES | told
    assert found.total() > sequences * EVENTS // 2
