"""Who sits where: rows move up when others leave, and every window keeps its own answer."""

from __future__ import annotations

import oracle
import torch
from oracle import TINY, models_of

from asr.engine.logit_filters import LogitFilter
from asr.engine.runner import EagerRounds
from asr.engine.scheduler import Course, Request, Scheduler
from asr.engine.speculative import Batch
from asr.model.decoder import Decoder
from asr.model.encoder import Encoder


def running_batch(models, rows):
    batch = Batch.allocate(Decoder(models.model), None, rows, 0)
    rules = LogitFilter.of(models.special_tokens, True, batch.main.decoder.token_embeddings)
    course = Course(
        rules, models.special_tokens, EagerRounds(), models.tokenizer.decode, None, None, None
    )
    return Scheduler(batch, rows, course)


def test_windows_that_join_and_leave_in_any_order_get_their_own_answers():
    models = models_of(TINY, 142)
    prompts = oracle.prompts_of(models.special_tokens, True, 9)
    samples = oracle.noise_windows(9)
    waiting = [
        Request(key, *each, 4 + 7 * (key % 4))
        for key, each in enumerate(zip(samples, prompts, strict=True))
    ]
    expected = {}
    for passage in waiting:
        expected |= oracle.greedy(models, [passage], timestamps=True)
    running, hearing, answers, most = running_batch(models, 4), Encoder(models), {}, 0
    while waiting or running.slots:
        if waiting and running.free:
            running.admit(waiting[:1], hearing.hear([waiting.pop(0).samples], drafted=False))
        most = max(most, len(running.slots))
        for passage, answer in running.step():
            answers[passage.key] = answer.tokens
    assert answers == expected
    assert most == 4
    assert torch.equal(running.batch.rows.finished, torch.ones(4, dtype=torch.bool))
