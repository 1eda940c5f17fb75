"""How long a call may take, from the start of its work."""

from __future__ import annotations

import time

from rapid_core import Delta


class Deadline:
    """Raises TimeoutError where a call is still at work after `timeout` seconds; None never does."""

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self._end: float | None = None

    def progress(self, stage: str, done: int, total: int) -> None:  # noqa: ARG002 - the engine's signature
        """Called while prompts are read, with the first call as the start of the work."""
        self._look(stage)

    def check(self, delta: Delta) -> None:
        """Called with each piece of the answer; the last one comes in time, whatever the clock says."""
        if delta.finish_reason is None:
            self._look("decoding")

    def _look(self, stage: str) -> None:
        if self._timeout is None:
            return
        now = time.monotonic()
        if self._end is None:
            self._end = now + self._timeout
        if now > self._end:
            raise TimeoutError(
                f"a call must end within timeout={self._timeout:g} seconds, and it is still at {stage}; "
                "raise timeout, or ask for fewer max_tokens"
            )
