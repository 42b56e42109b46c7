"""Alternatives of a text are scored like transformers (`token_tree`), and written if likely."""

import dataclasses

import numpy as np
import pytest
import torch

from tests.helpers import oracle
from tests.helpers.oracle import TINY, decode, models_of, windows_of
from tests.test_engine import RAGGED, engine_of
from whosaid.asr.engine import rescoring
from whosaid.asr.engine.fallback import Fallback
from whosaid.asr.engine.request import DecodeOptions
from whosaid.asr.engine.rescoring import Alternative, accept_alternatives
from whosaid.asr.model.decoder import normalize_attention, sharpest_heads

ENDING = RAGGED[TINY]


@torch.inference_mode()
def log_probs_of(window, prompt, text):
    """Return transformers' log-probability of each token of `text` after the prompt."""
    models = models_of(TINY, ENDING)
    features = oracle.features_of(models, window.samples)
    read = torch.tensor([[*prompt, *text]])
    scores = models.model(features, decoder_input_ids=read[:, :-1]).logits.log_softmax(-1)[0]
    return scores[len(prompt) - 1 :].gather(1, torch.tensor(text)[:, None])[:, 0]


class Proposing:
    """Proposes random alternatives, some of which overlap, and keeps what it was asked."""

    def __init__(self, count=9):
        self.count, self.asked = count, []

    def propose(self, prompt, tokens, log_probs):
        random = np.random.default_rng(len(tokens))
        found = []
        for _ in range(self.count):
            start = int(random.integers(len(tokens)))
            stop = int(random.integers(start + 1, min(start + 4, len(tokens)) + 1))
            new = random.integers(TINY.text_entries, size=random.integers(1, 6))
            found.append(Alternative(start, stop, tuple(new.tolist())))
        self.asked.append((prompt, tuple(tokens), found))
        return found


@pytest.mark.parametrize(("num_beams", "drafts"), [(1, 0), (3, 0), (1, 3)])
@pytest.mark.parametrize("timestamps", [True, False])
def test_branches_are_scored_as_by_transformers(num_beams, drafts, timestamps, monkeypatch):
    """About half of the alternatives are likely enough, and are refused here."""
    proposing, scored = Proposing(), []
    score = rescoring.score_branches

    def recorded(*given):
        scored.append((*given[1:], score(*given)))
        return scored[-1][-1]

    monkeypatch.setattr(rescoring, "score_branches", recorded)
    monkeypatch.setattr(rescoring, "HANDICAP", 12.0)
    monkeypatch.setattr(rescoring, "accept_alternatives", lambda *given: chosen.append(given) or [])
    chosen, windows = [], windows_of(timestamps, 4)
    engine = engine_of(TINY, ENDING, 0.1 if drafts else None)
    options = DecodeOptions(timestamps, drafts > 0, 4, drafts=drafts, num_beams=num_beams)
    plain = decode(engine, windows, options)
    assert decode(engine, windows, dataclasses.replace(options, proposer=proposing)) == plain
    by_text = {(*window.prompt, *plain[window.key].tokens): window for window in windows}
    for text, branches, found in scored:
        window = next(each for known, each in by_text.items() if text[: len(known)] == known)
        for (fork, tokens), scores in zip(branches, found, strict=True):
            expected = log_probs_of(window, text[:fork], tokens)
            ours = torch.tensor(scores)
            torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0, check_dtype=False)
    assert len(chosen) == len(proposing.asked) == len(windows)
    eos = models_of(TINY).special_tokens.end_of_text
    for (prompt, tokens, found), (hopeful, margins) in zip(proposing.asked, chosen, strict=True):
        window = by_text[prompt + tokens]
        result = plain[window.key]
        text, positive = (*tokens, *(eos,) * result.ended), []
        for each in found:
            stop = each.stop + rescoring.NEXT_TOKENS
            new = (*each.tokens, *text[each.stop : stop])
            likely = log_probs_of(window, (*prompt, *tokens[: each.start]), new).sum().item()
            margin = likely - sum(result.log_probs[each.start : stop])
            margin += 12 * len(each.tokens)
            if margin > 0:
                positive.append((each, pytest.approx(margin, abs=1e-4)))
        likely_enough = [pair for pair in zip(hopeful, margins, strict=True) if pair[1] > 0]
        assert likely_enough == positive


@pytest.mark.parametrize("num_beams", [1, 3])
def test_accepted_tokens_have_their_own_scores_and_attention(num_beams, monkeypatch):
    monkeypatch.setattr(rescoring, "HANDICAP", 1e9)  # whatever the audio says
    proposing, windows = Proposing(), windows_of(True, 3)
    engine = engine_of(TINY, ENDING)
    options = DecodeOptions(num_beams=num_beams)
    plain = decode(engine, windows, options)
    answers = decode(engine, windows, dataclasses.replace(options, proposer=proposing))
    for window in windows:
        before, after = plain[window.key], answers[window.key]
        end = (engine.models.special_tokens.end_of_text,) * after.ended
        scores = log_probs_of(window, window.prompt, (*after.tokens, *end)).tolist()
        kept, restored = [*after.log_probs], [*after.tokens]
        assert after.replaced
        for start, stop, decoded in reversed(after.replaced):
            assert after.log_probs[start:stop] == pytest.approx(scores[start:stop], abs=1e-5)
            restored[start:stop] = decoded
            kept[start:stop] = [None] * len(decoded)
        assert tuple(restored) == before.tokens
        pairs = zip(kept, before.log_probs, strict=True)
        assert all(own in (None, earlier) for own, earlier in pairs)
        heads = [tuple(head) for head in engine.main.aligned.T.tolist()]
        attention = oracle.cross_attention(engine.models, window, (*after.tokens, *end), heads)
        expected = normalize_attention(sharpest_heads(attention))
        np.testing.assert_allclose(after.attention, expected, atol=1e-4)


def test_the_best_alternatives_that_do_not_overlap_are_accepted():
    random = np.random.default_rng(0)
    for _ in range(50):
        starts = random.integers(0, 12, 8).tolist()
        lengths = [int(random.integers(1, 4)) for _ in starts]
        proposed = [Alternative(s, s + lengths[n], (n,)) for n, s in enumerate(starts)]
        margins = random.normal(size=8).tolist()
        accepted = accept_alternatives(proposed, margins)
        assert accepted == sorted(accepted)
        taken = [{*range(each.start, each.stop)} for each in accepted]
        assert len(set().union(*taken)) == sum(map(len, taken))
        for each, margin in zip(proposed, margins, strict=True):
            own = {*range(each.start, each.stop)}
            rivals = [margins[other.tokens[0]] for other, n in zip(accepted, taken, strict=True)
                      if n & own]  # fmt: skip
            assert (each in accepted) == (margin > 0 and margin >= max(rivals, default=margin))


@pytest.mark.parametrize(("behind", "accepted"), [(2.5 * 3 - 0.01, True), (7.51, False)])
def test_an_alternative_may_be_a_little_less_likely(behind, accepted, monkeypatch):
    """The first of one text's tokens is exchanged for three that are less likely by `behind`."""
    (window,) = windows_of(True, 1)
    monkeypatch.setattr(Proposing, "propose", lambda *_: [Alternative(1, 2, (7, 8, 9))])

    plain = decode(engine_of(TINY, ENDING), [window], DecodeOptions())
    equal = sum(plain[window.key].log_probs[1 : 2 + rescoring.NEXT_TOKENS])
    scores = [equal - behind]
    monkeypatch.setattr(rescoring, "score_branches", lambda *given: [scores] * len(given[-1]))
    answers = decode(engine_of(TINY, ENDING), [window], DecodeOptions(proposer=Proposing()))
    assert bool(answers[window.key].replaced) == accepted


def test_a_rejected_text_is_not_rescored():
    """Second attempts are, or first ones that are preferred to them."""
    proposing, windows = Proposing(0), windows_of(True, 3)
    options = DecodeOptions(fallback=Fallback(3, logprob_threshold=0.0), proposer=proposing)
    answers = decode(engine_of(TINY, ENDING), windows, options)
    texts = [each.tokens for each in answers.values() if each.tokens]
    assert sorted(tokens for _, tokens, _ in proposing.asked) == sorted(texts)
