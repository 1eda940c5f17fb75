"""Memory that does not suffice: what there is, what is refused before any work, what runs out while working."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from helpers import ask

import rapid_core.memory
from rapid_core import NotEnoughMemoryError, RapidEngine
from rapid_core.memory import GIB, available_bytes, check_memory, cpu_bytes, is_out_of_memory, out_of_memory
from rapid_core.testing import WordEncoder, save_tiny_model, tiny_engine, tiny_pair

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(save_tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def there(monkeypatch):
    """Say how many bytes there are; counts down nothing by itself."""

    def say(count):
        monkeypatch.setattr(rapid_core.memory, "available_bytes", lambda device: count)

    return say


def machine(tmp_path, *, available, listed="0::/\n", folders=None):
    """The files of a machine: MemAvailable in kB, the cgroups of the process, and files of these by folder."""
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: 999999 kB\nMemAvailable:   {available} kB\nCached: 5 kB\n")
    (proc / "self" / "cgroup").write_text(listed)
    for folder, files in (folders or {}).items():
        (cgroups / folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (cgroups / folder / name).write_text(text)
    return proc, cgroups


def test_this_machine_tells_what_it_has():
    assert available_bytes(CPU) > 0 or cpu_bytes(rapid_core.memory.PROC, rapid_core.memory.CGROUPS) is None
    assert available_bytes(torch.device("meta")) is None


def test_without_a_limit_it_is_what_the_system_calls_available(tmp_path):
    assert cpu_bytes(*machine(tmp_path, available=2048)) == 2048 * 1024


def test_a_limit_of_cgroups_leaves_less_and_the_page_cache_counts_as_free(tmp_path):
    stat = "anon 3000\nactive_file 500\ninactive_file 1500\nslab_reclaimable 100\nshmem 700\n"
    files = {"memory.max": "10000\n", "memory.current": "6000\n", "memory.stat": stat}
    found = machine(tmp_path, available=2048, listed="0::/job/one\n", folders={"job": files})
    assert cpu_bytes(*found) == 10000 - 6000 + 500 + 1500 + 100


def test_the_tightest_limit_over_the_process_counts_and_max_is_none(tmp_path):
    wide = {"memory.max": "max\n", "memory.current": "1\n"}
    outer = {"memory.max": "5000\n", "memory.current": "1000\n"}
    inner = {"memory.max": "9000\n", "memory.current": "1000\n"}
    folders = {"": wide, "job": outer, "job/one": inner}
    assert cpu_bytes(*machine(tmp_path, available=2048, listed="0::/job/one\n", folders=folders)) == 4000


def test_limits_of_the_first_cgroups_are_read_too_also_at_the_root_of_a_container(tmp_path):
    files = {
        "memory.limit_in_bytes": "8000\n",
        "memory.usage_in_bytes": "5000\n",
        "memory.stat": "cache 9\ntotal_active_file 20\ntotal_inactive_file 300\n",
    }
    listed = "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n"
    found = machine(tmp_path, available=2048, listed=listed, folders={"memory": files})
    assert cpu_bytes(*found) == 8000 - 5000 + 320


def test_another_system_tells_nothing_and_nothing_is_refused(tmp_path, there):
    assert cpu_bytes(tmp_path, tmp_path) is None
    there(None)
    check_memory({CPU: 2**60}, what="a dream needs", remedy="wake up")


def test_what_lacks_is_an_error_with_both_numbers(there):
    there(GIB)
    check_memory({CPU: GIB}, what="all of it needs", remedy="none")
    with pytest.raises(NotEnoughMemoryError) as error:
        check_memory({CPU: 3 * GIB}, what="the model needs", remedy="choose a smaller one", promised=GIB // 4)
    assert (
        str(error.value)
        == "memory must suffice: the model needs 3.00 GiB on cpu, and there is 0.75 GiB; choose a smaller one"
    )
    assert (error.value.needed_bytes, error.value.there_bytes) == (3 * GIB, 3 * GIB // 4)
    assert isinstance(error.value, MemoryError)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("no room"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes."),
        RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"),
    ],
)
def test_what_torch_and_python_raise_for_want_of_memory_is_known(error):
    assert is_out_of_memory(error)


def test_other_errors_and_our_own_are_no_want_of_memory():
    assert not is_out_of_memory(RuntimeError("shapes differ"))
    assert not is_out_of_memory(NotEnoughMemoryError("known", needed_bytes=1, there_bytes=0))


def test_what_torch_tried_to_take_is_named(there):
    there(GIB)
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 8")
    made = out_of_memory(error, [("target", CPU)], remedy="shorten it")
    assert "2.50 GiB more were needed, and there is 1.00 GiB for the target on cpu; shorten it" in str(made)
    assert (made.needed_bytes, made.there_bytes) == (5 * GIB // 2, GIB)
    assert out_of_memory(MemoryError(), [], remedy="").needed_bytes is None


def test_weights_that_do_not_fit_are_refused_before_they_are_read(folder, there, monkeypatch):
    import rapid_core.roles as module

    monkeypatch.setattr(module, "read_model", lambda *_: pytest.fail("weights were read"))
    there(400_000)
    with pytest.raises(NotEnoughMemoryError, match=r"the weights of the target '.*' need 0\.\d\d MiB on cpu") as error:
        RapidEngine.load(folder)
    assert error.value.there_bytes == 400_000 < error.value.needed_bytes


def test_two_roles_that_fit_alone_are_refused_together(folder, there):
    target, drafter = tiny_pair()
    size = sum(weight.nbytes for weight in target.model.parameters())
    there(size)
    RapidEngine.load(folder, folder).close()
    with pytest.raises(NotEnoughMemoryError, match=r"and those of the drafter .*, together") as error:
        RapidEngine.load(folder, folder, drafter_dtype="bfloat16")
    assert error.value.needed_bytes == size + size // 2


def test_the_estimate_of_weights_is_what_they_take(folder):
    from rapid_core.loading import ModelOptions, plan_model, read_model

    for dtype in ("float32", "bfloat16"):
        planned = plan_model(folder, ModelOptions.of(dtype=dtype))
        model = read_model(planned).model
        assert planned.needs == {"cpu": sum(weight.nbytes for weight in model.parameters())}


def test_a_cache_that_does_not_fit_is_refused_before_the_prefill(document, there):
    with tiny_engine(window=4096) as engine:
        expected = ask(engine, document, max_new_tokens=8).token_ids
        engine.target.model.forward, forward = None, engine.target.model.forward
        there(100_000)
        with pytest.raises(NotEnoughMemoryError, match=r"the (target|drafter)'s cache for [\d,]+ tokens, prompt and"):
            ask(engine, document * 3, max_new_tokens=8)
        there(2**40)
        engine.target.model.forward = forward
        assert ask(engine, document, max_new_tokens=8).token_ids == expected


def test_caches_of_earlier_documents_go_before_a_prompt_is_refused(document, monkeypatch):
    with tiny_engine(window=8192) as engine:
        others = [document.replace("lives in", f"was seen {i} times in") for i in range(3)]
        for other in others:
            ask(engine, other, max_new_tokens=2)
        slots = [slot for runner in (engine._target, engine._drafter) for slot in runner.store.slots]
        total = 2**22 + sum(layer.keys.nbytes * 2 for slot in slots for layer in slot.cache.layers)

        def left(device):
            stores = (engine._target.store, engine._drafter.store)
            held = [layer for store in stores for slot in store.slots for layer in slot.cache.layers]
            return total - sum(layer.keys.nbytes + layer.values.nbytes for layer in held if layer.is_initialized)

        monkeypatch.setattr(rapid_core.memory, "available_bytes", left)
        before = len(engine._target.store.slots)
        assert ask(engine, document * 5, max_new_tokens=2).usage.completion_tokens == 2
        assert len(engine._target.store.slots) < before + 1


def test_memory_that_runs_out_while_working_is_an_error_of_ours_and_gives_the_caches_back(document):
    with tiny_engine() as engine:
        expected = ask(engine, document, max_new_tokens=8).token_ids
        forward, kept = engine.target.model.forward, []

        def run_out(*arguments, **options):
            activations = torch.zeros(1000)
            kept.append(weakref.ref(activations))
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB.")

        engine.target.model.forward = run_out
        with pytest.raises(
            NotEnoughMemoryError, match="2.50 GiB more were needed, and there is .* for the target"
        ) as e:
            ask(engine, document, "Another question?")
        gc.collect()
        # Who keeps the error does not keep what was in the forward.
        assert e.value is not None and kept[0]() is None
        assert engine._target.store.slots == engine._drafter.store.slots == []
        engine.target.model.forward = forward
        assert ask(engine, document, max_new_tokens=8).token_ids == expected


def test_a_first_forward_that_does_not_fit_is_no_unsupported_model(monkeypatch):
    target, _ = tiny_pair()
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB.")
    target.model.forward = lambda logits_to_keep=0, **_: (_ for _ in ()).throw(error)
    with pytest.raises(NotEnoughMemoryError, match="2.50 GiB more were needed"):
        RapidEngine(target, encoder=WordEncoder())


def test_memory_that_runs_out_between_two_deltas_reaches_the_reader_as_an_error_of_ours(document):
    with tiny_engine() as engine:
        engine.target.model.generation_config.eos_token_id = -1
        fresh = RapidEngine(engine.target, engine.drafter, encoder=WordEncoder())
        stream = fresh.stream("Who?", context=document)
        next(stream)
        fresh._target.model.forward = lambda *_, **__: (_ for _ in ()).throw(MemoryError)
        with pytest.raises(NotEnoughMemoryError, match="more was needed than could be had"):
            list(stream)


def test_memory_that_runs_out_while_weights_are_read_is_no_broken_model(folder, monkeypatch):
    import rapid_core.loading as module

    def run_out(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1073741824 bytes.")

    monkeypatch.setattr(module.AutoModelForCausalLM, "from_pretrained", run_out)
    with pytest.raises(NotEnoughMemoryError, match="1.00 GiB more were needed, and there is .* for the target on cpu"):
        RapidEngine.load(folder)
