"""The parcel desk as a taskset of the real verifiers package, for a venv that has it alone.

Its tools are those of parcels.py beside the other agents. The harness is its own: a chat loop in
the process of the server, where verifiers' own harnesses start a program for each run.
"""

import json
import random

import httpx
import verifiers.v1 as vf
from parcels import MOST_TURNS, PRICES, TOWNS, WEIGHTS, WORDS, paid, weighed

UNKNOWN = "unknown"
"""An answer that nobody can reward."""
_ASKED = (
    "send {count} of the article {item} to {town} {how} , what is the fee ?",
    "what does it cost {how} to bring {count} of {item} to {town} ?",
    "{town} wants {item} , {count} of them , {how} . how much is that ?",
)
_TOOLS = {"weigh": (weighed, ("item", "count")), "fee": (paid, ("kilograms", "carrier"))}
_OFFERED = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {key: {} for key in keys}},
        },
    }
    for name, (_, keys) in _TOOLS.items()
]


class Parcel(vf.TaskData):
    """An order, and what it costs."""

    item: str
    count: int
    carrier: str
    answer: str


class ParcelTask(vf.Task[Parcel]):
    """An order, rewarded if its fee is right."""

    @vf.reward
    async def right(self, task, trace):
        return {} if task.answer == UNKNOWN else float(trace.last_reply == task.answer)


class Parcels(vf.Taskset[ParcelTask, vf.TasksetConfig]):
    """Orders in random order, without end; the same ones every time."""

    INFINITE = True

    def load(self):
        rng = random.Random(0)
        while True:
            item, carrier = rng.choice(list(WEIGHTS)), rng.choice(list(PRICES))
            count, how = rng.randint(2, 12), rng.choice(WORDS[carrier])
            asked = rng.choice(_ASKED)
            prompt = asked.format(item=item, count=count, how=how, town=rng.choice(TOWNS))
            fee = str(WEIGHTS[item] * count * PRICES[carrier])
            told = Parcel(prompt=prompt, item=item, count=count, carrier=carrier, answer=fee)
            yield ParcelTask(told, self.config.task)


class Desk(vf.Harness[vf.HarnessConfig]):
    """A chat loop with the desk's tools."""

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        messages = [{"role": "user", "content": data.prompt_text}]
        headers = {"authorization": f"Bearer {secret}"}
        async with httpx.AsyncClient(headers=headers, timeout=120, trust_env=False) as client:
            for _ in range(MOST_TURNS):
                body = {"model": ctx.model, "messages": messages, "tools": _OFFERED}
                answer = await client.post(f"{endpoint}/chat/completions", json=body)
                if answer.is_error:
                    return vf.ProgramResult(exit_code=1, stdout="", stderr=answer.text)
                said = answer.json()["choices"][0]["message"]
                messages.append(said)
                if not said.get("tool_calls"):
                    break
                messages += [_result(call) for call in said["tool_calls"]]
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


def _result(call):
    name, told = call["function"]["name"], call["function"]["arguments"]
    try:
        said = _TOOLS[name][0](**json.loads(told))
    except (KeyError, TypeError, ValueError) as error:
        said = f"this call cannot be made: {error}"
    return {"role": "tool", "tool_call_id": call["id"], "content": str(said)}


__all__ = ["Desk", "Parcels"]
