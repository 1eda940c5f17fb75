"""One request at a time, the others in the order in which they came."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from rapid_core.errors import EngineStateError

# How often a waiting request looks whether its caller has given up.
POLL_S = 0.1
# How long a thread may wait for a stream that it left open itself. In a pool of threads another
# one may still read that stream on; in the main thread nobody can.
PATIENCE_S = 30.0


class Turn:
    """One place in the queue; holds the engine from `wait` to `leave`."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.thread = threading.get_ident()
        self.started = False
        # The thread that last read a stream which now waits for its reader.
        self.suspended_by: int | None = None

    def wait(self, is_cancelled: Callable[[], bool]) -> bool:
        """Block until it is this request's turn; False if it was cancelled before."""
        return self._turns._wait(self, is_cancelled)

    def suspend(self) -> None:
        """Note that the reader has a piece, and that nothing runs until it asks for the next."""
        self.suspended_by = threading.get_ident()

    def resume(self) -> None:
        """Go on; raises `EngineStateError` if the engine was closed in the meantime."""
        with self._turns._changed:
            self.suspended_by = None
            if self not in self._turns._queue:
                raise EngineStateError("the engine was closed while this stream was open; load another one")

    def leave(self) -> None:
        """Let the next one go on; harmless when called again."""
        self._turns._leave(self)


class Turns:
    """The queue of an engine."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[Turn] = deque()

    def join(self) -> Turn:
        """Take the next place in the queue."""
        turn = Turn(self)
        with self._changed:
            self._queue.append(turn)
        return turn

    def drop_suspended(self) -> None:
        """Take the engine from a stream whose reader has stopped reading; its next step will raise."""
        with self._changed:
            if self._queue and self._queue[0].suspended_by is not None:
                self._queue.popleft()
                self._changed.notify_all()

    def _wait(self, turn: Turn, is_cancelled: Callable[[], bool]) -> bool:
        turn.started = True
        began = time.monotonic()
        with self._changed:
            while turn in self._queue and self._queue[0] is not turn:
                if is_cancelled():
                    self._queue.remove(turn)
                    self._changed.notify_all()
                    return False
                if self._queue[0].suspended_by != turn.thread:
                    began = time.monotonic()
                elif turn.thread == threading.main_thread().ident or time.monotonic() - began > PATIENCE_S:
                    self._queue.remove(turn)
                    raise EngineStateError(
                        "an engine serves one request at a time, and this thread still has a stream of it open; "
                        "read that stream to its end or close() it first"
                    )
                self._changed.wait(POLL_S)
            # A reader that gave up before its thread came here has left the queue already.
            return turn in self._queue

    def _leave(self, turn: Turn) -> None:
        with self._changed:
            if turn in self._queue:
                self._queue.remove(turn)
                self._changed.notify_all()
