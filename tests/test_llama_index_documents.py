"""Whole documents for retrieved nodes, from real stores."""

from __future__ import annotations

from pathlib import Path

import pytest
from llama_index.core import Document, StorageContext, SummaryIndex, VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.base_selector import SelectorResult, SingleSelection
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.indices.query.query_transform.base import IdentityQueryTransform
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import HierarchicalNodeParser, get_leaf_nodes
from llama_index.core.retrievers import (
    AutoMergingRetriever,
    QueryFusionRetriever,
    RecursiveRetriever,
    RouterRetriever,
    TransformRetriever,
)
from llama_index.core.schema import MetadataMode, NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode
from llama_index.core.selectors import LLMSingleSelector
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.tools import RetrieverTool
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters, SimpleVectorStore
from llama_index_helpers import LEASE, QUESTION, SPLITTER, WordEmbedding, chroma_store

from rapid_core import Document as WholeDocument
from rapid_core import InputError
from rapid_integrations.llama_index.documents import Documents
from rapid_integrations.llama_index.rebuilding import rebuild
from rapid_integrations.llama_index.retrieval import NodeHook
from rapid_integrations.search import Fetched

ROADS = "\n\n".join(f"Road {n} runs from gate {n} to the mill, {n} miles long." for n in range(1, 20))


def documents():
    return [Document(text=LEASE, id_="lease"), Document(text=ROADS, id_="roads")]


def index_of(store=None, documents=documents, docstore=None, **options):
    """An index over a vector store, as from_documents makes it."""
    context = StorageContext.from_defaults(vector_store=store, docstore=docstore)
    return VectorStoreIndex.from_documents(
        documents(), storage_context=context, embed_model=WordEmbedding(), transformations=[SPLITTER], **options
    )


def found(index, question=QUESTION, k=4):
    return index.as_retriever(similarity_top_k=k).retrieve(question)


def scored(*nodes):
    return [NodeWithScore(node=node, score=1.0) for node in nodes]


def node_of(source, text="a passage", **fields):
    return TextNode(text=text, relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=source)}, **fields)


class Away(SimpleDocumentStore):
    def get_document(self, doc_id, raise_error=True):
        raise ConnectionError("the store is away")


class AwayVectors(SimpleVectorStore):
    def get_nodes(self, node_ids=None, filters=None):
        raise ConnectionError("the store is away")


class Plain(SimpleDocumentStore):
    """Does not know which nodes belong together."""

    def get_ref_doc_info(self, ref_doc_id):
        raise NotImplementedError


class Unfiltered(SimpleVectorStore):
    """Returns all nodes, whatever the filter."""

    _nodes: list = PrivateAttr()

    def __init__(self, nodes):
        super().__init__()
        self._nodes = nodes

    def get_nodes(self, node_ids=None, filters=None):
        return self._nodes


# Where documents are kept


def test_with_chroma_the_docstore_is_empty_and_documents_are_rebuilt_from_the_store():
    index = index_of(chroma_store())
    assert index.docstore.docs == {}
    with pytest.raises(NotImplementedError):
        _ = index.ref_doc_info
    nodes = found(index)
    fetched = Documents(index=index).fetch(nodes)
    assert fetched.documents["lease"] == WholeDocument(LEASE, "lease", heading=False)
    assert not fetched.notes


def test_documents_come_in_the_order_of_their_best_nodes():
    index = index_of(chroma_store())
    for question, first in ((QUESTION, "lease"), ("Which road runs from gate 4 to the mill?", "roads")):
        nodes = found(index, question, k=30)
        assert next(iter(Documents(index=index).fetch(nodes).documents)) == first
    assert set(Documents(index=index).fetch(nodes).documents) == {"lease", "roads"}


def test_a_simple_vector_store_has_its_nodes_in_the_docstore():
    index = index_of()
    # from_documents leaves the documents themselves out.
    assert index.docstore.get_document("lease", raise_error=False) is None
    assert Documents(index=index).fetch(found(index)).documents["lease"].text == LEASE


def test_a_pipeline_leaves_whole_documents_in_its_docstore():
    docstore, store = SimpleDocumentStore(), chroma_store()
    IngestionPipeline(transformations=[SPLITTER, WordEmbedding()], docstore=docstore, vector_store=store).run(
        documents=documents()
    )
    index = VectorStoreIndex.from_vector_store(store, embed_model=WordEmbedding())
    store.clear()
    nodes = scored(node_of("lease"))
    assert Documents(index=index).fetch(nodes).documents == {"lease": None}
    assert Documents(index=index, docstore=docstore).fetch(nodes).documents["lease"].text == LEASE


def test_a_docstore_that_lost_its_documents_is_followed_by_the_vector_store():
    index = index_of(chroma_store(), docstore=SimpleDocumentStore())
    kept = SimpleDocumentStore()
    kept.add_documents(documents())
    kept.delete_document("lease")
    assert Documents(index=index, docstore=kept).fetch(found(index)).documents["lease"].text == LEASE


def test_a_place_that_has_all_of_a_document_goes_before_one_that_has_a_part():
    index = index_of(chroma_store())
    nodes = [node for node in index.vector_store.get_nodes(None) if node.ref_doc_id == "lease"]
    docstore = SimpleDocumentStore()
    docstore.add_documents(nodes[2:])
    fetched = Documents(docstore=docstore, index=index).fetch(scored(nodes[2]))
    assert fetched.documents["lease"].text == LEASE and not fetched.notes
    (note,) = Documents(docstore=docstore).fetch(scored(nodes[2])).notes
    assert note.startswith("document 'lease': ")


def test_stores_that_can_do_less_than_others_are_asked_for_what_they_can():
    index = index_of(chroma_store())
    kept = Documents(docstore=Plain(), vector_store=Unfiltered(index.vector_store.get_nodes(None)))
    assert kept.fetch(found(index)).documents["lease"].text == LEASE


def test_a_document_that_nobody_has_is_none_and_a_store_that_cannot_look_is_named():
    fetched = Documents(vector_store=SimpleVectorStore()).fetch(scored(node_of("lease"), node_of("roads")))
    assert fetched.documents == {"lease": None, "roads": None}
    assert fetched.notes == (
        "SimpleVectorStore cannot list the nodes of a document; give docstore= or document_loader=",
    )
    assert Documents(vector_store=chroma_store()).fetch(scored(node_of("lease"))) == Fetched({"lease": None})


def test_nodes_that_are_missing_in_the_store_are_told_with_the_document():
    store = chroma_store()
    index = index_of(store)
    nodes = [node for node in store.get_nodes(None) if node.ref_doc_id == "lease"]
    store.delete_nodes([node.node_id for node in nodes[2:5]])
    fetched = Documents(index=index).fetch(scored(nodes[0]))
    (note,) = fetched.notes
    assert note.startswith("document 'lease': ") and "in none of the stored nodes" in note


@pytest.mark.parametrize("options", [{"docstore": Away()}, {"vector_store": AwayVectors()}])
async def test_a_store_that_is_away_raises_its_own_error(options):
    with pytest.raises(ConnectionError, match="the store is away"):
        Documents(**options).fetch(scored(node_of("lease")))
    with pytest.raises(ConnectionError, match="the store is away"):
        await NodeHook(Documents(**options)).afetch(scored(node_of("lease")))


async def test_an_event_loop_gets_the_same_documents():
    index = index_of(chroma_store())
    nodes = found(index)
    assert await NodeHook(Documents(index=index)).afetch(nodes) == Documents(index=index).fetch(nodes)


def test_what_a_retriever_must_not_find_is_not_read_either():
    store = chroma_store()
    for tenant in ("acme", "rival"):
        VectorStoreIndex.from_documents(
            [Document(text=LEASE.replace("tenant", tenant), id_="prices.txt", metadata={"tenant": tenant})],
            storage_context=StorageContext.from_defaults(vector_store=store),
            embed_model=WordEmbedding(),
            transformations=[SPLITTER],
        )
    index = VectorStoreIndex.from_vector_store(store, embed_model=WordEmbedding())
    filters = MetadataFilters(filters=[MetadataFilter(key="tenant", value="acme")])
    retriever = index.as_retriever(filters=filters)
    nodes = retriever.retrieve(QUESTION)
    for documents in (Documents(retriever=retriever), Documents(index=index).of(retriever)):
        text = documents.fetch(nodes).documents["prices.txt"].text
        assert "acme" in text and "rival" not in text
    docstore = SimpleDocumentStore()
    docstore.add_documents([Document(text="All of the rival's.", id_="prices.txt", metadata={"tenant": "rival"})])
    assert "rival" not in str(Documents(docstore=docstore).of(retriever).fetch(nodes).documents)
    # One of several retrievers may find all.
    both = QueryFusionRetriever([retriever, index.as_retriever()], num_queries=1, llm=MockLLM())
    assert "rival" in Documents(retriever=both).fetch(nodes).documents["prices.txt"].text


def test_a_text_about_a_document_is_no_part_of_it():
    nodes = SPLITTER.get_nodes_from_documents([Document(text=LEASE, id_="lease")])
    summary = node_of("lease", "It is a lease.")
    rebuilt = rebuild([summary, *nodes])
    assert "It is a lease." not in rebuilt.text and "".join(rebuilt.text.split()) == "".join(LEASE.split())
    assert rebuilt.notes == ("1 of its nodes have no place in it, as summaries have none, and were left out",)
    assert rebuild([summary]).text == "It is a lease."


def test_pages_of_a_file_are_named_as_pages_with_the_remedy():
    store = chroma_store()
    pages = [
        Document(
            text=f"Page {page}: the tenant of house {page}.", metadata={"file_path": "a.pdf", "page_label": str(page)}
        )
        for page in range(1, 5)
    ]
    index = index_of(store, lambda: pages)
    fetched = Documents(index=index).fetch(found(index))
    assert fetched.notes == ("'a.pdf' is read page by page; pass id_key='file_path' to read it whole",)
    assert {document.name.rpartition(" ")[0] for document in fetched.documents.values()} == {"a.pdf page"}
    (whole,) = Documents(index=index, id_key="file_path").fetch(found(index)).documents.values()
    assert whole.name == "a.pdf" and all(f"Page {n}:" in whole.text for n in range(1, 5))


def test_nodes_without_a_document_have_no_source():
    store = chroma_store()
    index = VectorStoreIndex.from_vector_store(store, embed_model=WordEmbedding())
    index.insert_nodes([TextNode(text=LEASE[:100])])
    (retrieved,) = found(index)
    kept = Documents(index=index)
    assert store.client.get()["metadatas"][0]["ref_doc_id"] == "None"
    assert kept.source(retrieved.node) == kept.source(node_of("None")) == kept.source(node_of("")) == ""
    assert kept.fetch([retrieved]) == kept.fetch([]) == Fetched({})


def test_an_empty_document_is_none():
    docstore = SimpleDocumentStore()
    docstore.add_documents([Document(text=" \n", id_="lease")])
    kept = Documents(docstore=docstore, document_loader=lambda source: "")
    assert kept.fetch(scored(node_of("lease"))).documents == {"lease": None}


# The loader


def test_a_loader_is_asked_first_and_may_pass():
    index, asked = index_of(chroma_store()), []

    def load(source):
        asked.append(source)
        return None if source == "roads" else "All of the lease."

    nodes = found(index, k=30)
    fetched = Documents(index=index, document_loader=load).fetch(nodes)
    assert fetched.documents["lease"] == WholeDocument("All of the lease.", "lease", heading=False)
    assert fetched.documents["roads"].text == ROADS
    assert sorted(asked) == ["lease", "roads"]


def test_a_loader_may_return_a_document_and_nothing_else():
    loaded = Document(text="All of it.", metadata={"file_name": "a  lease.txt"})
    fetched = Documents(document_loader=lambda _: loaded).fetch(scored(node_of("lease")))
    assert fetched.documents["lease"] == WholeDocument("file_name: a  lease.txt\n\nAll of it.", "a lease.txt", False)
    with pytest.raises(InputError, match="must return text, a LlamaIndex node or None, got int for 'lease'"):
        Documents(document_loader=lambda _: 3).fetch(scored(node_of("lease")))


def test_what_is_no_store_is_refused():
    with pytest.raises(InputError, match="docstore must be a LlamaIndex BaseDocumentStore, got dict"):
        Documents(docstore={})
    with pytest.raises(InputError, match="document_loader must be a function of a document's id, got str"):
        Documents(document_loader="lease.txt")


def test_it_is_known_whether_there_is_anybody_to_ask():
    assert not Documents().knows_documents
    assert Documents(document_loader=str).knows_documents
    assert Documents(vector_store=chroma_store()).knows_documents
    assert Documents(retriever=index_of().as_retriever()).knows_documents


# What the model reads of them


def test_metadata_is_read_once_and_without_what_is_excluded():
    def with_metadata():
        document = Document(text=LEASE, id_="lease", metadata={"author": "Kay", "file_path": "/docs/a lease.txt"})
        document.excluded_llm_metadata_keys = ["file_path"]
        return [document]

    index = index_of(chroma_store(), with_metadata)
    (document,) = Documents(index=index).fetch(found(index)).documents.values()
    assert document == WholeDocument(f"author: Kay\n\n{LEASE}", "/docs/a lease.txt", heading=False)
    stored = SimpleDocumentStore()
    stored.add_documents(with_metadata())
    assert Documents(docstore=stored).fetch(found(index)).documents == {"lease": document}
    bare = Documents(index=index, metadata_mode=MetadataMode.NONE).fetch(found(index))
    assert bare.documents["lease"].text == LEASE


# Documents by a key of the metadata


def pages(path="/docs/lease.pdf", key="file_path", **metadata):
    """The clauses of the lease as pages, one document each, as SimpleDirectoryReader makes them, not in order."""
    clauses = LEASE.split("\n\n")
    order = [*range(9, len(clauses)), *range(9)]
    return [Document(text=clauses[n], metadata={key: path, "page_label": str(n + 1), **metadata}) for n in order]


@pytest.mark.parametrize("store", [chroma_store, SimpleVectorStore])
def test_the_pages_of_a_file_become_one_document_in_their_order(store):
    index = index_of(store(), lambda: [*pages(), *pages("/docs/other.pdf")])
    kept = Documents(index=index, id_key="file_path")
    fetched = kept.fetch(found(index, k=2))
    assert fetched.documents["/docs/lease.pdf"].text == f"file_path: /docs/lease.pdf\n\n{LEASE}"
    assert not fetched.notes


def test_stored_pages_become_one_document_too():
    docstore = SimpleDocumentStore()
    docstore.add_documents(pages())
    fetched = Documents(docstore=docstore, id_key="file_path").fetch(scored(pages()[0]))
    assert fetched.documents["/docs/lease.pdf"].text.endswith(LEASE)


def test_parts_without_page_numbers_stand_as_stored_and_it_is_told():
    def parts():
        return [Document(text=text, metadata={"book": "laws"}) for text in ("Of oxen.", "Of mills.")]

    index = index_of(chroma_store(), parts)
    fetched = Documents(index=index, id_key="book", metadata_mode=MetadataMode.NONE).fetch(found(index))
    assert fetched.documents["laws"] == WholeDocument("Of oxen.\n\nOf mills.", "laws", heading=False)
    assert fetched.notes == (
        "document 'laws': its 2 parts have no page numbers and stand in the order in which they are stored",
    )


@pytest.mark.parametrize("store", [chroma_store, SimpleVectorStore])
@pytest.mark.parametrize("value", [17, Path("/docs/lease.pdf"), 2.5, "a text"])
def test_a_key_may_hold_what_is_no_text(store, value):
    asked = []
    index = index_of(store(), lambda: pages(value, "key"))
    nodes = found(index, k=2)
    fetched = Documents(index=index, id_key="key", metadata_mode=MetadataMode.NONE).fetch(nodes)
    assert fetched.documents[str(value)].text == LEASE
    Documents(document_loader=asked.append, id_key="key").fetch(scored(*pages(value, "key")))
    assert asked == [value]


# Retrievers are looked through


class Router(LLMSingleSelector):
    """Chooses the first, without a model."""

    def __init__(self):
        pass

    def _select(self, choices, query):
        return SelectorResult(selections=[SingleSelection(index=0, reason="first")])


class Keeping(BaseRetriever):
    """Keeps its nodes itself, as BM25's do."""

    def __init__(self, nodes):
        self._nodes = nodes
        super().__init__()

    def _retrieve(self, query_bundle):
        return [NodeWithScore(node=node, score=1.0) for node in self._nodes[:2]]


def retrievers():
    def plain():
        return index_of(chroma_store()).as_retriever(similarity_top_k=4)

    def fusion():
        return QueryFusionRetriever([plain()], llm=MockLLM(), num_queries=1, use_async=False)

    def router():
        return RouterRetriever(Router(), [RetrieverTool.from_defaults(plain(), description="all")], MockLLM())

    return {
        "plain": plain,
        "fusion": fusion,
        "recursive": lambda: RecursiveRetriever("root", retriever_dict={"root": plain()}),
        "router": lambda: RouterRetriever(
            Router(), [RetrieverTool.from_defaults(plain(), description="all")], MockLLM()
        ),
        "transform": lambda: TransformRetriever(fusion(), IdentityQueryTransform()),
        "summary": lambda: SummaryIndex.from_documents(documents(), transformations=[SPLITTER]).as_retriever(),
        "keeping": lambda: Keeping(SPLITTER.get_nodes_from_documents(documents())),
    }


@pytest.mark.parametrize("kind", list(retrievers()))
def test_a_retriever_is_looked_through_for_its_stores(kind):
    retriever = retrievers()[kind]()
    fetched = Documents(retriever=retriever).fetch(retriever.retrieve(QUESTION))
    assert fetched.documents["lease"].text == LEASE


def test_a_merging_retriever_knows_the_larger_nodes():
    nodes = HierarchicalNodeParser.from_defaults([200, 60]).get_nodes_from_documents(documents())
    docstore = SimpleDocumentStore()
    docstore.add_documents(nodes)
    context = StorageContext.from_defaults(vector_store=chroma_store(), docstore=docstore)
    index = VectorStoreIndex(get_leaf_nodes(nodes), storage_context=context, embed_model=WordEmbedding())
    retriever = AutoMergingRetriever(index.as_retriever(similarity_top_k=6), context)
    fetched = Documents(retriever=retriever).fetch(retriever.retrieve(QUESTION))
    assert fetched.documents["lease"].text == LEASE and not fetched.notes


def test_a_retriever_that_holds_itself_ends():
    retriever = Keeping(SPLITTER.get_nodes_from_documents(documents()))
    retriever.others = [retriever, {"again": [retriever]}]
    assert Documents(retriever=retriever).fetch(retriever.retrieve(QUESTION)).documents["lease"].text == LEASE
