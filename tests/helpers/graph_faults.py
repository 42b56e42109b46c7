"""Faults of captured steps, put in by hand: each must be found, by a Fault or as other texts.

Each takes pytest's monkeypatch."""

import itertools

import pytest
import torch

from tests.helpers.cuda_emulator import CUDA
from whosaid.asr.engine import cuda_graphs, speculative
from whosaid.asr.engine.batch import Batch
from whosaid.asr.engine.cuda_graphs import CudaGraphRunner
from whosaid.asr.model.decoder import Decoder


def forget_in_key(field, value):
    """Take graphs of shapes that differ in one field for each other."""

    def fault(patch):
        run = CudaGraphRunner._run

        def mistaken(self, owner, key, *rest):
            if key[0] == "step":
                key = (*key[:2], key[2]._replace(**{field: value}))
            return run(self, owner, key, *rest)

        patch.setattr(CudaGraphRunner, "_run", mistaken)

    return fault


def cache_positions(patch):
    """A tensor made in one capture, used by the next."""
    made, arange, real = {}, torch.arange, Decoder._context

    def cached(*args, **options):
        if not torch._C._len_torch_dispatch_stack():  # nothing is captured
            return arange(*args, **options)
        return made.setdefault(args, arange(*args, **options))

    def context(self, *args):
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(torch, "arange", cached)
            return real(self, *args)

    patch.setattr(Decoder, "_context", context)


def read_late(patch):
    """The result is read where the next replay writes it."""

    def copy_out(result):
        return lambda: cuda_graphs.StepResult(*result.tolist())

    patch.setattr(cuda_graphs, "_copy_out", copy_out)


def do_not_wait(patch):
    """The host reads before the copy has arrived."""

    def copy_out(result):
        pinned = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
        pinned.copy_(result, non_blocking=True)
        return lambda: cuda_graphs.StepResult(*pinned.tolist())

    patch.setattr(cuda_graphs, "_copy_out", copy_out)


def keep_graphs_of_freed_memory(patch):
    """Nothing is dropped, and an allocator gives the same address again."""
    patch.setattr(CudaGraphRunner, "release", lambda *_: None)
    patch.setattr(cuda_graphs, "_memory_of", lambda state: 0)


def share_streams(patch):
    stream = torch.cuda.Stream()
    patch.setattr(torch.cuda, "Stream", lambda *_, **__: stream)


def drop_one(patch):
    run = CudaGraphRunner._run

    def run_few(self, owner, *rest):
        graphs = self._sets[owner].graphs if owner in self._sets else {}
        if len(graphs) > 2 and not self._capturing:
            graphs.pop(next(iter(graphs)))
        return run(self, owner, *rest)

    patch.setattr(CudaGraphRunner, "_run", run_few)


def leave_out_grammar(patch):
    """Steps do not compute the grammar that some rows follow."""
    step = cuda_graphs.decode_step

    def without(state, filters, shape):
        step(state, filters, shape._replace(timestamps=False))

    patch.setattr(cuda_graphs, "decode_step", without)


def bake(patch):
    """The step attends to as many positions as the host knows of: right, unless it is captured."""
    launch, step, longest = Batch._launch, cuda_graphs.decode_step, [1]

    def told(self):
        longest[0] = self._longest + 1
        launch(self)

    def exact(state, filters, shape):
        step(state, filters, shape._replace(kv_len=min(longest[0], shape.kv_len)))

    patch.setattr(Batch, "_launch", told)
    patch.setattr(cuda_graphs, "decode_step", exact)


def in_step(action):

    def fault(patch):
        real = speculative.count_accepted

        def faulty(rows, *choice):
            action(rows)
            return real(rows, *choice)

        patch.setattr(speculative, "count_accepted", faulty)

    return fault


def weights(*shape, dtype=torch.float64):
    return torch.zeros(shape, dtype=dtype, device=CUDA)


def product(rows, columns, dtype=torch.float64):
    return torch.mm(weights(rows, 8, dtype=dtype), weights(8, columns, dtype=dtype))


COUNT = itertools.count(1)  # no product has the shape of another


def read_inputs_of_the_capture(patch):
    """Encoders and prefill read the windows and rows that they were captured with."""
    captured = cuda_graphs.Captured

    def made(graph, inputs, result):
        return captured(graph, [each.clone() for each in inputs], result)

    patch.setattr(cuda_graphs, "Captured", made)


def hand_out_what_is_overwritten(patch):
    """The result of an encoder or a prefill is used after the next pass."""
    run = CudaGraphRunner._run

    def overwritten(self, owner, key, work, inputs=()):
        graphs = self._sets[owner].graphs if owner in self._sets and self.enabled else {}
        if key not in graphs or self._capturing:
            return run(self, owner, key, work, inputs)
        for target, source in zip(graphs[key].inputs, inputs, strict=True):
            target.copy_(source)
        graphs[key].graph.replay()
        return graphs[key].result

    patch.setattr(CudaGraphRunner, "_run", overwritten)


# Which show in what a replay gives.
WRONG_VALUES = {
    "key without length": forget_in_key("kv_len", 64),
    "key without sampling": forget_in_key("sampled", False),
    "steps without grammar": leave_out_grammar,
    "cached tensor of a capture": cache_positions,
    "result read late": read_late,
    "host memory read early": do_not_wait,
    "host number baked in": bake,
}
# Which no capture may hold, or a GPU would refuse or compute slowly.
REFUSED = {
    "value read": in_step(lambda rows: rows.length.max().item()),
    "truth read": in_step(lambda rows: bool(rows.finished.all())),
    "list read": in_step(lambda rows: rows.length.tolist()),
    "copied to the host": in_step(lambda rows: rows.length.cpu()),
    "copied from the host": in_step(lambda _: torch.tensor([1, 2], device=CUDA)),
    "host index": in_step(lambda rows: rows.tokens[torch.arange(1)]),
    "host tensor": in_step(lambda rows: rows.length + torch.ones(len(rows.length))),
    "boolean index": in_step(lambda rows: rows.tokens[rows.finished]),
    "nonzero": in_step(lambda rows: rows.finished.nonzero()),
    "random": in_step(lambda _: torch.rand(2, device=CUDA)),
    "another precision": in_step(lambda _: product(8, 8, torch.float32)),
    "strided weights": in_step(
        lambda _: torch.bmm(weights(1, 8, 8).expand(2, 8, 8), weights(2, 8, 8))
    ),
    "new product": in_step(lambda _: product(1, 8 * next(COUNT))),
    "unaligned rows": in_step(lambda _: product(8, 7)),
}
# Which let graphs outlive what they use.
LIFETIMES = {"graphs over freed memory": keep_graphs_of_freed_memory}
LIFETIMES |= {"one stream for all owners": share_streams, "a graph dropped alone": drop_one}
# Of the graphs by which windows enter.
ENTRIES = {"inputs of the capture": read_inputs_of_the_capture}
ENTRIES["result overwritten"] = hand_out_what_is_overwritten
FAULTS = WRONG_VALUES | REFUSED | LIFETIMES | ENTRIES
