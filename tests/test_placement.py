"""Where models go: devices that must exist, maps over several, and what is not left to a CPU or a disk in silence.

No test here has two devices: maps over accelerators are made on stand-ins without weights.
"""

from __future__ import annotations

import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from helpers import TINY, ask

import rapid_core.placement as module
from rapid_core import MissingDependencyError, NotEnoughMemoryError, OptionError, RapidEngine, Speculation
from rapid_core.estimate import weight_sizes, without_weights
from rapid_core.kv_cache import CacheLayout
from rapid_core.loading import load_model
from rapid_core.placement import Placement, module_devices, resolve_device, resolve_dtype, resolve_placement
from rapid_core.runner import ModelRunner
from rapid_core.testing import WordEncoder, save_tiny_model, tiny_engine, tiny_model

ALL_ON_CPU = {
    "model.embed_tokens": "cpu",
    "model.layers.0": "cpu",
    "model.layers": "cpu",
    "model.norm": "cpu",
    "model.rotary_emb": "cpu",
    "lm_head": torch.device("cpu"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(save_tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def gpus(monkeypatch):
    """Pretend that there are accelerators with so many bytes free."""

    def pretend(*free):
        names = [f"cuda:{i}" for i in range(len(free))]
        monkeypatch.setattr(module, "accelerators", lambda: names)
        monkeypatch.setattr(module, "available_bytes", lambda device: free[device.index])
        monkeypatch.setattr(module, "resolve_device", lambda device, option="device": str(torch.device(device)))

    return pretend


def deep_model():
    """A stand-in with many layers: accelerate keeps the room of the largest one free on the first device."""
    return without_weights(tiny_model(num_hidden_layers=16).model.config, torch.float32, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda:99"}, "^device must exist on this machine, got 'cuda:99'; there is 'cpu'"),
        ({"drafter_device": "cuda:99"}, "^drafter_device must exist on this machine, got 'cuda:99'"),
        ({"device_map": "toaster"}, "^device_map must exist on this machine, got 'toaster'"),
        ({"device_map": {"model": 7, "lm_head": 7}}, "^device_map must exist on this machine, got 'cuda:7'"),
        ({"drafter_device_map": {"": "cuda:7"}}, "^drafter_device_map must exist on this machine, got 'cuda:7'"),
        ({"device_map": {"model": "cpu", "lm_head": "disk"}}, "^device_map must name devices, got 'disk'"),
        ({"device_map": {"": "meta"}}, "^device_map must exist"),
        ({"device_map": {}}, "^device_map must be 'auto', .* or a mapping of modules to devices, got {}"),
        ({"device_map": 5}, "^device_map must be 'auto'"),
        ({"device_map": {0: "cpu"}}, "^device_map must be 'auto'"),
        ({"device": "cpu", "device_map": "auto"}, "^device and device_map both say where .* leave one of them out"),
        (
            {"drafter_device": "cpu", "drafter_device_map": "auto"},
            "^drafter_device and drafter_device_map both say where the weights go",
        ),
        ({"device_map": {"model.layers.9": "cpu", "": "cpu"}}, "has no model.layers.9"),
        ({"device_map": {"model": "cpu"}}, "must say where all of a model goes, .* it leaves out lm_head.weight"),
        ({"device_map": {"lm_head": "cpu", "model.norm": "cpu"}}, "leaves out model.* and 36 more weights"),
        ({"dtype": "float8"}, "^dtype must be 'auto'"),
        ({"drafter_dtype": "float8"}, "^drafter_dtype must be 'auto'"),
    ],
)
def test_an_option_that_is_wrong_is_named(folder, options, message):
    with pytest.raises(OptionError, match=message):
        RapidEngine.load(folder, folder, **options)


def test_a_mapping_of_modules_is_not_handed_on_to_another_model(folder, tmp_path):
    other = str(save_tiny_model(tmp_path, seed=1))
    with pytest.raises(OptionError, match="a device_map of modules is one model's, and the drafter"):
        RapidEngine.load(folder, other, device_map=ALL_ON_CPU)
    with RapidEngine.load(folder, other, device_map=ALL_ON_CPU, drafter_device="cpu") as engine:
        assert engine.target.model is not engine.drafter.model


def test_a_map_of_modules_answers_like_one_device_and_is_shared_where_both_roles_have_it(folder, document):
    with RapidEngine.load(folder) as whole:
        expected = whole.generate("Who?", sampling=None).token_ids
    with RapidEngine.load(folder, folder, device_map=ALL_ON_CPU) as engine:
        assert engine.target is engine.drafter
        assert engine.generate("Who?").token_ids == expected


def test_every_named_spread_is_the_cpu_where_there_is_no_accelerator(folder, monkeypatch):
    monkeypatch.setattr(module, "accelerators", list)
    for name in module.SPREADS:
        assert resolve_placement(None, name) == Placement("cpu") == resolve_placement("auto", None)
    with RapidEngine.load(folder, folder, device_map="auto", drafter_device="cpu") as engine:
        assert engine.target is engine.drafter


def test_one_accelerator_is_taken_whole(gpus):
    gpus(2**30)
    assert resolve_placement(None, "auto") == Placement("cuda:0") == resolve_placement(None, {"": 0})


@pytest.mark.parametrize("spread", module.SPREADS)
def test_a_spread_goes_over_the_accelerators_by_whole_layers(gpus, spread):
    model = deep_model()
    sizes = weight_sizes(model, None)
    # The one that leaves the first device free takes it where the others are full.
    free = int(sum(sizes.values()) * (1.5 if spread == "balanced_low_0" else 0.8))
    gpus(free, free)
    placement = resolve_placement(None, spread)
    found = module_devices(placement, model, sizes, what="it", taken={})
    assert set(found.values()) == ({"cuda:1"} if spread == "balanced_low_0" else {"cuda:0", "cuda:1"})
    assert all(module.device_of(name, found) is not None for name in sizes)
    assert {name.count(".") for name in found if ".layers." in name} <= {2}


def test_quantised_weights_need_less_room(gpus):
    model = deep_model()
    whole, reduced = weight_sizes(model, None), weight_sizes(model, 4)
    free = int(sum(whole.values()) * 0.3)
    gpus(free, free)
    placement = resolve_placement(None, "auto")
    with pytest.raises(NotEnoughMemoryError, match="it needs .*, and cuda:0, cuda:1 have"):
        module_devices(placement, model, whole, what="it", taken={})
    found = module_devices(placement, model, reduced, what="it", taken={})
    assert set(found.values()) <= {"cuda:0", "cuda:1"}


def test_what_the_other_role_takes_is_not_there(gpus):
    model = deep_model()
    sizes = weight_sizes(model, None)
    total = sum(sizes.values())
    gpus(2 * total, 2 * total)
    placement = resolve_placement(None, "auto")
    found = module_devices(placement, model, sizes, what="it", taken={"cuda:0": 2 * total})
    assert set(found.values()) == {"cuda:1"}
    with pytest.raises(NotEnoughMemoryError) as error:
        module_devices(placement, model, sizes, what="it", taken={"cuda:0": 2 * total, "cuda:1": total})
    assert error.value.needed_bytes == total and error.value.there_bytes < total


def test_a_cpu_beside_accelerators_is_refused(gpus):
    gpus(2**30, 2**30)
    with pytest.raises(OptionError, match="devices of one type, got cpu, cuda: .* for every token"):
        resolve_placement(None, {"model": 0, "lm_head": "cpu"})


def test_accelerate_is_asked_for_with_the_pip_command(folder, monkeypatch):
    import rapid_core.extras

    real = rapid_core.extras.importlib.import_module

    def without(name):
        if name.startswith("accelerate"):
            raise ModuleNotFoundError(name="accelerate")
        return real(name)

    monkeypatch.setattr(rapid_core.extras.importlib, "import_module", without)
    with pytest.raises(MissingDependencyError, match=r"pip install 'rapid-integrations\[devices\]'"):
        load_model(folder, device_map=ALL_ON_CPU)
    with pytest.raises(MissingDependencyError, match=r"pip install 'rapid-integrations\[quantization\]'"):
        load_model(folder, quantization="torchao-int8")
    # One device needs no package.
    assert load_model(folder, device_map="auto").model.dtype == torch.float32


def test_layers_with_hooks_of_accelerate_around_them_answer_the_same(document):
    with tiny_engine() as engine:
        expected = ask(engine, document, speculation=Speculation.lossless()).token_ids
        drafter_expected = ask(engine, document, speculation=Speculation(gamma=4)).token_ids
        for loaded in (engine.target, engine.drafter):
            for part in (loaded.model, *loaded.model.model.layers, loaded.model.lm_head):
                hook = AlignDevicesHook("cpu", io_same_device=True, skip_keys="past_key_values")
                add_hook_to_module(part, hook)
        hooked = RapidEngine(engine.target, engine.drafter, retrieval=TINY, encoder=WordEncoder(), compile="eager")
        result = ask(hooked, document, speculation=Speculation.lossless())
        assert result.token_ids == expected
        assert any("hooks stand around its layers" in note for note in result.stats.notes)
        assert ask(hooked, document, speculation=Speculation(gamma=4)).token_ids == drafter_expected


def test_logits_come_back_to_where_the_ids_went_in():
    model = tiny_model().model
    runner = ModelRunner(model, role="target")
    forward = model.forward

    def from_elsewhere(input_ids, **options):
        return forward(input_ids=torch.ones(input_ids.shape, dtype=torch.long), **options)

    model.forward = from_elsewhere
    model.get_input_embeddings = lambda: torch.nn.Embedding(1, 1, device="meta")
    ids = torch.ones(3, dtype=torch.long, device="meta")
    assert runner.device.type == "meta" and runner.forward(ids, 2).device.type == "meta"


def test_a_saved_document_is_loaded_to_the_device_of_each_layer(document, tmp_path, monkeypatch):
    with tiny_engine() as engine:
        ask(engine, document, max_new_tokens=2)
        engine.save_document(tmp_path / "saved")
        engine._target.clear()
        places = {i: torch.device("cpu" if i < 2 else "meta") for i in range(4)}
        layout = CacheLayout({i: (place, 256) for i, place in places.items()})
        monkeypatch.setattr(engine._target.store, "layout", layout)
        engine.load_document(tmp_path / "saved")
        (slot,) = engine._target.store.slots
        assert {i: place for i, (place, _) in slot.cache.layout.layers.items()} == places


def test_what_a_token_takes_is_counted_on_each_device():
    one, two = torch.device("cpu"), torch.device("meta")
    layout = CacheLayout({0: (one, 100), 1: (one, 20), 3: (two, 7)})
    assert layout.token_bytes == 127 and layout.bytes_by_device(10) == {one: 1200, two: 70}


def test_a_dtype_is_float32_on_a_cpu_and_the_checkpoints_own_elsewhere():
    assert resolve_dtype("auto", "cpu") == torch.float32 and resolve_dtype("auto", "cuda:1") is None


@pytest.mark.parametrize("device", ["hpu", "privateuseone", "cpu:1"])
def test_devices_that_torch_only_knows_by_name_do_not_exist_either(device):
    with pytest.raises(OptionError, match="drafter_device must exist on this machine"):
        resolve_device(device, "drafter_device")


def test_one_place_has_one_name():
    assert resolve_device("cpu:0") == resolve_device("cpu") == "cpu"
