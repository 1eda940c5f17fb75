"""A chat over documents: the target reads them whole, with all turns, and the next turn goes on in the cache.

python examples/llama_index_chat.py --demo
"""

import chromadb
from common import options
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.node_parser import SentenceSplitter
from llama_index.embeddings.huggingface import HuggingFaceEmbedding
from llama_index.vector_stores.chroma import ChromaVectorStore

from rapid_integrations.llama_index import RapidContextChatEngine, RapidLLM


def main() -> None:
    given = options(__doc__, "What does the with statement do with an exception?")
    store = ChromaVectorStore(chromadb.EphemeralClient().create_collection("chat"))
    index = VectorStoreIndex.from_documents(
        [Document(text=text, id_=name, metadata={"file_name": name}) for name, text in given.documents.items()],
        storage_context=StorageContext.from_defaults(vector_store=store),
        embed_model=HuggingFaceEmbedding(given.embeddings),
        transformations=[SentenceSplitter(chunk_size=200, chunk_overlap=20)],
    )

    # index.as_chat_engine(chat_mode="context") stood here.
    llm = RapidLLM(target=given.target, drafter=given.drafter, max_tokens=given.max_tokens)
    chat = RapidContextChatEngine.from_defaults(
        index.as_retriever(similarity_top_k=3), llm=llm, system_prompt="Be brief."
    )

    for question in (given.question, "And in which order is that done?", "Which statements did we talk about?"):
        response = chat.stream_chat(question)
        print(f"{question}\n")
        for piece in response.response_gen:
            print(piece, end="", flush=True)
        usage = response.metadata["rapid"]["usage"]
        cached = f"{usage['cached_tokens']} of them from the turn before"
        print(f"\n\ntarget: {usage['prompt_tokens']} tokens, {cached}")
        print(f"drafter: {response.metadata['rapid']['drafter_prompt_tokens']} tokens\n")


if __name__ == "__main__":
    main()
