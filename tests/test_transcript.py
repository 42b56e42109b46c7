"""The values that modules exchange: frozen, compared by content, and a text that is its chunks'."""

from whosaid.transcript import Chunk, DecodeStats, Transcript


def test_the_text_joins_chunks_with_the_tokenizers_spaces():
    chunks = (Chunk(" Good", 0.0, 0.5), Chunk("-bye,", 0.5, 1.0), Chunk(" all.", 1.0, 2.0))
    assert Transcript(chunks, "en").text == " Good-bye, all."


def test_transcripts_compare_without_their_stats():
    slow = Transcript((), None, stats=DecodeStats(decode_seconds=9.0))
    assert slow == Transcript((), None)
    assert slow != Transcript((), None, speech=((0.0, 1.0),))


def test_acceptance_is_a_share_of_the_drafts():
    assert DecodeStats(drafted=8, accepted=5, drafted_rows=3).acceptance == 5 / 8
    assert DecodeStats(steps=4, tokens=4).acceptance is None
