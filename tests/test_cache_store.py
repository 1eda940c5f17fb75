"""Several documents in the caches: which go on, which fork, which go, and what they take."""

from __future__ import annotations

import pytest
import torch
from helpers import TINY, ask

from rapid_core import LongContext, Message, OptionError, RapidEngine, Sampling, Speculation
from rapid_core.cache_store import BLOCK, CacheBudget, CacheStore, shared_prefix
from rapid_core.kv_cache import GRANULE
from rapid_core.runner import ModelRunner, check_rewind
from rapid_core.testing import WordEncoder, save_tiny_model, tiny_engine, tiny_model, tiny_pair

GIB = 2**30
# Keys and values of one token in a tiny model: 4 layers, 2 heads of 16, float32.
TOKEN_BYTES = 4 * 2 * 2 * 16 * 4


def make_engine(cache_gib=4.0, **options):
    return RapidEngine(*tiny_pair(**options), retrieval=TINY, encoder=WordEncoder(), cache_gib=cache_gib)


def bytes_held(*runners):
    caches = [slot.cache for runner in runners for slot in runner.store.slots]
    layers = [layer for cache in caches for layer in cache.layers if layer.is_initialized]
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)


def make_runners(limit_tokens, count=1):
    budget, model = CacheBudget(limit_tokens * TOKEN_BYTES), tiny_model().model
    return [ModelRunner(model, role="target", store=CacheStore(budget, check_rewind(model))) for _ in range(count)]


def text(seed, length):
    return torch.randint(3, 250, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def held(runner, ids):
    """How many of `ids` the runner would not read again."""
    return max(slot.shared(ids, False) for slot in runner.store.slots)


def test_documents_in_turn_are_read_once_and_answered_like_by_a_fresh_engine(document):
    other = document.replace("lives in", "was seen near")
    asked = [
        (text, question)
        for question in ("Who lives in Lima?", "What number is it?")
        for text in (document, other, document[:300])
    ]
    with make_engine() as engine:
        for position, (text, question) in enumerate(asked):
            result = ask(engine, text, question, max_new_tokens=12)
            with make_engine() as fresh:
                assert result.token_ids == ask(fresh, text, question, max_new_tokens=12).token_ids
            if position >= 3:
                assert result.usage.cached_tokens > len(text.encode())
                assert result.stats.drafter_cached_tokens > 0


def test_both_counts_of_reused_tokens_are_what_the_forwards_left_out(document):
    read = {"target": 0, "drafter": 0}

    def count(role):
        def hook(module, args, kwargs):
            read[role] += kwargs["input_ids"].shape[1]

        return hook

    with make_engine() as engine:
        for role in read:
            getattr(engine, role).model.register_forward_pre_hook(count(role), with_kwargs=True)
        for chunk in ("The judge of Peru lives in Lima.", "The judge of Peru lives in Rome.", "Nobody does."):
            for role in read:
                read[role] = 0
            context = LongContext(document, (chunk,))
            stream = engine.stream("Who?", context=context, sampling=Sampling(max_new_tokens=1))
            result = list(stream)[-1]
            # The first verification reads the prompt's last id and the one draft.
            assert read["target"] == result.usage.prompt_tokens - result.usage.cached_tokens + 1
            assert read["drafter"] == result.stats.drafter_prompt_tokens - result.stats.drafter_cached_tokens


def test_a_shared_beginning_is_copied_and_leaves_the_other_document_its_cache():
    (runner,) = make_runners(10_000)
    system, first, second = text(0, 100), text(1, 300), text(2, 300)
    assert runner.prefill(system + first, reserve=8) == 0
    assert runner.prefill(system + second, reserve=8) == 100
    assert len(runner.store.slots) == 2
    forked = runner.forward(torch.tensor(runner.pending), 1)
    (alone,) = make_runners(0)
    alone.prefill(system + second, reserve=8)
    assert torch.equal(forked, alone.forward(torch.tensor(alone.pending), 1))
    assert runner.prefill(system + first, reserve=8) == 399


def test_a_copy_and_its_source_do_not_write_into_each_other():
    (runner,) = make_runners(10_000)
    system, first, second = text(0, 100), text(1, 300), text(2, 300)
    runner.prefill(system + first, reserve=8)
    before = [layer.keys[:, :, :399].clone() for layer in runner.store.current.cache.layers]
    runner.prefill(system + second, reserve=8)
    runner.prefill(system + first, reserve=8)
    after = [layer.keys[:, :, :399] for layer in runner.store.current.cache.layers]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize(("shared", "slots"), [(200, 1), (199, 2)])
def test_a_prompt_goes_on_where_at_least_half_is_shared(shared, slots):
    (runner,) = make_runners(10_000)
    start = text(0, 401)
    runner.prefill(start, reserve=8)
    assert runner.length == 400
    # The next id differs, so that not one more is shared by chance.
    other = [*start[:shared], start[shared] + 1, *text(1, 100)]
    assert runner.prefill(other, reserve=8) == shared
    assert len(runner.store.slots) == slots
    assert runner.sequence == other


def test_the_least_recently_used_sequence_goes_first():
    (runner,) = make_runners(3 * GRANULE)
    a, b, c, d = (text(seed, 200) for seed in range(4))
    for ids in (a, b, c, a, d):
        runner.prefill(ids, reserve=8)
    assert [held(runner, ids) for ids in (a, b, c, d)] == [199, 0, 199, 199]


def test_roles_share_the_budget_and_keep_what_they_work_with():
    target, drafter = make_runners(3 * GRANULE, count=2)
    a, b, c, d = (text(seed, 200) for seed in range(4))
    target.prefill(a, reserve=8)
    drafter.prefill(b, reserve=8)
    target.prefill(c, reserve=8)
    target.prefill(d, reserve=8)
    # The drafter's own is older than c, and still in use.
    assert [held(target, ids) for ids in (a, c, d)] == [0, 199, 199]
    assert held(drafter, b) == 199
    drafter.prefill(a, reserve=8)
    assert (held(drafter, a), held(drafter, b), held(target, c)) == (199, 0, 199)


@pytest.mark.parametrize("tokens", [0, 2 * GRANULE, 5 * GRANULE])
def test_the_bytes_stay_within_the_budget_and_what_is_served_may_exceed_it(tokens):
    target, drafter = make_runners(tokens, count=2)
    for seed in range(6):
        target.prefill(text(seed, 150 * (seed % 3 + 1)), reserve=8)
        drafter.prefill(text(seed, 120), reserve=8)
        in_use = sum(bytes_of(runner) for runner in (target, drafter))
        assert bytes_held(target, drafter) <= max(tokens * TOKEN_BYTES, in_use)
    if tokens == 0:
        assert len(target.store.slots) == len(drafter.store.slots) == 1


def bytes_of(runner):
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in runner.store.current.cache.layers)


def test_memory_is_given_back_before_new_memory_is_taken(monkeypatch):
    import rapid_core.kv_cache as module

    (runner,) = make_runners(2 * GRANULE)
    a, b, c = (text(seed, 200) for seed in range(3))
    runner.prefill(a, reserve=8)
    runner.prefill(b, reserve=8)
    original, most = module._empty_like, []

    def watched(states, capacity):
        made = original(states, capacity)
        most.append(bytes_held(runner) + made.nbytes)
        return made

    monkeypatch.setattr(module, "_empty_like", watched)
    runner.prefill(c, reserve=8)
    assert max(most) <= 2 * GRANULE * TOKEN_BYTES


def test_a_cache_that_must_go_hands_on_what_is_shared_and_shrinks():
    (runner,) = make_runners(0)
    long = text(0, 900)
    runner.prefill(long, reserve=8)
    assert runner.prefill([*long[:100], *text(1, 50)], reserve=8) == 100
    assert bytes_held(runner) == GRANULE * TOKEN_BYTES
    straight = runner.forward(torch.tensor(runner.pending), 1)
    (alone,) = make_runners(0)
    alone.prefill([*long[:100], *text(1, 50)], reserve=8)
    assert torch.allclose(straight, alone.forward(torch.tensor(alone.pending), 1), atol=1e-4)


def test_a_system_prompt_does_not_save_the_oldest_document():
    """All share it: the copy is made of the newest, so that the oldest is free to go."""
    (runner,) = make_runners(2 * GRANULE)
    system = text(9, 20)
    a, b, c = (system + text(seed, 200) for seed in range(3))
    for ids in (a, b, c):
        runner.prefill(ids, reserve=8)
    assert [held(runner, ids) for ids in (a, b, c)] == [20, 219, 219]


def test_an_answer_of_an_engine_with_a_tight_budget_is_the_same(document):
    history = [Message("system", "Be brief."), Message("user", "Who lives in Lima?")]
    answers = {}
    for cache_gib in (0, 0.002, 4):
        with make_engine(cache_gib) as engine:
            answers[cache_gib] = [
                engine.generate(history, context=text, sampling=Sampling(max_new_tokens=12)).token_ids
                for text in (document, document[::2], document[:400], document)
            ]
            total = bytes_held(engine._target, engine._drafter)
            assert total <= max(cache_gib * GIB, bytes_of(engine._target) + bytes_of(engine._drafter))
    assert answers[0] == answers[0.002] == answers[4]


def test_a_stopped_prefill_keeps_what_it_read_and_what_others_hold():
    (runner,) = make_runners(10_000)
    a, b = text(0, 300), text(1, 900)

    def stop(done, total):
        if done:
            raise KeyboardInterrupt

    runner.prefill(a, reserve=8)
    with pytest.raises(KeyboardInterrupt):
        runner.prefill(b, reserve=8, on_chunk=stop)
    assert runner.prefill(b, reserve=8) == 512
    assert runner.prefill(a, reserve=8) == 299


def test_longrope_keeps_short_and_long_texts_apart():
    rope = {
        "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 256,
        "short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "factor": 4.0,
    }  # fmt: skip
    model = tiny_model("phi3", rope_parameters=rope, original_max_position_embeddings=256)
    ids = {length: [*text(0, 200), *text(length, length)] for length in (20, 30, 100, 110)}
    with RapidEngine(model) as engine:
        runner = engine._target
        reused = [runner.prefill(ids[length], reserve=4) for length in (20, 100, 30, 110)]
        # 220 and 230 tokens stand below the border, 300 and 310 beyond it: each finds its own kind.
        assert reused == [0, 0, 200, 200]
        for length in (20, 110):
            runner.prefill(ids[length], reserve=4)
            expected = model.model(torch.tensor([ids[length]])).logits[0, -1]
            got = runner.forward(torch.tensor(runner.pending), 1)[0]
            assert torch.allclose(got, expected, atol=1e-3)


def test_an_engine_forgets_all_caches_when_it_is_closed(document):
    engine = make_engine()
    ask(engine, document, max_new_tokens=2)
    ask(engine, document[::2], max_new_tokens=2)
    assert len(engine._target.store.slots) > 1
    engine.close()
    assert bytes_held(engine._target, engine._drafter) == 0


@pytest.mark.parametrize("cache_gib", [-1, float("nan"), float("inf"), "4", None, True])
def test_a_budget_that_is_no_size_is_refused(cache_gib):
    with pytest.raises(OptionError, match="cache_gib must be"):
        RapidEngine(tiny_model(), cache_gib=cache_gib)
    with pytest.raises(OptionError, match="cache_gib must be"):
        RapidEngine.load("a/model-that-nobody-made", cache_gib=cache_gib)


def test_load_hands_the_budget_on(tmp_path, document):
    with RapidEngine.load(str(save_tiny_model(tmp_path)), device="cpu", cache_gib=0) as engine:
        for text in (document, document[::2]):
            engine.generate("Who?", context=text, speculation=Speculation.off(), sampling=Sampling(max_new_tokens=2))
        assert len(engine._target.store.slots) == 1


def test_a_token_takes_the_bytes_that_are_counted():
    with tiny_engine() as engine:
        engine._target.prefill(text(0, 100), reserve=0)
        assert bytes_held(engine._target) == engine._target.store.bytes_of(GRANULE) == GRANULE * TOKEN_BYTES


@pytest.mark.parametrize("position", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5])
def test_the_shared_prefix_is_found_over_blocks(position):
    left = list(range(2 * BLOCK + 5))
    right = (*left[:position], -1, *left[position + 1 :])
    assert shared_prefix(left, right, len(left)) == position
    assert shared_prefix(left, right[:position], 10**9) == position
    assert shared_prefix(left, left, position) == position
