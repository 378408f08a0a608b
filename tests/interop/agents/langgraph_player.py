"""The parcel desk with `langgraph`: its ready-made agent over LangChain's OpenAI chat model."""

import os
from contextlib import suppress

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError
from langgraph.prebuilt import create_react_agent
from openai import DefaultHttpxClient
from parcels import MOST_TURNS, paid, play_all, weighed

CONNECTIONS = DefaultHttpxClient()


@tool
def weigh(item: str, count: int) -> str:
    """Weight of an order in kilograms."""
    return weighed(item, count)


@tool
def fee(kilograms: int, carrier: str) -> str:
    """Fee in euros for so many kilograms with a carrier."""
    return paid(kilograms, carrier)


def play(question):
    # the base URL is in the environment; a client of its own would load certificates each time
    model = ChatOpenAI(model=os.environ["ESPALIER_MODEL"], max_retries=0, http_client=CONNECTIONS)
    agent = create_react_agent(model, [weigh, fee])
    with suppress(GraphRecursionError):  # the policy's doing: no answer
        agent.invoke({"messages": [("user", question)]}, {"recursion_limit": 2 * MOST_TURNS})


if __name__ == "__main__":
    play_all(play)
