"""The client of a server, against one with scripted answers."""

import asyncio
import base64
import json
from argparse import Namespace
from collections.abc import Iterator

import pytest

from tests.helpers.transcription_server import (
    ANSWER,
    DECODED,
    HALF,
    INFO,
    FakeHandler,
    FakeServer,
    encode,
    refuse,
    stream,
)
from whosaid.transcribe.client import Client, Failed, Unusable, endpoint, events
from whosaid.transcribe.live_remote import RemoteSessions, websocket_address


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


def ask(server: FakeServer, **settings) -> tuple[dict, list[tuple[float, float]], list[float]]:
    """Return the answer, the reported progress, and the waits between attempts."""
    told: list[tuple[float, float]] = []
    waits: list[float] = []
    client = Client(server.url, sleep=waits.append, **settings)
    with client.transcribed([b"sound"], {"output": ["srt"]}, lambda *at: told.append(at)) as answer:
        return answer, told, waits


def ask_once(client: Client) -> None:
    with client.transcribed([b""], {}, lambda *_: None):
        pass


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_events_are_read_however_they_are_cut(size):
    messages = [DECODED, {"type": "answer", "answer": ANSWER}]
    sent = encode(messages)
    parts = [sent[start : start + size] for start in range(0, len(sent), size)]
    assert list(events(parts)) == messages


def test_progress_is_told_where_the_server_streams(fake):
    fake.replies = [stream(DECODED, HALF, {"type": "speakers", "share": 0.5})]
    answer, told, _ = ask(fake)
    assert answer == {**ANSWER, "output": {"srt": "1\n"}}
    assert told == [(0.0, 61.0), (30.5, 61.0), (0.5, 1.0, True)]
    assert base64.b64decode(fake.bodies[0]["inputs"]) == b"sound"
    assert fake.headers[0]["accept"].startswith("text/event-stream")
    assert fake.headers[0]["x-scale-up-timeout"] == "600"
    assert "authorization" not in fake.headers[0]


def test_a_server_without_events_answers_too(fake):
    answer, told, _ = ask(fake, api_key="secret")
    assert (answer["text"], told) == (ANSWER["text"], [])
    assert fake.headers[0]["authorization"] == "Bearer secret"


def test_a_busy_server_is_asked_again_after_its_delay(fake):
    busy = refuse(429, {"detail": "BUSY: full"}, Retry_After="7")
    stops = refuse(503, {"detail": "DRAINING: stops"}, Retry_After="9999")
    ends = stream({"error": {"message": "DRAINING: stops", "code": "DRAINING"}})
    fake.replies = [busy, stops, refuse(503), ends, stream()]
    answer, _, waits = ask(fake)
    assert answer["text"] == ANSWER["text"]
    assert waits == [7, 120, 8, 16]
    assert len(fake.bodies) == 5
    fake.replies = [busy]
    with pytest.raises(Failed, match=r"^BUSY: full$"):
        ask(fake)
    assert len(fake.bodies) == 35


def hang_up(handler: FakeHandler, _: dict) -> None:
    handler.close_connection = True


def test_refusals_and_lost_connections_are_counted_apart(fake):
    broken_off = refuse(200, [], Content_Type="text/event-stream")
    fake.replies = [refuse(503), refuse(503), hang_up, refuse(429), broken_off, stream()]
    answer, _, waits = ask(fake)
    assert answer["text"] == ANSWER["text"]
    # Each kind doubles its own.
    assert waits == [2, 4, 2, 8, 4]
    fake.replies = [refuse(503), hang_up, refuse(503), hang_up, refuse(503), hang_up, stream()]
    with pytest.raises(Failed, match=fake.url):
        ask(fake)
    assert [reply.__name__ for reply in fake.replies] == ["reply"]


def test_only_a_server_seen_before_is_waited_for():
    waits: list[float] = []
    with FakeServer() as server:
        url = server.url
        early, late = (Client(url, sleep=waits.append) for _ in range(2))
        ask_once(late)
        server.shutdown()
        server.server_close()
        with pytest.raises(Unusable, match=f"{url}: Connection refused; .*scripts/serve"):
            ask_once(early)
        assert waits == []
        with pytest.raises(Unusable, match=f"{url}: Connection refused"):
            ask_once(late)
        assert len(waits) == 29


ROUTES = ("/", "/app/", "/v1", "/v1//", "/predict", "/docs", "/v1/jobs/job_1", "/v1/models/a/b")
ROUTES += ("/v1/audio/transcriptions", "/v1/audio/translations/", "/v1/realtime?intent=x", "//#x")


@pytest.mark.parametrize("ending", ["", *ROUTES])
def test_the_addresses_of_all_routes_name_the_server(ending):
    assert endpoint(f"http://127.0.0.1:8000{ending}") == "http://127.0.0.1:8000"
    assert endpoint(f"https://my.server/asr{ending}") == "https://my.server/asr"
    assert endpoint(f"wss://my.server/v1/asr{ending}") == "https://my.server/v1/asr"
    live = websocket_address(f"https://my.server/asr{ending}")
    assert live == "wss://my.server/asr/v1/realtime?intent=transcription"


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_a_proxy_that_fails_is_named_without_its_password(fake, monkeypatch, variable):
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with FakeServer() as closed:
        closed_proxy = f"127.0.0.1:{closed.server_port}"
    working, url = f"127.0.0.1:{fake.server_port}", "http://my.server:81/asr"
    fake.replies = [refuse(502)]
    for proxy, why in (
        (f"http://me:secret@{closed_proxy}", "Connection refused"),
        (f"me:secret@{working}", "status 502"),
        (f"gopher://me:secret@{working}", "its address is not understood"),
    ):
        monkeypatch.setenv(variable, proxy)
        with pytest.raises(Unusable) as failed:
            ask_once(Client(url))
        address = proxy.rpartition("@")[2]
        told = f"{url}: {why}, through the proxy {address} of {variable}"
        assert str(failed.value) == f"{told}; NO_PROXY=my.server connects without it"
    with pytest.raises(Failed, match=f"of {variable}"):
        asyncio.run(RemoteSessions(url, None, Namespace(), None)._connected())
    for entry in ("127.0.0.1", "127.0.0.0/8", "a.b, *", f"127.0.0.1:{fake.server_port}"):
        monkeypatch.setenv("NO_PROXY", entry)
        fake.replies = [stream()]
        ask_once(Client(fake.url))


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (refuse(400, {"detail": "INVALID_AUDIO: none"}), "INVALID_AUDIO: none"),
        (refuse(400, {"error": "INVALID_AUDIO: none"}), "INVALID_AUDIO: none"),
        (refuse(413, None, X_Error_Message="BODY_TOO_LARGE: x"), "BODY_TOO_LARGE: x"),
        (refuse(422, {"detail": [{"msg": "x"}]}), "the server answers with status 422"),
        (refuse(429, {"detail": "QUOTA_EXCEEDED: x"}, Retry_After="9"), "QUOTA_EXCEEDED: x"),
        (refuse(502), "the server answers with status 502"),
        (refuse(200, {"status": "ok"}), ".* does not answer as a transcription server"),
        (
            stream({"error": {"message": "MODEL_ERROR:\n x", "code": "MODEL_ERROR"}}),
            "MODEL_ERROR: x",
        ),
    ],
)
def test_a_failure_is_one_line(fake, reply, reason):
    fake.replies = [reply]
    with pytest.raises(Failed, match=f"^{reason}$"):
        ask(fake)
    assert len(fake.bodies) == 1


def job(status: str, code: int = 200, **told):
    content = json.dumps({"id": "job_1", "status": status, **told}).encode()
    return lambda handler, _: handler.send(code, content, Content_Type="application/json")


HEARD = job("running", progress={"done": 30.5, "total": 61.0})
LOOKS = [("GET", "/v1/jobs/job_1")]
SENT, FORGOTTEN = ("POST", "/v1/jobs"), ("DELETE", "/v1/jobs/job_1")


def test_a_job_is_sent_looked_at_and_forgotten(fake):
    done = job("succeeded", answer=ANSWER)
    fake.replies = [job("queued", 202), job("queued"), HEARD, done, job("succeeded")]
    answer, told, waits = ask(fake, jobs=True)
    assert (answer, told) == (ANSWER, [(30.5, 61.0)])
    assert fake.asked == [SENT, *LOOKS * 3, FORGOTTEN]
    assert waits == [0.5, 0.75, 1.125]
    assert base64.b64decode(fake.bodies[0]["inputs"]) == b"sound"


def test_a_job_whose_answer_was_not_written_stays(fake):
    fake.replies = [job("succeeded", 202, answer=ANSWER)]
    client = Client(fake.url, jobs=True)
    with pytest.raises(OSError, match="full"), client.transcribed([b"sound"], {}, lambda *_: None):
        raise OSError("the disk is full")
    assert fake.asked == [SENT]


def test_a_job_outlives_a_server_that_goes_away(fake):
    away = [refuse(503), refuse(502), refuse(504), hang_up, hang_up]
    fake.replies = [job("queued", 202), *away, job("succeeded", answer=ANSWER), hang_up]
    answer, _, _ = ask(fake, jobs=True)
    assert answer == ANSWER
    assert fake.asked[:7] == [SENT, *LOOKS * 6]


def test_a_job_is_sent_again_with_its_key(fake):
    fake.replies = [hang_up, hang_up, job("succeeded", 202, answer=ANSWER)]
    ask(fake, jobs=True)
    assert len({each["idempotency-key"] for each in fake.headers[:3]}) == 1
    assert fake.asked == [SENT] * 3 + [FORGOTTEN]
    fake.asked.clear()
    fake.replies = [refuse(502)]  # which a proxy may say after it has passed the job on
    with pytest.raises(Failed, match="502"):
        ask(fake, jobs=True)
    assert fake.asked == [SENT]


def test_another_run_takes_the_job_of_the_same_request(fake):
    """Equal recordings of one run have a job each; other models have others."""
    fake.replies = [job("succeeded", 202, answer=ANSWER)]
    first, second = (Client(fake.url, jobs=True) for _ in range(2))
    for client in (first, first, second):
        ask_once(client)
    fake.info = {**INFO, "model": "openai/whisper-small"}
    ask_once(Client(fake.url, jobs=True))
    keys = [each["idempotency-key"] for each in fake.headers if "idempotency-key" in each]
    assert (keys[2], len({*keys})) == (keys[0], 3)


def test_a_job_that_is_lost_is_sent_again(fake):
    """Another run, which had the same job, took its answer; or the job failed before this run."""
    gone = refuse(404, {"error": {"message": "NOT_FOUND: there is no such job"}})
    used = refuse(422, {"error": {"message": "IDEMPOTENCY_KEY_REUSED: another"}})
    failed = job("failed", 202, error={"code": "X", "message": "X: y"})
    done = job("succeeded", 202, answer=ANSWER)
    for replies, asked in (
        ([job("queued", 202), gone, done], [SENT, *LOOKS, SENT, FORGOTTEN]),
        ([used, done], [SENT, SENT, FORGOTTEN]),
        ([failed, job("failed"), done], [SENT, FORGOTTEN, SENT, FORGOTTEN]),
    ):
        fake.replies = replies
        assert ask(fake, jobs=True)[0] == ANSWER
        assert fake.asked == asked
        fake.asked.clear()
    fake.replies = [used]
    with pytest.raises(Failed, match="IDEMPOTENCY_KEY_REUSED"):
        ask(fake, jobs=True)
    assert fake.asked == [SENT] * 3


@pytest.mark.parametrize(
    ("replies", "reason"),
    [
        ([refuse(404, {"error": {"message": "JOBS_DISABLED: none"}})], "JOBS_DISABLED: none"),
        ([job("queued", 202), job("failed", error={"code": "X", "message": "X: y"})], "X: y"),
        ([job("queued", 202), job("cancelled", error=None)], "the job was cancelled"),
        ([refuse(200, [])], ".* does not answer as a transcription server"),
    ],
)
def test_a_job_without_an_answer_says_why(fake, replies, reason):
    fake.replies = replies
    with pytest.raises(Failed, match=f"^{reason}$"):
        ask(fake, jobs=True)
