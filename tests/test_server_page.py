"""The page as a person uses it, in headless Chromium, and as a stranger might: over HTTP, past the
page.

What the page shows and hands out is compared with what the handler answers to the same recording.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import httpx2
import pytest
from asgi import FakeService
from test_server_lifecycle import listening

from audio import AudioLimits, decode_audio
from config import REPOSITORY, ServerSettings
from errors import ModelError

pytest.importorskip("fastapi")
pytest.importorskip("gradio")

from server.admission import Admission
from server.app import create_app
from server.lifecycle import DrainingServer
from server.page.upload_room import UploadRoom, stored_bytes
from server.service import Service
from tests.live_app import live

CHROMIUM, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
CONVERSATION = REPOSITORY / "demo" / "conversation.ogg"
SECONDS = 20
OUTPUT = ["srt", "vtt", "txt", "tsv", "rttm"]
NAME = "Zoë <b>{{value}}</b> ${1}"
OFFLINE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
KEY = "a key of this test"


@contextmanager
def serving(handler, **settings) -> Iterator[str]:
    """The server's address while it runs."""
    service = Service(handler)
    with live(create_app(service, ServerSettings(**settings))) as url:
        yield url
    service.close()


@pytest.fixture(scope="module")
def recording(tmp_path_factory, wav) -> Path:
    """The beginning of the bundled conversation."""
    audio = decode_audio(CONVERSATION.read_bytes(), 16_000, AudioLimits(7200, 2**29))
    path = tmp_path_factory.mktemp("recordings") / "a talk.wav"
    path.write_bytes(wav(audio.samples[: SECONDS * 16_000]))
    return path


@pytest.fixture(scope="module")
def answer(demo_handler, recording) -> dict:
    """What the endpoint answers to the same recording."""
    inputs = base64.b64encode(recording.read_bytes()).decode()
    parameters = {"output": OUTPUT, "return_timestamps": "word"}
    return demo_handler({"inputs": inputs, "parameters": parameters})


@pytest.fixture(scope="module")
def url(demo_handler) -> Iterator[str]:
    with serving(demo_handler) as address:
        yield address


@pytest.fixture(scope="module")
def downloads(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="module")
def browser(downloads):
    if not (Path(CHROMIUM).is_file() and Path(DRIVER).is_file()):
        pytest.skip("no chromium: apt-get install chromium chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service as Driver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", OFFLINE):
        options.add_argument(argument)
    options.add_argument("--autoplay-policy=no-user-gesture-required")
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Driver(DRIVER))
    yield driver
    driver.quit()


class Person:
    """Does with the page what a person does."""

    def __init__(self, browser) -> None:
        self.browser = browser

    def wait(self, condition, seconds: float = 60):
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.browser, seconds, poll_frequency=0.05).until(
            lambda _: condition()
        )

    def all(self, selector: str):
        return self.browser.find_elements("css selector", selector)

    def see(self, selector: str):
        return self.wait(lambda: self.all(selector))[0]

    def do(self, script: str):
        return self.browser.execute_script(f"return {script}")

    def texts(self, selector: str) -> list[str]:
        script = f"[...document.querySelectorAll({json.dumps(selector)})]"
        return self.do(f"{script}.map(each => each.textContent)")

    def transcribe(self, url: str, file: Path) -> None:
        self.browser.get(f"{url}/app/")
        self.see("#recording input[type=file]").send_keys(str(file))
        self.wait(lambda: self.all("#recording .component-wrapper"))
        self.see("#run").click()

    def rename(self, lane: int, name: str) -> None:
        from selenium.webdriver.common.keys import Keys

        field = self.all("#timeline input")[lane]
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(name, Keys.ENTER)

    def download(self, name: str, folder: Path) -> str:
        for old in folder.iterdir():
            old.unlink()
        self.see(f"#download-{name}").click()
        path = folder / f"a talk.{name}"
        self.wait(path.exists)
        return path.read_text(encoding="utf-8")

    def requests(self) -> set[str]:
        """Every URL that the browser asked for since the last look."""
        messages = [
            json.loads(entry["message"])["message"] for entry in self.browser.get_log("performance")
        ]
        return {
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        }


@pytest.fixture
def person(browser) -> Person:
    return Person(browser)


def test_from_a_file_to_a_named_transcript(person, url, recording, answer, downloads):
    person.transcribe(url, recording)
    person.see("#status .done")
    words = [word["word"].strip() for word in answer["words"]]
    assert person.texts("#transcript [data-to]") == words
    speakers = [entry["speaker"] for entry in answer["speakers"]]
    assert person.texts("#transcript .name") == speakers
    assert len(person.all("#timeline input")) == len(set(speakers)) > 1

    # A word plays from where it was spoken.
    index = len(words) // 2
    person.all("#transcript [data-to]")[index].click()
    start = answer["words"][index]["timestamp"][0]
    person.wait(lambda: person.do("player.currentTime > 0 && !player.paused"))
    assert start <= person.do("player.currentTime") <= start + 5
    person.wait(lambda: person.all("#transcript .now"))
    person.do("player.pause()")

    # So does the keyboard: from a turn's time to its words and back.
    person.do("document.querySelector('#transcript .time').focus()")
    assert press(person, "ARROW_RIGHT", "ARROW_RIGHT", "ARROW_LEFT") == words[0]
    press(person, "ENTER")
    person.wait(lambda: not person.do("player.paused"))
    person.do("player.pause()")

    # A name goes everywhere, and is text wherever it goes.
    person.rename(0, NAME)
    first = person.all("#timeline input")[0].get_attribute("data-speaker")
    named = NAME[:24].strip()
    person.wait(lambda: named in person.texts("#transcript .name"))
    expected = [named if each == first else each for each in speakers]
    assert person.texts("#transcript .name") == expected
    check_downloads(person, downloads, answer, first, named)

    # All that was asked for was on this machine.
    asked = person.requests()
    assert any("/gradio_api/upload" in each for each in asked)
    assert {each for each in asked if not re.match(rf"({re.escape(url)}/|data:|blob:)", each)} == (
        set()
    )


def test_parameters_that_are_opened_and_left_alone_change_nothing(person, url, recording, answer):
    """And those that are set are sent, or refused by name."""
    person.browser.get(f"{url}/app/")
    for fold in person.wait(lambda: person.all("button.label-wrap")):
        fold.click()
    person.see("#num-speakers textarea")
    person.see("#recording input[type=file]").send_keys(str(recording))
    person.wait(lambda: person.all("#recording .component-wrapper"))
    person.see("#run").click()
    person.see("#status .done")
    words = [word["word"].strip() for word in answer["words"]]
    assert person.texts("#transcript [data-to]") == words

    person.see("#num-speakers textarea").send_keys("1")
    person.see("#run").click()
    person.wait(lambda: len(person.all("#timeline input")) == 1)
    person.see("#max-speakers textarea").send_keys("0")
    person.wait(lambda: person.see("#run").is_enabled())
    person.see("#run").click()
    refusal = "INVALID_PARAMETER: max_speakers: should be greater than or equal to 1"
    assert person.see("#status .failed").text == refusal


def test_names_are_whole_in_a_narrow_window(person, url, recording):
    before = person.browser.get_window_size()
    person.browser.set_window_size(400, 800)
    try:
        person.transcribe(url, recording)
        person.see("#status .done")
        sizes = "map(each => [each.scrollWidth, each.clientWidth])"
        fields = person.do(f"[...document.querySelectorAll('#timeline input')].{sizes}")
        assert len(fields) > 1
        assert all(wanted <= given for wanted, given in fields)
    finally:
        person.browser.set_window_size(before["width"], before["height"])


def press(person: Person, *names: str) -> str:
    """Press keys on what has the focus; the text of what has it afterwards."""
    from selenium.webdriver.common.keys import Keys

    for name in names:
        person.browser.switch_to.active_element.send_keys(getattr(Keys, name))
    return person.do("document.activeElement.textContent")


def check_downloads(person, folder, answer, speaker: str, name: str) -> None:
    """Files are the endpoint's, with a name in the place of a number."""
    body = json.loads(person.download("json", folder))
    plain = json.loads(json.dumps(answer).replace(speaker, name))
    assert body["speakers"] == [
        {key: value for key, value in entry.items() if key != "words"}
        for entry in plain["speakers"]
    ]
    assert (body["text"], body["chunks"]) == (answer["text"], answer["chunks"])
    assert "output" not in body
    text = person.download("txt", folder)
    assert text == answer["output"]["txt"].replace(speaker, name)
    rttm = person.download("rttm", folder)
    assert rttm == answer["output"]["rttm"].replace(speaker, name.replace(" ", "_"))
    assert name.translate(str.maketrans("<>{}", "\u2039\u203a()")) in person.download("srt", folder)
    assert "&lt;b&gt;" in person.download("vtt", folder)
    assert person.download("tsv", folder).startswith("start\tend\ttext\tspeaker\n")


def test_who_stops_is_told_no_failure(person, url, recording, demo_handler, monkeypatch):
    held, decode = Event(), demo_handler.decode

    def hold(*arguments):
        assert held.wait(60)
        return decode(*arguments)

    monkeypatch.setattr(demo_handler, "decode", hold)
    person.transcribe(url, recording)
    person.wait(lambda: person.see("#stop").is_displayed())
    person.see("#stop").click()
    person.wait(lambda: person.texts("#status p") == ["Stopped."])
    held.set()
    assert person.all("#status .failed") == []
    assert person.wait(lambda: person.see("#run").is_enabled())
    assert person.texts("#transcript p") == []


def test_what_is_no_recording_is_refused_in_one_line(person, url, tmp_path):
    broken = tmp_path / "letter.wav"
    broken.write_bytes(b"Dear Sir or Madam, <img src=x onerror=alert(1)>")
    person.transcribe(url, broken)
    assert re.fullmatch(r"INVALID_AUDIO: .+", person.see("#status .failed").text)
    assert person.wait(lambda: person.see("#run").is_enabled())
    assert person.texts("#transcript p") == []


@pytest.fixture
def client(url) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=f"{url}/app", timeout=30) as made:
        yield made


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 200),
        ("/config", 200),
        ("/gradio_api/file=/etc/passwd", 403),
        ("/gradio_api/file=https://huggingface.co/robots.txt", 404),
        ("/gradio_api/proxy=https://huggingface.co/", 404),
        ("/gradio_api/deep_link", 404),
        ("/gradio_api/runs", 404),
        ("/gradio_api/openapi.json", 404),
        ("/monitoring", 404),
        ("/openapi.json", 404),
        ("/svelte/../../config", 404),
    ],
)
def test_only_what_the_page_needs_is_reached(client, path, status):
    assert client.get(path).status_code == status


@pytest.mark.parametrize("route", ["call/transcribe", "run/transcribe", "process_recording"])
def test_there_is_no_second_api(client, route):
    assert client.post(f"/gradio_api/{route}", json={"data": []}).status_code == 404


def ask(client: httpx2.Client, file: dict) -> str:
    """What the page's event stream says when `file` is named as the recording."""
    config = client.get("/config").json()
    (event,) = (each for each in config["dependencies"] if len(each["inputs"]) > 3)
    data = [{"meta": {"_type": "gradio.FileData"}, **file}]
    defaults = {each["id"]: each["props"].get("value") for each in config["components"]}
    data += [defaults[each] for each in event["inputs"][1:]]
    session = {"session_hash": "stranger", "fn_index": event["id"]}
    client.post("/gradio_api/queue/join", json={"data": data, **session}).raise_for_status()
    return client.get("/gradio_api/queue/data", params=session).text


@pytest.mark.parametrize(
    "file",
    [
        {"path": "/etc/passwd"},
        {"path": "/etc/passwd", "is_stream": True},
        {"path": str(CONVERSATION)},
        {"path": str(CONVERSATION), "is_stream": True},
        {"path": "http://127.0.0.1:9/a.wav"},
        {"path": "http://127.0.0.1:9/a.wav", "is_stream": True},
        {"path": "a.wav", "url": "http://127.0.0.1:9/a.wav"},
    ],
)
def test_nothing_but_uploads_is_read(client, file, monkeypatch):
    monkeypatch.setattr("gradio.processing_utils.async_ssrf_protected_download", None)
    events = ask(client, file)
    assert "process_completed" in events
    assert "Listening" not in events
    assert "passwd" not in events


def test_bodies_are_bounded(tiny_handler, monkeypatch):
    monkeypatch.setattr(tiny_handler, "limits", AudioLimits(60, 1000))
    with serving(tiny_handler) as url, httpx2.Client(base_url=f"{url}/app") as client:

        def upload(size: int) -> int:
            file = {"files": ("a.wav", bytes(size))}
            return client.post("/gradio_api/upload", files=file).status_code

        def chunks():
            yield from [bytes(2**19)] * 3

        assert [upload(size) for size in (1000, 1001, 10**6)] == [200, 413, 413]
        long = {"data": ["x" * 2**20]}
        assert client.post("/gradio_api/queue/join", json=long).status_code == 413
        assert client.post("/gradio_api/queue/join", content=chunks()).status_code >= 400


def test_a_key_is_asked_for(tiny_handler):
    with (
        serving(tiny_handler, api_key=KEY) as url,
        httpx2.Client(base_url=f"{url}/app") as client,
    ):
        file = {"files": ("a.wav", b"audio")}
        assert "API key" in client.get("/").text
        assert client.get("/config").status_code == 401
        assert client.post("/gradio_api/upload", files=file).status_code == 401
        for password, status in ((f"{KEY}x", 400), ("", 422), (KEY, 200)):
            login = client.post("/login", data={"username": "me", "password": password})
            assert login.status_code == status
        assert client.get("/config").status_code == 200
        (path,) = client.post("/gradio_api/upload", files=file).json()
        assert client.get(f"/gradio_api/file={path}").content == b"audio"
        assert httpx2.get(f"{url}/app/gradio_api/file={path}").status_code == 401


def upload(client: httpx2.Client, size: int, name: str = "a.wav") -> httpx2.Response:
    return client.post("/gradio_api/upload", files={"files": (name, os.urandom(size))})


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Where uploads go."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    return tmp_path


def test_uploads_have_room_in_their_folder_and_no_more(tiny_handler, folder):
    """What lies there counts, by whichever way it came, until it is deleted."""
    with (
        serving(tiny_handler, max_queue_bytes=10_000_000) as url,
        httpx2.Client(base_url=f"{url}/app") as client,
    ):
        assert [upload(client, 4_000_000).status_code for _ in range(3)] == [200, 200, 429]
        refused = upload(client, 4_000_000)
        assert refused.text.startswith("BUSY: ")
        assert refused.headers["x-error-message"] == refused.text
        assert stored_bytes(folder) == 8_000_000
        assert upload(client, 1_000_000).status_code == 200
        (folder / "of another way").write_bytes(bytes(900_000))
        assert upload(client, 500_000).status_code == 429
        for path in folder.rglob("*.wav"):
            path.unlink()
        assert upload(client, 8_000_000).status_code == 200


def test_an_upload_that_is_alone_may_have_more(tiny_handler, folder):
    with (
        serving(tiny_handler, max_queue_bytes=1000) as url,
        httpx2.Client(base_url=f"{url}/app") as client,
    ):
        assert [upload(client, size).status_code for size in (100_000, 1)] == [200, 429]
        assert stored_bytes(folder) == 100_000


def test_an_upload_that_breaks_off_leaves_nothing(tiny_handler, folder):
    """Half of it is on the disk when the client goes; the room that it held is free again."""
    head = (
        "POST /app/gradio_api/upload HTTP/1.1\r\nhost: a\r\ncontent-length: 900000\r\n"
        "content-type: multipart/form-data; boundary=b\r\n\r\n"
        '--b\r\ncontent-disposition: form-data; name="files"; filename="a.wav"\r\n\r\n'
    )
    with serving(tiny_handler, max_queue_bytes=1_000_000) as url:
        where = httpx2.URL(url)
        with socket.create_connection((where.host, where.port), timeout=60) as sending:
            sending.sendall(head.encode() + bytes(450_000))
            while stored_bytes(folder) < 400_000:
                pass
            with httpx2.Client(base_url=f"{url}/app") as client:
                assert upload(client, 200_000).status_code == 429
        while stored_bytes(folder):
            pass
        with httpx2.Client(base_url=f"{url}/app") as client:
            while (reply := upload(client, 900_000)).status_code == 429:
                pass
        assert reply.status_code == 200


def test_who_comes_while_another_uploads_has_what_that_leaves(tmp_path):
    """Of uploads on their way all is counted, and nothing once they have ended."""

    async def run() -> None:
        room = UploadRoom(tmp_path, 100)
        async with room.take(60) as first, room.take(50) as second, room.take(0) as third:
            assert (first, second, third) == (True, False, False)
        async with room.take(40) as fourth, room.take(60) as fifth:
            assert (fourth, fifth) == (True, True)

    asyncio.run(run())


@pytest.mark.parametrize("ends", ["the engine", "a signal"])
def test_who_waits_at_the_page_is_told_before_the_server_ends(tiny_handler, ends):
    """Though it ends as soon as nobody waits, and not at the next tenth of a second."""
    service = FakeService()
    service.handler, service.error = tiny_handler, ModelError("nothing works")
    server = DrainingServer(create_app(service, ServerSettings()), service, 600)

    async def main_loop() -> None:
        while not await server.on_tick(1):
            await asyncio.sleep(0)

    server.main_loop = main_loop
    with listening(server) as (host, port):
        loop = server.loops[0]

        def end() -> None:
            service.alive = ends != "the engine"
            if service.alive:
                server.handle_exit(signal.SIGTERM, None)
            loop.call_soon_threadsafe(service.release.set)

        with httpx2.Client(base_url=f"http://{host}:{port}/app", timeout=60) as client:
            (path,) = upload(client, 60).json()
            began = asyncio.run_coroutine_threadsafe(service.began.wait(), loop)
            began.add_done_callback(lambda _: end())
            assert "MODEL_ERROR: nothing works" in ask(client, {"path": path})


def test_a_recording_on_the_page_takes_of_the_bytes_of_all_bodies(tiny_handler, folder):
    """And gives them back, however it ends; what is gone takes none and is refused for that."""
    service = FakeService()
    service.handler = tiny_handler
    recording = folder / "a.wav"
    recording.write_bytes(bytes(60))

    async def run() -> None:
        from server.page.layout import Page

        settings = ServerSettings(max_queue_bytes=100)
        admission = Admission(settings, 1000)
        page = Page(service, admission, settings)
        values = [each.value for each in page.form.components.values()]

        async def said(path: Path) -> str:
            return [shown async for shown in page.transcribe(str(path), *values)][-1][page.status]

        first = asyncio.ensure_future(said(recording))
        await service.began.wait()
        assert admission.places.held_bytes == 60
        assert "BUSY: " in await said(recording)
        assert "INVALID_REQUEST: " in await said(folder / "gone.wav")
        assert (admission.places.held_bytes, admission.places.taken) == (60, 1)
        service.release.set()
        assert "done" in await first
        assert (admission.places.held_bytes, admission.places.taken) == (0, 0)

    asyncio.run(run())
