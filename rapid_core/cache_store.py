"""The caches that one role keeps: several sequences, the least recently used out first.

The roles of an engine share one budget of bytes. A new prompt goes on in the cache that has
most of its beginning, or starts one of its own with a copy of what they share: a system prompt
that two documents have in common must not cost the first one its cache.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from rapid_core.kv_cache import CacheLayout, KVCache, capacity_for
from rapid_core.memory import check_memory, short_of

# Ids are compared in blocks, each of them by one comparison of lists: 3 ms for 128K ids.
BLOCK = 4096
# For a store of which nobody has told what a token takes: caches are counted in tokens.
UNKNOWN = CacheLayout({0: (torch.device("meta"), 1)})


@dataclass(eq=False)
class Slot:
    """A sequence of ids and the cache with the keys of its first `cache.length` ones.

    `beyond_border` says that they were made for a text over a longrope model's border. `ends` are
    where the forwards ended by which a prefill read its beginning.
    """

    cache: KVCache = field(default_factory=KVCache)
    sequence: list[int] = field(default_factory=list)
    beyond_border: bool = False
    used: int = 0
    ends: list[int] = field(default_factory=list)

    def rewind(self, length: int) -> None:
        """Forget what stands behind the first `length` ids."""
        self.cache.rewind(min(length, self.cache.length))
        while self.ends and self.ends[-1] > length:
            self.ends.pop()

    def shared(self, ids: Sequence[int], beyond_border: bool) -> int:
        """How many of `ids`, from their start, the cache holds."""
        if self.beyond_border != beyond_border:
            return 0
        return shared_prefix(self.sequence, ids, self.cache.length)


class CacheBudget:
    """The bytes that all caches of an engine may take together, and their order of use.

    The cache that a role works with is always kept, also over the budget; a budget of 0 keeps
    only these. Both roles may ask at the same time.
    """

    def __init__(self, limit_bytes: int = 0) -> None:
        self.lock = threading.RLock()
        self._limit = limit_bytes
        self._stores: list[CacheStore] = []
        self._clock = itertools.count(1)

    def join(self, store: CacheStore) -> None:
        """Count the caches of `store` too."""
        self._stores.append(store)

    def tick(self) -> int:
        """A number for what is used now, larger than any before."""
        return next(self._clock)

    def victims(self, store: CacheStore, size: int, keep: Slot | None, short: int = 0) -> list[Slot]:
        """What must go before `store` takes a cache of `size` bytes for the one of `keep`.

        short: bytes that the memory lacks for it.
        """
        held = [(slot, owner) for owner in self._stores for slot in owner.slots if slot is not keep]
        over = size + sum(owner.bytes_of(slot.cache.capacity) for slot, owner in held) - self._limit
        over = max(over, short)
        chosen = []
        for slot, owner in sorted(held, key=lambda pair: pair[0].used):
            if over <= 0:
                break
            if owner is store or slot is not owner.current:
                chosen.append(slot)
                over -= owner.bytes_of(slot.cache.capacity)
        return chosen

    def promised(self, device: torch.device) -> int:
        """Bytes of a device that caches are to have, and that no forward has taken yet."""
        waiting = [(slot, owner) for owner in self._stores for slot in owner.slots if not slot.cache.is_made]
        return sum(owner.layout.bytes_by_device(slot.cache.capacity).get(device, 0) for slot, owner in waiting)

    def drop(self, slots: Sequence[Slot]) -> None:
        """Give the memory of `slots` back."""
        for store in self._stores:
            store.slots = [slot for slot in store.slots if slot not in slots]
        for slot in slots:
            slot.cache.clear()


class CacheStore:
    """One role's caches; `current` is the one that it works with.

    layout: what one token takes in the cache, and where. role: in errors.
    """

    def __init__(self, budget: CacheBudget, layout: CacheLayout = UNKNOWN, role: str = "model") -> None:
        self._budget = budget
        self.layout = layout
        self._role = role
        self.current = Slot()
        self.slots: list[Slot] = []
        budget.join(self)

    def bytes_of(self, tokens: int) -> int:
        """Bytes of a cache with room for `tokens`."""
        return tokens * self.layout.token_bytes

    def take(self, ids: Sequence[int], tokens: int, *, beyond_border: bool, piece: int | None = None) -> int:
        """Make a cache with room for `tokens` current, rewound to what it holds of `ids`.

        It is the one with the longest shared prefix where at least half of it is shared, and
        else a new one with a copy of that prefix. What must go gives its memory back first.
        piece: reuse only what was read in forwards of so many tokens, as an empty cache would be.
        Returns how many ids, all but the last at most, need not be read again.
        Raises `NotEnoughMemoryError` where the memory does not hold it without the other caches either.
        """
        with self._budget.lock:
            # What holds nothing, a prefill that was stopped before its first chunk, is of no use.
            self._budget.drop([slot for slot in self.slots if slot.cache.length == 0])
            best, shared = self._longest(ids, beyond_border)
            reused = min(shared, len(ids) - 1)
            if piece is not None and best is not None:
                reused = _read_alike(best.ends, reused, len(ids) - 1, piece)
            # Little is lost where at least half of it is shared.
            keep = best if best is not None and 2 * reused >= best.cache.length else None
            capacity = max(capacity_for(tokens), keep.cache.capacity if keep is not None else 0)
            more = capacity - (keep.cache.capacity if keep is not None else 0)
            victims = self._budget.victims(self, self.bytes_of(capacity), keep, self._short(more))
            self._budget.drop([slot for slot in victims if slot is not best])
            if keep is None and best in victims:
                more -= best.cache.capacity
            self._check(more, tokens)
            if best is None:
                slot = Slot(KVCache.with_room(tokens))
            elif keep is not None:
                slot = keep
                slot.rewind(reused)
                slot.cache.reserve(tokens)
            elif best in victims:
                # What has to go anyway hands its tensors on.
                slot = best
                slot.rewind(reused)
                slot.cache.resize(tokens)
            else:
                ends = [end for end in best.ends if end <= reused]
                slot = Slot(best.cache.fork(reused, tokens), beyond_border=beyond_border, ends=ends)
            if slot is not best:
                self.slots.append(slot)
            slot.sequence = list(ids)
            self._make_current(slot)
            return reused

    def find(self, ids: Sequence[int]) -> Slot | None:
        """The slot that holds all of `ids`, the most recently used one of several."""
        held = [slot for slot in self.slots if shared_prefix(slot.sequence, ids, slot.cache.length) == len(ids)]
        return max(held, key=lambda slot: slot.used, default=None)

    def adopt(self, ids: Sequence[int], tokens: int, *, beyond_border: bool, fill: Callable[[KVCache], None]) -> None:
        """Make a cache with room for `tokens` current, into which `fill` writes the keys of `ids`.

        A cache that holds them already is taken as it is. What must go gives its memory back first.
        """
        with self._budget.lock:
            slot = self.find(ids)
            if slot is None or slot.beyond_border != beyond_border:
                capacity = capacity_for(tokens)
                short = self._short(capacity)
                self._budget.drop(self._budget.victims(self, self.bytes_of(capacity), keep=None, short=short))
                self._check(capacity, tokens)
                slot = Slot(KVCache.with_room(tokens), list(ids), beyond_border)
                fill(slot.cache)
                self.slots.append(slot)
            self._make_current(slot)

    def clear(self) -> None:
        """Forget all sequences and give the memory back."""
        with self._budget.lock:
            self._budget.drop(self.slots)
            self.current = Slot()

    def _longest(self, ids: Sequence[int], beyond_border: bool) -> tuple[Slot | None, int]:
        """The slot that holds most of `ids`, the most recently used of equals, and how many."""
        best, longest = None, 0
        for slot in sorted(self.slots, key=lambda slot: -slot.used):
            shared = slot.shared(ids, beyond_border)
            if shared > longest:
                best, longest = slot, shared
        return best, longest

    def _short(self, tokens: int) -> int:
        """Bytes, of all layers together, that memory lacks for `tokens` more."""
        each, per_token = self.layout.bytes_by_device(1), self.layout.token_bytes
        lacking = {
            device: short_of(device, tokens * size + self._budget.promised(device)) for device, size in each.items()
        }
        return max((count * per_token // each[device] for device, count in lacking.items()), default=0)

    def _check(self, more: int, tokens: int) -> None:
        """Raise `NotEnoughMemoryError` unless memory holds `more` tokens, of a cache for `tokens`."""
        for device, needed in self.layout.bytes_by_device(max(more, 0)).items():
            check_memory(
                {device: needed},
                what=f"the {self._role}'s cache for {tokens:,} tokens, prompt and answer, needs",
                remedy="shorten the prompt, lower max_new_tokens, or choose a quantization or another device",
                promised=self._budget.promised(device),
            )

    def _make_current(self, slot: Slot) -> None:
        slot.used = self._budget.tick()
        self.current = slot


def _read_alike(ends: Sequence[int], shared: int, total: int, piece: int) -> int:
    """How many of `shared` ids were read by the forwards that a prefill of `total` ids makes in an empty cache."""
    reused = 0
    for end in ends:
        if end > shared or end != min(reused + piece, total):
            break
        reused = end
    return reused


def shared_prefix(left: Sequence[int], right: Sequence[int], most: int) -> int:
    """How many ids two sequences have in common from their start, `most` at the most."""
    most = min(len(left), len(right), most)
    for start in range(0, most, BLOCK):
        end = min(start + BLOCK, most)
        ours, theirs = list(left[start:end]), list(right[start:end])
        if ours != theirs:
            return start + next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
    return most
