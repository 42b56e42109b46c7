"""Recording on the page, in headless Chromium.

Most tests say what the microphone records (`Person.speak`), so that a recording is as long as they
like at once; some record with Chromium's own microphone, which plays a file. A stand-in for
`live.driver` sends the events; one test uses the models.
"""

import asyncio
import base64
import difflib
import io
import json
import re
import threading
import wave
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from pydantic import SecretStr
from websockets.sync.client import connect

from config import InferenceConfig
from tests.helpers.live_app import listening
from tests.helpers.nightly import some
from tests.helpers.page_person import LOST, SPOKEN, Person, played
from tests.helpers.page_person import SPOKEN_RATE as RATE
from whosaid.answer.response import Answer, response
from whosaid.errors import ModelError
from whosaid.live.events import (
    Cadence,
    Committed,
    Completed,
    ItemAdded,
    ItemFailed,
    LiveEvent,
    SegmentEvent,
    SpeakersFound,
    SpeechStartedEvent,
    Words,
)
from whosaid.live.settings import AudioFormat, LiveSettings
from whosaid.server.app import create_app
from whosaid.server.errors import Kind, Refusal
from whosaid.server.lifecycle import DrainingServer
from whosaid.server.realtime.drivers import LiveDrivers
from whosaid.server.realtime.places import GOING_AWAY, MOST_SLOWED, Ending
from whosaid.server.settings import ServerSettings
from whosaid.transcript import Chunk, SpeakerSegment, Transcript, Word

KEY = "a schlüssel"
SHOWN = InferenceConfig(return_timestamps="word", output=["txt"], txt_times=True)
STAYS = "What was written stays; Transcribe writes the whole recording."
NASTY = "<img src=x onerror=alert(1)>"
FIRST = (Word(" So", 0.3, 0.5, None, 0.9), Word(" it", 0.5, 0.7, None, 0.8))
SECOND = (Word(" goes", 0.7, 1.0, None, 0.7), Word(f" {NASTY}.", 1.0, 1.4, None, 0.6))
EXPIRES = Ending(GOING_AWAY, Refusal(Kind.session_expired, "the session is over"))
DRAINS = Refusal(Kind.DRAINING, "the server is shutting down")
THIRD = (Word(" Yes.", 2.0, 2.4, None, 0.5),)


class Told:
    """A driver that sends the events of a test; `data` is the audio it got."""

    slowed = 0.0

    def __init__(self, send: Callable) -> None:
        self.send, self.data = send, bytearray()
        self.loop, self.may_finish = asyncio.get_running_loop(), asyncio.Event()
        self.asked: tuple[LiveSettings, AudioFormat] | None = None
        self.finished = self.closed = False
        self.error: Exception | None = None

    async def append(self, data: bytes) -> None:
        self.data += data
        if self.error:
            raise self.error

    async def change(self, settings: LiveSettings, audio_format: AudioFormat) -> None:
        self.asked = settings, audio_format

    async def finish(self) -> None:
        self.finished = True
        await self.may_finish.wait()

    async def close(self) -> None:
        self.closed = True

    def tell(self, *events: LiveEvent) -> None:
        """Send events to the client, from the test's thread."""
        asyncio.run_coroutine_threadsafe(self.send(list(events)), self.loop).result(60)

    def complete(self, *events: LiveEvent) -> None:
        self.tell(*events)
        self.loop.call_soon_threadsafe(self.may_finish.set)


class Room:
    """A server that holds live sessions, and its drivers."""

    def __init__(self, server: DrainingServer, drivers: list[Told], address: str) -> None:
        self.server, self.drivers, self.url = server, drivers, f"http://{address}"
        self.socket_url = f"ws://{address}/v1/realtime?intent=transcription"


@contextmanager
def holding(endpoint, **settings) -> Iterator[Room]:
    drivers: list[Told] = []

    def open_driver(send) -> Told:
        drivers.append(Told(send))
        return drivers[-1]

    app = create_app(endpoint, ServerSettings(**settings), open_driver)
    server = DrainingServer(app, endpoint, 600)
    with listening(server) as (host, port):
        yield Room(server, drivers, f"{host}:{port}")


@pytest.fixture(scope="module")
def room(demo_endpoint) -> Iterator[Room]:
    with holding(demo_endpoint) as held:
        yield held


def visit(person: Person, url: str) -> None:
    """Open the page with a microphone that records what the test says."""
    person.open(url)
    person.do(SPOKEN)


def begin(person: Person, room: Room, seconds: float = 2.5) -> Told:
    """Press the button and speak; return the session's driver, once it has all audio."""
    before = len(room.drivers)
    person.see("#record").click()
    driver = next_driver(person, room, before)
    speak(person, driver, seconds)
    return driver


def next_driver(person: Person, room: Room, before: int) -> Told:
    person.wait(lambda: len(room.drivers) > before)
    person.wait(lambda: person.texts("#listening-state") == ["Listening"])
    return room.drivers[-1]


def speak(person: Person, driver: Told, seconds: float) -> None:
    """Speak until the driver has the audio."""
    whole = len(driver.data) + 2 * round(RATE * seconds)
    person.speak(seconds)
    person.wait(lambda: len(driver.data) >= whole)


def end(person: Person, driver: Told, *events: LiveEvent) -> None:
    """Stop, and send the last events."""
    person.see("#stop").click()
    person.wait(lambda: driver.finished)
    assert person.texts("#listening-state") == ["Writing down the last words"]
    driver.complete(*events)
    person.see("#found")


def completed(item: str, *words: Word) -> Completed:
    text = "".join(word.text for word in words)
    chunks = (Chunk(text, words[0].start, words[-1].end, words=words),) if words else ()
    return Completed(item, Transcript(chunks, "en"), text, 2.0)


def remember_files(person: Person) -> None:
    """Make the page remember the file that it plays."""
    person.do(
        "(() => { const make = URL.createObjectURL.bind(URL);"
        " URL.createObjectURL = (file) => make(window.made = file); })()"
    )


def last_file(person: Person) -> bytes:
    script = """
        const [done] = arguments;
        const reader = new FileReader();
        reader.onload = () => done(reader.result.split(",")[1]);
        reader.readAsDataURL(made);
    """
    return base64.b64decode(person.browser.execute_async_script(script))


def lines(person: Person) -> list[str]:
    return person.texts("#transcript .text")


def test_words_appear_and_become_a_transcript(person, room, downloads):
    visit(person, room.url)
    person.all("#options details")[-1].click()
    person.see("#prompt").send_keys("Before.")
    person.see("#hotwords").send_keys("Ada Lovelace, Zuse")
    person.do("document.getElementById('record').focus()")
    person.requests()
    before = len(room.drivers)
    person.press("ENTER")
    person.wait(lambda: len(room.drivers) > before)
    assert not person.all("#empty")[0].is_displayed()
    driver = room.drivers[-1]
    person.wait(lambda: driver.asked)
    settings, audio_format = driver.asked
    assert audio_format.rate == RATE
    assert (settings.prompt, settings.keywords) == ("Before.", ("Ada Lovelace", "Zuse"))
    person.wait(lambda: person.focus() == "stop")
    assert person.do("document.getElementById('record').ariaDisabled") == "true"
    speak(person, driver, 2.5)
    assert person.do("Number(document.getElementById('level').ariaValueNow)") > 0

    driver.tell(SpeechStartedEvent("a", 200), Words("a", (), " So"))
    person.wait(lambda: lines(person) == [" So"])
    assert person.texts("#transcript .unstable") == [" So"]
    driver.tell(Words("a", FIRST, " ghost"))
    person.wait(lambda: person.texts("#transcript .unstable") == [" ghost"])
    assert lines(person) == ["So it ghost"]
    assert person.texts("#transcript .at") == ["0:00"]
    assert re.fullmatch(r"\d+\.\d s behind", person.texts("#delay")[0])
    driver.tell(Words("a", SECOND))
    person.wait(lambda: lines(person) == [f"So it goes {NASTY}."])
    driver.tell(Committed("a", None), ItemAdded("a", None), Cadence(6.0))
    person.wait(lambda: "every 6 s" in person.texts("#listening-detail")[0])
    driver.tell(SpeechStartedEvent("b", 1900), Words("b", (), " Yet"))
    person.wait(lambda: lines(person) == [f"So it goes {NASTY}.", " Yet"])
    driver.tell(completed("a", *FIRST, *SECOND))

    person.press("ENTER")
    person.wait(lambda: driver.finished)
    assert person.texts("#listening-state") == ["Writing down the last words"]
    assert not person.all("#found")[0].is_displayed()
    driver.complete(completed("b", *THIRD))
    person.see("#found")
    assert person.focus() == "record"
    person.wait(lambda: driver.closed)

    # It is a transcript as any other: words that play, files, and kept by the tab.
    words = [*FIRST, *SECOND, *THIRD]
    assert person.texts(".word") == [word.text.strip() for word in words]
    assert person.all(".unstable, #transcript img") == []
    duration = len(driver.data) / 2 / RATE
    assert "English" in person.texts("#found")[0]
    name = person.see("#chosen b").text
    assert re.fullmatch(r"Recording [\d-]+ [\d.]+\.wav", name)
    body = json.loads(person.download("json", downloads))
    assert body["duration"] == pytest.approx(duration, abs=0.005)
    chunks = tuple(completed("", *part).transcript.chunks[0] for part in (FIRST + SECOND, THIRD))
    answer = Answer(body["duration"], Transcript(chunks, "en"))
    expected = response(answer, SHOWN)
    assert {"DOCX", "SRT", "Recording"} <= {*person.texts("#downloads button")}
    assert person.download("txt", downloads) == expected["output"]["txt"]
    for name in ("text", "words", "language", "duration", "warnings"):
        assert body[name] == expected[name]
    at = "Number(document.querySelector('#player input').value)"
    person.all(".word")[-1].click()
    person.wait(lambda: person.do(at) > 2.3)  # from 2 s to the end
    assert {url.split("?")[0] for url in person.requests() if "/v1/" in url} <= {
        f"{room.url}/v1/realtime/client_secrets",
        room.socket_url.split("?")[0],
        *(f"{room.url}/v1/transcripts/{name}" for name in ("json", "txt")),
    }
    person.browser.refresh()
    person.see("#found")
    assert person.texts(".word") == [word.text.strip() for word in words]


@pytest.mark.reliability
def test_a_server_without_words_is_shown_as_behind(person, room):
    """The delay is shown from five seconds of speech on, until words arrive."""
    visit(person, room.url)
    driver = begin(person, room)
    driver.tell(SpeechStartedEvent("a", 300))
    assert person.texts("#delay") == [""]
    person.speak(4)
    behind = r"the server is behind: \d+ s"
    person.wait(lambda: re.fullmatch(behind, person.texts("#delay")[0]))
    driver.tell(Words("a", FIRST))
    person.wait(lambda: re.fullmatch(r"\d+\.\d s behind", person.texts("#delay")[0]))
    end(person, driver, completed("a", *FIRST))


def test_the_recording_is_what_the_server_has_heard(person, room):
    """Recording and sent audio agree to the last sample, with Chromium's fake microphone, which
    plays a file."""
    person.open(room.url)
    remember_files(person)
    before = len(room.drivers)
    person.see("#record").click()
    driver = next_driver(person, room, before)
    person.wait(lambda: driver.asked)
    rate = driver.asked[1].rate
    person.wait(lambda: len(driver.data) >= 2 * rate * 2)
    end(person, driver)
    assert person.texts("#transcript p") == ["No speech was found."]
    with wave.open(io.BytesIO(last_file(person))) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (rate, 1, 2)
        assert file.readframes(file.getnframes()) == driver.data
    samples = np.frombuffer(bytes(driver.data), "<i2").astype(np.float64)
    assert samples.std() > 0.1 * 32_768 * played().std()  # loud as the file, and no silence


@pytest.mark.reliability
def test_live_text_equals_that_of_the_recorded_file(person, demo_endpoint, demo_handler):
    """The real models transcribe three turns of the conversation, then the recorded file."""
    app = create_app(demo_endpoint, ServerSettings(), LiveDrivers(demo_endpoint))
    with listening(DrainingServer(app, demo_endpoint, 600)) as (host, port):
        visit(person, f"http://{host}:{port}")
        remember_files(person)
        person.see("#record").click()
        person.speak(0, played().repeat(3)[::2])
        person.wait(lambda: person.texts("#transcript .unstable").count("") >= 2)
        assert re.fullmatch(r"\d+\.\d s behind", person.texts("#delay")[0])
        person.see("#stop").click()
        person.see("#found")
        written = person.texts(".word")
        inputs = base64.b64encode(last_file(person)).decode()
    heard = demo_handler({"inputs": inputs, "parameters": {"diarize": False}})["text"].split()
    assert len(written) > 8
    assert difflib.SequenceMatcher(None, written, heard, autojunk=False).ratio() > 0.9


def test_speakers_come_when_they_are_known(person, room, downloads):
    visit(person, room.url)
    driver = begin(person, room)
    driver.tell(SpeechStartedEvent("a", 200), Words("a", FIRST + SECOND))
    person.wait(lambda: lines(person) == [f"So it goes {NASTY}."])
    driver.tell(SegmentEvent("a", "s1", " So it", "SPEAKER_01", 0.3, 0.7))
    person.wait(lambda: person.texts("#transcript .name") == ["SPEAKER_01"])
    driver.tell(SegmentEvent("a", "s2", f" goes {NASTY}.", "SPEAKER_00", 0.7, 1.4))
    person.wait(lambda: person.texts("#transcript .name") == ["SPEAKER_01", "SPEAKER_00"])
    assert lines(person) == ["So it", f"goes {NASTY}."]
    assert [each.get_attribute("class") for each in person.all(".turn")] == ["turn s0", "turn s1"]
    # Those of the whole text take the place of the first ones.
    driver.tell(
        completed("a", *FIRST, *SECOND), SegmentEvent("a", "s3", " So it", "SPEAKER_00", 0.3, 0.7)
    )
    person.wait(lambda: person.texts("#transcript .name") == ["SPEAKER_00"])
    driver.tell(SegmentEvent("a", "s4", f" goes {NASTY}.", "SPEAKER_01", 0.7, 1.4))
    person.see("#stop").click()
    person.wait(lambda: driver.finished)
    assert person.texts("#listening-detail") == ["and who said what"]
    driver.complete(SpeakersFound((), ("louder, please",)))
    person.see("#found")
    assert person.texts("#notes li") == ["louder, please"]
    assert "2 speakers" in person.texts("#found")[0]
    body = json.loads(person.download("json", downloads))
    spoken = [("SPEAKER_00", FIRST), ("SPEAKER_01", SECOND)]
    segments = []
    for label, words in spoken:
        named = tuple(Word(w.text, w.start, w.end, label, w.probability) for w in words)
        text = "".join(w.text for w in words)
        segments.append(SpeakerSegment(label, text, words[0].start, words[-1].end, named))
    chunk = completed("", *segments[0].words, *segments[1].words).transcript.chunks[0]
    answer = Answer(body["duration"], Transcript((chunk,), "en"), segments, ())
    expected = response(answer, SHOWN)
    assert {"DOCX", "SRT", "Recording"} <= {*person.texts("#downloads button")}
    assert person.download("txt", downloads) == expected["output"]["txt"]
    assert body["speakers"] == expected["speakers"]
    bars = [bar.get_attribute("title") for bar in person.all("#timeline .track i")]
    assert bars == ["Spoken: 0:00 to 0:00", "Spoken: 0:00 to 0:01"]
    person.rename(0, "Ada")
    assert person.texts("#transcript .name") == ["Ada", "SPEAKER_01"]
    assert person.download("txt", downloads).startswith("[00:00:00] Ada: So it\n")


def test_overlapping_words_are_shown_for_both_speakers(person, room, downloads):
    visit(person, room.url)
    driver = begin(person, room)
    first = tuple(replace(word, speaker="SPEAKER_00") for word in FIRST)
    second = (Word(" no", 0.4, 0.6, "SPEAKER_01"),)
    driver.tell(
        SpeechStartedEvent("a", 200),
        completed("a", *FIRST),
        SegmentEvent("a", "s1", " So it", "SPEAKER_00", 0.3, 0.7, first),
        SegmentEvent("a", "s2", " no", "SPEAKER_01", 0.4, 0.6, second),
    )
    person.wait(lambda: person.texts("#transcript .name") == ["SPEAKER_00", "SPEAKER_01"])
    assert lines(person) == ["So it", "no"]
    end(person, driver, SpeakersFound((), ()))
    body = json.loads(person.download("json", downloads))
    assert [each["timestamp"] for each in body["speakers"]] == [[0.3, 0.7], [0.4, 0.6]]
    assert [each["speaker"] for each in body["words"]] == ["SPEAKER_00", "SPEAKER_01", "SPEAKER_00"]


# A lost session is followed by no other.
ONCE = """(() => {
    const wait = setTimeout;
    window.setTimeout = (work, ms) => ms === 2000 ? 0 : wait(work, ms);
})()"""


def test_the_text_stays_when_the_server_goes_away(person, demo_endpoint):
    person.expected += LOST
    with holding(demo_endpoint) as room:
        visit(person, room.url)
        person.do(ONCE)
        driver = begin(person, room)
        driver.tell(SpeechStartedEvent("a", 200), Words("a", FIRST, " goes"))
        person.wait(lambda: lines(person) == ["So it goes"])
        driver.tell(ItemFailed("b", ModelError("too warm")))
        driver.loop.call_soon_threadsafe(room.server.end_all)
        person.wait(lambda: person.texts("#listening-state") == ["Recording"])
        said = person.see("#failure").text
        assert said.startswith("The server stops before it can answer this request. DRAINING")
        assert said.endswith("Transcribe writes all of it down.")
        assert lines(person) == ["So it goes"]
        person.speak(2)
        person.see("#stop").click()
        person.see("#found")
    assert person.texts(".word") == ["So", "it"]
    *_, failed, missing = person.texts("#notes li")
    assert "too warm" in failed
    assert "words may be missing" in missing
    assert person.see("#failure").text.endswith(STAYS)
    assert person.see("#player")


class Line:
    """The connection between browser and server, which a test may cut."""

    def __init__(self, person: Person, room: Room) -> None:
        self._browser, self._server = person.browser, room.server
        self._browser.execute_cdp_cmd("Network.enable", {})

    def cut(self) -> None:
        """End all connections, and refuse new ones."""
        self._browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*/v1/realtime*"]})
        for each in [*self._server.server_state.connections]:
            self._server.loops[0].call_soon_threadsafe(each.transport.abort)

    def mend(self) -> None:
        self._browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})


@pytest.fixture
def line(person, room) -> Iterator[Line]:
    person.expected += LOST
    way = Line(person, room)
    yield way
    way.mend()


# Pauses between attempts are a tenth as long.
QUICK = """(() => {
    const wait = setTimeout;
    window.setTimeout = (work, ms) => wait(work, ms > 1999 && ms < 5001 ? ms / 10 : ms);
})()"""
# The next request is answered as by a network that asks for a login; all are written down.
LOGIN = """(() => {
    const ask = fetch;
    window.asked = [];
    window.fetch = (url, given) => {
      asked.push({ at: performance.now(), body: given.body });
      return asked.length > 1 ? ask(url, given) : Promise.resolve(new Response("<p>Log in"));
    };
})()"""


def test_a_lost_connection_keeps_its_text_and_starts_another_session(person, room, line, downloads):
    """No audio is sent again: a note shows the gap."""
    visit(person, room.url)
    remember_files(person)
    first = begin(person, room)
    assert first.asked[0].speakers
    first.tell(SpeechStartedEvent("a", 200), Words("a", FIRST, " ghost"))
    first.tell(SpeechStartedEvent("b", 900), Words("b", (), " phantom"))
    person.wait(lambda: lines(person) == ["So it ghost", " phantom"])
    person.do(LOGIN)
    person.do(QUICK)
    line.cut()
    person.wait(lambda: person.texts("#listening-state") == ["Recording"])
    said = person.see("#failure").text
    assert said.startswith("The connection was lost. The recording goes on, and words come once")
    assert said.endswith("Stop it, and Transcribe writes all of it down.")
    assert lines(person)[0].startswith("So it")
    person.speak(10)
    before = len(room.drivers)
    line.mend()
    second = next_driver(person, room, before)
    assert person.texts("#failure") == [""]
    assert lines(person) == ["So it"]
    asked = person.do("asked")
    assert {json.loads(each["body"])["expires_after"]["seconds"] for each in asked} == {60}
    assert asked[1]["at"] - asked[0]["at"] > 199
    speak(person, second, 2)
    assert not second.asked[0].speakers
    second.tell(SpeechStartedEvent("c", 0), Words("c", SECOND, " more"))
    person.wait(lambda: lines(person) == ["So it", f"goes {NASTY}. more"])
    assert person.texts("#transcript .at") == ["0:00", "0:13"]
    end(person, second, completed("c", *SECOND))
    with wave.open(io.BytesIO(last_file(person))) as file:
        samples = file.readframes(file.getnframes())
    assert (len(first.data), len(second.data)) == (2 * RATE * 2.5, 2 * RATE * 2)
    assert samples == first.data + samples[len(first.data) :][: 2 * RATE * 10] + second.data
    assert person.texts(".word") == [w.text.strip() for w in FIRST + SECOND]
    body = json.loads(person.download("json", downloads))
    later = [(w.start + 12.5, w.end + 12.5) for w in SECOND]
    times = [(w.start, w.end) for w in FIRST] + later
    assert [tuple(word["timestamp"]) for word in body["words"]] == [
        pytest.approx(each) for each in times
    ]
    assert body["warnings"] == [
        "From 0:00 to 0:12 words may be missing: there was no live session."
        " Transcribe writes the whole recording."
    ]


@pytest.mark.reliability
def test_a_session_that_expires_is_followed_by_another(person, demo_endpoint):
    """The server has completed the audio so far; the recording continues meanwhile."""
    with holding(demo_endpoint) as room:
        visit(person, room.url)
        person.do(QUICK)
        first = begin(person, room)
        first.tell(SpeechStartedEvent("a", 200), Words("a", FIRST, " ghost"))
        (place,) = room.server.gate.admission.live.taken
        first.loop.call_soon_threadsafe(place.finish, EXPIRES)
        person.wait(lambda: first.finished)
        assert "session_expired" in person.see("#failure").text
        person.speak(2)
        first.complete(completed("a", *FIRST))
        person.wait(lambda: len(room.drivers) > 1)
        second = room.drivers[1]
        second.tell(SpeechStartedEvent("c", 0), Words("c", SECOND))
        person.wait(lambda: lines(person) == ["So it", f"goes {NASTY}."])
        person.see("#stop").click()
        person.wait(lambda: second.finished)
        second.complete(completed("c", *SECOND))
        person.see("#found")
    assert person.texts(".word") == [w.text.strip() for w in FIRST + SECOND]


@pytest.mark.reliability
def test_a_stop_during_a_lost_connection_keeps_words_and_recording(person, room, line, downloads):
    visit(person, room.url)
    person.do(ONCE)
    driver = begin(person, room)
    driver.tell(SpeechStartedEvent("a", 200), Words("a", FIRST, " ghost"))
    person.wait(lambda: lines(person) == ["So it ghost"])
    line.cut()
    said = person.see("#failure").text
    assert said.startswith("The connection was lost.")
    person.see("#stop").click()
    person.see("#found")
    assert person.texts(".word") == ["So", "it"]
    assert person.texts("#failure") == [f"The connection was lost. {STAYS}"]
    *_, note = person.texts("#notes li")
    assert re.match(r"From 0:00 to 0:\d\d words may be missing: there was no live session\.", note)
    assert person.download("txt", downloads) == "[00:00:00] So it\n"
    assert person.see("#player")
    assert person.see("#chosen b").text.endswith(".wav")


# The next request waits for `release`.
SLOW = """(() => {
    const ask = fetch;
    window.fetch = (...given) => new Promise((done) => release = () => done(ask(...given)));
})()"""


def test_speech_before_the_session_opens_is_sent(person, room):
    visit(person, room.url)
    person.do(SLOW)
    before = len(room.drivers)
    person.see("#record").click()
    person.speak(1)
    assert (person.texts("#failure"), person.texts("#listening-detail")) == ([""], ["connecting"])
    person.do("release()")
    driver = next_driver(person, room, before)
    person.wait(lambda: len(driver.data) == 2 * RATE)
    end(person, driver)


def missing(start: str, end: str) -> str:
    said = f"From {start} to {end} words may be missing: there was no live session."
    return f"{said} Transcribe writes the whole recording."


@pytest.mark.reliability
def test_faults_of_the_server_are_told(person, room):
    visit(person, room.url)
    driver = begin(person, room)
    driver.error = ModelError("too warm")
    person.speak(1)
    assert person.see("#failure").text == (
        "The server failed on this recording: too warm. MODEL_ERROR"
    )
    driver.error = None
    end(person, driver)


@pytest.mark.reliability
def test_late_last_words_are_reported_as_missing(person, demo_endpoint):
    with holding(demo_endpoint, request_timeout=0.5) as room:
        visit(person, room.url)
        driver = begin(person, room)
        driver.tell(SpeechStartedEvent("a", 200), Words("a", FIRST))
        person.wait(lambda: lines(person) == ["So it"])
        person.see("#stop").click()
        person.see("#found")
    assert person.texts(".word") == ["So", "it"]
    failure = person.see("#failure").text
    assert failure.startswith("The received audio could not be completed within the time limit. ")
    assert failure.endswith(STAYS)
    assert "words may be missing" in person.texts("#notes li")[-1]


@pytest.mark.reliability
def test_nobody_has_to_wait_for_the_last_words(person, room):
    visit(person, room.url)
    driver = begin(person, room)
    driver.tell(Words("a", FIRST))
    person.wait(lambda: lines(person) == ["So it"])
    person.see("#stop").click()
    person.wait(lambda: driver.finished)
    person.wait(lambda: person.texts("#stop") == ["Stop waiting"])
    person.see("#stop").click()
    person.see("#found")
    assert person.texts(".word") == ["So", "it"]
    assert person.texts("#failure") == [""]
    person.wait(lambda: driver.closed)


# When the page asks for secrets, in milliseconds.
ASKS = """(() => {
    const ask = fetch;
    window.asked = [];
    window.fetch = (url, given) => {
      if (`${url}`.endsWith("client_secrets")) asked.push(performance.now());
      return ask(url, given);
    };
})()"""
COMES = "The recording goes on, and words come once the server takes a live session."


@pytest.mark.reliability
@pytest.mark.parametrize("lags", [False, True])
def test_a_session_that_is_refused_is_waited_for(person, demo_endpoint, monkeypatch, lags):
    """The page waits the server's Retry-After, if the server is full or lags behind."""
    person.expected += LOST
    monkeypatch.setattr("whosaid.server.realtime.places.RETRY_AFTER_S", 3)
    most = 2 if lags else 1
    with holding(demo_endpoint, max_live_sessions=most) as room:
        with connect(room.socket_url) as other:
            assert json.loads(other.recv())["type"] == "session.created"
            room.drivers[0].slowed = 2 * MOST_SLOWED if lags else 0.0
            visit(person, room.url)
            remember_files(person)
            person.do(ASKS)
            person.do(QUICK)
            person.see("#record").click()
            person.speak(1)
            why = "live sessions already lag behind" if lags else "1 live sessions are"
            said = person.see("#failure").text
            assert said.startswith(f"The server is busy: {why}")
            assert COMES in said
            assert person.texts("#listening-state") == ["Recording"]
            assert person.texts("#listening-detail") == ["waiting for a live session"]
        person.wait(lambda: len(room.drivers) > 1)
        driver = room.drivers[1]
        person.wait(lambda: person.texts("#listening-state") == ["Listening"])
        assert person.texts("#failure") == [""]
        first, second, *_ = person.do("asked")
        assert second - first > 299
        person.wait(lambda: driver.asked)
        assert driver.asked[0].speakers
        speak(person, driver, 1)
        driver.tell(SpeechStartedEvent("a", 200), Words("a", FIRST))
        person.wait(lambda: lines(person) == ["So it"])
        end(person, driver, completed("a", *FIRST))
    with wave.open(io.BytesIO(last_file(person))) as file:
        assert file.readframes(file.getnframes()).endswith(driver.data)
    assert person.texts(".word") == ["So", "it"]
    assert person.texts("#notes li")[-1] == missing("0:00", "0:01")


@pytest.mark.reliability
def test_the_page_asks_why_a_socket_was_refused_and_retries(person, demo_endpoint):
    """The server begins to drain after it has made the secret; the next one takes a session."""
    person.expected += LOST
    with holding(demo_endpoint) as room:
        admission, asked, told = room.server.gate.admission, [], threading.Event()
        check = admission.check_live

        def refuse() -> None:
            asked.append("a secret, a socket, why, and again")
            if len(asked) > 1 and not told.is_set():
                raise DRAINS
            check()

        admission.check_live = refuse
        visit(person, room.url)
        person.do(QUICK)
        person.see("#record").click()
        said = person.see("#failure").text
        assert said.startswith("The server is shutting down. DRAINING")
        assert COMES in said
        told.set()
        driver = next_driver(person, room, 0)
        speak(person, driver, 1)
        end(person, driver)


@pytest.mark.reliability
def test_settings_that_are_refused_are_told(person, room):
    visit(person, room.url)
    person.all("#options details")[-1].click()
    person.see("#hotwords").send_keys("a" * 101)
    person.see("#record").click()
    assert "keywords" in person.see("#failure").text
    person.see("#stop").click()
    person.see("#chosen b")


NO_MICROPHONE = {
    "NotAllowedError": "The browser did not allow this page to use the microphone.",
    "NotFoundError": "No microphone was found.",
    "NotReadableError": "The microphone is in use by something else.",
    "OverconstrainedError": "The microphone cannot be used.",
}


def test_the_reason_of_a_missing_microphone_is_shown(person, room):
    visit(person, room.url)
    before = len(room.drivers)
    for error, said in NO_MICROPHONE.items():
        refuse = f"() => Promise.reject(new DOMException('', '{error}'))"
        person.do(f"navigator.mediaDevices.getUserMedia = {refuse}")
        person.see("#record").click()
        person.wait(lambda said=said: person.texts("#failure") == [said])
        assert person.see("#empty")
        assert not person.all("#listening")[0].is_displayed()
        assert len(room.drivers) == before
        assert person.do("document.getElementById('record').ariaDisabled") is None


LENT = """(() => {
    const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
    navigator.mediaDevices.getUserMedia = async (asked) => window.lent = await ask(asked);
    const Context = AudioContext;
    window.AudioContext = class extends Context {
      constructor() {
        super();
        window.made = this;
      }
    };
})()"""


@pytest.mark.reliability
def test_a_failed_microphone_is_released(person, room):
    person.open(room.url)
    person.do(LENT)
    person.do("AudioContext.prototype.resume = () => Promise.reject(new DOMException(''))")
    person.see("#record").click()
    assert person.see("#failure").text == "The microphone cannot be used."
    assert person.do("[made.state, lent.getTracks()[0].readyState]") == ["closed", "ended"]


TAKEN = """(() => {
    const ask = navigator.mediaDevices.getUserMedia;
    navigator.mediaDevices.getUserMedia = async () => window.lent = await ask();
})()"""


def test_a_removed_microphone_ends_the_recording(person, room):
    visit(person, room.url)
    person.do(TAKEN)
    driver = begin(person, room)
    person.do("void lent.getTracks()[0].onended()")
    person.wait(lambda: driver.finished)
    driver.complete(completed("a", *FIRST))
    person.see("#found")
    assert person.texts(".word") == ["So", "it"]


@pytest.mark.reliability
def test_recording_works_without_live_words(person, room):
    visit(person, room.url)
    person.see("#live").click()
    person.requests()
    before = len(room.drivers)
    person.see("#record").click()
    person.speak(1)
    person.wait(lambda: person.texts("#listened") == ["0:01"])
    person.see("#stop").click()
    person.see("#chosen b")
    assert person.see("#empty")
    assert len(room.drivers) == before
    assert not [url for url in person.requests() if "/v1/" in url]


@pytest.mark.reliability
def test_a_session_without_words_leaves_its_recording(person, room):
    """The transcript before is in the list."""
    visit(person, room.url)
    person.do(ONCE)
    end(person, begin(person, room), completed("a", *FIRST))
    driver = begin(person, room)
    assert not person.all("#found")[0].is_displayed()
    driver.loop.call_soon_threadsafe(room.server.end_all)
    person.see("#failure")
    person.see("#stop").click()
    person.wait(lambda: person.texts("#entries .state")[0] == "Not transcribed")
    person.wait(lambda: person.texts("#download-recording") == ["Save as a file"])
    assert person.see("#failure").text.endswith(STAYS)
    person.click("#entries a", 1)
    person.see("#found")
    assert person.texts(".word") == ["So", "it"]


def test_a_reload_keeps_live_words_and_recording(person, room):
    visit(person, room.url)
    person.do("void (Date.now = ((now) => () => now() + 6000 * performance.now())(Date.now))")
    driver = begin(person, room)
    driver.tell(SpeechStartedEvent("a", 200), Words("a", FIRST))
    person.wait(lambda: lines(person) == ["So it"])
    script = """
        const [done] = arguments;
        import("./database.js").then((database) => database.readAll("answers")).then(done);
    """
    person.wait(lambda: person.browser.execute_async_script(script))
    person.browser.refresh()
    person.wait(lambda: person.texts("#entries .state") == ["Transcribed"])
    person.do("document.querySelector('#entries a').click()")
    person.see("#found")
    assert person.texts(".word") == ["So", "it"]
    assert "cut off" in person.see("#remarks").text
    person.see("#player")


def test_the_key_goes_only_to_the_session(person, tiny_endpoint):
    """A key may have letters that no WebSocket can send."""
    with holding(tiny_endpoint, api_key=SecretStr(KEY)) as room:
        visit(person, room.url)
        person.see("#key").send_keys(KEY)
        person.see("#login button").click()
        person.see("#source")
        driver = begin(person, room)
        end(person, driver, completed("a", *FIRST))
        assert person.texts(".word") == ["So", "it"]


@pytest.mark.parametrize(("dark", "width"), some(1, product([False, True], [360, 1280])))
def test_axe_finds_nothing(person, room, dark, width):
    visit(person, room.url)
    driver = begin(person, room)
    driver.tell(SpeechStartedEvent("a", 200), Words("a", FIRST, " ghost"))
    driver.tell(SegmentEvent("a", "s1", " So it", "SPEAKER_01", 0.3, 0.7))
    driver.tell(SpeechStartedEvent("b", 1900), Words("b", (), " Yet"))
    person.wait(lambda: len(person.texts("#transcript .unstable")) == 2)
    person.look(dark, width)
    assert person.violations() == {}
    wanted, given = person.do("[document.documentElement.scrollWidth, innerWidth]")
    assert wanted <= given
    end(person, driver, completed("a", *FIRST), completed("b", *THIRD))
    assert person.violations() == {}
