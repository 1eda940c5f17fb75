"""A blocking iterator, read by an event loop that stays free."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import closing
from typing import TypeVar

T = TypeVar("T")


async def iterate_in_thread(make: Callable[[Callable[[], bool]], Generator[T]]) -> AsyncGenerator[T]:
    """Yield what `make(is_cancelled)` yields, from a thread of its own.

    Closing or cancelling the reader makes `is_cancelled()` true, and the thread ends after the
    step that it is in. What the iterator raises reaches the reader.
    """
    loop = asyncio.get_running_loop()
    items: asyncio.Queue[tuple[T | None, BaseException | None]] = asyncio.Queue()
    cancelled = threading.Event()

    def send(item: T | None, error: BaseException | None) -> None:
        try:
            loop.call_soon_threadsafe(items.put_nowait, (item, error))
        except RuntimeError:
            # The loop is closed: nobody is left to read.
            cancelled.set()

    def work() -> None:
        try:
            with closing(make(cancelled.is_set)) as made:
                for item in made:
                    send(item, None)
                    if cancelled.is_set():
                        break
            send(None, StopAsyncIteration())
        except BaseException as error:  # noqa: BLE001 - it is raised again where it is read
            send(None, error)

    threading.Thread(target=work, name="rapid-request", daemon=True).start()
    try:
        while True:
            item, error = await items.get()
            if isinstance(error, StopAsyncIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]
    finally:
        cancelled.set()
