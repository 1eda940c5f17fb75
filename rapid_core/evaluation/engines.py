"""The engines of an evaluation: one, and a second one on the same target where there is an upward drafter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from rapid_core.engine import RapidEngine
from rapid_core.evaluation.methods import METHODS
from rapid_core.evaluation.options import EvalOptions
from rapid_core.extras import check_installed
from rapid_core.loading import load_model


@contextmanager
def load_engines(options: EvalOptions) -> Iterator[dict[str, RapidEngine]]:
    """The engines that the methods want, by what these call them; closed behind the block.

    Both read prompts in the same pieces whatever their caches hold, so that no answer depends on those
    before it. Raises `LoadError`, `OptionError`, `MissingDependencyError` and `NotEnoughMemoryError`.
    """
    searches = any(METHODS[setting.method].speculation(setting, 0).retrieves for setting in options.settings)
    if searches:
        check_installed("FlagEmbedding", "chromadb", "semantic_text_splitter", extra="retrieval")
    models = options.to_load()
    if options.drafter is None and options.upward_drafter is not None:
        # Options of a drafter are the upward drafter's alone.
        models = {name: value for name, value in models.items() if not name.startswith("drafter_")}
    with ExitStack() as stack:
        engine = stack.enter_context(RapidEngine.load(**models, retrieval=options.retrieval(), reproducible=True))
        engines = {"drafter": engine}
        if options.upward_drafter is not None:
            engines["upward"] = stack.enter_context(_upward(engine, options, options.upward_drafter))
        if searches:
            for loaded in engines.values():
                loaded.warm_up()
        yield engines


class EnginesBeside:
    """For each engine one on the same models, for prompts without a document.

    Their caches are their own: a document that fills the budget stays in those of the first ones.
    """

    def __init__(self, engines: Mapping[str, RapidEngine]) -> None:
        self._engines = engines
        self._made: dict[str, RapidEngine] = {}

    def of(self, name: str) -> RapidEngine:
        """The one beside the engine of that name, made when it is first wanted."""
        if name not in self._made:
            engine = self._engines[name]
            self._made[name] = RapidEngine(engine.target, engine.drafter, cache_gib=0, reproducible=True)
        return self._made[name]


def _upward(engine: RapidEngine, options: EvalOptions, name: str) -> RapidEngine:
    """An engine on the same target, with caches of its own."""
    elsewhere = options.drafter_device is not None or options.drafter_device_map is not None
    drafter = load_model(
        name,
        device=(options.drafter_device if elsewhere else options.device) or "auto",
        device_map=options.drafter_device_map if elsewhere else options.device_map,
        dtype=options.drafter_dtype or options.dtype,
        quantization=options.quantization if options.drafter_quantization is None else options.drafter_quantization,
    )
    return RapidEngine(
        engine.target,
        drafter,
        retrieval=engine.retrieval,
        encoder_device=engine.target.device,
        reproducible=True,
    )
