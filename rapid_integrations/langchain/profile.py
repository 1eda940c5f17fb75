"""What LangChain may know of a model before it is loaded, and what only the model knows."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, ValuesView
from typing import Any

_KNOWN: dict[str, Any] = {
    "text_inputs": True,
    "image_inputs": False,
    "audio_inputs": False,
    "video_inputs": False,
    "pdf_inputs": False,
    "text_outputs": True,
    "tool_calling": True,
    "tool_choice": True,
    "structured_output": True,
    "reasoning_output": False,
}
_WINDOW = "max_input_tokens"


class LazyProfile(dict[str, Any]):
    """A model profile whose `max_input_tokens` is asked of the model when somebody reads it."""

    def __init__(self, window: Callable[[], int]) -> None:
        super().__init__(_KNOWN)
        self[_WINDOW] = None
        self._ask = window

    def __reduce__(self) -> tuple[Any, ...]:
        """A plain dict where it is copied or pickled: nothing that could be asked travels."""
        return dict, (self.copy(),)

    def _fill(self) -> None:
        if super().__getitem__(_WINDOW) is None:
            self[_WINDOW] = self._ask()

    def __getitem__(self, key: str) -> Any:
        if key == _WINDOW:
            self._fill()
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """As of any dict."""
        if key == _WINDOW:
            self._fill()
        return super().get(key, default)

    # A dict that defines this is copied by its keys and items, and not behind their back.
    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        """As of any dict."""
        self._fill()
        return super().items()

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        """As of any dict."""
        self._fill()
        return super().values()

    def copy(self) -> dict[str, Any]:
        """A plain dict."""
        self._fill()
        return dict(self)
