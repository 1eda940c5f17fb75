"""Steps of few tokens without Python's overhead: compiled layers, on a GPU recorded as a CUDA graph.

A step's shapes depend on its block size and on the cache's capacity alone: blocks are padded to
a few sizes, positions are tensors, and attention sees the whole capacity under a mask. What is
compiled is one decoder layer, once for all that are alike and for every capacity; a whole model
would take `torch.compile` minutes for each block size. On a GPU all kernels of a step are
recorded in one CUDA graph of our own. Those that `mode="reduce-overhead"` makes belong to the
thread that made them, and a request may come from any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from rapid_core.attention import STATIC_NAME, can_group, grouped
from rapid_core.errors import CompilationError, OptionError
from rapid_core.kv_cache import GRANULE, KVCache
from rapid_core.weights import is_quantized

# Each size is compiled once for a kind of layer, and padding costs a GPU little.
BLOCKS = (1, 2, 4, 8, 16, 32)
# A capacity of one piece would be compiled as a constant, and not for every capacity.
LEAST_CAPACITY = 2 * GRANULE
# Block sizes times kinds of layers (full and sliding, near and far) times models in one process.
# Over torch's own limit of 8 a function runs uncompiled or raises.
RECOMPILE_LIMIT = 128
WARM_UPS = 2

Run = Callable[[Tensor, Tensor], Tensor]


def resolve_backend(compile_option: bool | str) -> str | None:
    """The backend of `torch.compile` that an option names: True is "inductor", False none."""
    if isinstance(compile_option, bool):
        return "inductor" if compile_option else None
    import torch._dynamo

    backends = torch._dynamo.list_backends(exclude_tags=())
    if compile_option not in backends:
        raise OptionError(
            f"compile must be True, False or a backend of torch.compile ({', '.join(backends)}), got {compile_option!r}"
        )
    return compile_option


def why_not(model: Any, rope_types: set[str]) -> str | None:
    """Why a model's steps cannot be compiled, or None where they can; rope_types: how it encodes positions."""
    text_config = model.config.get_text_config(decoder=True)
    if not can_group(text_config):
        return f"{text_config.model_type!r} layers do not hand over all that shapes their attention"
    if rope_types & {"dynamic", "longrope"}:
        return "its positions are encoded by the length of the whole text"
    if len({weight.device for weight in model.parameters()}) > 1:
        return "its layers lie on several devices"
    if is_quantized(model):
        return "its weights are quantised"
    if any("forward" in vars(module) for module in model.modules()):
        return "hooks stand around its layers"
    return None


class CompiledStep:
    """Runs steps of up to `BLOCKS[-1]` tokens of one model; the roles that share the model share this.

    backend: of `torch.compile`; "eager" and "aot_eager" need no compiler.
    """

    def __init__(self, backend: str = "inductor") -> None:
        # Heavy, and not needed by who does not compile.
        import torch._dynamo

        # fullgraph: a step that torch.compile cannot take whole is an error, never slow in silence.
        self._layer = torch.compile(_run_layer, backend=backend, fullgraph=True, dynamic=False)
        self._pool: Any = None
        self._stream: Any = None

    def takes(self, cache: KVCache, tokens: int) -> bool:
        """Whether a step of `tokens` behind this cache is compiled; the first forward makes its buffers."""
        return cache.length > 0 and tokens <= BLOCKS[-1]

    @torch.no_grad()
    def __call__(self, model: Any, ids: Tensor, rows: int, cache: KVCache) -> Tensor:
        """Read `ids` [k] behind the cache; the logits of the last `rows`, [1, rows, V] float32.

        The ids that pad the block are read too. Their keys stand behind the real ones, where no
        real position sees them and the next step overwrites them.
        Raises `CompilationError`.
        """
        tokens, start = ids.shape[0], cache.length
        block = next(size for size in BLOCKS if size >= tokens)
        cache.reserve(max(start + block, LEAST_CAPACITY))
        padded = torch.nn.functional.pad(ids, (0, block - tokens))
        positions = torch.arange(start, start + block, device=ids.device)
        run = self._recorded if self._is_recorded(ids) else self._run
        logits = run(model, padded, positions, cache)
        cache.extend(tokens)
        # A copy: the next replay of a graph writes into the same logits.
        return logits[:, tokens - rows : tokens].to(torch.float32, copy=True)

    def _is_recorded(self, ids: Tensor) -> bool:
        return ids.device.type == "cuda"

    def _run(self, model: Any, ids: Tensor, positions: Tensor, cache: KVCache) -> Tensor:
        """One step, launched from Python; logits of the whole block."""
        from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

        mask = positions.view(1, 1, -1, 1)
        try:
            with (
                torch._dynamo.config.patch(recompile_limit=RECOMPILE_LIMIT),
                grouped(model, STATIC_NAME),
                self._compiled_layers(model, positions, cache),
            ):
                output = model(
                    input_ids=ids.unsqueeze(0),
                    position_ids=positions.unsqueeze(0),
                    attention_mask=mask,
                    past_key_values=cache,
                    use_cache=True,
                )
        except (TorchDynamoException, FailOnRecompileLimitHit) as error:
            raise _failed("torch.compile must be able to take a step as a whole", error) from error
        logits: Tensor = output.logits
        return logits

    @contextmanager
    def _compiled_layers(self, model: Any, positions: Tensor, cache: KVCache) -> Iterator[None]:
        """Let the model's layers run compiled inside the block, each over its own buffers."""
        layers = model.get_decoder().layers
        try:
            for layer, keys, values in zip(layers, *cache.buffers(), strict=True):
                for buffer in (keys, values):
                    torch._dynamo.mark_dynamic(buffer, 2)
                layer.forward = self._over(layer, keys, values, positions)
            yield
        finally:
            for layer in layers:
                vars(layer).pop("forward", None)

    def _over(self, layer: Any, keys: Tensor, values: Tensor, positions: Tensor) -> Callable[..., Any]:
        def forward(*inputs: Any, past_key_values: Any, **options: Any) -> Any:  # noqa: ARG001 - a layer's signature
            return self._layer(layer, keys, values, positions, inputs, options)

        return forward

    def _recorded(self, model: Any, ids: Tensor, positions: Tensor, cache: KVCache) -> Tensor:
        """One step, replayed from the graph over this cache; made anew where its buffers have moved."""
        keys, values = cache.buffers()
        place = tuple((buffer.data_ptr(), buffer.shape[2]) for buffer in (*keys, *values))
        graph: _Graph | None = cache.graphs.get(ids.shape[0])
        if graph is None or graph.place != place:
            cache.graphs.pop(ids.shape[0], None)
            graph = self._record(lambda ids, positions: self._run(model, ids, positions, cache), ids, positions)
            graph.place = place
            cache.graphs[ids.shape[0]] = graph
        return graph.replay(ids, positions)

    def _record(self, run: Run, ids: Tensor, positions: Tensor) -> _Graph:
        with torch.cuda.device(ids.device):
            if self._pool is None:
                # One pool for all graphs: they never run at once, and their logits are copied.
                self._pool, self._stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
            try:
                return _Graph(run, ids, positions, self._pool, self._stream)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                if isinstance(error, CompilationError):
                    raise
                raise _failed("a step must be recorded as a CUDA graph", error) from error


class _Graph:
    """All kernels of a step over one cache, launched at once."""

    def __init__(self, run: Run, ids: Tensor, positions: Tensor, pool: Any, stream: Any) -> None:
        self.place: tuple[tuple[int, int], ...] = ()
        self._ids, self._positions = ids.clone(), positions.clone()
        # Compilation and the libraries' first calls must be over before recording begins. Each
        # run writes the same keys to the same places.
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                run(self._ids, self._positions)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        # Other threads may use the GPU meanwhile.
        with torch.cuda.graph(self._graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            self._logits = run(self._ids, self._positions)

    def replay(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Logits [1, block, V], valid until the next replay."""
        with torch.cuda.device(ids.device):
            self._ids.copy_(ids)
            self._positions.copy_(positions)
            self._graph.replay()
        return self._logits


class _Buffers:
    """What a layer sees of the cache: it writes at positions, and reads everything."""

    def __init__(self, keys: Tensor, values: Tensor, positions: Tensor) -> None:
        self.keys, self.values, self.positions = keys, values, positions

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.keys.index_copy_(2, self.positions, key_states)
        self.values.index_copy_(2, self.positions, value_states)
        return self.keys, self.values


def _run_layer(
    layer: Any, keys: Tensor, values: Tensor, positions: Tensor, inputs: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """One decoder layer over its buffers: what `torch.compile` sees."""
    return type(layer).forward(layer, *inputs, past_key_values=_Buffers(keys, values, positions), **options)


def _failed(rule: str, error: Exception) -> CompilationError:
    # A backend's failure comes wrapped.
    cause = getattr(error, "inner_exception", error)
    first = str(cause).strip().split("\n", 1)[0]
    return CompilationError(
        f"{rule}, and here it failed with {type(cause).__name__}: {first}. Load the model without compile=True, "
        "or install what the message asks for (a C++ compiler on a CPU, Triton on a GPU)"
    )
