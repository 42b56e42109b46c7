"""Recordings, transcripts and corrections that the page keeps in the browser, headless Chromium."""

import io
import json
import wave
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.live_app import serving
from tests.helpers.nightly import some
from tests.helpers.page_answers import answer_of
from tests.helpers.page_person import SPOKEN, SPOKEN_RATE, Person


@pytest.fixture
def film(tmp_path, wav) -> Path:
    path = tmp_path / "a film.wav"
    path.write_bytes(wav(np.zeros(16_000)))
    return path


def record(text: str, file: str = "a", **names: str) -> dict:
    """Return a transcript of two speakers, who have said one word of `text` after another."""
    answer = answer_of([(f"S{place % 2}", word) for place, word in enumerate(text.split())])
    about = {"file": file, "bytes": 5, "seconds": 1, "diarizes": True, "names": names}
    return {**about, "answer": answer}


def lengthen(person: Person, url: str, texts: list[str]) -> None:
    """Open the page in a browser with a record of each text."""
    script = """
        const [records, done] = arguments;
        import("/app/records.js").then(async ({ Records }) => {
          const kept = new Records(() => {});
          await Promise.all(records.map(async ({ answer, ...about }) => {
            const { id } = await kept.add({ state: "done", ...about }, []);
            await kept.finish(id, answer, {});
          }));
          done();
        });
    """
    person.open(url)
    given = [record(text, f"talk {i}.wav") for i, text in enumerate(texts)]
    person.browser.execute_async_script(script, given)
    person.browser.refresh()
    person.wait(lambda: len(person.all("#entries li")) == len(texts))


def test_a_reload_while_recording_keeps_what_was_said(person, slow, url, downloads):
    person.open(url)
    person.do(SPOKEN)
    person.see("#record").click()
    person.speak(3)
    person.wait(lambda: len(person.stored("pieces")) == 3)
    assert not person.may_leave()
    person.browser.refresh()
    person.wait(lambda: person.texts("#entries .state") == ["Not transcribed"])
    person.do("document.querySelector('#entries a').click()")
    assert "cut off" in person.see("#remarks").text
    person.wait(lambda: person.texts("#player .time") == ["0:00 / 0:03"])
    assert person.stored("pieces") == []

    # It is saved as a file, and transcribed.
    (name,) = person.texts("#entries a")
    for old in downloads.iterdir():
        old.unlink()
    person.see("#download-recording").click()
    path = downloads / name
    person.wait(lambda: path.is_file() and path.stat().st_size)
    with wave.open(io.BytesIO(path.read_bytes())) as file:
        assert (file.getframerate(), file.getnframes()) == (SPOKEN_RATE, 3 * SPOKEN_RATE)
    slow.let.set()
    person.see("#run").click()
    person.see("#found")
    assert person.texts(".word") == ["hello"]


def test_a_reload_before_transcribing_keeps_the_recording(person, url):
    person.open(url)
    person.do(SPOKEN)
    person.see("#record").click()
    person.speak(2)
    person.see("#stop").click()
    person.see("#download-recording")
    assert person.may_leave()
    name = person.see("#chosen b").text
    person.browser.refresh()
    assert person.see("#chosen b").text == name
    person.wait(lambda: person.texts("#player .time") == ["0:00 / 0:02"])


def test_a_reload_during_a_request_sends_it_again(person, slow, url, film):
    slow.let.clear()
    person.open(url)
    person.transcribe(film)
    person.wait(lambda: "0:03 of" in person.texts("#stage-detail")[0])
    assert not person.may_leave()
    person.browser.refresh()
    person.wait(lambda: "0:03 of" in person.texts("#stage-detail")[0])
    slow.let.set()
    person.see("#found")
    assert person.texts("#result-title") == ["a film.wav"]
    assert person.browser.title.startswith("a film.wav")
    # Once more: the first transcript stays.
    person.see("#run").click()
    person.wait(lambda: len(person.all("#entries .done")) == 2)
    assert len(person.stored("recordings")) == 1


def test_a_file_that_waits_for_another_is_cancelled_at_once(person, slow, url, film):
    slow.let.clear()
    other = film.with_name("other.wav")
    other.write_bytes(film.read_bytes())
    person.open(url)
    person.transcribe(film)
    person.wait(lambda: "0:03 of" in person.texts("#stage-detail")[0])
    person.transcribe(other)
    person.see("#cancel").click()
    person.wait(lambda: person.texts("#entries .state")[0] == "Not transcribed")
    slow.let.set()
    person.wait(lambda: person.all("#entries .done"))


# The browser has no room for recordings while `full` is set.
FULL = """(() => {
    window.full = true;
    const put = IDBObjectStore.prototype.put;
    IDBObjectStore.prototype.put = function (value) {
      if (full && this.name === "recordings") throw new DOMException("", "QuotaExceededError");
      return put.call(this, value);
    };
})()"""


def test_without_room_a_recording_is_only_in_the_tab(person, slow, url, film):
    """Nothing is lost silently: the page asks before it is left, until there is room."""
    slow.let.set()
    lengthen(person, url, ["one two"])
    person.do(FULL)
    person.transcribe(film)
    person.see("#found")
    assert person.texts(".word") == ["hello"]
    assert person.see("#trouble").text.startswith("The browser has no room left.")
    assert "only in this tab" in person.texts("#entries .state")[0]
    assert person.see("#download-recording")
    assert not person.may_leave()
    person.do("window.full = false")
    person.click("#entries .remove", 1)
    person.browser.switch_to.alert.accept()
    person.wait(lambda: person.texts("#trouble") == [""])
    assert person.may_leave()
    person.browser.refresh()
    person.see("#found")
    assert person.see("#player")


@pytest.mark.reliability
def test_without_room_the_pieces_of_a_recording_stay(person, url):
    """The file is only in the tab; a reload would make it of the pieces again."""
    lengthen(person, url, ["one two"])
    person.do(FULL)
    person.do(SPOKEN)
    person.see("#record").click()
    person.speak(2)
    person.see("#stop").click()
    person.wait(lambda: "only in this tab" in person.texts("#entries .state")[0])
    person.see("#download-recording")
    assert not person.may_leave()
    assert len(person.stored("pieces")) == 2
    person.do("window.full = false")
    person.click("#entries .remove", 1)
    person.browser.switch_to.alert.accept()
    person.wait(lambda: person.stored("pieces") == [])
    person.browser.refresh()
    person.wait(lambda: person.texts("#player .time") == ["0:00 / 0:02"])


@pytest.mark.reliability
def test_little_room_is_told_before_it_ends(person, url):
    lengthen(person, url, ["one two"])
    estimate = "async () => ({ quota: 9e9, usage: 8.9e9 })"
    person.do(f"navigator.storage.estimate = {estimate}")
    person.see("#search").send_keys("o")
    person.wait(lambda: person.texts("#trouble")[0].startswith("The browser has only 100 MB left"))


def test_tabs_show_each_other_s_changes(person, url):
    person.open(url, record("one two"))
    address = person.browser.current_url
    first = person.browser.current_window_handle
    person.browser.switch_to.new_window("tab")
    person.look()
    person.browser.get(address)
    person.see("#found")
    person.rename(0, "Ada")
    second = person.browser.current_window_handle
    person.browser.switch_to.window(first)
    person.wait(lambda: "Ada" in person.texts("#transcript .name"))
    person.wait(lambda: person.texts("#entries .state") == ["Ada, S1"])
    person.rename(1, "Bo")
    person.browser.switch_to.window(second)
    person.wait(lambda: "Bo" in person.texts("#transcript .name"))
    assert len(person.all("#entries li")) == 1
    # Deleted in one, it is closed in the other.
    person.click("#entries .remove")
    person.browser.switch_to.alert.accept()
    person.wait(lambda: not person.all("#entries li"))
    person.browser.close()
    person.browser.switch_to.window(first)
    person.see("#empty")


def test_two_corrections_of_one_version_are_both_kept(person, url):
    person.open(url, record("one two"))
    script = """
        const [done] = arguments;
        import("./records.js").then(async ({ Records }) => {
          const [one, other] = [new Records(() => {}), new Records(() => {})];
          await one.load();
          const [{ id }] = one.list;
          const mine = await one.read(id);
          const theirs = await other.read(id);
          await one.correct(mine, { ...mine.answer, text: " one" }, {}, false);
          const made = await other.correct(theirs, { ...theirs.answer, text: " two" }, {}, false);
          const kept = await Promise.all([id, made.id].map((each) => one.read(each)));
          done(kept.map(({ answer, version }) => [answer.text, version]));
        });
    """
    assert person.browser.execute_async_script(script) == [[" one", 3], [" two", 1]]


def test_a_correction_outlives_a_reload_at_once(person, url):
    person.open(url, record("one two"))
    person.rename(0, "Ada")
    person.browser.refresh()
    person.see("#found")
    assert "Ada" in person.texts("#transcript .name")


def test_all_records_are_searched_by_names_and_words(person, url):
    lengthen(person, url, ["the crème de la crème", "a cat", "the CAT sat 그 선생님"])
    person.see("#search").send_keys("cat")
    person.wait(lambda: len(person.all("#entries li")) == 2)
    assert sorted(person.texts("#entries q")) == ["a cat", "the CAT sat 그 선생님"]
    person.see("#search").send_keys(" sat")
    person.wait(lambda: person.texts("#entries a") == ["talk 2.wav"])
    person.click("#entries a")
    person.wait(lambda: person.do("getSelection().toString()") == "CAT")
    person.rename(1, "Zoë")
    found = {"zoe": 2, "CREME": 0, "TALK 1": 1, "선생님": 2}
    for query, place in found.items():
        person.see("#search").clear()
        person.see("#search").send_keys(query)
        person.wait(lambda name=f"talk {place}.wav": person.texts("#entries a") == [name])
    person.click("#entries a")
    person.wait(lambda: person.do("getSelection().toString()") == "선생님")
    person.see("#search").send_keys("!")
    assert person.see("#nothing-found")


def test_records_are_deleted_with_their_bytes_after_a_question(person, url, slow, film):
    slow.let.set()
    person.open(url)
    person.transcribe(film)
    person.see("#found")
    assert "KB, kept in this browser only" in person.see("#room").text
    person.click("#entries .remove")
    question = person.browser.switch_to.alert
    assert "“a film.wav” and its transcript (3" in question.text
    question.dismiss()
    assert len(person.stored("recordings")) == 1
    person.see("#remove-all").click()
    person.browser.switch_to.alert.accept()
    person.see("#empty")
    for store in ("entries", "answers", "texts", "recordings"):
        assert person.stored(store) == []
    person.wait(lambda: not person.all("#library")[0].is_displayed())


def test_a_file_for_each_speaker_is_one_conversation(person, url, slow, film):
    slow.let.set()
    other = film.with_name(f"{'s' * 99}.wav")
    other.write_bytes(film.read_bytes())
    person.open(url)
    person.all("#file")[0].send_keys(f"{film}\n{other}")
    person.see("#tracks").click()
    name = person.see("#chosen input")
    name.clear()
    name.send_keys("Katie")
    start = person.all("#chosen [type=number]")[1]
    start.clear()
    start.send_keys("0.5")
    person.see("#run").click()
    person.see("#found")
    person.wait(lambda: person.texts("#entries a") == [f"a film.wav, {'s' * 68}"])
    assert slow.asked[-1].channel_names == ["Katie", "s" * 64]
    assert slow.asked[-1].separate
    # Once more, after a reload, and as it is played.
    person.browser.refresh()
    person.see("#found")
    person.see("#player button").click()
    person.see("#run").click()
    person.wait(lambda: len(person.all("#entries .done")) == 2)
    assert slow.asked[-1].channel_names == ["Katie", "s" * 64]
    assert slow.asked[-1].channel_starts == [0, 0.5]
    assert len(person.stored("recordings")) == 2


@pytest.mark.reliability
def test_back_and_forward_pass_through_opened_records(person, url):
    lengthen(person, url, ["one two", "three four"])
    for name, word in (("talk 1.wav", "three"), ("talk 0.wav", "one")):
        person.do(f"[...entries.querySelectorAll('a')].find(a => a.text === '{name}').click()")
        person.wait(lambda word=word: person.texts(".word")[:1] == [word])
    person.browser.back()
    person.wait(lambda: person.texts(".word")[:1] == ["three"])
    person.wait(lambda: person.texts("#entries [aria-current]") == ["talk 1.wav"])


@pytest.mark.reliability
def test_three_hundred_records_are_listed_at_once(person, url):
    lengthen(person, url, ["one two"] * 300)
    assert person.texts("#library-count") == ["300"]


@pytest.mark.reliability
def test_too_long_a_recording_is_refused_before_it_is_sent(person, slow, film):
    slow.limits, before = replace(slow.limits, max_seconds=0.5), slow.limits
    try:
        with serving(slow) as url:
            person.open(url)
            person.choose(film)
            person.wait(lambda: "0:01" in person.texts("#chosen")[0])
            person.requests()
            person.see("#run").click()
            said = person.see("#failure").text
            assert said == "The recording is 0:01 long; this server takes up to 0:00."
            assert f"{url}/?stream=true" not in person.requests()
    finally:
        slow.limits = before


@pytest.mark.parametrize(("dark", "width"), some(1, product([False, True], [390, 1280])))
def test_axe_finds_nothing_in_the_list(person, url, dark, width):
    lengthen(person, url, ["one two", "three four"])
    person.do("document.getElementById('library').open = true")
    person.do("document.querySelector('#entries a').click()")
    person.see("#found")
    person.see("#search").send_keys("o")
    person.wait(lambda: len(person.texts("#entries q")) == 2)
    person.look(dark, width)
    assert person.violations() == {}
    assert person.do("document.documentElement.scrollWidth <= innerWidth")
    assert json.dumps(person.texts("#trouble")) == '[""]'
