"""One request at a time, the others in the order in which they came."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from rapid_core.errors import EngineStateError

# How often a waiting request looks whether its caller has given up.
POLL_S = 0.1


class Turn:
    """One place in the queue; holds the engine from `wait` to `leave`."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.started = False
        self.thread = threading.get_ident()

    def wait(self, is_cancelled: Callable[[], bool]) -> bool:
        """Block until it is this request's turn; False if it was cancelled before."""
        return self._turns._wait(self, is_cancelled)

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

    def _wait(self, turn: Turn, is_cancelled: Callable[[], bool]) -> bool:
        turn.thread, turn.started = threading.get_ident(), True
        with self._changed:
            while self._queue[0] is not turn:
                first = self._queue[0]
                # Only the main thread is sure to run nothing else that could end the open stream.
                if first.thread == turn.thread == threading.main_thread().ident:
                    self._queue.remove(turn)
                    raise EngineStateError(
                        "an engine serves one request at a time, and this thread still has a stream of it open; "
                        "read that stream to its end or close() it first"
                    )
                if is_cancelled():
                    self._queue.remove(turn)
                    self._changed.notify_all()
                    return False
                self._changed.wait(POLL_S)
        return True

    def _leave(self, turn: Turn) -> None:
        with self._changed:
            if turn in self._queue:
                self._queue.remove(turn)
                self._changed.notify_all()
