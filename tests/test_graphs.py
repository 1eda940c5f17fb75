"""The recording of steps as CUDA graphs, on an emulation: operations are written down and run again in place."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rapid_core import CompilationError
from rapid_core.compiled import CompiledStep
from rapid_core.runner import ModelRunner
from rapid_core.testing import tiny_model

IDS = torch.arange(3, 3 + 2000) % 256


class Recorder(TorchDispatchMode):
    """Like a CUDA graph it knows operations and the tensors that they had, and no Python."""

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, out))
        return out

    def replay(self):
        for func, args, kwargs, out in self.operations:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


@pytest.fixture
def graphs(monkeypatch):
    """What was recorded, in order; torch.cuda is as much as the code calls of it."""
    recorded = []

    @contextmanager
    def record(graph, *, pool, stream, capture_error_mode):
        assert pool == "pool" and capture_error_mode == "thread_local"
        recorded.append(graph)
        with graph:
            yield

    stream = SimpleNamespace(wait_stream=lambda other: None)
    for name, double in {
        "device": lambda device: nullcontext(),
        "graph_pool_handle": lambda: "pool",
        "Stream": lambda: stream,
        "stream": lambda stream: nullcontext(),
        "current_stream": lambda: stream,
        "CUDAGraph": Recorder,
        "graph": record,
    }.items():
        monkeypatch.setattr(torch.cuda, name, double)
    monkeypatch.setattr(CompiledStep, "_is_recorded", lambda self, ids: True)
    # torch.compile takes no function while a dispatch mode looks on.
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    return recorded


def runner_of(model, compiled=None):
    return ModelRunner(model, role="target", compiled=compiled)


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text"])
def test_replayed_steps_give_the_logits_of_the_ordinary_path(graphs, architecture):
    """Over growing lengths and rejected drafts, each block size is recorded once for the same buffers."""
    model = tiny_model(architecture, num_hidden_layers=2).model
    step, plain = runner_of(model, CompiledStep("eager")), runner_of(model)
    for runner in (step, plain):
        runner.prefill(IDS[:600].tolist(), reserve=100)
    for number in range(12):
        block = (1, 3, 5)[number % 3]
        ids = IDS[700 + 5 * number :][:block]
        found, expected = step.forward(ids, block), plain.forward(ids, block)
        assert torch.allclose(found, expected, atol=1e-4, rtol=1e-4)
        for runner in (step, plain):
            runner._cache.rewind(runner.length - block // 2)
    assert len(graphs) == len(step._cache.graphs) == 3


def test_logits_are_not_overwritten_by_the_next_step(graphs):
    step = runner_of(tiny_model(num_hidden_layers=1).model, CompiledStep("eager"))
    step.forward(IDS[:20], 1)
    first = step.forward(IDS[20:21], 1)
    kept = first.clone()
    step.forward(IDS[21:22], 1)
    assert torch.equal(first, kept)


def test_buffers_that_moved_are_recorded_anew_and_cleared_ones_forgotten(graphs):
    model = tiny_model(num_hidden_layers=1, window=4096).model
    step, plain = runner_of(model, CompiledStep("eager")), runner_of(model)
    for runner in (step, plain):
        runner.forward(IDS[:500], 1)
        runner.forward(IDS[500:501], 1)
        runner.forward(IDS[501:800], 1)
    assert torch.allclose(step.forward(IDS[800:801], 1), plain.forward(IDS[800:801], 1), atol=1e-4)
    assert len(graphs) == 2 and len(step._cache.graphs) == 1
    step.clear()
    assert step._cache.graphs == {}


def test_two_roles_with_one_model_share_what_is_compiled_and_record_their_own_caches(graphs):
    model = tiny_model(num_hidden_layers=1).model
    compiled = CompiledStep("eager")
    target, drafter, plain = runner_of(model, compiled), runner_of(model, compiled), runner_of(model)
    for runner, length in ((target, 300), (drafter, 40)):
        runner.forward(IDS[:length], 1)
    for number in range(3):
        for runner in (target, drafter):
            plain.clear()
            plain.forward(IDS[: runner.length - number], 1)
            for earlier in range(number):
                plain.forward(IDS[900 + earlier :][:1], 1)
            ids = IDS[900 + number :][:1]
            assert torch.allclose(runner.forward(ids, 1), plain.forward(ids, 1), atol=1e-4, rtol=1e-4)
    assert len(graphs) == 2


def test_a_failed_recording_says_what_to_do_and_a_full_memory_stays_what_it_is(graphs, monkeypatch):
    step = runner_of(tiny_model(num_hidden_layers=1).model, CompiledStep("eager"))
    step.forward(IDS[:20], 1)

    def fail_with(error):
        def graph(*_, **__):
            raise error

        monkeypatch.setattr(torch.cuda, "graph", graph)

    fail_with(RuntimeError("operation not permitted when stream is capturing"))
    with pytest.raises(CompilationError, match="CUDA graph.*not permitted.*without compile=True"):
        step.forward(IDS[20:21], 1)
    fail_with(torch.OutOfMemoryError("full"))
    with pytest.raises(torch.OutOfMemoryError, match="full"):
        step.forward(IDS[20:21], 1)
    assert step.length == 20
