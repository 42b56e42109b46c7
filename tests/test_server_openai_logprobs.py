"""The bytes of tokens."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from openai_answers import CHUNKS
from tokenizers.pre_tokenizers import ByteLevel

from tests.support.tiny_whispers import SMALL, tokenizer_of
from whosaid.server.openai_api.logprobs import token_logprobs
from whosaid.transcript import Chunk


@pytest.mark.parametrize(
    "text", [" Good morning", "\u00fcber \u6f22\u5b57 \U0001f600", "\n\t\x00\xad\xa0"]
)
def test_bytes_are_those_that_the_tokenizer_writes(text):
    writer = ByteLevel(add_prefix_space=False, use_regex=False)
    ((written, _),) = writer.pre_tokenize_str(text)
    tokenizer = SimpleNamespace(convert_ids_to_tokens=lambda _: [written])
    (entry,) = token_logprobs([Chunk(text, 0.0, 1.0, tokens=(0,), log_probs=(0.0,))], tokenizer)
    assert bytes(entry["bytes"]) == text.encode()


def test_every_token_has_an_entry_in_order():
    tokenizer = tokenizer_of(SMALL)
    entries = token_logprobs(CHUNKS, tokenizer)
    assert [each["logprob"] for each in entries] == [-0.5, -0.25, -1.0, -2.0]
    assert [each["token"] for each in entries] == [tokenizer.decode([n]) for n in range(301, 305)]
    assert all(bytes(each["bytes"]).decode() == each["token"] for each in entries)
