"""An application that knows nothing of RAPID: the model is set once, and all that it does goes on as before.

python examples/llama_index_settings.py --demo
"""

from common import options
from llama_index.core import Document, Settings, SummaryIndex
from llama_index.core.llms import ChatMessage
from llama_index.embeddings.huggingface import HuggingFaceEmbedding

from rapid_integrations.llama_index import RapidLLM


def main() -> None:
    given = options(__doc__, "When is the else clause of a try statement executed?")
    llm = RapidLLM(target=given.target, drafter=given.drafter, max_tokens=given.max_tokens)
    Settings.llm = llm
    Settings.embed_model = HuggingFaceEmbedding(given.embeddings)
    # Lengths are counted as the model counts them.
    Settings.tokenizer = llm.token_ids

    # The application's own code. Its long prompts are split into document and question.
    index = SummaryIndex.from_documents([Document(text=text) for text in given.documents.values()])
    engine = index.as_query_engine(streaming=True)
    for piece in engine.query(given.question).response_gen:
        print(piece, end="", flush=True)

    document = "\n\n".join(given.documents.values())
    answer = Settings.llm.chat([ChatMessage(f"{document}\n\n{given.question}")])
    cost = answer.raw["rapid"]
    print(f"\n\n{answer.message.content}")
    print(f"\n{len(cost['retrieved'])} passages for the drafter, in {cost['drafter_prompt_tokens']} tokens")


if __name__ == "__main__":
    main()
