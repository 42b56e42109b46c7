"""Rows as they are initialised, and what their first pass says."""

from __future__ import annotations

import oracle
import pytest
import torch
from oracle import TINY, models_of

from asr.engine.decode_state import DecodeState
from asr.engine.logit_filters import LogitFilter
from asr.engine.prefill import PrefillInput, init_rows, language_posterior, prefill
from asr.engine.row_state import SequenceState
from asr.model.decoder import Decoder
from asr.model.encoder import Encoder


def test_initialising_forgets_what_a_row_held():
    rows = SequenceState.allocate(2, 12, torch.device("cpu"))
    rows.finished.fill_(True)
    rows.accepted.fill_(3)
    rows.temperature.fill_(1.0)
    uniform = torch.linspace(0, 0.9, 10)
    sampled = PrefillInput((1, 2, 3), 8, False, False, 0.5, uniform[:8])
    init_rows([PrefillInput((4, 5), 10, True), sampled], rows)
    assert rows.length.tolist() == rows.prompt_len.tolist() == [2, 3]
    assert rows.tokens[:, :3].tolist() == [[4, 5, 0], [1, 2, 3]]
    assert rows.max_length.tolist() == [10, 8]
    assert rows.temperature.tolist() == [0.0, 0.5]
    assert rows.timestamps.tolist() == [True, False]
    assert rows.grammar_start.tolist() == [2, 12]  # none of the second row's positions
    assert rows.draftable.tolist() == [True, False]
    assert rows.accepted.tolist() == [0, 0]
    assert not rows.finished.any()
    assert torch.equal(rows.uniform[1, :8], uniform[:8])


@torch.inference_mode()
def test_first_tokens_and_no_speech_are_those_of_transformers():
    models, windows = models_of(TINY), oracle.noise_windows(4)
    encoded = Encoder(models).encode(windows, drafted=False).main
    state = DecodeState.allocate(Decoder(models.model), None, 4, 0)
    state.main.decoder.fill_cross_kv(encoded, state.main.cache)
    prompts = oracle.prompts_of(models.special_tokens, True, 4)
    init_rows([PrefillInput(prompt, 448, False) for prompt in prompts], state.rows)
    filters = LogitFilter.of(models.special_tokens, state.main.decoder.token_embeddings)
    starts = prefill(state.main, None, state.rows, filters, models.special_tokens)
    for row, prompt in enumerate(prompts):
        logits = models.model(
            encoder_outputs=(encoded[row, None],), decoder_input_ids=torch.tensor([prompt])
        ).logits[0]
        start = prompt.index(models.special_tokens.start_of_transcript)
        languages = list(models.special_tokens.languages.values())
        among = logits[start, languages].softmax(-1)
        expected = [
            logits[start].softmax(-1)[models.special_tokens.no_speech],
            languages[int(among.argmax())],
            among.max(),
        ]
        assert starts[row].tolist() == pytest.approx([float(each) for each in expected])
        scores = oracle.rules_of(models, True, len(prompt))(torch.tensor([prompt]), logits[-1:])
        assert state.rows.tokens[row, len(prompt)] == scores.argmax()
    assert state.rows.length.tolist() == [len(prompt) + 1 for prompt in prompts]
    posterior = language_posterior(state.main.view(0, 1), encoded[:1], models.special_tokens)
    among = list(models.special_tokens.languages.values())
    start = torch.tensor([[models.special_tokens.start_of_transcript]])
    logits = models.model(encoder_outputs=(encoded[:1],), decoder_input_ids=start).logits[0, 0]
    shares = logits[among].softmax(-1)
    assert list(posterior.probabilities) == list(models.special_tokens.languages)
    assert list(posterior.probabilities.values()) == pytest.approx(shares.tolist())
    detected = posterior.likeliest
    assert detected.language == list(models.special_tokens.languages)[int(shares.argmax())]
    assert detected.probability == pytest.approx(float(shares.max()))
    assert detected.no_speech_prob == pytest.approx(float(starts[0, 0]))
