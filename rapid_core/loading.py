"""Models from a hub name, a folder, a GGUF file, or "demo"."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import logging as transformers_logging

from rapid_core.conversion import converted
from rapid_core.demo_model import demo_gguf
from rapid_core.errors import LoadError, OptionError, RapidError
from rapid_core.estimate import weight_sizes, without_weights
from rapid_core.extras import require
from rapid_core.memory import MORE_ROOM, check_memory, gib, is_out_of_memory, out_of_memory
from rapid_core.placement import (
    DeviceMap,
    Placement,
    device_of,
    module_devices,
    resolve_dtype,
    resolve_placement,
)
from rapid_core.quantization import Quantization, hush_eight_bit_products, resolve_quantization
from rapid_core.runner import refuse_recurrent


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model and its tokenizer, ready to run. `name` is what the user called it."""

    model: Any
    tokenizer: Any
    name: str

    @property
    def eos_ids(self) -> frozenset[int]:
        """The ids that end an answer; a model can have several."""
        return _eos_ids(self.model.generation_config, self.tokenizer)

    @property
    def device(self) -> str:
        """Where token ids go: the device of the embeddings."""
        return str(self.model.get_input_embeddings().weight.device)

    @property
    def logit_size(self) -> int:
        """The width of the model's logits, padding included."""
        return _logit_size(self.model.config)


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How a model is loaded; equal options give equal models. A dtype of None is the checkpoint's own."""

    placement: Placement
    dtype: torch.dtype | None
    quantization: Quantization

    @classmethod
    def of(
        cls,
        *,
        device: str | None = "auto",
        device_map: DeviceMap | None = None,
        dtype: str = "auto",
        quantization: str | Any | None = None,
        prefix: str = "",
    ) -> ModelOptions:
        """Check a model's options; prefix: of their names in errors. Raises `OptionError`."""
        placement = resolve_placement(device, device_map, prefix=prefix)
        kind = resolve_dtype(dtype, placement.device, f"{prefix}dtype")
        if dtype == "auto" and quantization == "torchao-int4":
            kind = torch.bfloat16
        quantized = resolve_quantization(quantization, placement.device_type, kind, option=f"{prefix}quantization")
        return cls(placement, kind, quantized)


@dataclass(frozen=True, eq=False)
class PlannedModel:
    """A model that can be loaded, and what of each device its weights need, in bytes."""

    name: str
    role: str
    source: str
    config: Any
    tokenizer: Any
    eos_ids: frozenset[int]
    options: ModelOptions
    devices: dict[str, str]
    needs: dict[str, int]
    trust_remote_code: bool

    @property
    def logit_size(self) -> int:
        """The width of the model's logits, padding included."""
        return _logit_size(self.config)


def load_model(
    name: str,
    *,
    device: str = "auto",
    device_map: DeviceMap | None = None,
    dtype: str = "auto",
    quantization: str | Any | None = None,
    trust_remote_code: bool = False,
) -> LoadedModel:
    """Load a causal language model and its tokenizer.

    name: a hub name, a folder, a `.gguf` file, or "demo". device: "auto" is the first
    accelerator, else the CPU. device_map: in place of a device, "auto" or a mapping of modules,
    as for transformers. dtype: "auto" is float32 on a CPU and the checkpoint's own elsewhere.
    quantization: a name of `quantization.BITS`, or a configuration of transformers. Raises
    `LoadError` and `NotEnoughMemoryError`, before weights are read where possible.
    """
    options = ModelOptions.of(device=device, device_map=device_map, dtype=dtype, quantization=quantization)
    planned = plan_model(name, options, trust_remote_code=trust_remote_code)
    check_room([planned])
    return read_model(planned)


def plan_model(
    name: str,
    options: ModelOptions,
    *,
    role: str = "model",
    trust_remote_code: bool = False,
    taken: Mapping[str, int] | None = None,
) -> PlannedModel:
    """Find out where a model goes and what it needs; no weights are read, but a GGUF file is converted.

    taken: bytes of devices that another model is to have. Raises `LoadError`, `OptionError` for a map that
    does not fit the model, and `NotEnoughMemoryError` where no spread does.
    """
    check_source(name)
    source = _local_source(name, options.dtype)
    with _load_errors(name):
        config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
        refuse_recurrent(config, MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None))
        if options.quantization.config is not None and getattr(config, "quantization_config", None) is not None:
            remedy = "choose drafter_quantization='none'" if role == "drafter" else "leave quantization out"
            raise OptionError(f"only whole weights can be quantised, and those of {name!r} already are; {remedy}")
        stand_in = without_weights(config, options.dtype, trust_remote_code)
    sizes = weight_sizes(stand_in, options.quantization.bits)
    devices = module_devices(options.placement, stand_in, sizes, what=f"{role} {name!r}", taken=taken or {})
    needs: dict[str, int] = {}
    for weight, size in sizes.items():
        place = device_of(weight, devices) or options.placement.device
        needs[place] = needs.get(place, 0) + size
    with _load_errors(name):
        tokenizer = _load_tokenizer(name, source, trust_remote_code)
        eos_ids = _eos_ids(_generation_config(source, config), tokenizer)
    return PlannedModel(name, role, source, config, tokenizer, eos_ids, options, devices, needs, trust_remote_code)


def check_room(planned: Sequence[PlannedModel]) -> None:
    """Raise `NotEnoughMemoryError` unless the weights of all models fit where they go, together."""
    for place in {place: None for model in planned for place in model.needs}:
        there = [(model, model.needs[place]) for model in planned if place in model.needs]
        what = f"the weights of the {there[0][0].role} {there[0][0].name!r} need"
        if len(there) > 1:
            others = "".join(f" and those of the {model.role} {model.name!r} {gib(size)}" for model, size in there[1:])
            what = f"{what} {gib(there[0][1])}{others}, together"
        check_memory({torch.device(place): sum(size for _, size in there)}, what=what, remedy=MORE_ROOM)


def read_model(planned: PlannedModel) -> LoadedModel:
    """Read the weights of a model. Raises `LoadError` and `NotEnoughMemoryError`."""
    name, options, trust = planned.name, planned.options, planned.trust_remote_code
    quantization = options.quantization.config
    several = len(planned.devices) > 1 or quantization is not None
    if several:
        require("accelerate", extra="devices" if quantization is None else "quantization")
    extra = {"device_map": dict(planned.devices)} if several else {}
    if quantization is not None:
        extra["quantization_config"] = copy.deepcopy(quantization)
    with _load_errors(name, [(planned.role, torch.device(place)) for place in planned.needs]):
        model = AutoModelForCausalLM.from_pretrained(
            planned.source,
            config=planned.config,
            dtype=options.dtype if options.dtype is not None else "auto",
            trust_remote_code=trust,
            use_safetensors=True,
            **extra,
        )
        # What accelerate or a quantiser has put in its place stays there.
        model = model.eval() if several else model.to(options.placement.device).eval()
    if getattr(getattr(model.config, "quantization_config", None), "load_in_8bit", False):
        hush_eight_bit_products()
    return LoadedModel(model, planned.tokenizer, name)


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


def _logit_size(config: Any) -> int:
    return int(config.get_text_config(decoder=True).vocab_size)


def _eos_ids(generation_config: Any, tokenizer: Any) -> frozenset[int]:
    found = generation_config.eos_token_id
    if found is None:
        found = tokenizer.eos_token_id
    listed = found if isinstance(found, (list, tuple)) else [found]
    return frozenset(int(id_) for id_ in listed if id_ is not None)


def _generation_config(source: str, config: Any) -> Any:
    """As the model will have it; without a file of its own it comes from the configuration."""
    try:
        return GenerationConfig.from_pretrained(source)
    except OSError:
        return GenerationConfig.from_model_config(config)


def _local_source(name: str, dtype: torch.dtype | None) -> str:
    """A folder or hub name that transformers can load."""
    if name == "demo":
        return str(converted(demo_gguf(), dtype or torch.float32))
    path = Path(name).expanduser()
    if name.endswith(".gguf"):
        return str(converted(path, dtype or torch.bfloat16))
    return str(path) if path.is_dir() else name


@contextmanager
def _load_errors(name: str, devices: Sequence[tuple[str, torch.device]] = ()) -> Iterator[None]:
    """Turn whatever goes wrong while a model is loaded into `LoadError`, or `NotEnoughMemoryError`."""
    try:
        yield
    except RapidError:
        raise
    except Exception as error:  # damaged files and remote code raise almost anything
        if is_out_of_memory(error):
            raise out_of_memory(error, devices, remedy=MORE_ROOM) from None
        reason = str(error).strip().splitlines()
        raise LoadError(
            f"model {name!r} could not be loaded: {reason[0] if reason else type(error).__name__}. "
            "A model is a hub name, a folder with config.json, tokenizer and safetensors, a .gguf file, or 'demo'"
        ) from error


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
