"""Preallocated keys and values: append in place, rewind by setting a length, never copy to go back.

transformers counts what `Cache.crop` removes as a negative number and gives its static and
sliding caches limits of their own; every layer here keeps every position, sliding windows are
left to the attention mask, and so any length can be returned to.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

# Capacities are rounded up, so that a slightly longer prompt finds room in the old tensors.
GRANULE = 256


class _Layer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one attention layer, [B, H, capacity, D], the first `length` in use."""

    is_sliding = False

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys = _empty_like(key_states, self.capacity)
        self.values = _empty_like(value_states, self.capacity)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[-2]
        if end > self.capacity:
            self.reserve(end)
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def reserve(self, tokens: int) -> None:
        if tokens > self.capacity:
            self.resize(capacity_for(tokens))

    def resize(self, capacity: int) -> None:
        if self.is_initialized:
            # Both are made before either is taken over: memory may run out in between.
            keys, values = _empty_like(self.keys, capacity), _empty_like(self.values, capacity)
            keys[:, :, : self.length] = self.keys[:, :, : self.length]
            values[:, :, : self.length] = self.values[:, :, : self.length]
            self.keys, self.values = keys, values
        self.capacity = capacity

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """What one token takes in the caches of a model, and where.

    layers: for the number of each layer with keys of its own their device, and bytes a token.
    """

    layers: dict[int, tuple[torch.device, int]] = field(default_factory=dict)

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in all layers."""
        return sum(size for _, size in self.layers.values())

    def bytes_by_device(self, tokens: int) -> dict[torch.device, int]:
        """What `tokens` take on each device."""
        found: dict[torch.device, int] = {}
        for device, size in self.layers.values():
            found[device] = found.get(device, 0) + tokens * size
        return found


class KVCache(Cache):  # type: ignore[misc]
    """Keys and values of one sequence. `length` is the number of tokens whose keys and values it holds."""

    def __init__(self) -> None:
        self._capacity = GRANULE
        # What was recorded over these tensors, by the number of tokens in a step (compiled.py).
        self.graphs: dict[int, Any] = {}
        super().__init__(layer_class_to_replicate=lambda: _Layer(self._capacity))

    @classmethod
    def with_room(cls, tokens: int) -> KVCache:
        """An empty cache with room for `tokens`, whose memory is taken by the first forward."""
        made = cls()
        made.reserve(tokens)
        return made

    @property
    def capacity(self) -> int:
        """Tokens that it has room for."""
        return max((layer.capacity for layer in self.layers), default=self._capacity)

    @property
    def is_made(self) -> bool:
        """Whether its tensors are there, which the first forward makes."""
        return any(layer.is_initialized for layer in self.layers)

    @property
    def layout(self) -> CacheLayout:
        """What a token takes, and where; nothing before the first forward."""
        made = {i: layer for i, layer in enumerate(self.layers) if layer.is_initialized}
        return CacheLayout(
            {
                i: (layer.keys.device, (layer.keys.nbytes + layer.values.nbytes) // layer.capacity)
                for i, layer in made.items()
            }
        )

    @property
    def length(self) -> int:
        """Tokens held by every layer."""
        return min((layer.length for layer in self.layers if layer.is_initialized), default=0)

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` in all, so that nothing grows while decoding."""
        self._capacity = max(self._capacity, capacity_for(tokens))
        for layer in self.layers:
            layer.reserve(self._capacity)

    def resize(self, tokens: int) -> None:
        """Give memory back, or take some, until there is room for `tokens`; layer by layer."""
        self._capacity = capacity_for(tokens)
        for layer in self.layers:
            if layer.capacity != self._capacity:
                layer.resize(self._capacity)

    def fork(self, length: int, tokens: int) -> KVCache:
        """Another cache with room for `tokens`, and a copy of the first `length` tokens of this one."""
        made = KVCache.with_room(tokens)
        for layer in self.layers:
            copy = _Layer(made.capacity)
            if layer.is_initialized:
                copy.update(layer.keys[:, :, :length], layer.values[:, :, :length])
            made.layers.append(copy)
        return made

    def copy_ends(self, into: KVCache, first: int, start: int) -> None:
        """Copy the first `first` tokens and those from `start` on into an empty cache, one behind the other."""
        for number, layer in enumerate(self.layers):
            if layer.is_initialized:
                for piece in (slice(0, first), slice(start, layer.length)):
                    into.update(layer.keys[:, :, piece], layer.values[:, :, piece], number)

    def drop(self, start: int, count: int) -> None:
        """Take `count` tokens from `start` on out; what stands behind them moves up."""
        for layer in self.layers:
            if layer.is_initialized:
                end = layer.length
                for states in (layer.keys, layer.values):
                    states[:, :, start : end - count] = states[:, :, start + count : end].clone()
                layer.length = end - count

    def states(self, length: int) -> dict[int, tuple[Tensor, Tensor]]:
        """Keys and values of the first `length` tokens by layer, [1, H, length, D], where a layer has its own."""
        made = {i: layer for i, layer in enumerate(self.layers) if layer.is_initialized}
        return {i: (layer.keys[:, :, :length], layer.values[:, :, :length]) for i, layer in made.items()}

    def buffers(self) -> tuple[list[Tensor], list[Tensor]]:
        """Keys and values of every layer, [1, H, capacity, D] each, for a step that writes into them itself."""
        return [layer.keys for layer in self.layers], [layer.values for layer in self.layers]

    def extend(self, tokens: int) -> None:
        """Count `tokens` that were written into the buffers behind the others."""
        self.rewind(self.length + tokens)

    def rewind(self, length: int) -> None:
        """Go back to the first `length` tokens; O(1), what stood behind them is overwritten later."""
        for layer in self.layers:
            layer.length = length

    def clear(self) -> None:
        """Give the memory back."""
        self.layers.clear()
        self.graphs.clear()
        self._capacity = GRANULE


def capacity_for(tokens: int) -> int:
    """The capacity of a cache with room for `tokens`."""
    return max(-(-tokens // GRANULE), 1) * GRANULE


def _empty_like(states: Tensor, capacity: int) -> Tensor:
    # Zeros: a step of fixed shape gives what stands behind the length no weight, but reads it.
    return states.new_zeros(*states.shape[:-2], capacity, states.shape[-1])
