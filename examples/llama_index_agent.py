"""An agent with a long history: the target sees all of it, the drafter what matters for the question.

python examples/llama_index_agent.py --demo
"""

import asyncio

from common import options
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ToolCallBlock
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import ChatMemoryBuffer

from rapid_integrations.llama_index import RapidLLM


async def main() -> None:
    given = options(__doc__, "What did the page on the try statement say about finally?")

    def read_page(name: str) -> str:
        """Reads a page of the reference."""
        return given.documents.get(name, "There is no such page.")

    # The demo model's template knows no tools: function_calling=True describes them in the system message.
    llm = RapidLLM(
        target=given.target,
        drafter=given.drafter,
        max_tokens=given.max_tokens,
        function_calling=given.demo or None,
    )
    llm.load()
    agent = FunctionAgent(tools=[read_page], llm=llm, system_prompt="You read pages.")

    # What the agent has done so far: pages that it read, with long results.
    memory = ChatMemoryBuffer.from_defaults(token_limit=llm.metadata.context_window, tokenizer_fn=llm.token_ids)
    for number, (name, text) in enumerate(given.documents.items()):
        call = ToolCallBlock(tool_call_id=f"call{number:05}", tool_name="read_page", tool_kwargs={"name": name})
        memory.put(ChatMessage(f"Read the page {name!r}."))
        memory.put(ChatMessage(role="assistant", blocks=[call]))
        memory.put(ChatMessage(role="tool", content=text, additional_kwargs={"tool_call_id": call.tool_call_id}))
        memory.put(ChatMessage(role="assistant", content=f"I have read {name!r}."))

    for question in (given.question, "And when is the else clause executed?"):
        output = await agent.run(question, memory=memory)
        usage, stats = output.raw["usage"], output.raw["rapid"]
        print(f"{question}\n{output.response.content}\n")
        print(f"target: {usage['prompt_tokens']} tokens, {usage['cached_tokens']} of them from the turn before")
        print(f"drafter: {stats['drafter_prompt_tokens']} tokens\n")


if __name__ == "__main__":
    asyncio.run(main())
