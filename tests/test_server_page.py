"""The page as a person uses it, in headless Chromium.

Texts and downloads are compared with the handler's answer to the same recording. One browser serves
all tests; most begin at a transcript that the browser has kept, and recognise nothing.
"""

import base64
import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from threading import Event

import pytest
from selenium.webdriver.common.keys import Keys

from config import REPOSITORY
from tests.helpers.asgi import FakeEndpoint
from tests.helpers.live_app import serving
from tests.helpers.nightly import some
from tests.helpers.page_person import LOST
from tests.support.audio_files import request_body, with_video
from whosaid.answer.response import Answer
from whosaid.audio.decode import AudioLimits, decode_audio, decode_files
from whosaid.endpoint import Decoded, Endpoint, Finished
from whosaid.transcript import Chunk, SpeakerSegment, SpeakerTurn, Transcript, Word

CONVERSATION = REPOSITORY / "demo" / "conversation.ogg"
SECONDS = 12
OUTPUT = ["srt", "vtt", "txt", "tsv", "rttm"]
LIMITS = AudioLimits(7200, 2**29)
NASTY = "<img src=x onerror=alert(1)>"
KEY = "a schlüssel"


@pytest.fixture(scope="module")
def recording(tmp_path_factory, wav) -> Path:
    """The beginning of the bundled conversation."""
    audio = decode_audio(CONVERSATION.read_bytes(), 16_000, AudioLimits(7200, 2**29))
    path = tmp_path_factory.mktemp("recordings") / "a talk.wav"
    path.write_bytes(wav(audio.samples[: SECONDS * 16_000]))
    return path


@pytest.fixture(scope="module")
def answer(demo_handler, recording) -> dict:
    body = request_body(recording.read_bytes(), output=OUTPUT, return_timestamps="word")
    return demo_handler(body)


@pytest.fixture(scope="module")
def url(demo_endpoint) -> Iterator[str]:
    with serving(demo_endpoint) as address:
        yield address


def kept(answer: dict, recording: Path | None = None, **names: str) -> dict:
    """Return a record of the browser."""
    file = {"file": recording.name, "bytes": recording.stat().st_size} if recording else {}
    return {"answer": answer, "seconds": 1, "names": names, "diarizes": True, "file": "a", **file}


def words_of(answer: dict) -> list[str]:
    return [word["word"].strip() for word in answer["words"]]


@pytest.fixture
def held(monkeypatch) -> Event:
    """Hold all requests until the event is set."""
    event, decode = Event(), decode_files

    def hold(*arguments):
        assert event.wait(120)
        return decode(*arguments)

    monkeypatch.setattr("whosaid.endpoint.request_steps.decode_files", hold)
    return event


def test_from_a_file_to_a_transcript(person, url, recording, answer, held):
    person.open(url)
    person.requests()
    person.choose(recording)
    person.do("document.getElementById('run').focus()")
    person.press("ENTER")
    person.see("#progress")
    assert person.focus() == "run"
    held.set()
    person.see("#found")
    assert person.focus() == "run"
    assert person.texts("#found")[0].startswith(f"0:{SECONDS} of audio · English · ")
    assert person.texts(".word") == words_of(answer)
    speakers = [entry["speaker"] for entry in answer["speakers"]]
    assert person.texts("#transcript .name") == speakers
    assert len(person.all("#timeline input")) == len(set(speakers)) > 1

    # A word plays from where it was spoken, and words are marked as they are said.
    index = len(answer["words"]) // 4
    start = answer["words"][index]["timestamp"][0]
    at = "Number(document.querySelector('#player input').value)"
    label = "document.querySelector('#player button').ariaLabel"
    clicked = person.do("performance.now()")
    person.all(".word")[index].click()
    playing = [True, "Pause", True]
    person.wait(
        lambda: person.do(f"[{at} > {start}, {label}, CSS.highlights.has('now')]") == playing
    )
    now, passed = person.do(f"[{at}, (performance.now() - {clicked}) / 1000]")
    assert now <= start + passed + 0.2
    person.see("#player button").click()

    # A reload loses nothing.
    person.rename(0, "Ada")
    person.browser.refresh()
    person.see("#found")
    assert person.texts(".word") == words_of(answer)
    assert "Ada" in person.texts("#transcript .name")
    person.see("#player")
    person.all(".word")[index].click()
    person.wait(lambda: person.do(at) > start)
    person.see("#player button").click()

    # All that was asked for was on this machine.
    asked = person.requests()
    assert f"{url}/?stream=true" in asked
    assert {each for each in asked if not re.match(rf"({re.escape(url)}/|data:|blob:)", each)} == (
        set()
    )


def test_a_name_reaches_the_transcript_and_all_downloads(person, url, recording, answer, downloads):
    person.open(url, kept(answer, recording))
    typed = f" Zoë  {NASTY}"
    person.rename(0, typed)
    name = " ".join(typed.split())
    label = person.all("#timeline input")[0].get_attribute("data-speaker")
    assert person.all("#timeline input")[0].get_attribute("value") == name
    speakers = [entry["speaker"] for entry in answer["speakers"]]
    assert person.texts("#transcript .name") == [name if s == label else s for s in speakers]

    body = json.loads(person.download("json", downloads))
    assert [each["speaker"] for each in body["speakers"]] == [
        name if s == label else s for s in speakers
    ]
    assert body["text"] == answer["text"]
    rttm = person.download("rttm", downloads)
    named = answer["output"]["rttm"].replace(label, name.replace(" ", "_"))
    assert rttm == named.replace("SPEAKER audio ", "SPEAKER a_talk ")
    for format in ("txt", "srt", "vtt", "tsv"):
        assert "Zoë" in person.download(format, downloads)
    assert (downloads / "a talk.tsv").is_file()

    person.rename(0, "")
    assert person.all("#timeline input")[0].get_attribute("value") == label
    assert person.texts("#transcript .name") == speakers


@pytest.mark.reliability
def test_a_click_selects_a_name_of_at_most_64_letters(person, url, answer):
    person.open(url, kept(answer))
    field = person.all("#timeline input")[0]
    field.click()
    person.browser.switch_to.active_element.send_keys("Dr. Ursula von der Leyen-Schmidt")
    person.press("TAB")
    assert field.get_attribute("value") == "Dr. Ursula von der Leyen-Schmidt"
    person.rename(0, "a" * 65)
    assert field.get_attribute("value") == "a" * 64


@pytest.mark.reliability
def test_names_with_spaces_have_one_lane_each(person, url, answer, downloads):
    """Names of known speakers may have spaces, which RTTM writes as underscores."""
    text = json.dumps(answer)
    output = answer["output"] | {"rttm": answer["output"]["rttm"].replace("SPEAKER_00", "Ada_L")}
    named = json.loads(text.replace("SPEAKER_00", "Ada L")) | {"output": output}
    known = {"label": None, "similarity": None, "matched": False}
    named["known_speakers"] = [{"name": "Ada L", "matched": True}, {"name": "Bo", **known}]
    person.open(url, kept(named))
    fields = "[...document.querySelectorAll('#timeline input')].map(each => each.value)"
    assert person.do(fields).count("Ada L") == 1
    assert "Ada_L" not in person.do(fields)
    assert "Not heard in this recording: Bo." in person.texts("#notes li")
    person.rename(person.do(fields).index("Ada L"), "Bea")
    rttm = person.download("rttm", downloads)
    assert ("Bea" in rttm, "Ada" in rttm) == (True, False)


@pytest.mark.reliability
def test_speech_without_text_is_hatched_in_the_timeline(person, url, answer):
    """No speakers are needed. An answer without `unwritten` has no such lane."""
    spans = [{"start": 3.0, "end": 6.0}, {"start": 9.0, "end": 10.5}]
    person.open(url, kept({**answer, "unwritten": spans}))
    bars = person.all("#timeline .unwritten .track i")
    titles = ["Speech without text: 0:03 to 0:06", "Speech without text: 0:09 to 0:10"]
    assert [bar.get_attribute("title") for bar in bars] == titles
    lefts = [float(bar.get_attribute("style").split("%")[0].split(":")[1]) for bar in bars]
    starts = [100 * span["start"] / answer["duration"] for span in spans]
    assert lefts == pytest.approx(starts, abs=0.001)
    assert person.texts("#timeline .unwritten .share") == ["0:04"]
    assert person.violations() == {}
    nobody = {"speakers": [], "output": {}, "unwritten": spans}
    person.open(url, kept({**answer, **nobody}))
    assert len(person.all("#timeline .lane")) == 1
    for unwritten in ({}, {"unwritten": []}):
        person.open(url, kept({**answer, **unwritten}))
        assert person.all("#timeline .unwritten") == []


@pytest.mark.reliability
def test_clips_of_known_people_are_sent_with_their_names(
    person, url, recording, answer, wav, tmp_path, demo_handler
):
    audio = decode_audio(recording.read_bytes(), 16_000, AudioLimits(7200, 2**29)).samples
    start, end = max(
        (entry["timestamp"] for entry in answer["speakers"]), key=lambda span: span[1] - span[0]
    )
    clips = [tmp_path / "Ada L.wav", tmp_path / "bo.wav"]
    clips[0].write_bytes(wav(audio[int(start * 16_000) : int(end * 16_000)]))
    clips[1].write_bytes(b"no sound")
    known = [
        {"name": "Ada L", "reference": base64.b64encode(clips[0].read_bytes()).decode()},
    ]
    parameters = {"output": ["rttm"], "return_timestamps": "word", "known_speakers": known}
    expected = demo_handler(request_body(recording.read_bytes(), **parameters))
    person.open(url)
    person.see("#options details:has(#clip) summary").click()
    person.all("#clip")[0].send_keys("\n".join(map(str, clips)))
    person.wait(lambda: len(person.all("#clips li")) == 2)
    names = "[...document.querySelectorAll('#clips [type=text]')].map(each => each.value)"
    assert person.do(names) == ["Ada L", "bo"]
    person.choose(recording)
    person.see("#run").click()
    assert "INVALID_REFERENCE" in person.wait(lambda: person.see("#failure").text)
    person.click("#clips button", 1)
    assert person.focus() == "clip"
    person.see("#run").click()
    person.see("#found")
    speakers = [entry["speaker"] for entry in expected["speakers"]]
    assert person.texts("#transcript .name") == speakers
    assert "Ada L" in speakers
    person.browser.refresh()
    person.wait(lambda: person.do(names) == ["Ada L"])
    person.see("#found")
    person.see("#options details:has(#clip) summary").click()
    person.all("#clips input[type=text]")[0].clear()
    person.see("#run").click()
    assert person.do("document.activeElement.ariaLabel") == "Who speaks in Ada L.wav"


def test_a_voice_of_a_transcript_is_known_in_later_requests(
    person, url, recording, answer, downloads
):
    """The clip is what the speaker says alone for longest."""
    spans = [end - start for start, end in (each["timestamp"] for each in answer["speakers"])]
    longest = spans.index(max(spans))
    label = answer["speakers"][longest]["speaker"]
    person.open(url, kept(answer, recording, **{label: "Ada"}), recording)
    person.all("#transcript .name")[longest].click()
    person.all(".menu button")[-1].click()
    person.wait(lambda: "voice of Ada is kept" in "".join(person.texts("#remarks li")))
    (clip,) = person.stored("clips")
    sound = decode_audio(base64.b64decode(clip["reference"].split(",")[1]), 16_000, LIMITS)
    assert sound.duration == pytest.approx(max(spans), abs=1)
    assert abs(sound.samples).max() > 0.01
    person.see("#run").click()
    person.wait(lambda: len(person.all("#entries .done")) == 2 and person.all("#download-json"))
    body = json.loads(person.download("json", downloads))
    assert [known["name"] for known in body["known_speakers"]] == ["Ada"]


class Telling(FakeEndpoint):
    """Answers every request with one answer."""

    def __init__(self, endpoint: Endpoint, answer: Answer) -> None:
        super().__init__()
        self.models.recogniser = endpoint.recogniser
        self.limits, self.told = endpoint.limits, answer

    async def stream(self, request):
        yield Decoded(self.told.duration)
        yield Finished(self.told)


def test_markup_in_answers_stays_text(person, recording, tiny_endpoint):
    """Markup is in the transcript, names, warnings, the recording's name and error texts."""
    word = Word(f" {NASTY}", 0.0, 1.0, NASTY, 0.5)
    segment = SpeakerSegment(NASTY, word.text, 0.0, 1.0, (word,))
    chunks = (Chunk(word.text, 0.0, 1.0, words=(word,)),)
    turns = [SpeakerTurn(NASTY, 0.0, 1.0)]
    told = Answer(1.0, Transcript(chunks, NASTY), [segment], turns, (NASTY,))
    file = recording.with_name("<img src=x onerror=alert(2)>.wav")
    file.write_bytes(b"x")
    with serving(Telling(tiny_endpoint, told)) as url:
        person.open(url)
        person.transcribe(file)
        person.see("#found")
        assert person.texts(".word") == person.texts("#transcript .name") == [NASTY]
        assert person.texts("#notes li")[-1] == NASTY
        assert NASTY in person.texts("#found")[0]
        assert person.all("#timeline input")[0].get_attribute("value") == NASTY
    person.expected += LOST
    person.do("document.getElementById('run').click()")
    person.wait(lambda: person.texts("#stage") == ["Waiting for the server"])
    assert person.texts("#stage-detail")[0].startswith(
        "The server cannot be reached · trying again"
    )
    person.click("#cancel")
    person.see("#found")
    assert person.texts(".word") == [NASTY]
    assert person.all("img") == []


LAUGH = " (She laughs.)"


@pytest.mark.reliability
def test_a_given_text_gets_times_and_speakers(
    person, url, recording, answer, demo_handler, downloads
):
    said = answer["text"].title()
    text = f"{NASTY}\n{said}{LAUGH}"
    parameters = {"text": text, "return_timestamps": "word", "output": OUTPUT}
    expected = demo_handler(request_body(recording.read_bytes(), **parameters))
    assert [part["text"].strip() for part in expected["unspoken"]] == [NASTY, LAUGH.strip()]
    person.open(url)
    person.see("#options details:has(#text) summary").click()
    person.see("#text").send_keys(text)
    person.choose(recording)
    person.see("#options details:has(#text) summary").click()
    assert person.texts("#text-size") == [f"· {len(text.split())} words"]
    person.see("#run").click()
    person.see("#found")
    assert person.texts(".word") == words_of(expected) == said.split()
    speakers = [entry["speaker"] for entry in expected["speakers"]]
    assert person.texts("#transcript .name") == speakers
    assert person.see("#unspoken summary").text == "Not spoken: 2 parts of your text"
    assert person.texts("#unspoken li span") == [NASTY, LAUGH.strip()]
    person.all("#unspoken .at")[-1].click()
    at = "Number(document.querySelector('#player input').value)"
    start = expected["unspoken"][-1]["timestamp"][0]
    person.wait(lambda: person.do(at) >= start)
    person.see("#player button").click()
    body = json.loads(person.download("json", downloads))
    assert body == {key: value for key, value in expected.items() if key != "output"}
    person.browser.refresh()
    person.see("#unspoken")
    assert person.texts("#unspoken li span") == [NASTY, LAUGH.strip()]


@pytest.mark.reliability
def test_the_page_says_whether_a_text_is_spoken(person, url, answer):
    person.open(url, kept({**answer, "unspoken": []}))
    assert " · all of your text is spoken · " in person.see("#found").text
    assert not person.all("#unspoken")[0].is_displayed()
    part = {"text": "Never.", "words_before": 0, "timestamp": [0.0, 1.0]}
    nothing = {"words": [], "speakers": [], "chunks": [], "text": "", "unspoken": [part]}
    person.open(url, kept({**answer, **nothing}))
    assert person.see("#transcript").text == "None of your text is spoken."
    assert person.see("#unspoken summary").text == "Not spoken: 1 part of your text"


@pytest.mark.parametrize(("dark", "width"), some(1, product([False, True], [380, 1280])))
def test_axe_finds_nothing(person, url, recording, answer, dark, width):
    """With results and without, with all options open and a refusal shown."""
    part = {"text": LAUGH * 99, "words_before": 0, "timestamp": [0.0, 1.0]}
    answer = {**answer, "unspoken": [part] * 9}
    for before in (None, kept(answer, recording, SPEAKER_00="Ada")):
        person.open(url, before)
        person.all("#clip")[0].send_keys(str(recording))
        person.wait(lambda: person.all("#clips li"))
        for fold in person.all("#options details"):
            fold.click()
        if before:
            person.choose(recording)
            person.see("#found")
        else:
            person.see("#run").click()
            assert person.see("#failure").text == "Choose or record something first."
            assert person.focus() == "run"
        person.look(dark, width)
        assert person.violations() == {}
        assert person.do("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.reliability
def test_a_narrow_window_folds_options_and_shows_whole_names(person, url, answer):
    person.open(url, kept(answer, SPEAKER_00="A name that fits a line"))
    assert person.see("#language")
    person.look(width=360, height=740)
    person.browser.refresh()
    person.see("#found")
    tops = person.do("[options, result].map(each => each.getBoundingClientRect().top)")
    assert 0 < tops[0] < tops[1]
    assert not person.all("#language")[0].is_displayed()
    person.see("#options > summary").click()
    assert person.see("#language")
    sizes = "map(each => [each.scrollWidth, each.clientWidth])"
    fields = person.do(f"[...document.querySelectorAll('html, #timeline input')].{sizes}")
    assert len(fields) > 2
    assert all(wanted <= given for wanted, given in fields)


def test_options_are_sent_or_refused_by_name(person, url, recording, answer):
    person.open(url, kept(answer, recording))
    for fold in person.all("#options details"):
        fold.click()
    person.choose(recording)
    person.see("#found")
    person.see("#num_speakers").send_keys("3")
    person.see("#max_speakers").send_keys("2")
    person.see("#run").click()
    assert person.focus() == "num_speakers"
    assert "contradict" in person.do("document.activeElement.validationMessage")
    assert person.texts(".word") == words_of(answer)
    person.see("#num_speakers").clear()
    person.see("#max_speakers").clear()
    person.see("#max_speakers").send_keys("0")
    person.all("#options details")[0].find_element("css selector", "summary").click()
    person.see("#run").click()
    assert person.focus() == "max_speakers"
    assert not person.all("#progress")[0].is_displayed()
    person.see("#max_speakers").clear()
    person.see("#diarize").click()
    person.see("#run").click()
    person.wait(lambda: person.texts("#notes li") == ["No speakers: they were not asked for."])
    assert person.texts(".word") == words_of(answer)
    assert person.all("#timeline input") == person.all("#download-rttm") == []
    person.see("#separate").click()
    assert not person.all("#diarize")[0].is_displayed()
    person.see("#channel_names").send_keys("Ada")
    person.see("#run").click()
    # Streamed turns have names too, and no words.
    person.wait(lambda: set(person.texts("#transcript .name")) == {"Ada"} and person.all(".word"))
    assert person.texts(".word") == words_of(answer)
    assert person.see("#download-rttm")
    assert person.all("#entries .failed") == []


@pytest.mark.reliability
def test_files_look_as_the_options_say(person, url, answer, downloads):
    person.open(url, kept(answer))
    person.see("#file-options summary").click()
    person.see("#max_line_width").send_keys("16")
    person.see("#max_line_count").send_keys("0")
    person.see("#download-srt").click()
    assert person.focus() == "max_line_count"
    person.see("#max_line_count").send_keys(Keys.BACKSPACE, "2")
    for id in ("highlight_words", "subtitle_speakers", "txt_times"):
        person.see(f"#{id}").click()
    cues = person.download("srt", downloads).split("\n\n")
    lines = [re.sub("</?u>", "", line) for cue in cues for line in cue.split("\n")[2:]]
    assert len(lines) > len(cues) > 0
    assert max(map(len, lines)) <= 16
    assert sum("<u>" in cue for cue in cues) >= len(words_of(answer))
    vtt = person.download("vtt", downloads)
    assert "<u>" in vtt
    assert "<v " not in vtt
    assert "SPEAKER" not in "".join(lines)
    assert person.download("txt", downloads) == answer["output"]["txt"]


def test_a_cancelled_request_keeps_the_shown_transcript(person, url, recording, answer, held):
    person.open(url, kept(answer, recording))
    assert person.may_leave()
    person.transcribe(recording)
    person.wait(lambda: person.texts("#stage") == ["Sent; waiting for the server to begin"])
    assert person.texts(".word") == []
    assert not person.may_leave()
    person.do("document.getElementById('cancel').focus()")
    person.press("ENTER")
    held.set()
    person.see("#found")
    assert person.focus() == "run"
    assert person.texts("#failure") == [""]
    assert person.texts(".word") == words_of(answer)
    assert person.may_leave()


def test_a_file_without_audio_is_refused_in_words(person, url, tmp_path):
    broken = tmp_path / "letter.wav"
    broken.write_bytes(b"Dear Sir or Madam")
    empty = tmp_path / "nothing.wav"
    empty.write_bytes(b"")
    person.open(url)
    person.transcribe(broken)
    said = r"This file cannot be read as a recording: [^:.]+\. INVALID_AUDIO"
    assert re.fullmatch(said, person.see("#failure").text)
    assert person.see("#empty")
    assert not person.all("#player")[0].is_displayed()
    person.transcribe(empty)
    assert person.see("#failure").text == "The file is empty."
    assert person.texts("#chosen") == ["nothing.wav 0 bytes"]


@pytest.mark.reliability
def test_the_microphone_is_recorded(person, url):
    person.open(url)
    assert not person.all("#live-field")[0].is_displayed()
    person.see("#record").click()
    person.wait(lambda: person.texts("#listened")[0] >= "0:01")
    assert person.texts("#listening-state") == ["Recording"]
    person.see("#stop").click()
    said = person.see("#chosen p").text
    found = re.fullmatch(r"Recording [\d-]+ [\d.]+\.wav (\d+) KB", said)
    assert int(found[1]) >= 48
    person.see("#player")
    person.see("#run").click()
    person.see("#found")
    assert person.texts("#failure") == [""]


def test_the_tab_asks_for_a_key_and_keeps_it(person, tiny_endpoint, whisper_folder, recording):
    """The models here have no diarization, which the page says before and after."""
    told = Answer(1.0, Transcript((Chunk(" Yes.", 0.0, 1.0),), "en"))
    with serving(Telling(tiny_endpoint, told), api_key=KEY) as url:
        person.open(url)
        assert not person.all("#source")[0].is_displayed()
        assert person.focus() == "key"
        assert person.violations() == {}
        person.see("#key").send_keys("another", Keys.ENTER)
        assert person.see("#login-failure").text == "The server does not accept this key."
        person.see("#key").clear()
        person.see("#key").send_keys(KEY, Keys.ENTER)
        person.see("#source")
        assert "--diarization" in person.see("#no-speakers").text
        assert person.texts("#model") == [f"Model: {whisper_folder.name}"]
        person.browser.refresh()
        person.see("#source")
        person.do("import('/app/api.js').then(({ useKey }) => void useKey('no longer'))")
        person.transcribe(recording)
        person.see("#key").send_keys(KEY, Keys.ENTER)
        person.see("#found")
        assert "--diarization" in person.texts("#notes li")[0]
        assert not person.see("#speaker-options, #source").get_attribute("hidden")


BLOCKED = """
    for (const name of ["localStorage", "sessionStorage", "indexedDB"])
      Object.defineProperty(window, name, {
        get() { throw new DOMException("blocked", "SecurityError"); },
      });
"""


@pytest.mark.reliability
def test_the_page_works_without_storage_until_a_reload(person, tiny_endpoint, recording):
    """The page asks before it is left."""
    with serving(tiny_endpoint, api_key=KEY) as url:
        person.open(url)
        blocked = person.browser.execute_cdp_cmd(
            "Page.addScriptToEvaluateOnNewDocument", {"source": BLOCKED}
        )
        try:
            person.browser.refresh()
            person.see("#key").send_keys(KEY, Keys.ENTER)
            person.see("#source")
            person.transcribe(recording)
            person.see("#found")
            assert person.texts("#failure") == [""]
            assert not person.may_leave()
        finally:
            person.browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", blocked)


@pytest.mark.reliability
def test_without_the_server_the_page_says_so(person, url):
    person.open(url)
    person.expected += LOST
    person.browser.execute_cdp_cmd("Network.enable", {})
    person.browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*/info"]})
    person.browser.refresh()
    assert person.see("#unreachable-reason").text == "The server cannot be reached."
    person.browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
    person.see("#again").click()
    person.see("#source")


@pytest.mark.reliability
def test_too_long_a_text_is_not_sent(person, url, recording):
    person.open(url)
    person.choose(recording)
    fill = "(text.value = arguments[0], text.dispatchEvent(new Event('input')))"
    person.do(fill, "\U0001f600" * 2**18)
    assert person.do("text.checkValidity()")
    person.do(fill, "a" * (2**18 + 1))
    person.see("#run").click()
    assert person.focus() == "text"
    assert not person.all("#progress")[0].is_displayed()


@pytest.mark.reliability
def test_films_are_taken(person, url, source, tmp_path):
    """The file dialog does not filter films out either; playback depends on the browser."""
    person.open(url)
    assert person.all("#file")[0].get_attribute("accept") in (None, "")
    for place, ending in enumerate(("mp4", "mov", "mkv", "webm")):
        film = tmp_path / f"film {place}.{ending}"
        film.write_bytes(with_video(source, film.name))
        person.transcribe(film)
        person.wait(lambda film=film: person.texts("#result-title") == [film.name])
        person.see("#found")
        assert person.texts("#transcript p") == ["No speech was found."]
        assert person.texts("#failure") == [""]
