"""Other vector stores behind the same hook: nothing changes but the store.

python examples/langchain_other_stores.py --demo
"""

from collections.abc import Callable

from common import options
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from langchain_huggingface import HuggingFaceEmbeddings
from langchain_qdrant import QdrantVectorStore
from langchain_text_splitters import RecursiveCharacterTextSplitter

from rapid_integrations.langchain import ChatRapid, from_vector_store

STORES: dict[str, Callable[[list[str], Embeddings, list[dict[str, str]]], VectorStore]] = {
    "in memory": InMemoryVectorStore.from_texts,
    "Qdrant": lambda texts, embed, metadatas: QdrantVectorStore.from_texts(
        texts, embed, metadatas, location=":memory:"
    ),
}


def main() -> None:
    given = options(__doc__, "What does the del statement do with a name?")
    chat = ChatRapid(target=given.target, drafter=given.drafter, max_tokens=given.max_tokens)
    splitter = RecursiveCharacterTextSplitter(chunk_size=800, chunk_overlap=80)
    sources = [{"source": name} for name in given.documents]
    chunks = splitter.create_documents(list(given.documents.values()), sources)
    texts, metadatas = [chunk.page_content for chunk in chunks], [chunk.metadata for chunk in chunks]
    embed = HuggingFaceEmbeddings(model_name=given.embeddings)

    for name, make in STORES.items():
        store = make(texts, embed, metadatas)
        context = from_vector_store(store, k=6, document_loader=given.documents.__getitem__)
        answer = chat.bind(rapid_context=context).invoke(given.question)
        stats = answer.response_metadata["rapid"]
        print(f"{name}: {answer.content}")
        print(f"{len(stats['retrieved'])} passages, {stats['accepted']} of {stats['drafted']} drafts accepted\n")


if __name__ == "__main__":
    main()
