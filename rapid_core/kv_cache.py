"""Preallocated keys and values: append in place, rewind by setting a length, never copy to go back.

transformers counts what `Cache.crop` removes as a negative number and gives its static and
sliding caches limits of their own; every layer here keeps every position, sliding windows are
left to the attention mask, and so any length can be returned to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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

    def reserve(self, capacity: int) -> None:
        if capacity <= self.capacity:
            return
        capacity = -(-capacity // GRANULE) * GRANULE
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


class KVCache(Cache):  # type: ignore[misc]
    """The cache of one role. `length` is the number of tokens whose keys and values it holds."""

    def __init__(self) -> None:
        self._capacity = GRANULE
        super().__init__(layer_class_to_replicate=lambda: _Layer(self._capacity))

    @property
    def length(self) -> int:
        """Tokens held by every layer."""
        return min((layer.length for layer in self.layers if layer.is_initialized), default=0)

    @property
    def bytes_in_use(self) -> int:
        """Memory of the keys and values of those tokens."""
        layers = [layer for layer in self.layers if layer.is_initialized]
        return sum(
            part[:, :, : layer.length].numel() * part.element_size()
            for layer in layers
            for part in (layer.keys, layer.values)
        )

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` in all, so that nothing grows while decoding."""
        self._capacity = max(self._capacity, -(-tokens // GRANULE) * GRANULE)
        for layer in self.layers:
            layer.reserve(self._capacity)

    def rewind(self, length: int) -> None:
        """Go back to the first `length` tokens; O(1), what stood behind them is overwritten later."""
        for layer in self.layers:
            layer.length = length

    def clear(self) -> None:
        """Give the memory back."""
        self.layers.clear()
        self._capacity = GRANULE


def shared_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many ids two sequences have in common from their start."""
    for position, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return position
    return min(len(left), len(right))


def _empty_like(states: Tensor, capacity: int) -> Tensor:
    return states.new_empty(*states.shape[:-2], capacity, states.shape[-1])
