"""An agent that asks what it costs to send an order, written with the standard library alone.

It knows nothing of espalier: a base URL, a model and a task come from its environment, it offers
the model two tools, runs what the model calls, and ends when the model answers. The same program
runs against any OpenAI-compatible server:

    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none ESPALIER_MODEL=policy \
    ESPALIER_TASK='{"messages": [{"role": "user", "content": "..."}]}' python parcel_agent.py
"""

import json
import os
import urllib.request
from typing import Any

WEIGHTS = {"lamp": 5, "chair": 7, "desk": 9, "rug": 6, "clock": 2, "mirror": 8, "vase": 4}
WEIGHTS |= {"bench": 9, "stool": 6, "kettle": 3, "globe": 5, "shelf": 7, "drum": 4, "tent": 8}
PRICES = {"rail": 3, "road": 4, "sea": 2, "air": 6}
MOST_TURNS = 4


def weigh(item: str, count: int) -> int:
    """Weight of an order in kilograms."""
    return WEIGHTS[item] * int(count)


def fee(kilograms: int, carrier: str) -> int:
    """Fee in euros for so many kilograms with a carrier."""
    return PRICES[carrier] * int(kilograms)


TOOLS = {"weigh": (weigh, ("item", "count")), "fee": (fee, ("kilograms", "carrier"))}
OFFERED = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": tool.__doc__,
            "parameters": {"type": "object", "properties": {key: {} for key in keys}},
        },
    }
    for name, (tool, keys) in TOOLS.items()
]


def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The model's next message."""
    body = {"model": os.environ["ESPALIER_MODEL"], "messages": messages, "tools": OFFERED}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {
            "content-type": "application/json",
            "authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
        },
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["choices"][0]["message"]


def called(call: dict[str, Any]) -> str:
    """What a call of the model returns to it."""
    name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
    try:
        return str(TOOLS[name][0](**arguments))
    except (KeyError, TypeError, ValueError) as error:
        return f"this call cannot be made: {error}"


def main() -> None:
    """Play the task of the environment."""
    messages = json.loads(os.environ["ESPALIER_TASK"])["messages"]
    for _ in range(MOST_TURNS):
        said = ask(messages)
        messages.append(said)
        if not said.get("tool_calls"):
            return
        for call in said["tool_calls"]:
            result = {"role": "tool", "tool_call_id": call["id"], "content": called(call)}
            messages.append(result)


if __name__ == "__main__":
    main()
