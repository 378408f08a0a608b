"""The parcel desk with the `openai-agents` package, by the responses API or chat completions."""

import asyncio
import os
from contextlib import suppress

from agents import Agent, ModelBehaviorError, Runner, function_tool, set_tracing_disabled
from agents.exceptions import MaxTurnsExceeded
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
from agents.models.openai_responses import OpenAIResponsesModel
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from parcels import MOST_TURNS, paid, play_all, weighed

set_tracing_disabled(True)


@function_tool
def weigh(item: str, count: int) -> str:
    """Weight of an order in kilograms."""
    return weighed(item, count)


@function_tool
def fee(kilograms: int, carrier: str) -> str:
    """Fee in euros for so many kilograms with a carrier."""
    return paid(kilograms, carrier)


async def play(question, connections):
    by = OpenAIChatCompletionsModel if os.environ.get("BY") == "chat" else OpenAIResponsesModel
    # the base URL is in the environment; a client of its own would load certificates each time
    client = AsyncOpenAI(max_retries=0, http_client=connections)
    model = by(model=os.environ["ESPALIER_MODEL"], openai_client=client)
    agent = Agent(name="parcels", model=model, tools=[weigh, fee])
    with suppress(MaxTurnsExceeded, ModelBehaviorError):  # the policy's doing: no answer
        await Runner.run(agent, question, max_turns=MOST_TURNS)


if __name__ == "__main__":
    with asyncio.Runner() as loop:
        connections = DefaultAsyncHttpxClient()
        play_all(lambda question: loop.run(play(question, connections)))
