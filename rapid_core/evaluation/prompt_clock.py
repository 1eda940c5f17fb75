"""What reading a prompt takes from its first token on, whatever caches hold of it."""

from __future__ import annotations

import math
import time
from itertools import pairwise


class PromptClock:
    """Times the pieces in which one role reads its prompts, as the progress of `RapidEngine.prefill`.

    What a cache holds was read in the same pieces before: their seconds stand for the beginning that
    is not read again. So another task about the same document, or a longer part of it, has the
    seconds of all that it stands behind.
    """

    def __init__(self) -> None:
        # By where it begins, the longest piece that was read there: its tokens and its seconds.
        self._pieces: dict[int, tuple[int, float]] = {}
        self._stage = ""
        self._marks: list[tuple[int, float]] = []

    def begin(self, stage: str) -> None:
        """Time the next prompt, by the reports of this stage."""
        self._stage, self._marks = stage, []

    def __call__(self, stage: str, done: int, total: int) -> None:  # noqa: ARG002
        """So many tokens are read."""
        if stage == self._stage:
            self._marks.append((done, time.perf_counter()))

    def whole(self, seconds: float) -> float:
        """Seconds of the whole prompt, of which `seconds` passed now."""
        before = self._before(self._marks[0][0]) if self._marks else 0.0
        for (start, began), (end, ended) in pairwise(self._marks):
            if end - start >= self._pieces.get(start, (1, 0.0))[0]:
                self._pieces[start] = end - start, ended - began
        return before + seconds

    def _before(self, reused: int) -> float:
        """Seconds of the pieces before a token, each by the tokens that count of it."""
        starts = [start for start in sorted(self._pieces) if start < reused]
        return math.fsum(
            self._pieces[start][1] / self._pieces[start][0] * (end - start)
            for start, end in pairwise([*starts, reused])
        )
