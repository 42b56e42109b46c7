"""A person at the page, in headless Chromium."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from axe_selenium_python import Axe
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service as Driver
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tests.support.audio_files import conversation

T = TypeVar("T")
CHROMIUM, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--autoplay-policy=no-user-gesture-required",
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)

# A microphone that records what a test says, as soon as the test says it, at this rate. Its time
# stands still in between, so that no delay depends on the machine.
SPOKEN_RATE = 24_000
SPOKEN = """(() => {
    const track = Object.assign(new EventTarget(), { stop() {} });
    const stream = { getTracks: () => [track], getAudioTracks: () => [track] };
    navigator.mediaDevices.getUserMedia = async () => stream;
    window.AudioContext = class {
      sampleRate = 24000;
      state = "running";
      audioWorklet = { addModule: async () => {} };
      async resume() {}
      async close() {}
      createMediaStreamSource() { return { connect() {} }; }
    };
    window.AudioWorkletNode = class {
      constructor(context, name, { processorOptions: { piece } }) {
        const port = { postMessage: () => give(new Int16Array(0), true) };
        const give = (samples, last) => port.onmessage({ data: { samples, last } });
        this.port = port;
        window.speak = (base64) => {
          const samples = new Int16Array(
            Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0)).buffer);
          for (let at = 0; at < samples.length; at += piece)
            give(samples.slice(at, at + piece), false);
        };
      }
    };
    const still = { get() { return this.seconds; } };
    return import("/app/microphone.js")
      .then(({ Microphone }) => void Object.defineProperty(Microphone.prototype, "now", still));
})()"""

# Whether the next frame has not moved an element.
STILL = """
    const [element, done] = arguments;
    const place = () => JSON.stringify(element.getBoundingClientRect());
    const before = place();
    requestAnimationFrame(() => done(before === place()));
"""
# Ends after the events that the last key has caused, `selectionchange` for one.
SETTLE = "setTimeout(arguments[0])"
# The values of a store of the page's database.
STORED = """
    const [store, done] = arguments;
    import("./database.js").then((database) => database.readAll(store)).then(done);
"""
# A lost connection in the console.
LOST = ("net::ERR_", "WebSocket connection to")

# Empties the database, and stores a record.
KEPT = """
    const [kept, recording, done] = arguments;
    sessionStorage.clear();
    const keep = async () => {
      const { deleteDB } = await import("/app/vendor/idb.js");
      await deleteDB("who-said-what");
      if (!kept) return "";
      const { Records } = await import("/app/records.js");
      const files = [];
      if (recording) {
        const bytes = Uint8Array.from(atob(recording[1]), (letter) => letter.charCodeAt(0));
        files.push(new File([bytes], recording[0]));
      }
      const records = new Records(() => {});
      const { answer, ...about } = kept;
      const entry = await records.add({ state: "done", ...about }, files);
      await records.finish(entry.id, answer, {});
      return `#${entry.id}`;
    };
    keep().then(done);
"""


def played() -> np.ndarray:
    """The audio that the browser's microphone repeats: a part of the conversation with short
    sentences, 20 s at 16 kHz."""
    return conversation()[16_000 * 20 + 8_000 :][: 16_000 * 20]


@contextmanager
def chromium(downloads: Path, *arguments: str) -> Iterator[webdriver.Chrome]:
    """A browser that saves into a folder, and meets nobody but this machine."""
    if not (Path(CHROMIUM).is_file() and Path(DRIVER).is_file()):
        pytest.skip("left out: no chromium: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (*ARGUMENTS, *arguments):
        options.add_argument(argument)
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Driver(DRIVER))
    driver.set_script_timeout(240)
    try:
        yield driver
    finally:
        driver.quit()


@contextmanager
def using(browser: webdriver.Chrome) -> Iterator[Person]:
    """Yield a user of a browser that reports no errors, and keeps no cookies."""
    person = Person(browser)
    person.complaints()
    yield person
    said = person.complaints()
    assert not said, said
    assert not person.do("document.cookie")


class Person:
    """Does with the page what a person does."""

    def __init__(self, browser: webdriver.Chrome) -> None:
        self.browser = browser
        self.expected = ["the server responded with a status"]  # in lines of the console

    def wait(self, condition: Callable[[], T], seconds: float = 120) -> T:
        """Return the condition's value once it is true; elements may be replaced meanwhile."""
        replaced = [StaleElementReferenceException]
        return WebDriverWait(self.browser, seconds, 0.02, replaced).until(lambda _: condition())

    def all(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements("css selector", selector)

    def see(self, selector: str) -> WebElement:
        """Return the first of these elements, once it is shown and stays in its place."""

        def shown() -> WebElement | None:
            found = next((each for each in self.all(selector) if each.is_displayed()), None)
            is_still = found and self.browser.execute_async_script(STILL, found)
            return found if is_still else None

        found = self.wait(shown)
        assert found
        return found

    def click(self, selector: str, place: int = 0) -> None:
        """Click one of these elements, which the page may replace at any time."""
        self.wait(lambda: [self.all(selector)[place].click()])

    def do(self, script: str, *arguments: object) -> Any:
        return self.browser.execute_script(f"return {script}", *arguments)

    def texts(self, selector: str) -> list[str]:
        script = f"[...document.querySelectorAll({json.dumps(selector)})]"
        texts: list[str] = self.do(f"{script}.map(each => each.textContent)")
        return texts

    def look(self, dark: bool = False, width: int = 1280, height: int = 900) -> None:
        """Look at the page in the light or in the dark, through a window of this size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def open(
        self, url: str, kept: dict[str, Any] | None = None, recording: Path | None = None
    ) -> None:
        """Open the page in a browser that has kept this record, with its recording, or nothing."""
        self.look()
        self.browser.get(f"{url}/app/favicon.svg")
        file = recording and [recording.name, base64.b64encode(recording.read_bytes()).decode()]
        made = self.browser.execute_async_script(KEPT, kept, file)
        self.browser.get(f"{url}/app/{made}")
        self.see("#source, #login")
        if kept is not None:
            self.see("#found")

    def choose(self, file: Path) -> None:
        self.all("#file")[0].send_keys(str(file))
        self.wait(lambda: file.name in self.texts("#chosen b"))

    def stored(self, store: str) -> list[Any]:
        return list(self.browser.execute_async_script(STORED, store))

    def speak(self, seconds: float, sound: np.ndarray | None = None) -> None:
        """Say `sound` (n,), at SPOKEN_RATE, or so many seconds of a hum into SPOKEN."""
        if sound is None:
            sound = np.sin(np.arange(round(seconds * SPOKEN_RATE)) / 20) / 2
        data = (sound * 32_767).astype("<i2").tobytes()
        self.see("#listening")
        self.do("speak(arguments[0])", base64.b64encode(data).decode())

    def transcribe(self, file: Path) -> None:
        self.choose(file)
        self.see("#run").click()

    def rename(self, lane: int, name: str) -> None:
        field = self.all("#timeline input")[lane]
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(Keys.DELETE, name, Keys.ENTER)

    def press(self, *names: str) -> str:
        """Press keys on the focused element; return the text of the element focused afterwards."""
        for name in names:
            self.browser.switch_to.active_element.send_keys(getattr(Keys, name))
        return str(self.do("document.activeElement.textContent"))

    def may_leave(self) -> bool:
        """Return whether the page is left without a question."""
        return bool(self.do("dispatchEvent(new Event('beforeunload', { cancelable: true }))"))

    def focus(self) -> str:
        return str(self.do("document.activeElement.id"))

    def download(self, name: str, folder: Path) -> str:
        """Return the file downloaded as `name`. Chromium first creates an empty file, then
        replaces it by the complete one."""
        for old in folder.iterdir():
            old.unlink(missing_ok=True)
        self.see(f"#download-{name}").click()
        (path,) = self.wait(
            lambda: [each for each in folder.glob(f"*.{name}") if each.stat().st_size]
        )
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

    def complaints(self) -> list[str]:
        """Return the unexpected lines of the browser's console since the last call, including
        violated policies and refused requests."""
        said = [entry["message"] for entry in self.browser.get_log("browser")]
        return [line for line in said if not any(each in line for each in self.expected)]

    def violations(self) -> dict[str, list[str]]:
        """Return axe's violations on the current page, by rule."""
        axe = Axe(self.browser)
        axe.inject()
        found = axe.run()["violations"]
        return {each["id"]: [node["html"] for node in each["nodes"]] for each in found}
