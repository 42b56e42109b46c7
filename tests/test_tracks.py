"""A conversation with a file for each speaker, beside the same voices as channels of one file."""

import base64
import json

import numpy as np
import pytest

from tests.helpers.asgi import call
from tests.helpers.refusals import refused
from tests.support.audio_files import chirp, speech, wav_file
from whosaid.audio.decode import Audio, AudioLimits, decode_audio, decode_files
from whosaid.audio.tracks import begin_at, decode_tracks
from whosaid.errors import AudioTooLong, InvalidAudio, InvalidRequest
from whosaid.scheduling.steps import run_steps
from whosaid.server.app import create_app
from whosaid.server.jobs.store import JobStore
from whosaid.server.settings import ServerSettings
from whosaid.transcribe.__main__ import main

RATE = 16_000
LIMITS = AudioLimits(60.0, 2**24)


@pytest.fixture(scope="module")
def voices() -> tuple[np.ndarray, np.ndarray]:
    both = speech(4.0)
    return both[: 2 * RATE], both[2 * RATE :]


@pytest.fixture(scope="module")
def files(voices) -> list[bytes]:
    return [wav_file(voice, RATE) for voice in voices]


@pytest.fixture(scope="module")
def stereo(voices) -> bytes:
    return wav_file(np.stack(voices, axis=1), RATE)


def tracks(*contents: bytes, limits: AudioLimits = LIMITS, starts=(0.0, 0.0)) -> Audio:
    return begin_at(run_steps(decode_tracks(contents, RATE, limits)), starts, limits)


def test_tracks_are_the_channels_of_one_file(files, stereo):
    apart, together = tracks(*files), decode_audio(stereo, RATE, LIMITS, separate=True)
    np.testing.assert_array_equal(apart.channels, together.channels)
    assert apart.duration == together.duration == pytest.approx(2.0)


def test_rates_lengths_and_beginnings_may_differ():
    """Stereo is mixed. A later end is silence, and so is the time before a beginning."""
    long, short = chirp(44_100, 2.0), chirp(8_000, 0.5)
    contents = wav_file(np.stack([long, long], axis=1), 44_100), wav_file(short, 8_000)
    found = tracks(*contents, starts=(0.25, 1.5))
    assert found.duration == pytest.approx(2.25)
    alone = [decode_audio(each, RATE, LIMITS).samples for each in contents]
    for channel, samples, start in zip(found.channels, alone, (0.25, 1.5), strict=True):
        first = round(start * RATE)
        np.testing.assert_array_equal(channel[first : first + len(samples)], samples)
        assert np.count_nonzero(channel) == np.count_nonzero(samples)
        assert len(channel) == round(2.25 * RATE)


def test_limits_hold_for_all_files_and_errors_name_one(files):
    half = AudioLimits(3.0, 2**24)
    with pytest.raises(AudioTooLong, match="file 2: "):
        tracks(*files, limits=half)
    short = wav_file(chirp(RATE, 0.5), RATE)
    with pytest.raises(AudioTooLong, match=r"2 channels of 2\.0 s"):
        tracks(files[0], short, limits=half)
    with pytest.raises(AudioTooLong, match=r"2 channels of 9\.0 s"):
        tracks(*files, limits=AudioLimits(17.9, 2**24), starts=(0.0, 7.0))
    with pytest.raises(InvalidAudio, match="file 2: "):
        tracks(files[0], b"no audio")
    with refused("AUDIO_TOO_LONG"):
        decode_files(files, AudioLimits(60.0, len(files[0]) + len(files[1]) - 1))


WANTED = {"channel_names": ["Katie", "Steve"], "return_timestamps": "word", "language": "en"}


@pytest.fixture(scope="module")
def expected(tiny_handler, stereo) -> dict:
    parameters = {**WANTED, "channels": "separate"}
    return tiny_handler({"inputs": base64.b64encode(stereo).decode(), "parameters": parameters})


def said(answer: dict) -> list[tuple]:
    turns = answer["speakers"]
    return [(*each["timestamp"], each["speaker"], each["channel"], each["text"]) for each in turns]


async def test_json_forms_and_jobs_take_several_files(tiny_endpoint, files, expected, tmp_path):
    encoded = [base64.b64encode(each).decode() for each in files]
    content = json.dumps({"inputs": encoded, "parameters": WANTED}).encode()
    head = "--x\r\nContent-Disposition: form-data; name={}\r\n\r\n"
    lines = [head.format(name) for name in ("file", "parameters")]
    form = b"".join(lines[0].encode() + each + b"\r\n" for each in files)
    form += lines[1].encode() + json.dumps(WANTED).encode() + b"\r\n--x--\r\n"
    store = JobStore(tmp_path, 9, 2**30, 0.0)
    app = create_app(tiny_endpoint, ServerSettings(page=False), store=store)
    kinds = {"application/json": content, "multipart/form-data; boundary=x": form}
    async with app.jobs.running():
        for kind, body in kinds.items():
            headers = {"content-type": kind, "content-length": str(len(body))}
            reply = await call(app, headers=headers, parts=[body])
            assert said(reply.json) == said(expected)
            job = (await call(app, path="/v1/jobs", headers=headers, parts=[body])).json
            path = f"/v1/jobs/{job['id']}"
            while job["status"] in ("queued", "running"):
                job = (await call(app, "GET", path=path)).json
            assert said(job["answer"]) == said(expected)


def test_other_numbers_of_files_or_starts_are_refused(tiny_handler, files):
    encoded = [base64.b64encode(each).decode() for each in files]
    for inputs in ([], encoded * 5, [*encoded, None]):
        with pytest.raises(InvalidRequest, match="inputs: "):
            tiny_handler({"inputs": inputs, "parameters": {}})
    for name, value in (("channel_starts", [1.0]), ("channel_names", ["a", "b", "c"])):
        with refused("INVALID_PARAMETER", name):
            tiny_handler({"inputs": encoded, "parameters": {name: value}})


def test_the_command_names_tracks(tiny_endpoint, files, expected, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("handler.load_endpoint", lambda settings: tiny_endpoint)
    paths = [tmp_path / name for name in ("1.wav", "Steve.wav")]
    for path, data in zip(paths, files, strict=True):
        path.write_bytes(data)
    given = ["transcribe", "--embedded", "--language", "en", "--tracks"]
    given += [f"{paths[0]}=Katie", str(paths[1])]
    assert main(given) == 0
    assert said(json.loads((tmp_path / "1.json").read_text())) == said(expected)
    assert main(given) == 0
    assert "1 done before" in capsys.readouterr().err
    paths[1].write_bytes(files[0])
    assert main(given) == 0
    assert "is for an earlier version" in capsys.readouterr().err
    assert main([*given[:4], str(paths[0])]) == 1  # one of its files alone
    assert "is the answer to another recording, 1.wav, Steve.wav" in capsys.readouterr().err


@pytest.mark.parametrize("more", [["--channels", "mix"], ["--channel-names", "a,b"], ["--live"]])
def test_tracks_exclude_other_channels(more, files, tmp_path, capsys):
    (tmp_path / "a.wav").write_bytes(files[0])
    with pytest.raises(SystemExit):
        main(["transcribe", *more, "--tracks", str(tmp_path / "a.wav"), str(tmp_path / "a.wav")])
    assert "--tracks: " in capsys.readouterr().err
