"""A chat model alone: a long document in a message and a question after it, no retriever and no store.

python examples/langchain_chat_model.py --demo
"""

from common import options
from langchain_core.messages import HumanMessage, SystemMessage

from rapid_integrations.langchain import ChatRapid


def main() -> None:
    given = options(__doc__, "When is the else clause of a try statement executed?")
    chat = ChatRapid(target=given.target, drafter=given.drafter, max_tokens=given.max_tokens)

    # The long text is found in the message, cut into passages and searched; the drafter reads the best of them.
    text = "\n\n".join(given.documents.values())
    messages = [SystemMessage("Be brief."), HumanMessage(f"{text}\n\n{given.question}")]
    answer = None
    for chunk in chat.stream(messages):
        print(chunk.content, end="", flush=True)
        answer = chunk if answer is None else answer + chunk
    assert answer is not None

    stats, usage = answer.response_metadata["rapid"], answer.usage_metadata
    print(f"\n\n{stats['accepted']} of {stats['drafted']} drafts accepted, {stats['tokens_per_s']:.1f} tokens/s")
    print(f"{usage['input_tokens']} tokens in the prompt, {usage['output_tokens']} in the answer")
    print(f"{len(stats['retrieved'])} passages for the drafter, in {stats['drafter_prompt_tokens']} tokens")

    # A second question: the document is in the cache.
    messages[-1] = HumanMessage(f"{text}\n\nWhat does the assert statement do?")
    again = chat.invoke(messages)
    print(f"\n{again.content}\n\n{again.usage_metadata['input_token_details']['cache_read']} tokens from the cache")


if __name__ == "__main__":
    main()
