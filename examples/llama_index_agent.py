"""An agent with tools: its long history is read whole by the target, and in part by the drafter.

python examples/llama_index_agent.py --demo
"""

import asyncio

from common import options
from llama_index.core.agent.workflow import FunctionAgent, ToolCallResult
from llama_index.core.memory import Memory

from rapid_integrations.llama_index import RapidLLM


async def main() -> None:
    given = options(__doc__, "Read the page 'try' and say what it tells of finally.")

    def read_page(name: str) -> str:
        """Reads a page of the reference."""
        return given.documents.get(name, f"There is no page {name!r}, only {', '.join(given.documents)}.")

    # The demo model's template knows no tools: they are described in its system message, if told to.
    llm = RapidLLM(
        target=given.target,
        drafter=given.drafter,
        max_tokens=given.max_tokens,
        function_calling=True if given.demo else None,
    )
    llm.load()
    agent = FunctionAgent(
        tools=[read_page],
        llm=llm,
        system_prompt="You read pages.",
        # The arguments of a call that has to be made fit the tool's schema, whatever the model.
        initial_tool_choice="read_page",
    )
    memory = Memory.from_defaults(token_limit=llm.metadata.context_window, tokenizer_fn=llm.token_ids)

    for question in (given.question, "And what does it tell of else?"):
        print(question)
        handler = agent.run(question, memory=memory)
        async for event in handler.stream_events():
            if isinstance(event, ToolCallResult):
                print(f"{event.tool_name}({event.tool_kwargs}) gave {len(str(event.tool_output))} characters")
        output = await handler
        usage = output.raw["usage"]
        print(f"{output.response.content}\n")
        print(f"target: {usage['prompt_tokens']} tokens, {usage['cached_tokens']} of them from the turn before\n")


if __name__ == "__main__":
    asyncio.run(main())
