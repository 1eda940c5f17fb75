"""GGUF files made folders of safetensors, once."""

from __future__ import annotations

import copy
import hashlib
import shutil
import tempfile
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from rapid_core.demo_model import make_cache_folder
from rapid_core.errors import LoadError, RapidError
from rapid_core.estimate import weight_sizes, without_weights
from rapid_core.memory import MORE_ROOM, check_memory, is_out_of_memory, out_of_memory
from rapid_core.runner import refuse_recurrent

# Bytes that a reader of GGUF files takes at most, as a multiple of the model's.
AT_PEAK = 2


def converted(gguf: Path, dtype: torch.dtype) -> Path:
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
        config = AutoConfig.from_pretrained(**source)
        refuse_recurrent(config)
        # At its peak a reader holds the dequantised weights and the model.
        needed = AT_PEAK * sum(weight_sizes(without_weights(config, dtype, False), None).values())
        check_memory({torch.device("cpu"): needed}, what=f"{gguf.name} is read, which needs", remedy=MORE_ROOM)
        read = AutoModelForCausalLM.from_pretrained(**source, dtype=dtype)
        tokenizer = AutoTokenizer.from_pretrained(**source)
    except RapidError:
        raise
    except Exception as error:  # a damaged file makes the reader raise almost anything
        if is_out_of_memory(error):
            raise out_of_memory(error, [("conversion", torch.device("cpu"))], remedy=MORE_ROOM) from None
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
