"""Words of token sequences: with spaces, punctuation, without spaces, and of split characters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tiny_whispers import Published, tokenizer_of
from whosaid.asr.output.words import pieces, split_words

TOKENIZER = tokenizer_of(Published(text_entries=300, languages=4, seconds=1))


def split(tokens, language="en"):
    """Return the words of `tokens`, given as texts or bytes."""
    entries = [token if isinstance(token, bytes) else token.encode() for token in tokens]

    def decode(ids):
        return b"".join(entries[each] for each in ids).decode(errors="replace")

    words = split_words(range(len(entries)), decode, language)
    assert [word.first for word in words[1:]] == [word.stop for word in words[:-1]]
    return words


def texts(tokens, language="en"):
    return [word.text for word in split(tokens, language)]


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ([" good", " morn", "ing"], [" good", " morning"]),
        (["good", " morning"], ["good", " morning"]),
        ([" know", ",", " Jos", "é", "."], [" know,", " José."]),
        ([" don", "'t", " I"], [" don't", " I"]),
        ([" 1", ",", "000", " %"], [" 1,000", " %"]),
        ([" twenty", "-", "four"], [" twenty-four"]),
        ([" he", " said", ' "', "no", '"', "."], [" he", " said", ' "no".']),
        ([" he", " said", ' "', " no", ' "', " so"], [" he", " said", ' " no', ' " so']),
        ([" ¿", "Qué", "?", " ¡", "No", "!"], [" ¿Qué?", " ¡No!"]),
        ([" wait", " ...", " -", " yes"], [" wait ...", " - yes"]),
        ([" (", "laughs", ")"], [" (laughs)"]),
        ([" you", " &", " me"], [" you", " &", " me"]),
        ([" ", "word", " "], [" word "]),
        ([" ...", " so"], [" ... so"]),
        ([" ...", " -"], [" ... -"]),
        (["a", " ", "b", ",", " ", "c"], ["a", " b,", " c"]),
        ([], []),
    ],
)
def test_words_between_spaces_with_their_punctuation(tokens, words):
    assert texts(tokens) == words


@pytest.mark.parametrize(
    ("language", "tokens", "words"),
    [
        ("zh", ["你好", "、", "世", "界", "。"], ["你好、", "世", "界。"]),
        ("ja", ["「", "はい", "」", "と"], ["「はい」", "と"]),
        ("ja", ["コ", "ー", "ヒー"], ["コ", "ー", "ヒー"]),
        ("yue", ["係", " ", "呀"], ["係", " 呀"]),
        ("th", ["ท", "ี่", "นี่"], ["ที่", "นี่"]),
        ("my", ["မ", "ြ", "န်"], ["မြ", "န်"]),
    ],
)
def test_languages_without_spaces(language, tokens, words):
    assert texts(tokens, language) == words


@pytest.mark.parametrize("language", ["zh", "en", None])
def test_a_character_of_several_tokens_is_never_cut(language):
    first, second = "你".encode(), "好".encode()
    words = split([first[:1], first[1:], second[:2], second[2:], "a"], language)
    expected = [("你", 0, 2), ("好", 2, 4), ("a", 4, 5)] if language == "zh" else [("你好a", 0, 5)]
    assert [(word.text, word.first, word.stop) for word in words] == expected


def test_bytes_that_are_no_text_spoil_no_other_word():
    replaced = " \N{REPLACEMENT CHARACTER} b"
    assert texts([" a", b" \xe4", b"\xbd", " b", " c"]) == [" a", replaced, " c"]
    assert texts([" a", b" \xe4"]) == [" a", " \N{REPLACEMENT CHARACTER}"]


def test_punctuation_is_not_spoken():
    opened, plain, closed = split([' "', "Yes", " sir", " know", ",", '"'])
    assert (opened.spoken, opened.silent) == (1, 2)
    assert (plain.spoken, plain.silent) == (0, 1)
    assert (closed.spoken, closed.silent) == (0, 1)
    (dots,) = split([" .", ".."])
    assert (dots.spoken, dots.silent) == (0, 2)


@given(st.lists(st.integers(0, 299), max_size=30), st.sampled_from(["en", "ja", None]))
def test_joined_words_are_the_text_whatever_the_tokens(tokens, language):
    words = split_words(tokens, TOKENIZER.decode, language)
    assert "".join(word.text for word in words) == TOKENIZER.decode(tokens)
    stop = 0
    for word in words:
        assert word.text
        assert word.first == stop
        assert 0 <= word.spoken < word.silent <= word.stop - word.first
        stop = word.stop
    assert stop == len(tokens) or not words


characters = ["a", " b", "é", "你", "🙂", "\N{REPLACEMENT CHARACTER}"]
fragments = st.sampled_from(characters).map(str.encode)
parts = st.one_of(fragments, st.binary(min_size=1, max_size=3))


@given(st.lists(st.tuples(parts, st.booleans()), max_size=40))
def test_pieces_are_the_shortest_runs_of_whole_characters(entries):
    """Tokens are characters, single bytes of them, or bytes that are no text."""
    cut = [[bytes([each]) for each in part] if split else [part] for part, split in entries]
    tokens = [token for part in cut for token in part]
    counted = 0

    def decode(ids):
        nonlocal counted
        counted += len(ids)
        return b"".join(tokens[each] for each in ids).decode(errors="replace")

    found = pieces(range(len(tokens)), decode)
    assert counted <= 6 * len(tokens)
    whole, first, expected = decode(range(len(tokens))), 0, []
    for stop in range(1, len(tokens) + 1):
        done, text = "".join(expected), decode(range(first, stop))
        if stop == len(tokens):
            text = whole[len(done) :]
        elif text.endswith("\N{REPLACEMENT CHARACTER}") or not whole[len(done) :].startswith(text):
            continue
        expected.append(text)
        first = stop
    assert [piece.text for piece in found] == expected
    assert [piece.stop for piece in found[:-1]] == [piece.first for piece in found[1:]]


def test_replacement_characters_are_read_in_linear_time():
    counted = 0

    def decode(ids):
        nonlocal counted
        counted += len(ids)
        return "\N{REPLACEMENT CHARACTER}" * len(ids)

    assert len(pieces(range(2_000), decode)) == 1
    assert counted <= 6 * 2_000
