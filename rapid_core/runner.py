"""One role's model, cache and position; the only user of the transformers model and cache API."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from rapid_core.attention import MOST_QUERIES, can_group, grouped
from rapid_core.cache_store import CacheBudget, CacheStore
from rapid_core.compiled import BLOCKS, LEAST_CAPACITY, CompiledStep, why_not
from rapid_core.errors import ModelOutputError, UnsupportedModelError
from rapid_core.kv_cache import CacheLayout, KVCache, capacity_for
from rapid_core.memory import MORE_ROOM, is_out_of_memory, out_of_memory
from rapid_core.weights import is_quantized, stored_bytes

# Measured on two CPU cores at 6,000 tokens: 256 takes 1.3, 512 1.15, 2,048 1.25 of one whole forward.
PREFILL_CHUNK = 512
# Attention of these kinds depends on nothing but the keys and values that the cache keeps.
REWINDABLE_LAYERS = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
MLP_LAYERS = frozenset({"sparse", "dense", "mlp", "moe"})

OnChunk = Callable[[int, int], None]

# A forward of few tokens switches the attention of its model, or its layers, and engines may share
# a model: no two forwards of one model run at once.
_LOCKS: WeakKeyDictionary[Any, threading.RLock] = WeakKeyDictionary()


class ModelRunner:
    """Runs one role's forwards and keeps its place: `sequence` is its prompt and what was committed.

    Two roles are two runners, also when they share a model: their prompts differ in length.
    The cache holds the keys of the first `length` ids of `sequence`; the rest is `pending`, and
    goes into the next forward. After a full acceptance the drafter has two ids pending, since
    it never read its own last draft. The caches of earlier sequences stay in `store`; without
    one only the last sequence has a cache.
    """

    def __init__(
        self,
        model: Any,
        *,
        role: str,
        vocab_size: int | None = None,
        store: CacheStore | None = None,
        compiled: CompiledStep | None = None,
        reproducible: bool = False,
    ) -> None:
        self.model = model
        self.role = role
        text_config = model.config.get_text_config(decoder=True)
        self.window = _window(text_config)
        self.vocab_size = vocab_size or int(text_config.vocab_size)
        self.store = store or CacheStore(CacheBudget(0))
        self._keeps_rows = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.reproducible = reproducible
        self._can_group = can_group(text_config)
        self._lock = _LOCKS.setdefault(model, threading.RLock())
        with self._lock:
            reason = why_not(model, _rope_types(text_config)) if compiled is not None else None
        self._compiled = compiled if reason is None else None
        # What about this role's speed its user did not decide.
        self.notes: list[str] = []
        if not self._can_group:
            self.notes.append(
                f"the {role} has stock attention: {text_config.model_type!r} layers do not hand over all that shapes it"
            )
        if reason is not None:
            self.notes.append(f"the {role} is not compiled: {reason}")
        # Tokens that stood before the next one and have gone from the sequence: positions count them.
        self.offset = 0
        self._one_prefill = _rope_types(text_config) & {"dynamic", "longrope"} != set()
        # With longrope all keys change when a text grows over this length.
        self._rope_border = _rope_border(text_config)
        # Whether all logits since the last `confirm` were finite; it stays on the device.
        self._finite: Tensor | None = None
        self._weight_bytes = stored_bytes(model)

    @property
    def compiles(self) -> bool:
        """Whether steps of decoding are compiled."""
        return self._compiled is not None

    @property
    def sequence(self) -> list[int]:
        """The prompt and what was committed behind it."""
        return self.store.current.sequence

    @sequence.setter
    def sequence(self, ids: list[int]) -> None:
        self.store.current.sequence = ids

    @property
    def device(self) -> torch.device:
        """Where token ids go: the device of the embeddings."""
        device: torch.device = self.model.get_input_embeddings().weight.device
        return device

    @property
    def _cache(self) -> KVCache:
        return self.store.current.cache

    @property
    def _beyond_border(self) -> bool:
        return self.store.current.beyond_border

    @_beyond_border.setter
    def _beyond_border(self, beyond: bool) -> None:
        self.store.current.beyond_border = beyond

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self._cache.length

    def step_bytes(self, length: int) -> int:
        """What a forward over one token behind `length` others has to read: all weights, keys and values."""
        return self._weight_bytes + self.store.bytes_of(length)

    @property
    def pending(self) -> list[int]:
        """Ids of the sequence that no forward has read yet; never empty after `prefill`."""
        return self.sequence[self.length :]

    @property
    def room(self) -> int:
        """Tokens that the window still takes behind the sequence."""
        return self.window - self.offset - len(self.sequence)

    @property
    def keys_stay(self) -> bool:
        """Whether the keys of a text stay as they are however long it grows."""
        return not self._one_prefill and self._rope_border is None

    @property
    def draft_room(self) -> int:
        """Drafts that can be verified in one forward: they must not cross where all keys change."""
        if self._rope_border is None or len(self.sequence) > self._rope_border:
            return self.room
        return min(self.room, self._rope_border - len(self.sequence))

    def prefill(self, prompt_ids: Sequence[int], *, reserve: int, on_chunk: OnChunk | None = None) -> int:
        """Read a prompt but for its last id, which the first verification reads with its drafts.

        What a cache holds of an earlier request is reused as far as the ids agree.
        reserve: tokens to come after the prompt. on_chunk: told (tokens done, of all) before
        each chunk and at the end; what it raises stops the prefill and leaves the cache valid.
        Returns how many tokens were reused.
        """
        beyond = self._rope_border is not None and len(prompt_ids) - 1 > self._rope_border
        room = min(len(prompt_ids) + reserve, self.window)
        total = len(prompt_ids) - 1
        chunk = max(total if self._one_prefill else PREFILL_CHUNK, 1)
        piece = chunk if self.reproducible else None
        reused = self.store.take(prompt_ids, room, beyond_border=beyond, piece=piece)
        if self._compiled is not None and self._cache.capacity > 2 * max(capacity_for(room), LEAST_CAPACITY):
            # A compiled step attends to all the room there is.
            self._cache.resize(room)
        ids = torch.tensor(prompt_ids[:-1], dtype=torch.long, device=self.device)
        for start in range(reused, total, chunk):
            if on_chunk is not None:
                on_chunk(start, total)
            self.forward(ids[start : start + chunk], 1)
            self.confirm()
            self.store.current.ends.append(self.length)
        if on_chunk is not None:
            on_chunk(total, total)
        return reused

    def forward(self, ids: Tensor, rows: int) -> Tensor:
        """Read `ids` [k] behind the cache and return the last `rows` rows of logits, [rows, V] float32.

        `confirm` tells whether they are numbers; a caller asks it before anything is committed.
        """
        border = self._rope_border
        if border is not None:
            end = self.length + ids.shape[0]
            if not self._beyond_border and 0 < self.length < len(self.sequence) and end > border:
                ids = torch.cat((torch.tensor(self.sequence[: self.length], device=ids.device), ids))
                self._cache.rewind(0)
            self._beyond_border = end > border
        # Where layers lie on several devices, logits can come out on another one than ids go in.
        logits = self._run(ids, rows)[0, -rows:, : self.vocab_size].to(self.device, torch.float32)
        # A maximum shows NaN and infinity alike, and lets a model rule ids out with -inf.
        finite = torch.isfinite(logits.amax(dim=-1)).all()
        self._finite = finite if self._finite is None else self._finite & finite
        return logits

    def confirm(self) -> None:
        """Wait for the forwards since the last call; raise `ModelOutputError` where one gave NaN or infinity.

        All keys are then forgotten: earlier ones may be as bad.
        """
        finite, self._finite = self._finite, None
        if finite is not None and not bool(finite):
            self.clear()
            raise ModelOutputError(
                f"logits must be finite, and the {self.role} model returned NaN or infinity; "
                "use dtype='float32' or 'bfloat16', and check the weights"
            )

    def rereads(self, length: int) -> bool:
        """Whether what stands behind the first `length` ids can be read again: not where their keys would change."""
        return self._rope_border is None or not length <= self._rope_border < len(self.sequence)

    def rewind(self, length: int) -> None:
        """Forget the keys behind the first `length` tokens, drafts that nobody proposes among them."""
        self.store.current.rewind(length)

    def commit(self, ids: Sequence[int], accepted: int = 0) -> None:
        """Append what was decided, and rewind the cache to what stands: all but the last id at most.

        accepted: how many of the first ids were read as drafts; the keys of other drafts go.
        """
        stands = len(self.sequence) + accepted
        self.sequence.extend(ids)
        self.store.current.rewind(min(stands, len(self.sequence) - 1))

    def clear(self) -> None:
        """Forget every sequence and give the memory of the caches back."""
        self.store.clear()

    def compile_steps(self, most: int = BLOCKS[-1]) -> None:
        """Compile now the steps of up to `most` tokens; the sequence and its cache stay.

        Raises `CompilationError`.
        """
        if self._compiled is None:
            return
        before = self.length
        ids = torch.zeros(BLOCKS[-1], dtype=torch.long, device=self.device)
        if before == 0:
            # The first forward makes the cache's tensors, and is not compiled.
            self._run(ids[:2], 1)
        for block in BLOCKS:
            if block <= most:
                self._run(ids[:block], 1)
                self._cache.rewind(max(before, 2))
        self._cache.rewind(before)

    @torch.no_grad()
    def _run(self, ids: Tensor, rows: int) -> Tensor:
        before = self.length
        kept: dict[str, Any] = {"logits_to_keep": rows} if self._keeps_rows else {}
        if self.offset:
            end = before + self.offset + ids.shape[0]
            kept["position_ids"] = torch.arange(before + self.offset, end, device=ids.device).unsqueeze(0)
        few = self._can_group and ids.shape[0] <= MOST_QUERIES
        try:
            with self._lock:
                if self._compiled is not None and self._compiled.takes(self._cache, ids.shape[0]):
                    return self._compiled(self.model, ids, rows, self._cache)
                with grouped(self.model) if few else nullcontext():
                    output = self.model(input_ids=ids.unsqueeze(0), past_key_values=self._cache, use_cache=True, **kept)
        except BaseException:
            # Layers may have grown unevenly; none of it counts.
            self._cache.rewind(before)
            raise
        logits: Tensor = output.logits
        return logits


def refuse_recurrent(config: Any, model_class: Any = None) -> None:
    """Raise `UnsupportedModelError` for a model that says of itself that it cannot be rewound."""
    text_config = config.get_text_config(decoder=True)
    layers = set(getattr(text_config, "layer_types", None) or ()) - MLP_LAYERS
    odd = sorted(layers - REWINDABLE_LAYERS)
    if odd:
        reason = f"its layers {', '.join(odd)} keep a state that cannot go back to an earlier token"
    elif getattr(model_class, "_is_stateful", False):
        reason = "it keeps a recurrent state, which cannot go back to an earlier token"
    elif getattr(config, "is_encoder_decoder", False):
        reason = "it is an encoder-decoder, and RAPID verifies drafts with a decoder-only model"
    # Encoders can be told to be decoders, and then attend across too; GPT-NeoX has the first switch only.
    elif hasattr(config, "add_cross_attention") and getattr(config, "is_decoder", True) is False:
        reason = "it is an encoder, and RAPID needs a decoder-only model"
    else:
        return
    raise UnsupportedModelError(
        f"a model must be able to forget rejected drafts, and {config.model_type!r} is not: {reason}. "
        "Use a model whose layers are all attention"
    )


def check_rewind(model: Any) -> CacheLayout:
    """Run a few tokens twice, once over rejected drafts, and raise `UnsupportedModelError` if they differ.

    Architectures differ in ways that no configuration tells; this asks the model itself, at the
    cost of three short forwards. Returns what a token takes in the cache, and where.
    """
    runner = ModelRunner(model, role=str(model.config.model_type))
    ids = torch.arange(1, 9, device=runner.device) % runner.vocab_size
    try:
        runner.sequence = ids.tolist()
        straight = runner.forward(ids, 1)
        runner.confirm()
        runner.clear()
        runner.sequence = ids[:5].tolist()
        runner.forward(ids[:5], 1)
        runner.forward(ids.flip(0)[:3], 1)
        runner.rewind(5)
        again = runner.forward(ids[5:], 1)
        runner.confirm()
    except ModelOutputError:
        raise
    except (AttributeError, IndexError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        if is_out_of_memory(error):
            raise out_of_memory(error, [(runner.role, runner.device)], remedy=MORE_ROOM) from None
        raise UnsupportedModelError(
            f"{model.config.model_type!r} does not run over a cache that is rewound: {error}. "
            "Use a model whose layers are all attention"
        ) from error
    # Sums in another order round differently; a leaking state changes logits by about their spread.
    tolerance = 1e-3 if model.dtype == torch.float32 and not is_quantized(model) else 0.5
    if float((straight - again).abs().max()) > tolerance * float(straight.std()) + 1e-6:
        raise UnsupportedModelError(
            f"{model.config.model_type!r} gives other logits after rejected drafts than without them: it keeps a "
            "state outside its key-value cache. Use a model whose layers are all attention"
        )
    return runner._cache.layout


def _window(text_config: Any) -> int:
    """Positions that a model can tell apart; YaRN stretches those that it was trained on."""
    window = int(getattr(text_config, "max_position_embeddings", 0) or 2**31)
    for entry in _rope_entries(text_config):
        if entry.get("rope_type") == "yarn":
            trained = entry.get("original_max_position_embeddings") or window
            window = max(window, int(trained * entry.get("factor", 1)))
    return window


def _rope_types(text_config: Any) -> set[str]:
    """How a model encodes positions; "dynamic" and "longrope" do it by the length of the whole input."""
    return {str(entry.get("rope_type")) for entry in _rope_entries(text_config)}


def _rope_border(text_config: Any) -> int | None:
    """The length over which a longrope model encodes all positions in another way."""
    for entry in _rope_entries(text_config):
        if entry.get("rope_type") == "longrope":
            border = entry.get("original_max_position_embeddings")
            return int(border or text_config.original_max_position_embeddings)
    return None


def _rope_entries(text_config: Any) -> list[dict[str, Any]]:
    """The rope parameters, which models with several kinds of layers keep once for each kind."""
    parameters = getattr(text_config, "rope_parameters", None) or {}
    return [parameters, *(value for value in parameters.values() if isinstance(value, dict))]
