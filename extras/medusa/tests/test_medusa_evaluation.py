from extras.medusa.evaluation import ASSISTED, PLAIN, Evaluated, summary
from whosaid.transcript import Chunk, DecodeStats, Transcript


def transcript(text: str, accepted: int = 0, passes: int = 0) -> Transcript:
    stats = DecodeStats(accepted=accepted, drafted_rows=passes)
    return Transcript((Chunk(f" {text}", 0.0, 1.0, -0.1, 0.0),), "en", stats=stats)


def evaluated(name: str, plain: str, assisted: str) -> Evaluated:
    texts = {PLAIN: transcript(plain), ASSISTED: transcript(assisted, accepted=6, passes=4)}
    seconds = {PLAIN: [2.0, 4.0, 3.0], ASSISTED: [1.0, 2.0, 1.5]}
    return Evaluated(name, 6.0, texts, seconds)


def test_the_summary_adds_recordings_up():
    results = [evaluated("one.wav", "a cat", "a cat"), evaluated("two.wav", "a dog", "a dog")]
    assert summary(results).endswith("All texts are equal.")
    text = summary([*results, evaluated("none.wav", "hello", "hello there")])
    plain, assisted = (line for line in text.splitlines() if line.startswith(("| pl", "| with h")))
    # 9 seconds for 18 of audio, half of that with heads.
    assert plain == "| plain | 9.00 | 2.0 | 1.00 (1.00-1.00) | 1.00 |"
    assert assisted.split(" | ")[1:3] == ["4.50", "4.0"]
    assert assisted.endswith("| 2.50 |")
    assert text.endswith("Texts that differ: none.wav")
