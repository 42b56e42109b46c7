"""The page with hours of text: `.venv/bin/python -m tests.helpers.page_speed [URL]`.

Chromium opens a transcript of 20,000 words that it has kept, and a person types in its middle
and undoes. Times end with the next frame that is drawn; of a machine that does other work, those of
the processor tell more. `URL` is that of a running server, whose page is measured.
"""

import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from selenium.webdriver import Chrome
from selenium.webdriver.common.keys import Keys

from tests.helpers.page_answers import answer_of
from tests.helpers.page_person import Person, chromium

WORDS = 20_000
# Of two speakers; each twentieth word is doubtful.
TURNS = [(f"S{turn % 2}", " ".join(["word"] * 19 + ["doubt"])) for turn in range(WORDS // 20)]
# From a key's event until the frame is drawn that shows what it did.
WATCH = """
    window.taken = [];
    addEventListener("keydown", () => {
      const start = performance.now();
      requestAnimationFrame(() => setTimeout(() => taken.push(performance.now() - start)));
    }, { capture: true });
"""
OPEN = """
    const [id, done] = arguments;
    const start = performance.now();
    location.hash = id;
    const look = () => document.querySelectorAll(".word").length
      ? setTimeout(() => done(performance.now() - start))
      : requestAnimationFrame(look);
    look();
"""


def processor_ms(browser: Chrome) -> float:
    """Time of the page's thread so far."""
    metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return 1000 * float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))


def main(url: str) -> None:
    about = {"file": "interview.wav", "bytes": 1, "seconds": 1, "names": {}, "diarizes": True}
    with TemporaryDirectory() as folder, chromium(Path(folder)) as browser:
        person = Person(browser)
        person.open(url, {"answer": answer_of(TURNS, frozenset({"doubt"})), **about})
        record = person.do("location.hash")
        browser.execute_script(WATCH)
        browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
        for _ in range(3):
            browser.execute_script("location.hash = ''")
            person.see("#empty")
            before = processor_ms(browser)
            taken = browser.execute_async_script(OPEN, record)
            used = processor_ms(browser) - before
            print(f"opening: {taken:.0f} ms, {used:.0f} ms of the processor")
        person.all(".word")[WORDS // 2].click()
        for what, keys in (("a letter", "abcdefghij" * 5), ("undo", [Keys.CONTROL + "z"] * 10)):
            person.do("taken.length = 0")
            before = processor_ms(browser)
            for key in keys:
                browser.switch_to.active_element.send_keys(key)
            used = (processor_ms(browser) - before) / len(keys)
            taken = person.do("taken")
            print(f"{what}: {median(taken):.0f} ms, at most {max(taken):.0f} ms,", end=" ")
            print(f"{used:.0f} ms of the processor on average, with what follows")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
