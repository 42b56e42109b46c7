"""Nothing that a client sends or receives is written anywhere, and nothing leaves the machine."""

from traffic import JSON, KEY, in_json, send_all

from tests.test_robustness import GOOD, GOOD64

CANARY = "canary7f3a"


def requests():
    """Requests with a canary wherever a client may write something."""
    parameters = {"prompt": f"prompt {CANARY}", "hotwords": [CANARY], CANARY: CANARY}
    form = {"model": CANARY, "prompt": CANARY, "response_format": "verbose_json"}
    files = {"file": (f"{CANARY}.wav", GOOD, f"audio/{CANARY}")}
    yield in_json({"inputs": GOOD64, "parameters": parameters, CANARY: CANARY})
    yield in_json({"inputs": CANARY, "parameters": {"language": CANARY}})
    yield {"content": f'{{"inputs": "{CANARY}'.encode(), "headers": JSON}
    yield {"url": f"/?prompt={CANARY}&{CANARY}=1", "content": GOOD}
    yield {"url": f"/{CANARY}", "content": CANARY.encode()}
    yield {"content": GOOD, "headers": {"x-request-id": f"{CANARY} {CANARY}", "cookie": CANARY}}
    yield {"headers": {"authorization": f"Bearer {CANARY}"}, "content": GOOD}
    yield {"content": CANARY.encode(), "headers": {"content-type": f"text/{CANARY}"}}
    for path in ("/v1/audio/transcriptions", "/v1/audio/translations"):
        yield {"url": path, "data": form, "files": files}
        yield {"url": path, "data": {**form, CANARY: CANARY}, "files": files}
    yield {"url": "/", "data": {"parameters": f'{{"prompt": "{CANARY}"}}'}, "files": files}


def test_no_log_holds_requests_or_answers(ours):
    answers = send_all(ours.url, list(requests()), 4)
    assert [answer.status_code for answer in answers].count(200) >= 4
    texts = [answer.json()["text"] for answer in answers if answer.status_code == 200]
    words = {word for text in texts for word in text.split() if len(word) > 4}
    assert words, "nothing was said that could have leaked"
    log = ours.server.logged(" 200 OK in ", times=4)
    for secret in (CANARY, KEY, GOOD64[100:140], *words):
        assert secret not in log


def test_nothing_leaves_the_machine(ours):
    send_all(ours.url, list(requests()), 4)
    assert ours.reached_out == ""
    here = {"127.0.0.1", "::1"}
    peers = {peer.raddr.ip for peer in ours.process.net_connections("inet") if peer.raddr}
    assert peers <= here
