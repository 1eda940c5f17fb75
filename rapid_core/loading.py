"""Models from a hub name, a folder, a GGUF file, or "demo"."""

from __future__ import annotations

import copy
import hashlib
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import logging as transformers_logging

from rapid_core.demo_model import demo_gguf, make_cache_folder
from rapid_core.errors import LoadError, OptionError, RapidError
from rapid_core.runner import refuse_recurrent

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model and its tokenizer, ready to run. `name` is what the user called it."""

    model: Any
    tokenizer: Any
    name: str

    @property
    def eos_ids(self) -> frozenset[int]:
        """The ids that end an answer; a model can have several."""
        found = self.model.generation_config.eos_token_id
        if found is None:
            found = self.tokenizer.eos_token_id
        listed = found if isinstance(found, (list, tuple)) else [found]
        return frozenset(int(id_) for id_ in listed if id_ is not None)

    @property
    def logit_size(self) -> int:
        """The width of the model's logits, padding included."""
        return int(self.model.config.get_text_config(decoder=True).vocab_size)


def load_model(name: str, *, device: str = "auto", dtype: str = "auto", trust_remote_code: bool = False) -> LoadedModel:
    """Load a causal language model and its tokenizer.

    name: a hub name, a folder, a `.gguf` file, or "demo". device: "auto" is the first
    accelerator, else the CPU. dtype: "auto" is float32 on a CPU and the checkpoint's own
    elsewhere. Raises `LoadError` with the reason, before weights are read where possible.
    """
    where = resolve_device(device)
    kind = resolve_dtype(dtype, where)
    check_source(name)
    return _load(name, _local_source(name, kind), where, kind, trust_remote_code)


def check_source(name: str) -> None:
    """Raise `LoadError` for a model that is certainly not there, without reading any of it."""
    if not isinstance(name, str) or not name:
        raise LoadError(f"a model is named by a hub name, a folder, a .gguf file or 'demo', got {name!r}")
    path = Path(name).expanduser()
    if name.endswith(".gguf"):
        if not path.is_file():
            raise LoadError(f"a GGUF model must be a file, and {name!r} is none; check the path")
    elif path.is_dir() and name != "demo":
        if not (path / "config.json").is_file():
            raise LoadError(f"a model folder must hold config.json, and {name!r} does not; name the folder that does")
    elif path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise LoadError(f"no model folder at {name!r}; check the path, or give a hub name such as 'owner/model'")


def hide_progress_bars() -> None:
    """Keep transformers from drawing progress bars of its own, for a program that draws its own."""
    transformers_logging.disable_progress_bar()


def resolve_device(device: str) -> str:
    """Check a device name; "auto" becomes the first accelerator, else "cpu"."""
    if device == "auto":
        found = [name for name in ("cuda", "mps") if getattr(torch, name).is_available()]
        device = found[0] if found else "cpu"
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        raise _no_such_device(device) from error
    if place.type == "meta":
        raise _no_such_device(device)
    if device == "cuda":
        return f"cuda:{torch.cuda.current_device()}"
    return str(place)


def _no_such_device(device: object) -> OptionError:
    there = ["'cpu'", *(f"'cuda:{i}'" for i in range(torch.cuda.device_count()))]
    there += ["'mps'"] if torch.backends.mps.is_available() else []
    return OptionError(
        f"device must exist on this machine, got {device!r}; there is {', '.join(there)}, and 'auto' takes the best"
    )


def resolve_dtype(dtype: str, device: str) -> torch.dtype | None:
    """Check a dtype name; None is the checkpoint's own."""
    if dtype == "auto":
        return torch.float32 if device == "cpu" else None
    if dtype not in DTYPES:
        raise OptionError(f"dtype must be 'auto', {', '.join(map(repr, DTYPES))}, got {dtype!r}")
    return DTYPES[dtype]


def same_model(target: str, drafter: str) -> bool:
    """Whether two names mean the same weights, which are then loaded once."""
    if target == drafter:
        return True
    left, right = Path(target).expanduser(), Path(drafter).expanduser()
    return left.exists() and right.exists() and left.resolve() == right.resolve()


def _local_source(name: str, dtype: torch.dtype | None) -> str:
    """A folder or hub name that transformers can load."""
    if name == "demo":
        return str(_converted(demo_gguf(), dtype or torch.float32))
    path = Path(name).expanduser()
    if name.endswith(".gguf"):
        return str(_converted(path, dtype or torch.bfloat16))
    return str(path) if path.is_dir() else name


def _load(name: str, source: str, device: str, dtype: torch.dtype | None, trust: bool) -> LoadedModel:
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=trust)
        refuse_recurrent(config, MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None))
        tokenizer = _load_tokenizer(name, source, trust)
        model = AutoModelForCausalLM.from_pretrained(
            source,
            config=config,
            dtype=dtype if dtype is not None else "auto",
            trust_remote_code=trust,
            use_safetensors=True,
        )
        model = model.to(device).eval()
    except RapidError:
        raise
    except Exception as error:  # damaged files and remote code raise almost anything
        reason = str(error).strip().splitlines()
        raise LoadError(
            f"model {name!r} could not be loaded: {reason[0] if reason else type(error).__name__}. "
            "A model is a hub name, a folder with config.json, tokenizer and safetensors, a .gguf file, or 'demo'"
        ) from error
    return LoadedModel(model, tokenizer, name)


def _load_tokenizer(name: str, source: str, trust: bool) -> Any:
    cause = None
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust)
        # A folder without tokenizer files can give an empty one in place of an error.
        if tokenizer.get_vocab():
            return tokenizer
    except Exception as error:  # noqa: BLE001 - damaged files and remote code raise almost anything
        cause = error
    raise LoadError(f"a model needs its tokenizer, and none could be read for {name!r}; add tokenizer.json") from cause


def _converted(gguf: Path, dtype: torch.dtype) -> Path:
    """The safetensors folder of a GGUF file; made once, since reading GGUF takes most of a minute."""
    stat = gguf.stat()
    key = f"{gguf.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|{dtype}"
    folder = make_cache_folder("converted") / f"{gguf.stem}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    if (folder / "config.json").is_file():
        return folder
    made = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        _convert(gguf, dtype, made)
        made.rename(folder)
    except OSError:
        # Another process was faster: its folder is as good, unless there is none.
        if not (folder / "config.json").is_file():
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def _convert(gguf: Path, dtype: torch.dtype, to: Path) -> None:
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    try:
        refuse_recurrent(AutoConfig.from_pretrained(**source))
        read = AutoModelForCausalLM.from_pretrained(**source, dtype=dtype)
        tokenizer = AutoTokenizer.from_pretrained(**source)
    except RapidError:
        raise
    except Exception as error:  # a damaged file makes the reader raise almost anything
        raise LoadError(
            f"{gguf} could not be read as a GGUF model: {str(error) or type(error).__name__}; fetch the file again, "
            "or give a folder with safetensors"
        ) from error
    # A model read from GGUF counts as quantised and refuses to be saved: a fresh one takes its weights.
    config = copy.deepcopy(read.config)
    del config.quantization_config
    with torch.device("meta"):
        fresh = AutoModelForCausalLM.from_config(config, dtype=dtype)
    fresh.load_state_dict(read.state_dict(), assign=True)
    fresh.tie_weights()
    fresh.generation_config = GenerationConfig.from_model_config(config)
    fresh.save_pretrained(to)
    tokenizer.save_pretrained(to)
