"""What the page makes of an answer: HTML that is text where it should be, names, files, colours."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from contextlib import aclosing, closing
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import random_heads

pytest.importorskip("gradio")

from asr import Transcriber, TranscriptionOptions
from config import InferenceConfig
from errors import EndpointError, InvalidRequest
from response import Answer, response
from server.errors import DeadlineExceeded
from server.page import recognition, views
from server.page.application import FOLDER
from server.page.downloads import FORMATS, file_stem, make_files
from server.page.recognition import Tick, follow, read_request
from server.page.speaker_names import MAX_NAME_COLUMNS, clean_name, rename, speakers_of
from server.service import Decoded
from subtitles import display_width
from testing.audio_files import conversation
from transcript import Chunk, SpeakerSegment, SpeakerTurn, Transcript, Word

ASSISTED = TranscriptionOptions(language="en", assisted=True)
NASTY = "</span><script>alert(1)</script> ${1+1} {{value}} `x` & \"quoted\" 'so'"


def answer_of(*spoken: tuple[str | None, str], turns: bool = True) -> Answer:
    """One word a second, each its own segment."""
    words = [
        Word(f" {text}", float(i), i + 0.5, speaker) for i, (speaker, text) in enumerate(spoken)
    ]
    segments = [SpeakerSegment(w.speaker, w.text, w.start, w.end, (w,)) for w in words]
    chunks = tuple(Chunk(w.text, w.start, w.end, words=(w,)) for w in words)
    heard = [SpeakerTurn(w.speaker, w.start, w.end) for w in words if w.speaker]
    transcript = Transcript(chunks, "en")
    duration = float(len(words))
    return Answer(duration, transcript, segments if turns else None, heard if turns else None)


class Reader(HTMLParser):
    """Collects tags, the text, and the attributes of what has times."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.words: list[str] = []
        self.values: list[str] = []
        self.inside = False
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.add(tag)
        self.inside = "data-to" in given
        if self.inside:
            self.words.append("")
        if "value" in given:
            self.values.append(given["value"])

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.words[-1] += data


TEXT = st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="\r\0"), min_size=1)


@given(TEXT, TEXT)
def test_what_was_said_stays_text(said, name):
    answer = answer_of(("A", said), (None, NASTY), ("B", said))
    names = {"A": name}
    html = views.transcript(answer, names)
    read = Reader(html)
    assert read.words == [said, NASTY, said]
    assert read.tags == {"p", "button", "b", "span"}
    # Gradio's page would fill these in.
    assert not re.search(r"[${}`\\]", html + views.timeline(answer, names))
    assert Reader(views.timeline(answer, names)).values == [name, "B"]
    assert views.heard(answer.transcript.chunks).count("<span") == 3


@pytest.mark.parametrize("show", [views.failure, views.notice, views.waiting])
def test_messages_stay_text(show):
    assert Reader(show(NASTY)).tags <= {"div", "p", "progress"}


def test_text_only_grows_while_it_is_heard():
    chunks = answer_of(*[(None, "word")] * 5).transcript.chunks
    seen = [views.heard(chunks[:count]) for count in range(6)]
    assert all(after.startswith(before) for before, after in pairwise(seen))


def test_without_speakers_there_is_no_timeline():
    answer = answer_of((None, "a"), (None, "b"), turns=False)
    assert views.timeline(answer, {}) == ""
    assert Reader(views.transcript(answer, {})).words == ["a", "b"]
    assert "No speech" in views.transcript(Answer(1.0, Transcript((), None)), {})


def test_bars_lie_where_turns_do():
    html = views.timeline(answer_of(("A", "x"), ("B", "y"), ("A", "z"), ("B", "w")), {})
    bars = re.findall(r'data-at="([\d.]+)".*?left:([\d.]+)%;width:([\d.]+)%', html)
    assert sorted((float(at), float(left), float(width)) for at, left, width in bars) == [
        (0, 0, 12.5),
        (1, 25, 12.5),
        (2, 50, 12.5),
        (3, 75, 12.5),
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (75.9, "1:15"), (3599.9, "59:59"), (3675, "1:01:15")]
)
def test_times_are_read_by_people(seconds, text):
    assert views.clock(seconds) == text


@given(st.text())
def test_names_are_one_short_line(text):
    name = clean_name(text)
    assert name == " ".join(name.split())
    assert name.isprintable()
    assert display_width(name) <= MAX_NAME_COLUMNS
    assert clean_name(name) == name


def test_names_go_everywhere_and_words_stay():
    answer = answer_of(("B", "x"), ("A", "y"), (None, "z"))
    assert speakers_of(answer) == ["B", "A"]
    named = rename(answer, {"A": "Ada"})
    assert speakers_of(named) == ["B", "Ada"]
    config = InferenceConfig(return_timestamps="word")
    plain, changed = response(answer, config), response(named, config)
    assert [each["speaker"] for each in changed["words"]] == ["B", "Ada", None]
    assert str(changed).replace("Ada", "A") == str(plain)
    assert rename(answer, {}) == rename(named, {"Ada": "A"})


def test_files_are_those_of_the_api():
    answer = answer_of(("A", "x"), ("B", "y"))
    files = make_files(answer, InferenceConfig(), {"A": "Ada King"})
    assert tuple(files) == FORMATS
    expected = response(
        rename(answer, {"A": "Ada King"}), InferenceConfig(output=["srt", "vtt", "txt", "tsv"])
    )["output"]
    assert {name: files[name] for name in expected} == expected
    assert all(len(line.split()) == 10 for line in files["rttm"].splitlines())
    assert "Ada_King" in files["rttm"]
    assert "rttm" not in make_files(answer_of((None, "x"), turns=False), InferenceConfig(), {})


@pytest.mark.parametrize(
    ("path", "stem"), [("/t/a talk.v2.wav", "a talk.v2"), ("", "recording"), ("/t/..", "recording")]
)
def test_downloads_are_called_like_the_recording(path, stem):
    assert file_stem(path) == stem


def luminance(colour: str) -> float:
    """WCAG 2: relative luminance of `#rrggbb`."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_colours_can_be_read():
    css = (FOLDER / "page.css").read_text(encoding="utf-8")
    light, dark = (
        re.findall(r"--(?:c\d|quiet): (#\w{6})", each)
        for each in css.split(".s0")[0].split(".dark", 1)
    )
    assert len(light) + len(dark) >= 2 * views.COLOURS
    for colours, background in ((light, "#ffffff"), (dark, "#0b0f19")):
        for colour in colours:
            low, high = sorted((luminance(colour), luminance(background)))
            assert (high + 0.05) / (low + 0.05) >= 4.5, colour


class Waiting:
    """A service whose requests decode and then never end."""

    def __init__(self) -> None:
        self.closed = False

    async def stream(self, request):
        try:
            yield Decoded(1.0)
            await asyncio.Event().wait()
        finally:
            self.closed = True


def test_a_closed_page_frees_its_rows(monkeypatch):
    monkeypatch.setattr(recognition, "TICK", 0.001)
    service = Waiting()

    async def leave_after_a_tick() -> list[object]:
        seen = []
        async with aclosing(follow(service, None, 60)) as events:
            async for event in events:
                seen.append(type(event))
                if isinstance(event, Tick):
                    break
        return seen

    assert asyncio.run(leave_after_a_tick()) == [Decoded, Tick]
    assert service.closed


def test_the_deadline_ends_a_request(monkeypatch):
    monkeypatch.setattr(recognition, "TICK", 0.001)
    service = Waiting()

    async def wait() -> None:
        async for _ in follow(service, None, 0.01):
            pass

    with pytest.raises(DeadlineExceeded):
        asyncio.run(wait())
    assert service.closed


@pytest.mark.parametrize("recording", [None, "", "/no/such/file.wav"])
def test_without_a_file_there_is_no_request(recording):
    with pytest.raises(InvalidRequest) as raised:
        asyncio.run(read_request(None, recording, {}))
    assert isinstance(raised.value, EndpointError)


def form_of(handler):
    import gradio as gr

    from server.page.parameters import ParameterForm, parameter_form

    async def lay_out() -> ParameterForm:
        with gr.Blocks(analytics_enabled=False):
            return parameter_form(handler)

    return asyncio.run(lay_out())  # outside of a loop, Gradio leaves loops open


@pytest.mark.parametrize("drafts", ["nothing", "assistant", "heads"])
def test_drafting_is_offered_where_the_endpoint_does_it_without_a_warning(
    tiny_handler, monkeypatch, drafts
):
    loaded = tiny_handler.transcriber.models
    alone = dataclasses.replace(loaded, assistant=None)
    models = {"nothing": alone, "assistant": loaded, "heads": random_heads(alone, 2)}[drafts]
    transcriber = Transcriber(models)
    monkeypatch.setattr(tiny_handler, "transcriber", transcriber)
    with closing(transcriber.start(conversation()[:32_000], ASSISTED)) as transcription:
        warnings = transcription.run().warnings
    offered = form_of(tiny_handler).components["assisted"].visible
    assert offered is (drafts != "nothing") is (warnings == ())


def test_what_is_left_alone_is_not_sent(tiny_handler):
    from server.page.parameters import OUTPUT

    form = form_of(tiny_handler)
    values = {name: each.value for name, each in form.components.items()}
    assert form.read(list(values.values())) == {"output": OUTPUT}
    values |= {"words": True, "num_beams": 2.0, "language": "en", "hotwords": "Ada, Zuse"}
    given = form.read(list(values.values()))
    config = tiny_handler.parse({"inputs": b"", "parameters": given}).config
    assert (config.return_timestamps, config.num_beams, config.language) == ("word", 2, "en")
    assert config.hotwords == ["Ada", "Zuse"]
