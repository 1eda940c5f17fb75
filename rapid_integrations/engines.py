"""The engines behind chat models: loaded when first asked, shared by all that name the same models."""

from __future__ import annotations

import json
import threading
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakValueDictionary

from rapid_core import Retrieval

if TYPE_CHECKING:
    from rapid_core import RapidEngine


@dataclass(frozen=True, slots=True)
class Kept:
    """An option that cannot be hashed, told apart by its text."""

    text: str
    value: Any = field(compare=False, repr=False)

    @classmethod
    def of(cls, value: Any) -> Any:
        """The option itself, or held so where it is a mapping or a quantization config."""
        if isinstance(value, Mapping):
            return cls(repr(sorted((str(name), str(place)) for name, place in value.items())), dict(value))
        if hasattr(value, "to_dict"):
            return cls(json.dumps(value.to_dict(), sort_keys=True, default=str), value)
        # Whatever else cannot be hashed is refused by the engine, and not by a lookup.
        return value if isinstance(value, Hashable) else cls(repr(value), value)

    @staticmethod
    def value_of(option: Any) -> Any:
        """What `of` was given."""
        return option.value if isinstance(option, Kept) else option


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What `RapidEngine.load` is asked for; device maps and quantizations may be `Kept`."""

    target: str
    drafter: str | None = None
    device: str = "auto"
    drafter_device: str | None = None
    device_map: Any = None
    drafter_device_map: Any = None
    dtype: str = "auto"
    drafter_dtype: str | None = None
    quantization: Any = None
    drafter_quantization: Any = None
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
                **{each.name: Kept.value_of(getattr(options, each.name)) for each in fields(options)}
            )
            _loaded[options] = engine
        return engine
