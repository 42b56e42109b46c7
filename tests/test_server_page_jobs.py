"""Long recordings on the page: as jobs, which a reload finds again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from asgi import FakeEndpoint

from whosaid.answer.response import Answer
from whosaid.asr import Progress
from whosaid.endpoint import Decoded, Finished
from whosaid.errors import InvalidAudio
from whosaid.server.settings import ServerSettings
from whosaid.transcript import Chunk, Transcript, Unspoken, Word

pytest.importorskip("fastapi")
pytest.importorskip("selenium")

from tests.live_app import live
from tests.page_person import Person
from whosaid.server.app import create_app
from whosaid.server.jobs.store import JobStore

WORD = Word(" hello", 0.0, 1.0, None, 0.5)
ANSWER = Answer(9.0, Transcript((Chunk(WORD.text, 0.0, 1.0, words=(WORD,)),), "en"))

LEFT = Unspoken((" Who", " is", " there?"), 1)
TOLD = replace(ANSWER, transcript=replace(ANSWER.transcript, unspoken=(LEFT,)))


class Slow(FakeEndpoint):
    """Has heard a third of each recording, and the rest when it is let."""

    def __init__(self, endpoint) -> None:
        super().__init__()
        self.models.recogniser, self.limits = endpoint.recogniser, endpoint.limits
        self.let = Event()
        self.texts: list[str | None] = []

    async def stream(self, request):
        self.texts.append(request.config.text)
        self.outstanding += 1
        try:
            yield Decoded(9.0)
            yield Progress(3.0, 9.0, ())
            while not self.let.is_set():
                await asyncio.sleep(0.01)
            if self.error:
                raise self.error
            yield Finished(ANSWER if request.config.text is None else TOLD)
        finally:
            self.outstanding -= 1


@contextmanager
def serving(endpoint, folder: Path, most: int = 10) -> Iterator[str]:
    store = JobStore(folder, most, 2**30, 0.0)
    with live(create_app(endpoint, ServerSettings(), store=store)) as url:
        yield url


@pytest.fixture(scope="module")
def recording(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("recordings") / "a long talk.mp3"
    path.write_bytes(bytes(6 * 2**20))
    return path


# The page asks for a job ten times a second.
SOON = "{ const wait = setTimeout; window.setTimeout = (work, ms) => wait(work, ms / 10); }"


@pytest.fixture(scope="module", autouse=True)
def soon(browser) -> Iterator[None]:
    added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": SOON})
    yield
    browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


@pytest.fixture
def slow(tiny_endpoint) -> Slow:
    return Slow(tiny_endpoint)


def jobs_of(person: Person) -> list:
    return person.browser.execute_async_script(
        "const [done] = arguments; fetch('../v1/jobs').then(r => r.json()).then(b => done(b.data))"
    )


def begin(person: Person, url: str, recording: Path) -> None:
    """Send it, until the server has heard some."""
    person.open(url)
    person.transcribe(recording)
    see_progress(person)


def see_progress(person: Person) -> None:
    person.wait(lambda: person.texts("#stage-detail")[0].startswith("0:03 of 0:09 of speech"))


def test_a_reload_finds_the_job_again_and_so_does_another_tab(person, slow, recording, tmp_path):
    with serving(slow, tmp_path) as url:
        begin(person, url, recording)
        person.browser.refresh()  # which asks nothing: nothing would be lost
        see_progress(person)
        assert len(jobs_of(person)) == 1
        first = person.browser.current_window_handle
        person.browser.switch_to.new_window("tab")
        second = person.browser.current_window_handle
        person.browser.get(f"{url}/app/")
        see_progress(person)
        person.browser.switch_to.window(first)
        slow.let.set()
        person.see("#found")
        assert person.texts(".word") == ["hello"]
        assert person.do("localStorage.length") == 0
        assert [job["status"] for job in jobs_of(person)] == ["succeeded"]
        person.browser.refresh()
        person.see("#found")
        assert person.texts(".word") == ["hello"]
        person.browser.switch_to.window(second)
        person.see("#found")
        assert person.texts(".word") == ["hello"]
        person.browser.close()
        person.browser.switch_to.window(first)


FULL_STORE = """(() => {
    const set = Storage.prototype.setItem;
    Storage.prototype.setItem = function (...given) {
      if (this === localStorage) throw new DOMException("full", "QuotaExceededError");
      set.apply(this, given);
    };
})()"""


@pytest.mark.reliability
def test_a_job_is_followed_though_the_browser_keeps_nothing(person, slow, recording, tmp_path):
    """A reload would not find the job, so the page asks before it is left."""
    with serving(slow, tmp_path) as url:
        person.open(url)
        person.do(FULL_STORE)
        person.transcribe(recording)
        see_progress(person)
        assert not person.do("dispatchEvent(new Event('beforeunload', { cancelable: true }))")
        slow.let.set()
        person.see("#found")
        assert person.texts(".word") == ["hello"]


@pytest.mark.reliability
def test_where_no_more_jobs_are_kept_a_long_recording_is_none(person, slow, recording, tmp_path):
    with serving(slow, tmp_path, most=0) as url:
        begin(person, url, recording)
        assert jobs_of(person) == []
        assert not person.do("dispatchEvent(new Event('beforeunload', { cancelable: true }))")
        slow.let.set()
        person.see("#found")
        assert person.texts(".word") == ["hello"]
        assert person.texts("#failure") == [""]


def test_a_cancelled_job_is_forgotten(person, slow, recording, tmp_path):
    with serving(slow, tmp_path) as url:
        begin(person, url, recording)
        person.see("#cancel").click()
        person.wait(lambda: not person.all("#progress")[0].is_displayed())
        assert (person.texts("#failure"), jobs_of(person)) == ([""], [])
        assert person.do("localStorage.length") == 0


def test_why_a_job_has_failed_is_said(person, slow, recording, tmp_path):
    slow.error = InvalidAudio("no audio stream found")
    with serving(slow, tmp_path) as url:
        begin(person, url, recording)
        slow.let.set()
        person.wait(lambda: "INVALID_AUDIO" in person.texts("#failure")[0])
        assert [job["status"] for job in jobs_of(person)] == ["failed"]
        assert person.do("localStorage.length") == 0


def test_a_text_goes_with_a_job_and_what_nobody_says_comes_back(person, slow, recording, tmp_path):
    with serving(slow, tmp_path) as url:
        person.open(url)
        person.see("#options details:has(#text) summary").click()
        person.see("#text").send_keys("Hello. Who is there?")
        slow.let.set()
        person.transcribe(recording)
        person.see("#found")
        assert slow.texts == ["Hello. Who is there?"]
        assert person.texts("#unspoken li span") == ["Who is there?"]


def test_a_short_recording_is_none(person, slow, recording, tmp_path):
    short = recording.with_name("short.mp3")
    short.write_bytes(b"x")
    slow.let.set()
    with serving(slow, tmp_path) as url:
        person.open(url)
        person.requests()
        person.transcribe(short)
        person.see("#found")
        assert f"{url}/v1/jobs" not in person.requests()
