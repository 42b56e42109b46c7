"""Long recordings on the page: as jobs, which a reload finds again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.live_app import serving
from tests.helpers.page_person import Person
from tests.helpers.slow_endpoint import Slow
from whosaid.errors import InvalidAudio


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
    """Send the recording, and wait until the server has transcribed some."""
    person.open(url)
    person.transcribe(recording)
    see_progress(person)


def see_progress(person: Person) -> None:
    person.wait(lambda: person.texts("#stage-detail")[0].startswith("0:03 of about 0:09"))


def test_a_reload_and_another_tab_find_the_job(person, slow, recording, tmp_path):
    """The tab that follows the job tells the other; that one goes on if the first is closed."""
    with serving(slow, tmp_path) as url:
        begin(person, url, recording)
        assert person.may_leave()
        person.browser.refresh()
        see_progress(person)
        assert len(jobs_of(person)) == 1
        first = person.browser.current_window_handle
        address = person.browser.current_url
        person.browser.switch_to.new_window("tab")
        person.browser.get(address)
        person.see("#progress")
        second = person.browser.current_window_handle
        person.browser.switch_to.window(first)
        person.browser.get(f"{url}/app/favicon.svg")
        person.browser.switch_to.window(second)
        see_progress(person)
        slow.let.set()
        person.see("#found")
        assert person.texts(".word") == ["hello"]
        person.wait(lambda: jobs_of(person) == [])  # the browser has the transcript
        person.browser.refresh()
        person.see("#found")
        assert person.texts(".word") == ["hello"]
        person.browser.close()
        person.browser.switch_to.window(first)


@pytest.mark.reliability
def test_without_room_for_jobs_a_long_recording_is_streamed(person, slow, recording, tmp_path):
    with serving(slow, tmp_path, most=0) as url:
        begin(person, url, recording)
        assert jobs_of(person) == []
        assert not person.may_leave()
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


def test_the_reason_of_a_failed_job_is_shown(person, slow, recording, tmp_path):
    slow.error = InvalidAudio("no audio stream found")
    with serving(slow, tmp_path) as url:
        begin(person, url, recording)
        slow.let.set()
        person.wait(lambda: "INVALID_AUDIO" in person.texts("#failure")[0])
        assert [job["status"] for job in jobs_of(person)] == ["failed"]


def test_a_job_takes_a_text_and_returns_its_unspoken_part(person, slow, recording, tmp_path):
    with serving(slow, tmp_path) as url:
        person.open(url)
        person.see("#options details:has(#text) summary").click()
        person.see("#text").send_keys("Hello. Who is there?")
        slow.let.set()
        person.transcribe(recording)
        person.see("#found")
        assert [config.text for config in slow.asked] == ["Hello. Who is there?"]
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


def test_files_queue_and_a_reload_continues(person, slow, recording, tmp_path):
    files = [recording]
    for name in ("second.mp3", "third.mp3"):
        files.append(recording.with_name(name))
        files[-1].write_bytes(recording.read_bytes()[: 2**18])
    with serving(slow, tmp_path) as url:
        person.open(url)
        person.all("#file")[0].send_keys("\n".join(map(str, files)))
        person.wait(lambda: len(person.texts("#chosen b")) == 3)
        person.see("#run").click()
        person.wait(lambda: len(jobs_of(person)) == 3)
        person.wait(person.may_leave)
        person.wait(lambda: len(person.all("#entries .waiting")) == 3)
        person.wait(lambda: person.texts("#chosen b") == [recording.name])
        assert person.do("run.ariaDisabled") == "true"
        person.choose(recording.with_name("third.mp3"))
        assert person.do("run.ariaDisabled") == "true"  # it is being transcribed
        other = recording.with_name("fourth.mp3")
        other.write_bytes(b"x")
        person.choose(other)
        assert person.do("run.ariaDisabled") is None
        person.browser.refresh()
        see_progress(person)
        slow.let.set()
        person.wait(lambda: len(person.all("#entries .done")) == 3)
        person.wait(lambda: jobs_of(person) == [])
        assert sorted(person.texts("#entries a")) == sorted(file.name for file in files)


# The next look at a job is refused.
REFUSED = """((status) => {
    const ask = fetch;
    window.fetch = (url, given) => {
      if (!`${url}`.includes("/v1/jobs/")) return ask(url, given);
      window.fetch = ask;
      const error = { message: "NOT_FOUND: no such job" };
      return Promise.resolve(new Response(JSON.stringify({ error }), { status }));
    };
})(arguments[0])"""


@pytest.mark.reliability
@pytest.mark.parametrize(("status", "jobs"), [(404, 2), (429, 1)])
def test_a_job_that_is_lost_is_sent_again(person, slow, recording, tmp_path, status, jobs):
    """A proxy refuses to be asked too often; the job goes on."""
    with serving(slow, tmp_path) as url:
        begin(person, url, recording)
        person.do(REFUSED, status)
        person.wait(lambda: len(jobs_of(person)) == jobs)
        slow.let.set()
        person.see("#found")
