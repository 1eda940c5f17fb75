"""An existing RAG chain with one line changed: chunks go to the drafter, whole documents to the target.

python examples/langchain_rag_chain.py --demo
"""

from common import options
from langchain_chroma import Chroma
from langchain_classic.chains import create_retrieval_chain
from langchain_core.prompts import ChatPromptTemplate
from langchain_huggingface import HuggingFaceEmbeddings
from langchain_text_splitters import RecursiveCharacterTextSplitter

from rapid_integrations.langchain import ChatRapid, create_rapid_documents_chain


def main() -> None:
    given = options(__doc__, "How does the with statement call __exit__?")

    # What such an application already has: chunks in a vector store, each with its source.
    splitter = RecursiveCharacterTextSplitter(chunk_size=800, chunk_overlap=80)
    sources = [{"source": name} for name in given.documents]
    chunks = splitter.create_documents(list(given.documents.values()), sources)
    store = Chroma.from_documents(
        chunks, HuggingFaceEmbeddings(model_name=given.embeddings), collection_name="rag-chain"
    )
    retriever = store.as_retriever(search_kwargs={"k": 6})
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Answer by these documents:\n\n{context}"), ("human", "{input}")]
    )

    # Here stood create_stuff_documents_chain(chat, prompt).
    chat = ChatRapid(target=given.target, drafter=given.drafter, max_tokens=given.max_tokens)
    documents = create_rapid_documents_chain(chat, prompt, document_loader=given.documents.__getitem__)
    chain = create_retrieval_chain(retriever, documents)

    for piece in chain.stream({"input": given.question}):
        print(piece.get("answer", ""), end="", flush=True)
    print()


if __name__ == "__main__":
    main()
