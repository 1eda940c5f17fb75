"""The whole documents that retrieved nodes come from."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.indices.base import BaseIndex
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore
from llama_index.core.schema import Document as StoredDocument
from llama_index.core.storage.docstore.types import BaseDocumentStore
from llama_index.core.vector_stores.types import BasePydanticVectorStore, MetadataFilter, MetadataFilters

from rapid_core import Document, InputError
from rapid_integrations.llama_index.places import places_of
from rapid_integrations.llama_index.rebuilding import SEPARATOR, Rebuilt, rebuild, shared_metadata, shown
from rapid_integrations.search import Fetched, source_of

DocumentLoader = Callable[[Any], "str | BaseNode | None"]
# All nodes of the document store at a position, read once a call.
Scan = Callable[[int], list[BaseNode]]

# The key under which vector stores keep the id of a node's document.
SOURCE_KEY = "ref_doc_id"
PAGE_KEY = "page_label"


class Documents:
    """Where the documents of nodes are kept, and how they are read from there.

    index, retriever: looked through for document stores and vector stores, behind those that are
    given. document_loader: asked first, with the id of a document; gives its text, a node that
    is the document, or None. id_key: a key of the metadata that names a node's document, where
    that is not the one that the node was split from, such as "file_path" for the pages of a file.
    Raises `InputError` for what is none of these.
    """

    def __init__(
        self,
        *,
        index: BaseIndex[Any] | None = None,
        retriever: BaseRetriever | None = None,
        docstore: BaseDocumentStore | None = None,
        vector_store: BasePydanticVectorStore | None = None,
        document_loader: DocumentLoader | None = None,
        id_key: str | None = None,
        metadata_mode: MetadataMode = MetadataMode.LLM,
    ) -> None:
        for name, value, kind in (
            ("index", index, BaseIndex),
            ("retriever", retriever, BaseRetriever),
            ("docstore", docstore, BaseDocumentStore),
            ("vector_store", vector_store, BasePydanticVectorStore),
        ):
            if value is not None and not isinstance(value, kind):
                raise InputError(f"{name} must be a LlamaIndex {kind.__name__}, got {type(value).__name__}")
        if document_loader is not None and not callable(document_loader):
            raise InputError(
                f"document_loader must be a function of a document's id, got {type(document_loader).__name__}"
            )
        self._loader = document_loader
        self._id_key = id_key
        self._mode = metadata_mode
        self._places = places_of(docstore, vector_store, index, retriever)

    def of(self, retriever: BaseRetriever | None) -> Documents:
        """The same, for nodes that a retriever found: its places where no others are known, and its filters."""
        found, made = places_of(retriever), copy.copy(self)
        made._places = replace(self._places, filters=found.filters) if self.knows_documents else found
        return made

    @property
    def knows_documents(self) -> bool:
        """Whether there is anybody to ask for whole documents."""
        return self._loader is not None or bool(self._places)

    def source(self, node: BaseNode) -> str:
        """The id of a node's document, empty where it has none."""
        return source_of(self._value(node))

    def _value(self, node: BaseNode) -> Any:
        return node.metadata.get(self._id_key) if self._id_key else node.ref_doc_id

    def fetch(self, nodes: Sequence[NodeWithScore]) -> Fetched:
        """The documents of retrieved nodes, best first; what a store or the loader raises reaches the caller."""
        retrieved: dict[str, list[BaseNode]] = {}
        for scored in nodes:
            if source := self.source(scored.node):
                retrieved.setdefault(source, []).append(scored.node)
        scan = functools.cache(lambda position: list(self._places.docstores[position].docs.values()))
        notes: list[str] = []
        documents = {source: self._document(source, found, scan, notes) for source, found in retrieved.items()}
        pages = {file for found in retrieved.values() if (file := _file(found[0])) and PAGE_KEY in found[0].metadata}
        if pages and self._id_key is None and self._loader is None:
            notes += [
                f"{file!r} is read page by page; pass id_key='file_path' to read it whole" for file in sorted(pages)
            ]
        return Fetched(documents, tuple(dict.fromkeys(notes)))

    def _document(self, source: str, retrieved: Sequence[BaseNode], scan: Scan, notes: list[str]) -> Document | None:
        """The document as the first place has it that has all of it, else as the first that has a part.

        notes grow by what is to say of it.
        """
        value = self._value(retrieved[0])
        loaded = self._loader(value) if self._loader is not None else None
        if isinstance(loaded, str) and loaded.strip():
            return Document(loaded, _name(source, retrieved), heading=False)
        if not isinstance(loaded, (str, BaseNode, type(None))):
            raise InputError(
                f"document_loader must return text, a LlamaIndex node or None, got {type(loaded).__name__} "
                f"for {source!r}"
            )
        if isinstance(loaded, BaseNode) and (found := _whole(loaded)).text.strip():
            return self._made(source, found)
        unable: list[str] = []
        part: Rebuilt | None = None
        for found in self._stored(source, value, scan, unable):
            if found.text.strip():
                part = part or found
                if not found.notes:
                    return self._made(source, found)
        if part is not None:
            notes.extend(f"document {source!r}: {note}" for note in part.notes)
            return self._made(source, part)
        # A vector store beside it that keeps no nodes, such as the one for images, is nothing to speak of.
        if unable and len(unable) == len(self._places.vector_stores):
            notes.append(
                f"{', '.join(dict.fromkeys(unable))} cannot list the nodes of a document; give docstore= or "
                "document_loader="
            )
        return None

    def _made(self, source: str, found: Rebuilt) -> Document:
        return Document(shown(found.text, found.nodes, self._mode), _name(source, found.nodes), heading=False)

    def _stored(self, source: str, value: Any, scan: Scan, unable: list[str]) -> Iterator[Rebuilt]:
        """What each place has of a document; `unable` grows by the vector stores that keep no nodes."""
        for docstore in self._places.docstores:
            whole = docstore.get_document(source, raise_error=False)
            if whole is not None and self._places.allow(whole):
                yield _whole(whole)
        for position, docstore in enumerate(self._places.docstores):
            kept = self._of(source, scan(position)) if self._id_key else _split_from(source, docstore)
            yield _joined(list(filter(self._places.allow, kept)))
        for store in self._places.vector_stores:
            # Filters compare numbers and texts.
            comparable = value if type(value) in (int, float, str) else str(value)
            wanted = MetadataFilter(key=self._id_key or SOURCE_KEY, value=comparable)
            try:
                nodes = store.get_nodes(node_ids=None, filters=MetadataFilters(filters=[wanted]))
            except NotImplementedError:
                unable.append(type(store).__name__)
                continue
            yield _joined(self._of(source, nodes))
        yield _joined(self._of(source, self._places.nodes))

    def _of(self, source: str, nodes: Sequence[BaseNode]) -> list[BaseNode]:
        return [node for node in nodes if self.source(node) == source and self._places.allow(node)]


def _split_from(source: str, docstore: BaseDocumentStore) -> list[BaseNode]:
    """The nodes that a document store keeps of a document."""
    try:
        info = docstore.get_ref_doc_info(source)
    except NotImplementedError:
        return []
    return docstore.get_nodes(info.node_ids, raise_error=False) if info is not None else []


def _whole(node: BaseNode) -> Rebuilt:
    return Rebuilt(node.get_content(metadata_mode=MetadataMode.NONE), (node,))


def _joined(nodes: Sequence[BaseNode]) -> Rebuilt:
    """One text from the nodes of one document, or of several that are its parts, in order of their pages."""
    by_part: dict[str, list[BaseNode]] = {}
    for node in nodes:
        part = node.node_id if isinstance(node, StoredDocument) else node.ref_doc_id or ""
        by_part.setdefault(part, []).append(node)
    parts = [part for part in map(_part, by_part.values()) if part.text.strip()]
    notes = [note for part in parts for note in part.notes]
    if len(parts) > 1:
        pages = [str(part.nodes[0].metadata.get(PAGE_KEY, "")) for part in parts]
        if all(page.isdecimal() for page in pages):
            parts = [part for _, part in sorted(zip(map(int, pages), parts, strict=True), key=lambda pair: pair[0])]
        else:
            notes.append(f"its {len(parts)} parts have no page numbers and stand in the order in which they are stored")
    return Rebuilt(
        SEPARATOR.join(part.text for part in parts), tuple(node for part in parts for node in part.nodes), tuple(notes)
    )


def _part(nodes: Sequence[BaseNode]) -> Rebuilt:
    stored = next((node for node in nodes if isinstance(node, StoredDocument)), None)
    return rebuild(nodes) if stored is None else _whole(stored)


def _file(node: BaseNode) -> str:
    return str(node.metadata.get("file_name") or node.metadata.get("file_path") or "")


def _name(source: str, nodes: Sequence[BaseNode]) -> str:
    """A file's name or path where the nodes have one, with the page that it is; else the document's id; on one line."""
    metadata = shared_metadata(nodes)
    name = str(metadata.get("file_name") or metadata.get("file_path") or source)
    page = f" page {metadata[PAGE_KEY]}" if PAGE_KEY in metadata and name != source else ""
    return " ".join((name + page).split())
