"""Where the documents of an index or a retriever may be kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.indices.base import BaseIndex
from llama_index.core.schema import BaseNode
from llama_index.core.storage.docstore.types import BaseDocumentStore
from llama_index.core.storage.storage_context import StorageContext
from llama_index.core.tools.types import BaseTool
from llama_index.core.vector_stores.types import BasePydanticVectorStore, MetadataFilters
from llama_index.core.vector_stores.utils import build_metadata_filter_fn

# What holds stores, or others of these kinds, in its attributes.
HOLDERS = (BaseRetriever, BaseIndex, BaseQueryEngine, StorageContext, BaseTool)
DEEPEST = 12
# Where retrievers keep their filters.
FILTERS = ("_filters", "_extra_filters")


@dataclass(slots=True)
class Places:
    """Document stores, vector stores, and nodes that a retriever holds itself; each once, in the order found.

    filters: what each retriever among them is allowed to find, None for all.
    """

    docstores: list[BaseDocumentStore] = field(default_factory=list)
    vector_stores: list[BasePydanticVectorStore] = field(default_factory=list)
    nodes: list[BaseNode] = field(default_factory=list)
    filters: list[MetadataFilters | None] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.docstores or self.vector_stores or self.nodes)

    def allow(self, node: BaseNode) -> bool:
        """Whether one of the retrievers could have found it: what a filter keeps out is not read either."""
        matches = (build_metadata_filter_fn(lambda _: node.metadata, each)(node.node_id) for each in self.filters)
        return not self.filters or any(matches)


def places_of(*owners: Any) -> Places:
    """The places in stores, indices, retrievers, query engines and tools, and in those that they hold."""
    places = Places()
    seen: dict[int, Any] = {}

    def look(thing: Any, depth: int) -> None:
        if depth > DEEPEST or id(thing) in seen:
            return
        if isinstance(thing, BaseDocumentStore):
            places.docstores.append(thing)
        elif isinstance(thing, BasePydanticVectorStore):
            places.vector_stores.append(thing)
        elif isinstance(thing, BaseNode):
            places.nodes.append(thing)
        elif not isinstance(thing, (*HOLDERS, dict, list, tuple)):
            return
        # Kept while looking, so that no id is used twice.
        seen[id(thing)] = thing
        if isinstance(thing, BaseRetriever):
            places.filters += [vars(thing)[name] for name in FILTERS if name in vars(thing)]
        if isinstance(thing, (dict, HOLDERS)):
            held = thing if isinstance(thing, dict) else vars(thing)
            for value in list(held.values()):
                look(value, depth + 1)
        elif isinstance(thing, (list, tuple)):
            for value in list(thing):
                look(value, depth + 1)

    look(owners, 0)
    return places
