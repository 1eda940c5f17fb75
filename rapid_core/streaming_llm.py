"""A drafter that is the target itself with a part of its keys: the first tokens and the last ones.

The keys come from the target's own prefill, so nothing is read twice, and keep their positions.
Source: StreamingLLM, arXiv 2309.17453; for self-speculation MagicDec, arXiv 2408.11049.
"""

from __future__ import annotations

from collections.abc import Sequence

from rapid_core.cache_store import CacheBudget, CacheStore
from rapid_core.runner import ModelRunner

# The window moves by so many tokens at once: each time all its keys are copied.
STRIDE = 16


class StreamingRunner(ModelRunner):
    """The target's weights over the keys of its first `sinks` tokens and of a window of its last ones.

    target: prefilled. The window holds `sliding_window` tokens at the most when a draft begins;
    what leaves it is forgotten. reserve: tokens to come.
    """

    def __init__(self, target: ModelRunner, *, sinks: int, sliding_window: int, reserve: int) -> None:
        super().__init__(
            target.model,
            role="drafter",
            vocab_size=target.vocab_size,
            store=CacheStore(CacheBudget(0), target.store.layout, "drafter"),
        )
        self._sinks = min(sinks, target.length)
        self._sliding_window = sliding_window
        start = max(self._sinks, target.length - sliding_window)
        read = [*target.sequence[: self._sinks], *target.sequence[start : target.length]]
        if read:
            self.store.adopt(
                read,
                len(read) + reserve + STRIDE,
                beyond_border=False,
                fill=lambda cache: target.store.current.cache.copy_ends(cache, self._sinks, start),
            )
        self.offset = start - self._sinks
        self.sequence = [*read, *target.sequence[target.length :]]

    def commit(self, ids: Sequence[int], accepted: int = 0) -> None:
        """Append what was decided, and move the window where it has grown too long."""
        super().commit(ids, accepted)
        over = self.length - self._sinks - self._sliding_window
        if over > 0:
            # The last token read has to stay: the next one is pending behind it.
            count = min(-(-over // STRIDE) * STRIDE, self.length - self._sinks - 1)
            self.store.current.cache.drop(self._sinks, count)
            del self.sequence[self._sinks : self._sinks + count]
            self.offset += count
