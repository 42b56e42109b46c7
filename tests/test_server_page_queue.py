"""Several files on the page while the server refuses them: they wait, and none is lost."""

import time
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from tests.helpers.live_app import live
from tests.helpers.page_person import LOST, Person
from tests.helpers.slow_endpoint import Slow
from whosaid.server.app import create_app
from whosaid.server.error_response import ErrorResponse
from whosaid.server.errors import Kind, Refusal
from whosaid.server.jobs.store import JobStore
from whosaid.server.settings import ServerSettings

NAMES = ["one.mp3", "two.mp3", "three.mp3"]
KEYS = '[anna]\nkeys = ["a-long-key-of-anna"]\n'
KEY = "a-long-key-of-anna"
WAITS = "Waiting for the server"
IN_LINE = [WAITS, "Waiting for its turn", "Waiting for its turn"]


class Doorkeeper:
    """Lets recordings through to `app` while there is no `refusal`; `sent` has the times of all."""

    def __init__(self, app) -> None:
        self.app, self.sent, self.refusal = app, [], None

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            self.sent.append(time.monotonic())
            if self.refusal:
                await ErrorResponse(self.refusal, "/")(scope, receive, send)
                return
        await self.app(scope, receive, send)


@contextmanager
def kept(endpoint, jobs: Path | None = None, **settings):
    """Serve an endpoint that answers at once behind a Doorkeeper; yield the address and that."""
    endpoint.let.set()
    store = jobs and JobStore(jobs, 10, 2**30, 0.0)
    door = Doorkeeper(create_app(endpoint, ServerSettings(**settings), store=store))
    with live(door) as url:
        yield url, door


@pytest.fixture
def slow(tiny_endpoint) -> Slow:
    return Slow(tiny_endpoint)


def queue(person: Person, folder: Path) -> None:
    for name in NAMES:
        (folder / name).write_bytes(bytes(1000))
    person.all("#file")[0].send_keys("\n".join(str(folder / name) for name in NAMES))
    person.wait(lambda: person.texts("#chosen b") == NAMES)
    person.see("#run").click()


def states(person: Person) -> list[str]:
    """Return the states in the list, those of the files in their order."""
    return person.texts("#entries .state")[::-1]


def see_all_done(person: Person) -> None:
    person.wait(lambda: len(person.all("#entries .done")) == len(NAMES))
    assert person.texts("#failure") == [""]


@pytest.mark.parametrize(
    "refusal", [Refusal(Kind.BUSY, "full", retry_after=1), Refusal(Kind.NOT_READY, "loading")]
)
def test_a_queue_waits_as_the_server_says(person, slow, tmp_path, refusal):
    with kept(slow) as (url, door):
        person.open(url)
        door.refusal = refusal
        queue(person, tmp_path)
        person.wait(lambda: states(person) == IN_LINE)
        said = f"{refusal.reason} · trying again in 0:0"
        person.wait(lambda: person.texts("#stage-detail")[0].startswith(said))
        person.wait(person.may_leave)
        refused, door.refusal = len(door.sent), None
        see_all_done(person)
        assert len(door.sent) <= 1 + refused + len(NAMES)
        pauses = [later - sent for sent, later in pairwise(door.sent[: refused + 1])]
        assert min(pauses) >= refusal.retry_after


def test_a_queue_waits_for_a_server_that_is_away(person, slow, tmp_path):
    person.expected += LOST
    with kept(slow) as (url, door):
        person.open(url)
        person.browser.execute_cdp_cmd("Network.enable", {})
        person.browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*/?stream=true"]})
        queue(person, tmp_path)
        person.wait(lambda: states(person) == IN_LINE)
        assert door.sent == []
        person.click("#cancel")  # of the first
        person.browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
        person.wait(lambda: states(person) == ["Not transcribed", "Transcribed", "Transcribed"])


def test_a_spent_quota_stops_the_queue_with_one_message(person, slow, tmp_path, monkeypatch):
    monkeypatch.setattr("whosaid.server.keys.LOOK_S", 0.0)  # a changed file is read at once
    file = tmp_path / "keys.toml"
    file.write_text(f"{KEYS}audio_seconds_per_day = 5\n")
    with kept(slow, api_keys_file=file) as (url, door):
        person.open(url)
        person.see("#key").send_keys(KEY, Keys.ENTER)
        queue(person, tmp_path)
        said = person.wait(lambda: person.texts("#failure")[0])
        assert said.startswith("The audio that your key allows a day is used: anna has used ")
        assert "QUOTA_EXCEEDED Recordings wait until " in said
        person.wait(lambda: sorted(states(person)) == ["Transcribed", *sorted(IN_LINE[:2])])
        assert person.all("#entries .failed") == []
        sent = len(door.sent)
        # Other records show the message too; a reload sends one recording.
        person.click("#entries li:has(.done) a")
        person.see("#found")
        assert person.texts("#failure") == [said]
        assert len(door.sent) == sent
        person.browser.refresh()
        person.wait(lambda: "QUOTA_EXCEEDED" in person.texts("#failure")[0])
        assert len(door.sent) == sent + 1
        file.write_text(KEYS)
        person.browser.refresh()
        see_all_done(person)


def test_a_job_that_the_quota_ends_is_sent_again(person, slow, tmp_path):
    """Other jobs have used the quota since it was accepted."""
    spent = Refusal(Kind.QUOTA_EXCEEDED, "anna has used all", retry_after=9999)
    with kept(slow, tmp_path / "jobs") as (url, door):
        person.open(url)
        slow.let.clear()
        (tmp_path / "long.mp3").write_bytes(bytes(2**18))
        person.transcribe(tmp_path / "long.mp3")
        person.wait(lambda: slow.asked)
        slow.error = door.refusal = spent
        slow.let.set()
        person.wait(lambda: "QUOTA_EXCEEDED" in person.texts("#failure")[0])
        assert states(person) == [WAITS]
        slow.error = door.refusal = None
        person.browser.refresh()
        person.see("#found")
        assert person.texts("#failure") == [""]


def test_a_refused_key_stops_the_queue(person, slow, tmp_path):
    with kept(slow, api_key=KEY) as (url, door):
        person.open(url)
        person.see("#key").send_keys(KEY, Keys.ENTER)
        person.see("#source")
        person.do("import('/app/api.js').then(({ useKey }) => void useKey('no longer'))")
        queue(person, tmp_path)
        person.wait(lambda: states(person) == IN_LINE)
        assert len(door.sent) == 1
        person.see("#key").clear()
        person.see("#key").send_keys(KEY, Keys.ENTER)
        see_all_done(person)
        assert not person.all("#login")[0].is_displayed()
        assert len(door.sent) == 1 + len(NAMES)
