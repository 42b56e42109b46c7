"""Rows as they are entered, and what their first pass says."""

from __future__ import annotations

import oracle
import pytest
import torch
from oracle import TINY, models_of

from asr.engine.logit_filters import LogitFilter
from asr.engine.prefill import Entry, detect_language, enter, read_prompts
from asr.engine.speculative import Batch, Rows
from asr.model.decoder import Decoder
from asr.model.encoder import Encoder


def test_entering_forgets_what_a_row_held():
    rows = Rows.allocate(2, 12, torch.device("cpu"))
    rows.finished.fill_(True)
    rows.accepted.fill_(3)
    rows.temperature.fill_(1.0)
    chance = torch.linspace(0, 0.9, 10)
    enter([Entry((4, 5), 10, True), Entry((1, 2, 3), 8, False, 0.5, chance[:8])], rows)
    assert rows.length.tolist() == rows.begin.tolist() == [2, 3]
    assert rows.tokens[:, :3].tolist() == [[4, 5, 0], [1, 2, 3]]
    assert rows.limit.tolist() == [10, 8]
    assert rows.temperature.tolist() == [0.0, 0.5]
    assert rows.draftable.tolist() == [True, False]
    assert rows.accepted.tolist() == [0, 0]
    assert not rows.finished.any()
    assert torch.equal(rows.chance[1, :8], chance[:8])


@torch.inference_mode()
def test_first_tokens_and_no_speech_are_those_of_transformers():
    models, windows = models_of(TINY), oracle.noise_windows(4)
    encoded = Encoder(models).hear(windows, drafted=False).main
    batch = Batch.allocate(Decoder(models.model), None, 4, 0)
    batch.main.decoder.listen(encoded, batch.main.cache)
    prompts = oracle.prompts_of(models.special_tokens, True, 4)
    enter([Entry(prompt, 448, False) for prompt in prompts], batch.rows)
    rules = LogitFilter.of(models.special_tokens, True, batch.main.decoder.token_embeddings)
    no_speech = read_prompts(batch.main, None, batch.rows, rules, models.special_tokens)
    for row, prompt in enumerate(prompts):
        logits = models.model(
            encoder_outputs=(encoded[row, None],), decoder_input_ids=torch.tensor([prompt])
        ).logits[0]
        start = prompt.index(models.special_tokens.start_of_transcript)
        torch.testing.assert_close(
            no_speech[row], logits[start].softmax(-1)[models.special_tokens.no_speech]
        )
        scores = oracle.rules_of(models, True, len(prompt))(torch.tensor([prompt]), logits[-1:])
        assert batch.rows.tokens[row, len(prompt)] == scores.argmax()
    assert batch.rows.length.tolist() == [len(prompt) + 1 for prompt in prompts]
    heard = detect_language(batch.main.view(0, 1), models.special_tokens)
    among = list(models.special_tokens.languages.values())
    start = torch.tensor([[models.special_tokens.start_of_transcript]])
    logits = models.model(encoder_outputs=(encoded[:1],), decoder_input_ids=start).logits[0, 0]
    shares = logits[among].softmax(-1)
    assert heard.language == list(models.special_tokens.languages)[int(shares.argmax())]
    assert heard.probability == pytest.approx(float(shares.max()))
    assert heard.no_speech == pytest.approx(float(no_speech[0]))
