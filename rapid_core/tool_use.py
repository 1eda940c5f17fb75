"""The tools that a model may call, and whether it must."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rapid_core.errors import OptionError

# What `choice` can be beside the name of a tool.
CHOICES = ("auto", "any", "none")


def _nothing() -> Mapping[str, Any]:
    return {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may ask for; `parameters` is the JSON schema of its arguments.

    Raises `OptionError` for a name that is empty or a schema that is not one of an object.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=_nothing)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise OptionError(f"a tool's name must be text that is not empty, got {self.name!r}")
        if not isinstance(self.description, str):
            raise OptionError(f"the description of tool {self.name!r} must be text, got {self.description!r}")
        if not isinstance(self.parameters, Mapping) or self.parameters.get("type", "object") != "object":
            raise OptionError(
                f"the parameters of tool {self.name!r} must be the JSON schema of an object, got {self.parameters!r}"
            )

    def as_function(self) -> dict[str, Any]:
        """The form that chat templates expect."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools and how they are to be used.

    choice: "auto" leaves it to the model, "any" makes it call one of them, a name that one;
    what has to be called has arguments that fit its schema. "none" hides the tools. parallel:
    whether an answer that has to be a call may hold several. Raises `OptionError`.
    """

    tools: tuple[Tool, ...] = ()
    choice: str = "auto"
    parallel: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.tools, (str, Tool, Mapping)) or not isinstance(self.tools, Sequence):
            raise OptionError(f"tools must be a list of Tool, got {type(self.tools).__name__}")
        object.__setattr__(self, "tools", tuple(self.tools))
        for tool in self.tools:
            if not isinstance(tool, Tool):
                raise OptionError(f"tools must be a list of Tool, and it holds a {type(tool).__name__}")
        names = [tool.name for tool in self.tools]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise OptionError(f"tools must have names of their own, and several are called {', '.join(twice)}")
        if self.choice not in (*CHOICES, *names):
            known = ", ".join(repr(choice) for choice in (*CHOICES, *names))
            raise OptionError(f"the choice of a tool must be one of {known}, got {self.choice!r}")
        if self.choice == "any" and not names:
            raise OptionError("choice 'any' needs tools to choose from, got none")
        if not isinstance(self.parallel, bool):
            raise OptionError(f"parallel must be True or False, got {self.parallel!r}")

    @classmethod
    def of(cls, tools: Sequence[Tool] | ToolUse) -> ToolUse:
        """Tools alone are left to the model."""
        return tools if isinstance(tools, ToolUse) else cls(tools)  # type: ignore[arg-type]

    @property
    def shown(self) -> tuple[Tool, ...]:
        """The tools that the model is told about."""
        return () if self.choice == "none" else self.tools

    @property
    def forced(self) -> tuple[Tool, ...]:
        """The tools one of which must be called; none where the model may do without."""
        if self.choice == "any":
            return self.tools
        return tuple(tool for tool in self.tools if tool.name == self.choice)
