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

from config import REPOSITORY
from tests.helpers.page_person import Person, chromium
from tests.support.audio_files import conversation, wav_file
from tests.support.servers import OURS_LISTENS, following, ours
from whosaid.timebase import SAMPLE_RATE

NAMES = ("Belinda", "Mario", "Fiona")
WORD = "for"  # the first of these is played, at 7.7 s
ITEMS = 4  # the live picture is taken when so many lines are written and the next one begins


def prepare(person: Person) -> None:
    """Transcribe the conversation, name its speakers, and stop the player at a word."""
    person.see("#source")
    person.transcribe(REPOSITORY / "demo" / "conversation.ogg")
    person.see("#found")
    for lane, name in enumerate(NAMES):
        person.rename(lane, name)
    person.click(".word", person.texts(".word").index(WORD))
    person.wait(lambda: person.do("CSS.highlights.has('now')"))
    person.see("#player button").click()
    person.browser.execute_script("document.activeElement.blur(); scrollTo(0, 0)")


def speak(person: Person) -> None:
    """Speak until the line after `ITEMS` whole ones is being written."""
    person.see("#record").click()
    person.wait(lambda: len(person.all("#transcript > div")) > ITEMS)


def main(folder: Path) -> None:
    command = [sys.executable, "-m", "whosaid.server", "--embedded"]
    with (
        TemporaryDirectory() as scratch,
        ours(command, PAGE="true") as process,
        following(process, OURS_LISTENS) as server,
    ):
        said = Path(scratch) / "said.wav"
        said.write_bytes(wav_file(conversation().astype("float64"), SAMPLE_RATE))
        sound = f"--use-file-for-fake-audio-capture={said}%noloop"
        with chromium(Path(scratch), "--hide-scrollbars", sound) as browser:
            person = Person(browser)
            person.look(height=960)
            for name, act in {"page": prepare, "page-live": speak}.items():
                browser.get(f"{server.url}/app/")
                act(person)
                taken = Image.open(BytesIO(browser.get_screenshot_as_png())).convert("RGB")
                # The 256 colours that are nearest to all of the page's.
                reduced = taken.quantize(method=Image.Quantize.MAXCOVERAGE, kmeans=10)
                reduced.save(folder / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main(REPOSITORY / "docs")
