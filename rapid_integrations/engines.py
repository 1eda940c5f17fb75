"""The engines behind chat models: loaded when first asked, shared by all that name the same models."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakValueDictionary

from rapid_core import Retrieval

if TYPE_CHECKING:
    from rapid_core import RapidEngine


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What `RapidEngine.load` is asked for."""

    target: str
    drafter: str | None = None
    device: str = "auto"
    drafter_device: str | None = None
    dtype: str = "auto"
    drafter_dtype: str | None = None
    retrieval: Retrieval | None = None
    trust_remote_code: bool = False
    cache_gib: float = 4.0
    compile: bool | str = False


class Held(dict[LoadOptions, Any]):
    """The engines that one chat model has asked for, which live as long as it does."""

    def engine(self, options: LoadOptions) -> Any:
        """The engine of these options, loaded unless somebody holds it."""
        if options not in self:
            self[options] = engine_for(options)
        return self[options]

    def __reduce__(self) -> tuple[type[Held], tuple[()]]:
        """Empty where it is pickled: weights and threads do not travel, and are loaded anew."""
        return Held, ()


_lock = threading.Lock()
# Chat models are often made anew for every request or every temperature; weights are loaded once.
# Nobody uses an engine any more: it goes.
_loaded: WeakValueDictionary[LoadOptions, Any] = WeakValueDictionary()

# What tells engines apart that were given, and not loaded by a name.
_tokens: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def token_of(engine: Any) -> str:
    """The same for one engine, and for no other."""
    with _lock:
        return _tokens.setdefault(engine, uuid4().hex)


def engine_for(options: LoadOptions) -> RapidEngine:
    """The engine of these models, loaded unless some chat model already holds it."""
    with _lock:
        engine: RapidEngine | None = _loaded.get(options)
        if engine is None:
            # Torch is imported here, and not by a chat model that is merely made.
            from rapid_core import RapidEngine

            engine = RapidEngine.load(
                options.target,
                options.drafter,
                device=options.device,
                drafter_device=options.drafter_device,
                dtype=options.dtype,
                drafter_dtype=options.drafter_dtype,
                retrieval=options.retrieval,
                trust_remote_code=options.trust_remote_code,
                cache_gib=options.cache_gib,
                compile=options.compile,
            )
            _loaded[options] = engine
        return engine
