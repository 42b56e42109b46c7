"""The benchmark of live sessions: events, agreement of words, and a client's pace."""

import asyncio
import base64
import json
from contextlib import asynccontextmanager
from http import HTTPStatus

import numpy as np
import pytest
from websockets.asyncio.server import serve

from benchmarks import harness
from benchmarks.live.local_agreement import Agreement, Listener
from benchmarks.live.replay import PIECE, Arrival, Replay, replay
from benchmarks.live.scoring import delays, session_of
from benchmarks.options import read_bench, run
from benchmarks.report import read
from whosaid.timebase import SAMPLE_RATE
from whosaid.transcript import Word

TRANSCRIPTION = "conversation.item.input_audio_transcription"


def of(second, kind, item="one", **fields):
    return Arrival(second, {"type": kind, "item_id": item, **fields})


def delta(second, text, item="one"):
    return of(second, f"{TRANSCRIPTION}.delta", item, delta=text)


def completed(second, text, item="one"):
    return of(second, f"{TRANSCRIPTION}.completed", item, transcript=text)


def stopped(second, milliseconds, item="one"):
    return of(second, "input_audio_buffer.speech_stopped", item, audio_end_ms=milliseconds)


SENTENCE = [delta(2.0, "No"), delta(2.9, " one"), stopped(3.0, 2900)]
SENTENCE += [delta(3.5, " hears."), completed(3.5, "No one hears.")]


def test_a_session_is_read_from_its_events():
    second = [delta(6.0, "Yes. Yes.", "two"), completed(6.1, "Yes!", "two")]
    found = session_of(Replay([*SENTENCE, *second]))
    assert found.words == [("No", 2.0), ("one", 2.9), ("hears.", 3.5), ("Yes.", 6.0), ("Yes.", 6.0)]
    assert (found.deltas, found.completed) == ("No one hears. Yes. Yes.", "No one hears. Yes!")
    # The second item's end was not the detector's.
    assert found.waits == [pytest.approx(0.6)]
    assert found.failure == ""


def test_a_session_with_an_error_has_failed():
    failed = of(5.0, f"{TRANSCRIPTION}.failed", error={"code": "x"})
    assert "x" in session_of(Replay([failed])).failure
    error = Arrival(6.0, {"type": "error", "error": {"code": "y"}})
    assert "y" in session_of(Replay([error])).failure


def test_a_word_is_late_by_its_end_in_the_file():
    told = [(" No,", 2.0), (" two", 3.0), (" HEAR", 4.0)]
    assert delays(told, [("no", 0.5), ("one", 1.0), ("hear.", 2.5)]) == [1.5, 1.5]
    assert delays(told, []) == delays([], [("no", 0.5)]) == []


def timed(text, start=0.0):
    """Words of half a second each."""
    places = [(word, start + place / 2) for place, word in enumerate(text.split())]
    return [Word(f" {word}", at, at + 0.5) for word, at in places]


def texts(found):
    return "".join(word.text for word in found).split()


def test_words_are_final_that_two_passes_agree_on():
    agreement = Agreement()
    assert agreement.heard(timed("and so my")) == []
    assert texts(agreement.heard(timed("and so your fellow"))) == ["and", "so"]
    # Final words are not looked at again; what was guessed before decides.
    assert texts(agreement.heard(timed("or so your fellow men"))) == ["your", "fellow"]
    assert texts(agreement.finish()) == ["men"]
    assert texts(agreement.final) == ["and", "so", "your", "fellow", "men"]


def test_repeated_words_are_not_final_twice():
    agreement = Agreement(final=timed("ask what you"))
    heard = timed("what you can do", start=1.45)  # the same words a little later
    assert agreement.heard(heard) == []
    assert texts(agreement.guess) == ["can", "do"]


class Model:
    """faster-whisper's of one segment: the words of `answers`, one after the other."""

    def __init__(self, *answers):
        self.answers, self.heard = list(answers), []

    def transcribe(self, samples, **options):
        self.heard.append((len(samples), options["initial_prompt"]))
        found = timed(self.answers.pop(0))
        segment = type("Segment", (), {})
        words = [{"word": each.text, "start": each.start, "end": each.end} for each in found]
        segment.words = [type("Word", (), each) for each in words]
        segment.end, segment.no_speech_prob = found[-1].end, 0.0
        return [segment], None


def test_the_other_engine_hears_all_that_is_not_settled(monkeypatch):
    """With a simulated clock, in which a pass takes no time."""
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    monkeypatch.setattr("time.sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    model = Model("one", "one two", "one two three", "one two tree")
    told = Listener(model, "en").listen(np.zeros(round(3.5 * SAMPLE_RATE), np.float32))
    assert [count / SAMPLE_RATE for count, _ in model.heard] == [1, 2, 3, 3.5]
    assert told == [(" one", 2.0), (" two", 3.0), (" tree", 3.5)]


@asynccontextmanager
async def listening(handler, **options):
    async with serve(handler, "127.0.0.1", 0, **options) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def played(handler, samples, **options):
    async def run():
        async with listening(handler, **options) as url:
            return await replay(url, samples, "en")

    return asyncio.run(run())


def test_client_sends_pieces_in_time_and_times_events():
    samples = np.linspace(-1, 1, 2 * PIECE + 100, dtype=np.float32)
    events = []

    async def answer(socket):
        async for message in socket:
            events.append(json.loads(message))
            if len(events) == 3:
                await socket.send(json.dumps({"type": "session.updated"}))
            if events[-1].get("final"):
                await socket.close(1000)

    done = played(answer, samples)
    update, *pieces, commit = events
    assert update["session"]["audio"]["input"]["transcription"] == {"language": "en"}
    assert commit == {"type": "input_audio_buffer.commit", "final": True}
    sent = b"".join(base64.b64decode(each["audio"]) for each in pieces)
    assert np.array_equal(np.frombuffer(sent, "<i2"), (samples * 32767).astype("<i2"))
    assert len(pieces) == 3
    assert done.spoken == pytest.approx(len(samples) / SAMPLE_RATE)
    (arrival,) = done.arrivals
    # The second piece was spoken at 0.2 s, and not sent before.
    assert arrival.second >= 0.2
    assert done.failure == ""


def test_a_session_that_is_refused_or_ends_otherwise_has_failed():
    async def leave(socket):
        await socket.close(1011)

    def refuse(connection, request):
        return connection.respond(HTTPStatus.TOO_MANY_REQUESTS, "no place")

    silence = np.zeros(PIECE, np.float32)
    assert played(leave, silence).failure == "closed with 1011"
    refused = played(leave, silence, process_request=refuse)
    assert "429" in refused.failure
    assert (refused.spoken, refused.arrivals) == (0.0, [])
    assert asyncio.run(replay("http://127.0.0.1:1", silence, None)).failure


@pytest.mark.reliability
def test_a_quick_run_measures_every_part(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    assert run(read_bench(["live", "--quick"])) == 0
    measured = read(tmp_path / "live-quick.json")
    rows = [(each["clients"], each["beside"]) for each in measured["ours"]]
    assert rows == [(1, False), (1, True), (2, False), (2, True)]
    sessions = [each for cell in measured["ours"] for each in cell["sessions"]]
    assert not any(each["failure"] for each in sessions)
    dialogue, noise = measured["ours"][0]["sessions"]
    assert dialogue["whole"]
    assert dialogue["completed"]
    spoken = measured["recordings"]["dialogue"]["text"].split()
    assert 0 < len(dialogue["told"]) <= 2 * len(spoken)
    assert (noise["deltas"], noise["completed"]) == ("", "")
    assert [each["recording"] for each in measured["theirs"]] in ([], ["dialogue", "noise"])
    assert "| 1 client, beside a file |" in (tmp_path / "live-quick.md").read_text(encoding="utf-8")
