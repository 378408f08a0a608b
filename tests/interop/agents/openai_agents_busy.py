"""See `busy`: `openai-agents`, by the responses API or chat completions; streamed the last time."""

import asyncio
import os

from agents import Agent, Runner, function_tool, set_tracing_disabled
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
from agents.models.openai_responses import OpenAIResponsesModel
from busy import HELPER, MAIN, QUESTION, SUMMARY, looked_up
from openai import AsyncOpenAI

set_tracing_disabled(True)


@function_tool
def look_up(town: str) -> str:
    """Look up a town."""
    return looked_up(town)


async def main():
    by = OpenAIChatCompletionsModel if os.environ["BY"] == "chat" else OpenAIResponsesModel
    model = by(model="any-name", openai_client=AsyncOpenAI(max_retries=0))
    helper = Agent(name="helper", instructions=HELPER, model=model)
    asked = helper.as_tool(tool_name="ask_helper", tool_description="Ask the helper.")
    agent = Agent(name="main", instructions=MAIN, model=model, tools=[look_up, asked])
    for _ in range(2):
        result = await Runner.run(agent, QUESTION, max_turns=6)
    last = result.to_input_list()[-1]
    short = [{"role": "user", "content": "Hello"}, last, {"role": "user", "content": SUMMARY}]
    streamed = Runner.run_streamed(agent, short, max_turns=6)
    async for _ in streamed.stream_events():
        pass
    assert streamed.final_output.startswith("done"), streamed.final_output


if __name__ == "__main__":
    asyncio.run(main())
