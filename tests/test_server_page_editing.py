"""Correcting a transcript on the page, in headless Chromium.

Downloads tell what became of an answer. Its words last half a second each, so that their times are
known; the recording is silence.
"""

import json
import re
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.helpers.nightly import some
from tests.helpers.page_answers import LASTS, answer_of
from tests.helpers.page_person import LOST, SETTLE, Person
from tests.helpers.readers import read_docx
from whosaid.answer.corrected import consistent

TURNS = [("S0", "good morning Steve"), ("S1", "how are you today"), ("S0", "fine")]
AT = "Number(document.querySelector('#player input').value)"


@pytest.fixture(scope="module")
def recording(tmp_path_factory, wav) -> Path:
    path = tmp_path_factory.mktemp("recordings") / "a talk.wav"
    path.write_bytes(wav(np.zeros(8000 * 60), 8000))
    return path


@pytest.fixture
def desk(person, url, recording) -> Person:
    """Yield a person before a transcript and its recording."""
    return opened(person, url, recording, answer_of(TURNS, frozenset({"morning", "today"})))


def opened(person: Person, url: str, recording: Path | None, answer: dict, **names: str) -> Person:
    about = {"file": "a talk.wav", "bytes": 1, "seconds": 1, "names": names, "diarizes": True}
    person.open(url, {"answer": answer, **about}, recording)
    return person


def turns(person: Person) -> list[tuple[str, str]]:
    names = person.texts("#transcript .head button:first-child")
    return list(zip(names, person.texts("#transcript .text"), strict=True))


def press(person: Person, *keys: str, held: tuple[str, ...] = ()) -> None:
    """Press keys one after another, while some are held."""
    chain = ActionChains(person.browser)
    for key in held:
        chain.key_down(key)
    chain.send_keys(*keys)
    for key in held:
        chain.key_up(key)
    chain.perform()
    person.browser.execute_async_script(SETTLE)


CARET = """(() => {
    const [word, { focusNode, focusOffset }] = [arguments[0], getSelection()];
    const range = document.createRange();
    range.setStart(word, 0);
    range.setEnd(focusNode, focusOffset);
    return range.toString().length;
})()"""


def caret_at(person: Person, word: int, letter: int = 0) -> None:
    """Click a word, and go to a letter of it; nobody's hands are as quick as this, so look."""

    def goes() -> bool:
        person.all(".word")[word].click()
        press(person, Keys.ARROW_LEFT, held=(Keys.CONTROL,))
        press(person, *[Keys.ARROW_RIGHT] * letter)
        return person.do(CARET, person.all(".word")[word]) == letter

    person.wait(goes)


def select(person: Person, first: int, last: int) -> None:
    """Select words of one turn."""
    caret_at(person, first)
    letters = len(" ".join(person.texts(".word")[first : last + 1]))
    press(person, *[Keys.ARROW_RIGHT] * letters, held=(Keys.SHIFT,))


def corrected(person: Person, downloads: Path) -> dict:
    return json.loads(person.download("json", downloads))


def type_over(person: Person, word: int, text: str) -> None:
    ActionChains(person.browser).double_click(person.all(".word")[word]).perform()
    person.browser.execute_async_script(SETTLE)
    assert person.do("getSelection().toString()") == person.texts(".word")[word]
    press(person, text)


def undo(person: Person) -> None:
    press(person, "z", held=(Keys.CONTROL,))


def go_to(person: Person, second: float) -> None:
    """Move the slider of the player, which is paused."""
    person.wait(lambda: not person.all("#player .playing"))
    slider = "document.querySelector('#player input')"
    person.do(f"({slider}.value = {second}, {slider}.dispatchEvent(new Event('input')))")
    person.wait(lambda: person.do(AT) == pytest.approx(second, abs=0.06))


def test_a_click_plays_a_word(desk):
    desk.all(".word")[4].click()
    desk.wait(lambda: desk.all("#player .playing"))
    assert desk.do(AT) >= 4 * LASTS
    desk.see("#player button").click()
    go_to(desk, 5.5 * LASTS)
    desk.wait(lambda: desk.do("[...CSS.highlights.get('now') ?? []].join()") == "you")


def test_a_word_that_is_typed_over_keeps_its_time(desk, downloads):
    before = desk.texts("#transcript .doubtful")
    type_over(desk, 1, "evening")
    assert turns(desk)[0] == ("S0", "good evening Steve")
    assert before == ["morning", "today"]
    assert desk.texts("#transcript .doubtful") == ["today"]
    made = corrected(desk, downloads)
    expected = answer_of(TURNS)["words"]
    expected[1] |= {"word": " evening", "probability": None}
    expected[6]["probability"] = 0.2
    assert made["words"] == expected
    assert made["text"] == " good evening Steve how are you today fine"


@pytest.mark.parametrize(
    ("word", "letters", "keys", "words", "times"),
    [
        (2, 3, " ", ["Ste", "ve"], [1.0, 1.3, 1.5]),
        (2, 5, " Jones", ["Steve", "Jones"], [1.0, 1.25, 1.5]),
        (2, 0, Keys.BACKSPACE, ["morningSteve"], [0.5, 1.5]),
        (2, 0, "my ", ["morning", "my"], [0.5, 0.9, 1.0]),
    ],
)
def test_parts_of_words_share_their_time(desk, downloads, word, letters, keys, words, times):
    caret_at(desk, word, letters)
    press(desk, keys)
    made = corrected(desk, downloads)["words"]
    found = [each for each in made if each["word"].strip() in words]
    assert [each["word"] for each in found] == [f" {each}" for each in words]
    assert [each["timestamp"] for each in found] == [
        pytest.approx(span, abs=0.15) for span in pairwise(times)
    ]
    assert found[0]["timestamp"][0] == times[0]
    assert found[-1]["timestamp"][1] == times[-1]
    assert {each["speaker"] for each in found} == {"S0"}


def test_enter_splits_a_turn_and_backspace_joins_it(desk, downloads):
    caret_at(desk, 5)
    press(desk, Keys.ENTER)
    split = [TURNS[0], ("S1", "how are"), ("S1", "you today"), TURNS[2]]
    assert turns(desk) == split
    made = corrected(desk, downloads)
    times = [[0, 1.5], [1.5, 2.5], [2.5, 3.5], [3.5, 4]]
    assert [turn["timestamp"] for turn in made["speakers"]] == times
    caret_at(desk, 5)
    press(desk, Keys.BACKSPACE)
    assert turns(desk) == TURNS
    assert desk.texts("#transcript .at") == ["0:00", "0:01", "0:03"]
    press(desk, Keys.END)
    press(desk, Keys.DELETE)
    assert turns(desk) == [TURNS[0], ("S1", "how are you today fine")]
    for expected in (TURNS, split):
        undo(desk)
        assert turns(desk) == expected
    # So does one that begins with a new word.
    caret_at(desk, 4)
    press(desk, "so ")
    caret_at(desk, 3, 4)
    press(desk, Keys.ENTER, Keys.BACKSPACE)
    assert turns(desk)[1] == ("S1", "how so are")


def test_turns_and_selected_words_get_another_speaker(desk, downloads):
    caret_at(desk, 7)
    press(desk, "2", held=(Keys.ALT,))
    assert turns(desk) == [TURNS[0], ("S1", "how are you today fine")]
    select(desk, 3, 4)
    press(desk, "1", held=(Keys.ALT,))
    assert turns(desk) == [("S0", "good morning Steve how are"), ("S1", "you today fine")]
    select(desk, 1, 2)
    press(desk, "0", held=(Keys.ALT,))
    parts = ["good", "morning Steve", "how are", "you today fine"]
    assert turns(desk) == list(zip(["S0", "SPEAKER_00", "S0", "S1"], parts, strict=True))
    assert " · 3 speakers · " in desk.see("#found").text
    made = corrected(desk, downloads)
    assert [word["speaker"] for word in made["words"][:6]] == (
        ["S0", "SPEAKER_00", "SPEAKER_00", "S0", "S0", "S1"]
    )
    # By the menu, of keys and of the mouse.
    caret_at(desk, 0)
    press(desk, "s", held=(Keys.ALT,))
    assert desk.texts(".menu button") == ["S0", "S1", "SPEAKER_00", "New speaker"]
    press(desk, Keys.ARROW_DOWN, Keys.ENTER)
    assert turns(desk)[0] == ("S1", "good")
    desk.all("#transcript .name")[1].click()
    desk.see(".menu button").click()
    assert turns(desk)[:2] == [("S1", "good"), ("S0", "morning Steve how are")]
    assert desk.all(".menu") == []


def test_renames_in_a_row_do_not_mix(desk, downloads):
    type_over(desk, 1, "evening")
    desk.all("#timeline input")[0].click()
    press(desk, "Ev")
    desk.wait(lambda: desk.see("#doubt").text == "Next doubtful word (1)")
    press(desk, "a", Keys.ENTER)
    assert turns(desk)[0] == ("Eva", "good evening Steve")
    for name in ("Anna", "Bob"):
        desk.all("#timeline input")[0].click()
        press(desk, name, Keys.ENTER)
        assert desk.do("document.activeElement.tagName") == "BODY"
    assert [name for name, _ in turns(desk)] == ["Bob", "S1", "Bob"]
    desk.all("#timeline input")[0].click()
    press(desk, "Cleo", Keys.ESCAPE)
    assert desk.all("#timeline input")[0].get_attribute("value") == "Bob"
    assert corrected(desk, downloads)["speaker_names"] == {"S0": "Bob"}
    desk.see("#undo").click()
    assert [name for name, _ in turns(desk)] == ["Anna", "S1", "Anna"]


def test_equal_names_join_speakers_on_purpose_only(desk):
    desk.rename(0, "Anna")
    desk.rename(1, "Anna")
    assert "Anna" in desk.see("#same-name").text
    assert desk.focus() == "same"
    desk.see("#different").click()
    desk.rename(1, "Anna")
    press(desk, Keys.ESCAPE)
    desk.wait(lambda: not desk.all("#same-name")[0].is_displayed())
    assert [name for name, _ in turns(desk)] == ["Anna", "S1", "Anna"]
    desk.rename(1, "Anna")
    press(desk, Keys.ENTER)
    assert turns(desk) == [("Anna", " ".join(text for _, text in TURNS))]
    assert " · 1 speaker · " in desk.see("#found").text
    desk.see("#undo").click()
    assert turns(desk) == [("Anna", TURNS[0][1]), TURNS[1], ("Anna", "fine")]
    assert len(desk.all("#timeline input")) == 2


def test_forced_colours_leave_nothing_out(desk):
    forced = {"features": [{"name": "forced-colors", "value": "active"}]}
    desk.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", forced)
    style = "getComputedStyle(document.querySelector('{}'), '{}').{}".format
    track, place = (desk.do(style(".lane .track", x, "backgroundColor")) for x in ("", "::after"))
    idle, ready = (desk.do(style(button, "", "color")) for button in ("#undo", "#doubt"))
    assert track != place
    assert idle != ready
    assert desk.do(style("#entries [aria-current]", "", "textDecorationLine")) == "underline"


def test_two_hundred_edits_are_undone_and_done_again(desk):
    caret_at(desk, 3, 3)
    for edit in range(50):
        press(desk, str(edit % 10), Keys.ENTER, Keys.BACKSPACE, Keys.BACKSPACE)
    press(desk, "!", held=(Keys.SHIFT,))
    changed = turns(desk)
    assert changed[1][1].startswith("how")
    steps = 0
    while desk.do("document.getElementById('undo').ariaDisabled") is None:
        undo(desk)
        steps += 1
    assert steps >= 100
    assert turns(desk) == TURNS
    for _ in range(steps):
        press(desk, "y", held=(Keys.CONTROL,))
    assert turns(desk) == changed


def test_doubtful_words_are_visited_by_a_key(desk):
    assert desk.see("#doubt").text == "Next doubtful word (2)"
    assert desk.texts("#transcript .overlap") == ["you"]
    selected = []
    for held in ((Keys.ALT,), (Keys.ALT,), (Keys.ALT,), (Keys.ALT, Keys.SHIFT)):
        press(desk, "n", held=held)
        selected.append(desk.do("getSelection().toString()"))
    assert selected == ["morning", "today", "morning", "today"]
    desk.wait(lambda: desk.all("#player .playing"))
    press(desk, "tonight", Keys.ESCAPE)
    desk.wait(lambda: desk.see("#doubt").text == "Next doubtful word (1)")


def test_keys_play_while_somebody_types(desk):
    desk.all(".word")[6].click()
    desk.wait(lambda: desk.all("#player .playing"))
    press(desk, Keys.ESCAPE)
    desk.wait(lambda: not desk.all("#player .playing"))
    assert desk.do(AT) >= 6 * LASTS
    go_to(desk, 4)
    press(desk, "j", held=(Keys.ALT,))
    desk.wait(lambda: desk.do(AT) == 1)
    press(desk, "l", held=(Keys.ALT,))
    desk.wait(lambda: desk.do(AT) == 4)
    for key, speed in (".", "1.25"), (".", "1.5"), (",", "1.25"):
        press(desk, key, held=(Keys.ALT,))
        assert desk.do("document.querySelector('#player select').value") == speed
    press(desk, Keys.ENTER, held=(Keys.CONTROL,))
    desk.wait(lambda: desk.all("#player .playing"))
    desk.do("document.activeElement.blur()")
    press(desk, " ")
    desk.wait(lambda: not desk.all("#player .playing"))
    assert turns(desk) == TURNS
    desk.see("#hint summary").click()
    assert "Alt J" in desk.texts("#hint kbd")


@pytest.mark.parametrize("name", ["paste", "drop"])
def test_a_paste_or_a_drop_inserts_text_alone(desk, name):
    caret_at(desk, 7, 4)
    desk.browser.execute_script(
        """
        const [name] = arguments;
        const words = [...document.querySelectorAll(".word")];
        const { right, bottom } = words.at(-1).getBoundingClientRect();
        const data = new DataTransfer();
        data.setData("text/html", "<img src=x onerror=alert(1)><b>thank</b> you");
        data.setData("text/plain", " thank\\nyou");
        const given = { clipboardData: data, dataTransfer: data, cancelable: true, bubbles: true };
        const made = { ...given, clientX: right + 9, clientY: bottom - 3 };
        const event = name === "drop" ? new DragEvent(name, made) : new ClipboardEvent(name, made);
        document.querySelector(".ProseMirror").dispatchEvent(event);
    """,
        name,
    )
    assert turns(desk)[2] == ("S0", "fine thank you")
    assert desk.all("#transcript :is(img, b)") == []


def test_all_downloads_follow_corrections(desk, downloads):
    desk.rename(0, "Zoë")
    type_over(desk, 1, "evening")
    for form in ("txt", "md", "html", "srt", "vtt", "tsv", "json"):
        text = desk.download(form, downloads)
        assert "evening" in text
        assert "morning" not in text
        assert "Zoë" in text
    assert "[00:00:00] Zoë: good evening Steve\n" in desk.download("txt", downloads)
    desk.see("#download-docx").click()
    (path,) = desk.wait(lambda: [each for each in downloads.glob("*.docx") if each.stat().st_size])
    assert "good evening Steve" in "".join(read_docx(path.read_bytes()))
    desk.choose(path)  # the next recording; the button stays that of this one
    desk.see("#download-recording").click()
    desk.wait(lambda: (downloads / "a talk.wav").is_file())


def test_without_the_server_text_and_json_are_written(desk, downloads):
    desk.expected += LOST
    desk.browser.execute_cdp_cmd("Network.enable", {})
    desk.browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*/v1/*"]})
    try:
        assert desk.download("txt", downloads).splitlines()[0] == "[0:00] S0: good morning Steve"
        assert corrected(desk, downloads)["words"][0]["word"] == " good"
        desk.see("#download-srt").click()
        assert desk.see("#failure").text == "The server cannot be reached."
    finally:
        desk.browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})


def test_a_corrected_text_is_timed_anew(desk, slow):
    desk.rename(0, "Zoë")
    caret_at(desk, 7, 4)
    press(desk, " indeed")
    slow.let.set()
    desk.see("#align").click()
    desk.wait(lambda: desk.texts(".word") == ["hello"])
    assert slow.asked[-1].text == "S0: good morning Steve\nS1: how are you today\nS0: fine indeed\n"
    desk.wait(lambda: len(desk.all("#entries li")) == 1)


def test_a_transcript_without_speakers_gets_some(person, url, downloads):
    plain = answer_of(TURNS)
    for word in plain["words"]:
        del word["speaker"], word["overlap"]
    opened(person, url, None, {**plain, "speakers": []})
    assert not person.all("#align")[0].is_displayed()
    select(person, 3, 6)
    press(person, "0", held=(Keys.ALT,))
    names = [name for name, _ in turns(person)]
    assert names == ["Unknown speaker", "SPEAKER_00", "Unknown speaker"]
    made = corrected(person, downloads)
    assert [turn["speaker"] for turn in made["speakers"]] == [None, "SPEAKER_00", None]


@pytest.mark.parametrize("width", [360, 1280])
def test_the_player_never_hides_the_caret(person, url, recording, width):
    """The caret goes up by keys and by an undo; the player stays at the top of the window."""
    opened(person, url, recording, answer_of([(f"S{i % 2}", "a b c") for i in range(60)]))
    person.see("#player")
    person.look(width=width, height=700)
    caret = "getSelection().getRangeAt(0).getBoundingClientRect()"
    player = "desk.getBoundingClientRect().bottom"

    def is_seen() -> bool:
        return person.do(f"{player} <= {caret}.top && {caret}.bottom <= innerHeight")

    caret_at(person, 90)
    press(person, "x", *[Keys.ARROW_UP] * 20)
    assert is_seen()
    person.do("scrollTo(0, document.body.scrollHeight)")
    undo(person)
    assert is_seen()
    press(person, *[Keys.ARROW_DOWN] * 40)
    assert is_seen()


def test_two_hours_are_edited_with_little_work(person, url, recording):
    """A letter changes few elements of 20,000 words, and the timeline draws no more than it has
    room for."""
    many = [(f"S{turn % 2}", " ".join(["word"] * 4)) for turn in range(5000)]
    opened(person, url, recording, answer_of(many))
    assert len(person.all(".word")) == 20_000
    assert len(person.all("#timeline i")) <= 2000
    caret_at(person, 9000, 2)
    person.browser.execute_script("""
        window.changes = [];
        new MutationObserver((records) => changes.push(...records)).observe(
          document.body, { childList: true, characterData: true, attributes: true, subtree: true });
    """)
    press(person, "abc")
    inside = "changes.filter(({ target }) => transcript.contains(target)).length"
    assert 0 < person.do(inside) < 60
    person.do("scrollTo(0, 0)")
    person.see("[aria-label='Show less time']").click()
    assert len(person.all("#timeline i")) < 1000


RANDOM = """
    const [answer, seeds, edits, done] = arguments;
    const all = ["manuscript", "edits"].map((name) => import(`./${name}.js`));
    Promise.all([...all, import("./vendor/prosemirror.js")]).then(([manuscript, edits_, pm]) => {
      const { assign, join, rename, split, unite } = edits_;
      done(seeds.map((seed) => {
        const next = (below) => {
          seed = (seed + 0x6d2b79f5) | 0;
          let x = Math.imul(seed ^ (seed >>> 15), 1 | seed);
          x = (x + Math.imul(x ^ (x >>> 7), 61 | x)) ^ x;
          return Math.floor((((x ^ (x >>> 14)) >>> 0) / 2 ** 32) * below);
        };
        const plugins = [pm.history({ depth: Infinity, newGroupDelay: 0 })];
        let state = pm.EditorState.create({ doc: manuscript.manuscriptOf(answer), plugins });
        const apply = (transaction) => { if (transaction) state = state.apply(transaction); };
        const place = () => next(state.doc.content.size);
        const put = (from, to = from) => apply(state.tr.setSelection(
          pm.TextSelection.between(state.doc.resolve(from), state.doc.resolve(to))));
        const label = () => `S${next(3)}`;
        const actions = [
          () => apply(state.tr.insertText(["x", " ", " new ", "I "][next(4)])),
          () => apply(state.tr.insertText(["x", " ", "two words"][next(3)])),
          () => apply(state.tr.deleteSelection()),
          () => { put(place()); apply(split(state)); },
          () => { put(place()); apply(join(state, next(2) ? 1 : -1)); },
          () => apply(assign(state, label())),
          () => apply(rename(state, label(), ["Ann", "", "Bo"][next(3)])),
          () => next(9) || apply(unite(state, label(), label())),
          () => pm.undo(state, apply),
          () => pm.redo(state, apply),
        ];
        for (let i = 0; i < edits; i++) {
          const from = place();
          put(from, Math.min(state.doc.content.size, from + next(12)));
          actions[next(actions.length)]();
        }
        const lines = state.doc.content.content.map((turn) => turn.textContent);
        const made = manuscript.corrected(answer, state.doc);
        while (pm.undo(state, apply));
        const back = manuscript.corrected(answer, state.doc);
        return [made, lines, back];
      }));
    });
"""


def test_random_edits_leave_a_consistent_transcript(person, url):
    """Words are in order of time, each in one turn; the server, which makes all formats from the
    turns, finds nothing to put in order; and undo brings everything back."""
    answer = answer_of([*TURNS, ("S2", "well I have been here before"), ("S1", "no")] * 3)
    person.open(url)
    for made, lines, back in person.browser.execute_async_script(RANDOM, answer, [*range(40)], 60):
        shown = sorted(" ".join(line.split()) for line in lines if line.strip())
        assert sorted(" ".join(turn["text"].split()) for turn in made["speakers"]) == shown
        times = [
            time
            for turn in made["speakers"]
            for word in turn["words"]
            for time in word["timestamp"]
        ]
        assert [time for time in times if not 0 <= time <= answer["duration"]] == []
        starts = [word["timestamp"][0] for word in made["words"]]
        assert starts == sorted(starts)
        for turn in made["speakers"]:
            own = [time for word in turn["words"] for time in word["timestamp"]]
            assert own == sorted(own)
            assert {word["speaker"] for word in turn["words"]} == {turn["speaker"]}
        texts = re.split(r"\s+", "".join(word["word"] for word in made["words"]).strip())
        assert sorted(texts) == sorted(" ".join(shown).split())
        server = consistent(made)
        assert server["text"].split() == made["text"].split()
        assert [turn["text"] for turn in server["speakers"]] == [
            turn["text"] for turn in made["speakers"]
        ]
        assert (back["speakers"], back["words"]) == (answer["speakers"], answer["words"])


@pytest.mark.parametrize(("dark", "width"), some(1, product([False, True], [390, 1280])))
def test_axe_finds_nothing_while_correcting(desk, dark, width):
    desk.rename(0, "A name that is longer than its column " + "x" * 20)
    desk.rename(1, desk.all("#timeline input")[0].get_attribute("value"))
    desk.see("#hint summary").click()
    desk.look(dark, width)
    desk.all("#transcript .name")[0].click()
    desk.see(".menu")
    assert desk.violations() == {}
    assert desk.do("document.documentElement.scrollWidth <= innerWidth")


def test_paper_has_the_title_and_the_text_alone(desk):
    assert desk.browser.title.startswith("a talk.wav")
    desk.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert desk.see("#result-title").text == "a talk.wav"
        assert len([each for each in desk.all(".turn") if each.is_displayed()]) == len(TURNS)
        for id in ("source", "options", "desk", "downloads", "timeline", "hint"):
            assert not desk.all(f"#{id}")[0].is_displayed()
    finally:
        desk.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
