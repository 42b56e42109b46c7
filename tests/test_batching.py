"""Who sits where: rows move up when others leave, and every window keeps its own answer."""

from __future__ import annotations

import oracle
import torch
from oracle import TINY, models_of

from asr.batching import Course, Passage, RunningBatch
from asr.decoder import Decoder
from asr.hearing import Hearing
from asr.rounds import EagerRounds
from asr.rules import TokenRules
from asr.speculative import Batch


def running_batch(models, rows):
    batch = Batch.allocate(Decoder(models.model), None, rows, 0)
    rules = TokenRules.of(models.vocabulary, True, batch.main.decoder.token_embeddings)
    course = Course(rules, models.vocabulary, EagerRounds(), models.tokenizer.decode, None, None, None)
    return RunningBatch(batch, rows, course)


def test_windows_that_join_and_leave_in_any_order_get_their_own_answers():
    models = models_of(TINY, 142)
    prompts = oracle.prompts_of(models.vocabulary, True, 9)
    samples = oracle.noise_windows(9)
    waiting = [Passage(key, *each, 4 + 7 * (key % 4)) for key, each in enumerate(zip(samples, prompts, strict=True))]
    expected = {}
    for passage in waiting:
        expected |= oracle.greedy(models, [passage], timestamps=True)
    running, hearing, answers, most = running_batch(models, 4), Hearing(models), {}, 0
    while waiting or running.slots:
        if waiting and running.free:
            running.admit(waiting[:1], hearing.hear([waiting.pop(0).samples], drafted=False))
        most = max(most, len(running.slots))
        for passage, answer in running.step():
            answers[passage.key] = answer.tokens
    assert answers == expected
    assert most == 4
    assert torch.equal(running.batch.rows.finished, torch.ones(4, dtype=torch.bool))
