"""Models from folders and GGUF files, and everything that can be wrong with them."""

from __future__ import annotations

import gguf
import pytest
import torch
from transformers import BertConfig, MambaConfig

from rapid_core import LoadError, OptionError, RapidEngine, Sampling, UnsupportedModelError, roles
from rapid_core.loading import load_model
from rapid_core.placement import resolve_device
from rapid_core.roles import same_model
from rapid_core.testing import save_tiny_model, tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


def test_a_folder_loads_with_its_own_weights(folder):
    loaded = load_model(str(folder))
    expected = tiny_model().model.state_dict()
    assert all(torch.equal(weight, expected[name]) for name, weight in loaded.model.state_dict().items())
    assert loaded.eos_ids == {2} and loaded.model.dtype == torch.float32 and not loaded.model.training


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_another_dtype_is_taken_at_its_word(folder, dtype):
    assert load_model(str(folder), dtype=dtype).model.dtype == getattr(torch, dtype)


def test_a_drafter_that_is_the_target_is_read_once_however_it_is_spelled(folder, tmp_path, monkeypatch):
    import rapid_core.loading as module

    read, real = [], module.AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(module.AutoModelForCausalLM, "from_pretrained", lambda *a, **b: read.append(a) or real(*a, **b))
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.chdir(folder.parent)
    (tmp_path / "link").symlink_to(folder)
    name = folder.name
    spellings = [folder, folder / ".." / name, tmp_path / "link", f"{folder}/", f"~/{name}", f"./{name}", name]
    for spelling in map(str, spellings):
        with RapidEngine.load(str(folder), drafter=spelling, drafter_device="cpu", drafter_dtype="float32") as engine:
            assert engine.target.model is engine.drafter.model and len(read) == 1, spelling
        read.clear()
    assert same_model("owner/name", "owner/name") and not same_model("owner/name", "owner/other")


def test_another_dtype_of_the_same_folder_is_another_model(folder):
    with RapidEngine.load(str(folder), drafter=str(folder), drafter_dtype="bfloat16") as apart:
        assert apart.target.model.dtype == torch.float32 and apart.drafter.model.dtype == torch.bfloat16


def test_the_demo_as_drafter_of_the_demo_is_one_model(tmp_path, monkeypatch):
    import rapid_core.loading as module

    monkeypatch.setenv("RAPID_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "demo_gguf", lambda: write_gguf(tmp_path / "demo.gguf"))
    loaded = []
    monkeypatch.setattr(roles, "read_model", loaded.append)
    names = ("device_map", "quantization", "drafter_device", "drafter_device_map", "drafter_dtype")
    options = dict.fromkeys((*names, "drafter_quantization"))
    roles.load_roles("demo", "demo", device="cpu", dtype="auto", trust_remote_code=False, **options)
    assert [planned.role for planned in loaded] == ["target"]


def test_a_gguf_file_loads_and_is_converted_once(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("RAPID_CACHE", str(tmp_path / "cache"))
    path = write_gguf(tmp_path / "tiny.gguf")
    first = load_model(str(path), dtype="float32")
    (kept,) = (tmp_path / "cache" / "converted").iterdir()
    stamp = (kept / "model.safetensors").stat().st_mtime_ns
    second = load_model(str(path), dtype="float32")
    assert (kept / "model.safetensors").stat().st_mtime_ns == stamp
    ids = torch.tensor([[3, 4, 5]])
    assert torch.equal(first.model(ids).logits, second.model(ids).logits)
    # The norm of the last layer was written as twos; what was random is checked by its sum.
    assert torch.equal(first.model.model.norm.weight, torch.full((32,), 2.0))
    assert first.tokenizer.decode([29, 5]) == "abc"


def write_gguf(path):
    """A one-layer Llama of 32 dimensions with a vocabulary of single letters."""
    writer = gguf.GGUFWriter(path, "llama")
    letters = [chr(ord("a") + i) for i in range(26)]
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(30)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<unk>", "<s>", "</s>", *letters, "ab"])
    writer.add_token_types([3, 3, 3] + [1] * 27)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "token_embd": (30, 32), "output": (30, 32), "output_norm": None,
        "blk.0.attn_norm": None, "blk.0.ffn_norm": None,
        "blk.0.attn_q": (32, 32), "blk.0.attn_k": (16, 32), "blk.0.attn_v": (16, 32), "blk.0.attn_output": (32, 32),
        "blk.0.ffn_gate": (64, 32), "blk.0.ffn_up": (64, 32), "blk.0.ffn_down": (32, 64),
    }  # fmt: skip
    for name, shape in shapes.items():
        values = torch.full((32,), 2.0) if shape is None else torch.randn(shape, generator=generator)
        writer.add_tensor(f"{name}.weight", values.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/no/such/folder", "no model folder at '/no/such/folder'; check the path"),
        ("./nowhere", "no model folder at './nowhere'"),
        ("missing.gguf", "must be a file, and 'missing.gguf' is none"),
        ("", "a model is named by"),
        ("owner/never-heard-of", "model 'owner/never-heard-of' could not be loaded"),
    ],
)
def test_a_model_that_is_not_there_is_an_error_with_a_remedy(name, message):
    with pytest.raises(LoadError, match=message):
        load_model(name)


def test_a_folder_that_is_no_model_is_an_error(tmp_path):
    with pytest.raises(LoadError, match="must hold config.json"):
        load_model(str(tmp_path))


def test_a_folder_without_tokenizer_is_an_error(tmp_path):
    tiny_model().model.save_pretrained(tmp_path)
    with pytest.raises(LoadError, match=r"needs its tokenizer, and none could be read.*add tokenizer\.json"):
        load_model(str(tmp_path))


def test_pickled_weights_are_not_loaded(tmp_path):
    save_tiny_model(tmp_path)
    torch.save(tiny_model().model.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(LoadError, match="safetensors"):
        load_model(str(tmp_path))


def test_a_recurrent_model_is_refused_before_its_weights_are_looked_for(tmp_path):
    MambaConfig().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="'mamba'"):
        load_model(str(tmp_path))


def test_a_broken_gguf_file_is_an_error(tmp_path):
    (tmp_path / "bad.gguf").write_bytes(b"not a model")
    with pytest.raises(LoadError, match="could not be read as a GGUF model"):
        load_model(str(tmp_path / "bad.gguf"))


def test_files_that_were_cut_off_are_errors(tmp_path, monkeypatch):
    monkeypatch.setenv("RAPID_CACHE", str(tmp_path / "cache"))
    save_tiny_model(tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(LoadError, match="could not be loaded"):
        load_model(str(tmp_path / "model"))
    path = write_gguf(tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(LoadError, match="could not be read as a GGUF model.*fetch the file again"):
        load_model(str(path))
    assert list((tmp_path / "cache" / "converted").iterdir()) == []


def test_a_cache_folder_that_cannot_be_made_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("RAPID_CACHE", str(tmp_path / "file"))
    with pytest.raises(LoadError, match="name another folder in the environment variable RAPID_CACHE"):
        load_model(str(write_gguf(tmp_path / "tiny.gguf")))


def test_what_is_wrong_with_a_drafter_is_found_before_the_target_is_read(folder, monkeypatch):
    import rapid_core.roles as module

    monkeypatch.setattr(module, "read_model", lambda *_, **__: pytest.fail("a model was read"))
    for options in ({"drafter": "/nowhere"}, {"drafter": "x/y", "drafter_device": "tpu"}, {"drafter_dtype": "float32"}):
        with pytest.raises((LoadError, OptionError)):
            RapidEngine.load(str(folder), **options)


def test_an_encoder_is_no_target(tmp_path):
    BertConfig().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="'bert'.*it is an encoder"):
        load_model(str(tmp_path))


@pytest.mark.parametrize("device", ["cuda:99", "toaster", "meta", None])
def test_a_device_that_does_not_exist_is_an_error(device):
    with pytest.raises(OptionError, match=f"device must exist on this machine, got {device!r}; there is 'cpu'"):
        resolve_device(device)


def test_the_same_weights_on_the_same_device_are_loaded_once_however_it_is_spelled(folder):
    engine = RapidEngine.load(str(folder), drafter=str(folder), device="auto", drafter_device=resolve_device("auto"))
    assert engine.target is engine.drafter


def test_an_unknown_dtype_is_an_error(folder):
    with pytest.raises(OptionError, match="dtype must be 'auto'"):
        load_model(str(folder), dtype="float8")


def test_the_options_of_a_drafter_need_one(folder):
    with pytest.raises(OptionError, match="options of a drafter need one, got drafter_device"):
        RapidEngine.load(str(folder), drafter_device="cpu")


def test_half_precision_answers_too(folder):
    with RapidEngine.load(str(folder), dtype="bfloat16") as engine:
        assert engine.generate("Who?", sampling=Sampling(max_new_tokens=4)).usage.completion_tokens == 4
