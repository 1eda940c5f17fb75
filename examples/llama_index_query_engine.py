"""An existing query engine with one word more: nodes go to the drafter, whole documents to the target.

python examples/llama_index_query_engine.py --demo
"""

import chromadb
from common import options
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.node_parser import SentenceSplitter
from llama_index.embeddings.huggingface import HuggingFaceEmbedding
from llama_index.vector_stores.chroma import ChromaVectorStore

from rapid_integrations.llama_index import RapidLLM, RapidSynthesizer


def main() -> None:
    given = options(__doc__, "How does the with statement call __exit__?")

    # What such an application already has: an index over a vector store.
    store = ChromaVectorStore(chromadb.EphemeralClient().create_collection("query-engine"))
    index = VectorStoreIndex.from_documents(
        [Document(text=text, id_=name, metadata={"file_name": name}) for name, text in given.documents.items()],
        storage_context=StorageContext.from_defaults(vector_store=store),
        embed_model=HuggingFaceEmbedding(given.embeddings),
        transformations=[SentenceSplitter(chunk_size=200, chunk_overlap=20)],
    )

    # The documents are rebuilt from the store, where the docstore does not have them.
    llm = RapidLLM(target=given.target, drafter=given.drafter, max_tokens=given.max_tokens)
    synthesizer = RapidSynthesizer(llm=llm, streaming=True)
    engine = index.as_query_engine(response_synthesizer=synthesizer, similarity_top_k=4)

    response = engine.query(given.question)
    for piece in response.response_gen:
        print(piece, end="", flush=True)
    cost = response.metadata["rapid"]
    print(f"\n\n{cost['accepted']} of {cost['drafted']} drafts accepted, {cost['tokens_per_s']:.1f} tokens/s")
    print(f"target: {cost['usage']['prompt_tokens']} tokens; drafter: {cost['drafter_prompt_tokens']}")
    print("sources:", ", ".join(sorted({node.node.ref_doc_id or "" for node in response.source_nodes})))


if __name__ == "__main__":
    main()
