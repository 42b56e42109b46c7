"""The pictures of the page in the documentation: `.venv/bin/python -m tests.helpers.page_pictures`.

The server with the embedded models hears the bundled conversation in Chromium, its speakers get
names, and a word is played; then it is said to the microphone. Pictures are of 1280 x 960 pixels
in 256 colours.
"""

import sys
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from config import REPOSITORY
from tests.support.audio_files import wav_file
from tests.support.servers import OURS_LISTENS, following, ours
from whosaid.audio.decode import AudioLimits, decode_audio
from whosaid.timebase import SAMPLE_RATE

CONVERSATION = REPOSITORY / "demo" / "conversation.ogg"
NAMES = ("Belinda", "Mario", "Fiona")
WORD = "for"  # the first of these is played, at 7.7 s
ITEMS = 4  # the live picture is taken when so many lines are written and the next one begins
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",
)
SIZE = {"width": 1280, "height": 960, "deviceScaleFactor": 1, "mobile": False}


def browser(said: Path) -> webdriver.Chrome:
    """Debian's Chromium without a window, whose microphone hears what is `said`, a WAV file."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for argument in (*ARGUMENTS, f"--use-file-for-fake-audio-capture={said}%noloop"):
        options.add_argument(argument)
    return webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))


def prepare(driver: webdriver.Chrome, url: str) -> None:
    """Transcribe the conversation, name its speakers, and stop the player at a word."""
    wait = WebDriverWait(driver, 300)
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", SIZE)
    driver.get(f"{url}/app/")
    wait.until(lambda _: driver.find_element("id", "source").is_displayed())
    driver.find_element("id", "file").send_keys(str(CONVERSATION))
    driver.find_element("id", "run").click()
    wait.until(lambda _: driver.find_element("id", "found").is_displayed())
    for lane, name in enumerate(NAMES):
        field = driver.find_elements("css selector", "#timeline input")[lane]
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(name, Keys.ENTER)
    words = driver.find_elements("css selector", ".word")
    next(word for word in words if word.text.strip() == WORD).click()
    wait.until(lambda _: driver.execute_script("return CSS.highlights.has('now')"))
    driver.find_element("css selector", "#player button").click()
    driver.execute_script("document.activeElement.blur(); scrollTo(0, 0)")


def speak(driver: webdriver.Chrome, url: str) -> None:
    """Speak until the line after `ITEMS` whole ones is being written."""
    driver.get(f"{url}/app/")
    wait = WebDriverWait(driver, 300, poll_frequency=0.05)
    wait.until(lambda _: driver.find_element("id", "record").is_displayed())
    driver.find_element("id", "record").click()
    wait.until(lambda _: len(driver.find_elements("css selector", "#transcript > div")) > ITEMS)


def save_picture(driver: webdriver.Chrome, file: Path) -> None:
    """Save the page in the 256 colours that are nearest to all of its colours."""
    taken = Image.open(BytesIO(driver.get_screenshot_as_png())).convert("RGB")
    taken.quantize(method=Image.Quantize.MAXCOVERAGE, kmeans=10).save(file, optimize=True)


def main(folder: Path) -> None:
    command = [sys.executable, "-m", "whosaid.server", "--embedded"]
    with (
        TemporaryDirectory() as scratch,
        ours(command, PAGE="true") as process,
        following(process, OURS_LISTENS) as server,
    ):
        said = Path(scratch) / "said.wav"
        samples = decode_audio(
            CONVERSATION.read_bytes(), SAMPLE_RATE, AudioLimits(600.0, 2**24)
        ).samples
        said.write_bytes(wav_file(samples.astype("float64"), SAMPLE_RATE))
        driver = browser(said)
        try:
            prepare(driver, server.url)
            save_picture(driver, folder / "page.png")
            speak(driver, server.url)
            save_picture(driver, folder / "page-live.png")
        finally:
            driver.quit()


if __name__ == "__main__":
    main(REPOSITORY / "docs")
