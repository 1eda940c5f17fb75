"""Weights of fewer bits, from a folder to an answer, on a CPU; what needs a GPU is refused here."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from helpers import TINY, ask
from test_loading import write_gguf
from transformers import BitsAndBytesConfig

from rapid_core import MissingDependencyError, OptionError, RapidEngine, SavedDocumentError, Speculation
from rapid_core.estimate import weight_sizes, without_weights
from rapid_core.fingerprint import fingerprint
from rapid_core.loading import load_model
from rapid_core.quantization import BITS, resolve_quantization
from rapid_core.runner import ModelRunner, check_rewind
from rapid_core.testing import WordEncoder, save_tiny_model

ON_A_CPU = ["bnb-8bit", "bnb-4bit", "torchao-int8"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(save_tiny_model(tmp_path_factory.mktemp("tiny"), window=2048))


@pytest.fixture(scope="module", params=ON_A_CPU)
def quantized(request, folder):
    return request.param, load_model(folder, quantization=request.param)


def engine_of(folder, **options):
    loaded = RapidEngine.load(folder, folder, **options)
    return RapidEngine(loaded.target, loaded.drafter, retrieval=TINY, encoder=WordEncoder())


def test_linear_layers_are_quantised_and_what_a_step_reads_shrinks(quantized, folder):
    name, loaded = quantized
    whole = load_model(folder)
    projection = loaded.model.model.layers[0].self_attn.q_proj
    before, after = (ModelRunner(each.model, role="target").step_bytes(0) for each in (whole, loaded))
    assert type(projection.weight) is not type(whole.model.model.layers[0].self_attn.q_proj.weight)
    assert loaded.model.lm_head.weight.dtype == torch.float32
    linear = 4 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128)
    assert before - after == 4 * linear - sum(_stored(name, *shape) for shape in _shapes())


def _shapes():
    return 4 * [*2 * [(64, 64)], *2 * [(32, 64)], *2 * [(128, 64)], (64, 128)]


def _stored(name, rows, columns):
    """Bytes of a weight: torchao's scales, float32, and zero points, int8, are parts of it."""
    return rows * columns * BITS[name] // 8 + (5 * rows if name.startswith("torchao") else 0)


def test_a_quantised_model_passes_the_check_for_rewinding_and_is_near_the_whole_one(quantized, folder):
    name, loaded = quantized
    assert check_rewind(loaded.model).token_bytes == check_rewind(load_model(folder).model).token_bytes
    ids = torch.arange(3, 60)
    whole, reduced = (ModelRunner(each.model, role="x").forward(ids, 1) for each in (load_model(folder), loaded))
    # Random weights suffer more from four bits than trained ones do.
    least = 0.2 if BITS[name] == 4 else 0.99
    assert least < float(torch.corrcoef(torch.cat((whole, reduced)))[0, 1]) < 1


def test_the_estimate_is_no_more_than_what_quantised_weights_take(quantized):
    name, loaded = quantized
    config = load_model_config(loaded)
    sizes = weight_sizes(without_weights(config, torch.float32, False), BITS[name])
    taken = ModelRunner(loaded.model, role="x").step_bytes(0)
    assert 0.95 * taken < sum(sizes.values()) <= taken


def load_model_config(loaded):
    config = loaded.model.config.__class__.from_dict(loaded.model.config.to_dict())
    del config.quantization_config
    return config


@pytest.mark.parametrize(("target", "drafter"), [("torchao-int8", "bnb-4bit"), ("none", "torchao-int8")])
def test_roles_of_different_quantisation_answer_and_eta_0_is_the_targets_own(folder, document, target, drafter):
    with engine_of(folder, quantization=target, drafter_quantization=drafter) as engine:
        assert engine.target.model is not engine.drafter.model
        plain = ask(engine, document, speculation=Speculation.off())
        drafted = ask(engine, document, speculation=Speculation.lossless(gamma=3))
        assert drafted.token_ids == plain.token_ids and drafted.stats.accepted > 0
        assert ask(engine, document, speculation=Speculation(gamma=3, eta=10.0)).usage.completion_tokens > 0


def test_eight_bits_of_bitsandbytes_answer(folder, document):
    with engine_of(folder, quantization="bnb-8bit") as engine:
        assert engine.target.model is engine.drafter.model
        assert ask(engine, document, speculation=Speculation.lossless(gamma=3)).stats.drafted > 0


def test_a_drafter_is_quantised_like_the_target_unless_it_is_said_otherwise(folder, monkeypatch):
    with RapidEngine.load(folder, folder, quantization="torchao-int8") as engine:
        assert engine.target is engine.drafter and engine.target.model.is_quantized
    with RapidEngine.load(folder, folder, quantization="torchao-int8", drafter_quantization="none") as engine:
        assert engine.target.model.is_quantized and not getattr(engine.drafter.model, "is_quantized", False)


def test_a_configuration_of_transformers_is_taken_as_it_is_and_shared_by_what_it_says(folder):
    four, again = (BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="fp4") for _ in range(2))
    with RapidEngine.load(folder, folder, quantization=four, drafter_quantization=again) as engine:
        assert engine.target is engine.drafter
        assert engine.target.model.config.quantization_config.bnb_4bit_quant_type == "fp4"
    other = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    with RapidEngine.load(folder, folder, quantization=four, drafter_quantization=other) as engine:
        assert engine.target is not engine.drafter


def test_half_precision_is_quantised_too(folder, document):
    with engine_of(folder, dtype="bfloat16", quantization="torchao-int8") as engine:
        assert engine.target.model.dtype == torch.bfloat16
        assert ask(engine, document, max_new_tokens=4).usage.completion_tokens == 4


def test_a_gguf_file_is_quantised_after_it_was_converted(tmp_path, monkeypatch):
    monkeypatch.setenv("RAPID_CACHE", str(tmp_path / "cache"))
    loaded = load_model(str(write_gguf(tmp_path / "tiny.gguf")), dtype="float32", quantization="torchao-int8")
    assert loaded.model.is_quantized and check_rewind(loaded.model).token_bytes == 2 * 16 * 4


def test_fingerprints_tell_quantisations_and_weights_apart(quantized, folder, tmp_path):
    name, loaded = quantized
    check_rewind(loaded.model)
    ours, whole = fingerprint(loaded.model), fingerprint(load_model(folder).model)
    again = load_model(folder, quantization=name)
    # bitsandbytes lays its scales out in the first forward.
    check_rewind(again.model)
    again = fingerprint(again.model)
    assert ours == again and ours.config == whole.config and whole.quantization == "none" != ours.quantization
    sibling = load_model(str(save_tiny_model(tmp_path, seed=1, window=2048)), quantization=name)
    assert fingerprint(sibling.model).weights != ours.weights


def test_the_scales_beside_a_weight_are_part_of_its_fingerprint(quantized):
    _, loaded = quantized
    before = fingerprint(loaded.model)
    weight = loaded.model.model.layers[1].mlp.up_proj.weight
    scales = weight.scale if hasattr(weight, "scale") else _scales(loaded.model.model.layers[1].mlp.up_proj)
    scales.mul_(2)
    changed = fingerprint(loaded.model)
    scales.div_(2)
    assert changed.weights != before.weights and fingerprint(loaded.model) == before


def _scales(layer):
    """Those of bitsandbytes, which move from the weight to the layer's state with the first forward."""
    if hasattr(layer.weight, "quant_state"):
        return layer.weight.quant_state.absmax
    return layer.weight.SCB if layer.weight.SCB is not None else layer.state.SCB


def test_a_saved_document_goes_on_with_the_same_quantisation_and_with_no_other(folder, document, tmp_path):
    with engine_of(folder, quantization="torchao-int8") as engine:
        expected = ask(engine, document, max_new_tokens=8)
        engine.save_document(tmp_path / "saved")
    with engine_of(folder, quantization="torchao-int8") as engine:
        result = ask(engine, engine.load_document(tmp_path / "saved"), max_new_tokens=8)
        assert result.token_ids == expected.token_ids and result.usage.cached_tokens > 500
    with engine_of(folder) as engine, pytest.raises(SavedDocumentError, match="quantised as 'torchao .*, and those of"):
        engine.load_document(tmp_path / "saved")


def test_quantised_layers_are_not_compiled_and_say_so(folder):
    with RapidEngine.load(folder, quantization="torchao-int8", compile="eager") as engine:
        assert any("not compiled: its weights are quantised" in note for note in engine.generate("Who?").stats.notes)


@pytest.mark.parametrize("prefix", ["", "drafter_"])
def test_an_unknown_quantisation_is_an_error_that_lists_the_others(folder, prefix):
    names = "'none', 'bnb-8bit', 'bnb-4bit', 'torchao-int8', 'torchao-int4'"
    for value in ("int3", 4):
        with pytest.raises(OptionError, match=f"^{prefix}quantization must be {names} or .*, got {value!r}"):
            RapidEngine.load(folder, folder, **{f"{prefix}quantization": value})


def test_four_bits_of_torchao_need_cuda_and_bfloat16():
    with pytest.raises(OptionError, match="quantization='torchao-int4' must run on a CUDA device, got 'cpu'; choose"):
        resolve_quantization("torchao-int4", "cpu", torch.bfloat16)
    with pytest.raises(OptionError, match="must have dtype='bfloat16' beside it, got torch.float16"):
        resolve_quantization("torchao-int4", "cuda", torch.float16)
    assert resolve_quantization("torchao-int4", "cuda", torch.bfloat16).bits == 4


def test_what_is_quantised_already_is_not_quantised_again(folder, tmp_path):
    loaded = load_model(folder, quantization="bnb-4bit")
    loaded.model.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(OptionError, match="only whole weights can be quantised"):
        load_model(str(tmp_path), quantization="torchao-int8")


@pytest.mark.parametrize(("name", "package"), [("bnb-4bit", "bitsandbytes"), ("torchao-int8", "torchao")])
def test_a_package_that_is_missing_is_named_with_the_pip_command(monkeypatch, name, package):
    import rapid_core.extras as module

    real = module.importlib.import_module

    def without(wanted):
        if wanted.startswith(package):
            raise ModuleNotFoundError(name=package)
        return real(wanted)

    monkeypatch.setattr(module.importlib, "import_module", without)
    with pytest.raises(MissingDependencyError, match=rf"'{package}.*pip install 'rapid-integrations\[quantization\]'"):
        resolve_quantization(name, "cpu", torch.float32)


def test_importing_the_packages_is_quiet_and_their_other_warnings_are_not():
    code = (
        "import rapid_core.engine, logging, sys, bitsandbytes\n"
        "assert 'torchao' in sys.modules\n"
        "for name in ('torchao', 'bitsandbytes.backends.cpu.ops'):\n"
        "    logging.getLogger(name).warning('of use')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "of use\n" * 2
