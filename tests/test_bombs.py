"""Headers that announce far more than a file holds are refused in little memory."""

import struct
import sys
import zlib

import numpy as np
import pytest

from tests.helpers.nightly import some
from tests.helpers.peak_memory import decoded_elsewhere
from tests.helpers.tagged_files import element, matroska
from tests.support import audio_files as files
from tests.support.audio_files import box, mp4, table, track
from whosaid.audio.decode import AudioLimits, decode_audio
from whosaid.audio.libav import without_id3
from whosaid.errors import InvalidAudio

LIMITS = AudioLimits(max_seconds=7_200, max_bytes=2**28)
MANY = 1_390_000  # entries of 24 bytes: 32 MiB
VIDEO = ("-f", "lavfi", "-i", "testsrc=s=64x64:r=25", "-shortest", "-c:v", "mjpeg")


def compressed(movie: bytes) -> bytes:
    packed = box(b"cmvd", struct.pack(">I", len(movie)), zlib.compress(movie, 9))
    return mp4(box(b"cmov", box(b"dcom", b"zlib"), packed))


def id3(frames: int, size: int = 2_000_000) -> bytes:
    """An ID3v2.4 tag of objects that hold `size` zeros each, compressed."""
    content = b"\0a/b\0f\0d\0" + bytes(size)
    packed = zlib.compress(content, 9)
    frame = b"GEOB" + syncsafe(len(packed) + 4) + struct.pack(">HI", 9, len(content)) + packed
    return b"ID3\4\0\0" + syncsafe(len(frame) * frames) + frame * frames


def syncsafe(number: int) -> bytes:
    return bytes(number >> shift & 127 for shift in (21, 14, 7, 0))


def fragment(samples: int) -> bytes:
    run = box(b"traf", table(b"tfhd", 1), table(b"trun", samples, 40))
    return box(b"moof", table(b"mfhd", 1), run)


DECOY = box(b"free", b"hdlr" + bytes(8) + b"text" + b"stsz" * 3)
MP4S = {
    "samples": mp4(track(MANY) * 16),
    "samples in more tracks": mp4(track(MANY // 4) * 60),
    "with offsets": mp4(track(MANY, extra=table(b"ctts", 1, MANY, 1)) * 16),
    "with decoys": mp4(track(MANY, extra=DECOY) * 16),
    "chunks of sound": mp4(track(5, ticks=1, chunk=MANY * 1_024) * 16),
    "chunks of what may not be sound": mp4(track(5, ticks=1, chunk=MANY * 1_024, extra=DECOY) * 16),
    "tracks elsewhere": mp4(box(b"udta", track(MANY) * 16)),
    "fragments": mp4(track(0), *[fragment(MANY)] * 16),
    "fragments in the data": mp4(track(0), box(b"sidx"), box(b"mdat", fragment(MANY) * 16)),
    "compressed": compressed(box(b"moov", track(MANY) * 16)),
}


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_bombs_need_little_memory(source, tmp_path):
    bombs = [*MP4S.values(), id3(100) + files.encoded(source, "a.mp3")]
    assert max(map(len, bombs)) < 2**19
    (*codes, duration), grown = decoded_elsewhere(tmp_path, source, *bombs)
    assert codes == ["INVALID_AUDIO"] * len(MP4S)
    assert duration == pytest.approx(decode_audio(source, 16_000, LIMITS).duration, 0.1)
    assert grown < 32 << 20


class TestWhatIsNoBomb:
    @pytest.mark.parametrize(
        ("codec", "video"),
        some(3, [("adpcm_ima_qt", VIDEO), ("pcm_s16le", ()), ("aac", ()), ("alac", ())]),
    )
    def test_quicktime_is_decoded_however_many_samples_it_announces(self, source, codec, video):
        film = files.encoded(source, "a.mov", *video, "-c:a", codec)
        assert len(decode_audio(film, 16_000, LIMITS).samples) > 16_000

    def test_an_index_of_ten_thousand_packets_is_read(self, source):
        silence = "-f lavfi -i anullsrc=r=8000:cl=mono -map 1 -t 25"
        codec = "-c:a libopus -frame_duration 2.5"
        film = files.encoded(source, "a.mp4", *silence.split(), *codec.split())
        assert decode_audio(film, 16_000, LIMITS).duration == pytest.approx(25, abs=0.1)

    def test_no_other_format_loses_more_than_its_tag(self, every_format):
        for data in every_format.values():
            kept = without_id3(data)
            assert data.endswith(kept)
            assert len(data) - len(kept) < 200


def test_matroska_tags_take_no_more_memory_than_allowed():
    """Three bytes each in the file, and 66 in memory."""
    data, tag = matroska(0), b"\x67\xc8\x80"
    ids = map(bytes.fromhex, ("18538067", "1254c367", "1f43b675"))
    segment, tags, cluster = map(data.index, ids)
    many = element("1254c367", element("7373", element("63c0", b"") + tag * 5_000_000))
    body = data[segment + 12 : tags] + many + data[cluster:]
    with pytest.raises(InvalidAudio):
        decode_audio(data[:segment] + element("18538067", body), 16_000, LIMITS)


@pytest.mark.parametrize("kind", [b"free", b"uuid", b"moov", b"trak"])
def test_empty_boxes_end(kind):
    with pytest.raises(InvalidAudio):
        decode_audio(box(b"ftyp", b"isom\0\0\2\0isom") + box(kind) * 50_000, 16_000, LIMITS)


class TestTags:
    def test_a_tag_changes_no_sample(self, source):
        plain = files.encoded(source, "a.mp3", "-id3v2_version", "0")
        expected = decode_audio(plain, 16_000, LIMITS).samples
        footer = id3(1, 10)
        footer = footer[:5] + b"\x10" + footer[6:] + b"3DI\4\0\0" + bytes(4)
        for tag in (id3(1, 10), id3(1) * 2, footer):
            assert without_id3(tag + plain) == plain
            assert np.array_equal(decode_audio(tag + plain, 16_000, LIMITS).samples, expected)

    def test_a_tag_in_a_chunk_is_not_read(self):
        tag = id3(1, 10)
        wav = files.raw_wav(bytes(3_200), 16_000)
        tagged = wav + b"id3 " + struct.pack("<I", len(tag)) + tag
        assert without_id3(tagged) == wav + tagged[len(wav) : len(wav) + 8] + b"\0" + tag[1:]
        assert decode_audio(tagged, 16_000, LIMITS).duration == 0.1

    def test_an_old_tag_is_not_read_either(self, source):
        plain = files.encoded(source, "a.mp3", "-id3v2_version", "0")
        pictures = b"PIC\0\0\x07\0PNG\0\0x" * 500
        assert without_id3(b"ID3\2\0\0" + syncsafe(len(pictures)) + pictures + plain) == plain

    def test_nothing_else_is_changed(self):
        for data in (b"", b"ID3", b"ID3\5\0\0\0\0\0\0 rest", b"an ID3 tag", bytes(99)):
            assert without_id3(data) is data
