"""An agent with a long history: the target sees all of it, the drafter what matters for the question.

python examples/langchain_agent.py --demo
"""

from common import options
from langchain.agents import create_agent
from langchain_chroma import Chroma
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_huggingface import HuggingFaceEmbeddings

from rapid_integrations.langchain import ChatRapid, RapidHistoryMiddleware


def main() -> None:
    given = options(__doc__, "What did the page on the try statement say about finally?")

    def read_page(name: str) -> str:
        """Reads a page of the reference."""
        return given.documents.get(name, "There is no such page.")

    chat = ChatRapid(target=given.target, drafter=given.drafter, max_tokens=given.max_tokens)
    store = Chroma("agent-history", HuggingFaceEmbeddings(model_name=given.embeddings))
    middleware = RapidHistoryMiddleware(store, newest=2)
    agent = create_agent(chat, [read_page], system_prompt="You read pages.", middleware=[middleware])

    # What the agent has done so far: pages that it read, with long results.
    messages: list[HumanMessage | AIMessage | ToolMessage] = []
    for number, (name, text) in enumerate(given.documents.items()):
        call = {"name": "read_page", "args": {"name": name}, "id": f"call{number:05}"}
        messages += [
            HumanMessage(f"Read the page {name!r}."),
            AIMessage("", tool_calls=[call]),
            ToolMessage(text, tool_call_id=call["id"], name="read_page"),
            AIMessage(f"I have read {name!r}."),
        ]

    for question in (given.question, "And when is the else clause executed?"):
        messages = agent.invoke({"messages": [*messages, HumanMessage(question)]})["messages"]
        answer = messages[-1]
        stats, usage = answer.response_metadata["rapid"], answer.usage_metadata
        cached = usage["input_token_details"]["cache_read"]
        print(f"{question}\n{answer.content}\n")
        print(f"target: {usage['input_tokens']} tokens, {cached} of them from the turn before")
        print(f"drafter: {stats['drafter_prompt_tokens']} tokens\n")


if __name__ == "__main__":
    main()
