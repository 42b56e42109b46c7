"""A transcript as a person reads it on a terminal."""

import io

from rich.console import Console

from whosaid.transcribe.printing import clock, show, summary

RESPONSE = {
    "speakers": [
        {"speaker": "SPEAKER_01", "text": " good morning", "timestamp": [0.0, 1.5]},
        {"speaker": "SPEAKER_00", "text": " [red]yes[/red]", "timestamp": [62.04, 63.0]},
        {"speaker": None, "text": " sorry", "timestamp": [70.0, 71.0]},
    ],
    "chunks": [{"text": " good morning", "timestamp": [0.0, 1.5]}],
    "text": " good morning [red]yes[/red] sorry",
    "language": "en",
    "duration": 72.0,
    "warnings": ["2 names ignored"],
}


def shown(response: dict, terminal: bool = False) -> str:
    screen, colours = io.StringIO(), "standard" if terminal else None
    show(response, 4.0, Console(file=screen, force_terminal=terminal, color_system=colours))
    return screen.getvalue()


def test_turns_are_lines_with_time_speaker_and_words():
    lines = shown(RESPONSE).splitlines()
    first, second = " 0:00.0  SPEAKER_01  good morning", " 1:02.0  SPEAKER_00  [red]yes[/red]"
    assert lines[:3] == [first, second, " 1:10.0              sorry"]
    assert lines[3] == "warning: 2 names ignored"
    assert "1:12.0 of audio" in lines[4]
    assert "18.0x real time" in lines[4]


def test_chunks_replace_missing_speakers_and_silence_is_no_speech():
    assert "speakers 2;" in summary(RESPONSE, 1.0)
    without = {**RESPONSE, "speakers": []}
    assert shown(without).splitlines()[0].split() == ["0:00.0", "good", "morning"]
    assert "speakers" not in summary(without, 1.0)
    assert "no speech was found" in shown({**without, "chunks": [], "text": ""})
    untimed = shown({**without, "chunks": []})  # return_timestamps: false
    assert untimed.splitlines()[0] == "good morning [red]yes[/red] sorry"
    assert "no speech" not in untimed + shown({**RESPONSE, "chunks": []})


def test_each_speaker_has_its_own_colour():
    lines = shown(RESPONSE, terminal=True).splitlines()
    colours = [line.split("SPEAKER")[0].rsplit("\x1b[", 1)[1] for line in lines[:2]]
    assert colours[0] != colours[1]


def test_words_are_lines_with_times_probability_and_speaker():
    yes = {"word": " yes", "timestamp": [0.5, 0.75], "probability": 0.987, "speaker": "SPEAKER_01"}
    no = {"word": " no", "timestamp": [100.0, 100.2], "probability": 0.5, "overlap": True}
    lines = shown({**RESPONSE, "words": [yes, {**no, "speaker": None}]}).splitlines()
    assert lines[0] == "    0.50     0.75  0.99  SPEAKER_01  yes"
    assert lines[1] == "  100.00   100.20  0.50              no  (over another voice)"
    assert lines[2] == "warning: 2 names ignored"


def test_clock():
    seconds = (0.0, 59.96, 75.5, 3600.0)
    assert [*map(clock, seconds)] == ["0:00.0", "1:00.0", "1:15.5", "60:00.0"]
