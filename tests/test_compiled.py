"""Steps of fixed shape: the same logits and answers, few compilations, and errors that say what to do."""

from __future__ import annotations

import gc
import shutil
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch._dynamo
import torch._inductor.config
from helpers import TINY, ask
from torch._dynamo.testing import CompileCounter

from rapid_core import CompilationError, OptionError, RapidEngine, Speculation, attention, compiled, kv_cache
from rapid_core.compiled import BLOCKS, CompiledStep
from rapid_core.runner import ModelRunner
from rapid_core.testing import WordEncoder, tiny_model, tiny_pair

# Layers that are alike are compiled once, so that two say as much as four.
SMALL = {"num_hidden_layers": 2}
IDS = torch.arange(3, 3 + 2000) % 256


@pytest.fixture(autouse=True)
def forget_what_was_compiled():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def runner_of(model, backend=None):
    return ModelRunner(model, role="target", compiled=CompiledStep(backend) if backend else None)


def engine_of(backend, architecture="llama", **options):
    engine = RapidEngine(
        *tiny_pair(architecture, **options), retrieval=TINY, encoder=WordEncoder(), compile=backend or False
    )
    engine.target.model.generation_config.eos_token_id = -1
    return engine


def both(plain, step, ids, rows):
    """Logits of the ordinary and of the compiled step; the second must have been one."""
    calls = []
    run = step._compiled._run
    step._compiled._run = lambda *inputs: calls.append(1) or run(*inputs)
    expected, found = plain.forward(ids, rows), step.forward(ids, rows)
    step._compiled._run = run
    assert calls == [1] and plain.length == step.length
    return expected, found


def assert_same(expected, found):
    assert expected.shape == found.shape
    assert torch.allclose(found, expected, atol=1e-4, rtol=1e-4)
    assert torch.equal(found.argmax(dim=-1), expected.argmax(dim=-1))


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "mistral", "gemma3_text"])
def test_logits_equal_those_of_the_ordinary_path(architecture):
    """Blocks of 1 to 17, behind texts shorter and longer than the windows of 24, over rejected drafts."""
    model = tiny_model(architecture, **SMALL).model
    plain, step = runner_of(model), runner_of(model, "eager")
    for start in (5, 30, 490, 1300):
        for runner in (plain, step):
            runner.clear()
            runner.forward(IDS[:start], 1)
        for block in range(1, 18):
            assert_same(*both(plain, step, IDS[start + block : start + 2 * block], block))
            # Everything but one token was rejected.
            for runner in (plain, step):
                runner._cache.rewind(start + block)


@pytest.mark.parametrize("architecture", sorted(attention.ARCHITECTURES))
def test_every_architecture_of_ours_compiles_once_for_a_block_size_and_kind_of_layer(architecture):
    model = tiny_model(architecture).model
    counter = CompileCounter()
    plain, step = runner_of(model), runner_of(model, counter)
    for length in (100, 700):
        for runner in (plain, step):
            runner.clear()
            runner.forward(IDS[:length], 1)
        assert_same(*both(plain, step, IDS[length : length + 7], 7))
    # Where windows slide, a long cache is another case than a short one.
    assert counter.frame_count <= 1 + len(set(getattr(model.config, "layer_types", None) or [1]))


@pytest.mark.parametrize("sliding_window", [1, 2, 24, 300, None])
@pytest.mark.parametrize("queries", [1, 4, 16])
@pytest.mark.parametrize("start", [0, 10, 600, 1000])
def test_static_attention_sees_exactly_its_positions(sliding_window, queries, start):
    """What stands behind the queries is large, so that a weight of 1e-6 on it would be seen."""
    generator = torch.Generator().manual_seed(0)
    capacity, heads, groups, width = 2048, 2, 3, 8
    query = torch.randn(1, heads * groups, queries, width, generator=generator)
    key, value = (torch.randn(1, heads, capacity, width, generator=generator) for _ in range(2))
    end = start + queries
    value[:, :, end:] = 1e6
    positions = torch.arange(start, end)
    seen = torch.arange(end) <= positions.unsqueeze(1)
    if sliding_window is not None:
        seen &= torch.arange(end) > positions.unsqueeze(1) - sliding_window
    expected = torch.nn.functional.scaled_dot_product_attention(
        query,
        key[:, :, :end].repeat_interleave(groups, 1),
        value[:, :, :end].repeat_interleave(groups, 1),
        attn_mask=seen,
    )
    found, _ = attention.static_attention(
        None, query, key, value, positions.view(1, 1, -1, 1), sliding_window=sliding_window
    )
    assert torch.allclose(found, expected.transpose(1, 2), atol=1e-5)


def test_in_bfloat16_it_is_as_close_to_the_exact_logits_as_the_ordinary_path():
    exact_model, model = tiny_model(**SMALL).model, tiny_model(**SMALL).model.to(torch.bfloat16)
    exact, plain, step = runner_of(exact_model), runner_of(model), runner_of(model, "eager")
    for runner in (exact, plain, step):
        runner.forward(IDS[:300], 1)
    expected = exact.forward(IDS[300:308], 8)
    ordinary, found = both(plain, step, IDS[300:308], 8)
    assert (found - expected).abs().mean() < 1.5 * (ordinary - expected).abs().mean()


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text"])
def test_answers_equal_those_of_the_ordinary_path(architecture, document):
    with engine_of("eager", architecture) as engine, engine_of(None, architecture) as ordinary:
        for speculation in (Speculation.lossless(gamma=5), Speculation.off(), Speculation(eta=10.0, gamma=3)):
            found, expected = (ask(each, document, speculation=speculation) for each in (engine, ordinary))
            assert found.token_ids == expected.token_ids
            assert found.stats.accepted == expected.stats.accepted
            assert found.stats.notes == expected.stats.notes


def test_a_model_that_drafts_for_itself_is_compiled_once_for_both_roles(document):
    engine = RapidEngine(tiny_model(), retrieval=TINY, encoder=WordEncoder(), compile="eager")
    assert engine._target._compiled is engine._drafter._compiled is not None
    result = ask(engine, document, speculation=Speculation.lossless(gamma=4))
    assert result.stats.accepted > 0
    assert (
        result.token_ids
        == ask(
            RapidEngine(tiny_model(), retrieval=TINY, encoder=WordEncoder()), document, speculation=Speculation.off()
        ).token_ids
    )


def test_a_long_run_with_growing_caches_compiles_each_block_size_once():
    counter = CompileCounter()
    model = tiny_model(**SMALL).model
    step = runner_of(model, counter)
    step.forward(IDS[:200], 1)
    capacities = set()
    for number in range(200):
        block = number % 17 + 1
        step.forward(IDS[:block], block)
        step._cache.rewind(step.length - block + min(block, 5))
        capacities.add(step._cache.layers[0].capacity)
    assert len(capacities) > 2
    assert counter.frame_count == len({next(size for size in BLOCKS if size >= block) for block in range(1, 18)})


def test_longer_blocks_and_an_empty_cache_go_the_ordinary_way():
    step = runner_of(tiny_model(**SMALL).model, "eager")
    step._compiled._run = None
    step.forward(IDS[:5], 1)
    step.forward(IDS[: BLOCKS[-1] + 1], 1)
    with pytest.raises(TypeError):
        step.forward(IDS[: BLOCKS[-1]], 1)


def test_warming_up_compiles_every_block_size_and_keeps_the_cache(document):
    counter = CompileCounter()
    engine = RapidEngine(tiny_model(**SMALL), retrieval=TINY, encoder=WordEncoder(), compile="eager")
    step = CompiledStep(counter)
    engine._target._compiled = engine._drafter._compiled = step
    ask(engine, document, speculation=Speculation.off())
    held = engine._target.length
    engine.warm_up()
    assert counter.frame_count == len(BLOCKS)
    again = ask(engine, document, speculation=Speculation.lossless())
    assert engine._target.length >= held and again.usage.cached_tokens > 0
    assert counter.frame_count == len(BLOCKS)


def test_a_short_text_behind_a_long_one_does_not_attend_to_the_room_of_the_long_one():
    step, plain = (runner_of(tiny_model(**SMALL, window=8192).model, backend) for backend in ("eager", None))
    for runner in (step, plain):
        runner.prefill((IDS.tolist() * 4)[:6000], reserve=10)
        assert runner.prefill(IDS[:300].tolist(), reserve=10) == 299
    assert step._cache.layers[0].capacity == compiled.LEAST_CAPACITY
    assert_same(*both(plain, step, IDS[299:304], 5))


def test_capacities_are_whole_pieces():
    assert kv_cache.GRANULE % attention.PIECE == 0


def test_an_architecture_that_cannot_be_compiled_runs_as_ever_and_says_so(document):
    engine = engine_of("eager", "gpt_oss")
    result = ask(engine, document, speculation=Speculation.lossless())
    for role in ("target", "drafter"):
        assert f"the {role} has stock attention: 'gpt_oss' layers do not hand over all that shapes it" in (
            result.stats.notes
        )
        assert any(note.startswith(f"the {role} is not compiled: 'gpt_oss'") for note in result.stats.notes)
    plain = ask(engine_of(None, "gpt_oss"), document, speculation=Speculation.off())
    assert [note for note in plain.stats.notes if "attention" in note] == [
        "the target has stock attention: 'gpt_oss' layers do not hand over all that shapes it"
    ]
    assert plain.token_ids == result.token_ids


def test_positions_that_depend_on_the_length_and_hooks_are_not_compiled():
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    assert "length of the whole text" in runner_of(tiny_model(rope_parameters=rope).model, "eager").notes[0]
    hooked = tiny_model().model
    assert runner_of(hooked, "eager").notes == []
    hooked.model.layers[0].forward = hooked.model.layers[0].forward
    assert "hooks" in runner_of(hooked, "eager").notes[0]


def test_models_of_one_shape_share_what_is_compiled():
    counter = CompileCounter()
    for seed in (0, 1):
        step = runner_of(tiny_model(seed=seed).model, counter)
        step.forward(IDS[:20], 1)
        step.forward(IDS[:3], 1)
    assert counter.frame_count == 1


def test_steps_of_any_thread_use_what_another_one_compiled():
    counter = CompileCounter()
    step = runner_of(tiny_model(**SMALL).model, counter)
    step.forward(IDS[:20], 1)
    for _ in range(3):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(step.forward, IDS[:3], 1).result()
    assert counter.frame_count == 1


def test_what_stands_behind_the_length_is_finite():
    """A step reads it, and a weight of 0 on NaN is NaN."""
    runner = runner_of(tiny_model(**SMALL).model)
    runner.prefill(IDS[:300].tolist(), reserve=10)
    runner.prefill(IDS[:600].tolist(), reserve=10)
    for buffers in runner._cache.buffers():
        assert all(buffer[:, :, 599:].count_nonzero() == 0 for buffer in buffers)


def test_the_model_is_left_as_it_was():
    model = tiny_model(**SMALL).model
    step = runner_of(model, "eager")
    step.forward(IDS[:20], 1)
    step.forward(IDS[20:24], 1)
    assert model.config._attn_implementation == "sdpa"
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_closed_engine_leaves_its_model_to_the_collector(document):
    engine = engine_of("eager")
    ask(engine, document)
    seen = weakref.ref(engine.target.model)
    engine.close()
    gc.collect()
    assert seen() is None


def test_an_unknown_backend_is_refused_before_anything_is_read():
    with pytest.raises(OptionError, match="compile must be True, False or a backend.*'fastest'"):
        RapidEngine.load("no such folder", compile="fastest")


def test_a_step_that_cannot_be_taken_whole_is_an_error_with_its_remedy(monkeypatch):
    model = tiny_model(**SMALL).model
    original = type(model.model.layers[0]).forward

    def leaky(self, hidden_states, *inputs, **options):
        if float(hidden_states.sum()) > 1e9:
            return hidden_states
        return original(self, hidden_states, *inputs, **options)

    monkeypatch.setattr(type(model.model.layers[0]), "forward", leaky)
    step = runner_of(model, "eager")
    step.forward(IDS[:20], 1)
    with pytest.raises(CompilationError, match="as a whole.*without compile=True"):
        step.forward(IDS[20:24], 1)
    assert step.length == 20
    assert not any("forward" in vars(module) for module in model.modules())


def test_too_many_compilations_are_an_error_and_not_slow_in_silence(monkeypatch):
    monkeypatch.setattr(compiled, "RECOMPILE_LIMIT", 2)
    step = runner_of(tiny_model(**SMALL).model, "eager")
    step.forward(IDS[:20], 1)
    step.forward(IDS[:1], 1)
    step.forward(IDS[:2], 1)
    with pytest.raises(CompilationError, match="RecompileLimit"):
        step.forward(IDS[:4], 1)


# torch's own modules, which inductor is the first to import, use what torch deprecates.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_missing_compiler_is_told_when_the_engine_is_made(monkeypatch, tmp_path):
    # What was compiled before would be found in the cache on disk.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with (
        torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)}),
        pytest.raises(CompilationError, match="InvalidCxxCompiler.*without compile=True"),
    ):
        RapidEngine(tiny_model(num_hidden_layers=1), retrieval=TINY, encoder=WordEncoder(), compile=True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_with_inductor_logits_are_the_same_or_a_missing_compiler_is_said():
    model = tiny_model(num_hidden_layers=1).model
    plain, step = runner_of(model), runner_of(model, "inductor")
    for runner in (plain, step):
        runner.forward(IDS[:300], 1)
    if shutil.which("g++") or shutil.which("clang++"):
        assert_same(*both(plain, step, IDS[300:303], 3))
    else:
        with pytest.raises(CompilationError, match="without compile=True"):
            step.forward(IDS[300:303], 3)
