"""See `busy`: `langgraph` with LangChain's OpenAI chat model; streamed the last time."""

from busy import HELPER, MAIN, QUESTION, SUMMARY, looked_up
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent

model = ChatOpenAI(model="any-name", max_retries=0)
helper = create_react_agent(model, [], prompt=HELPER)


@tool
def look_up(town: str) -> str:
    """Look up a town."""
    return looked_up(town)


@tool
def ask_helper(input: str) -> str:
    """Ask the helper."""
    return helper.invoke({"messages": [("user", input)]})["messages"][-1].content


def main():
    agent = create_react_agent(model, [look_up, ask_helper], prompt=MAIN)
    for _ in range(2):
        messages = agent.invoke({"messages": [("user", QUESTION)]})["messages"]
    short = {"messages": [("user", "Hello"), messages[-1], ("user", SUMMARY)]}
    told = list(agent.stream(short, stream_mode="messages"))
    assert told[-1][0].content.startswith("done") or any("done" in str(s[0].content) for s in told)


if __name__ == "__main__":
    main()
