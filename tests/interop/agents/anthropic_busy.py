"""See `busy`: a loop over the `anthropic` package; streamed the last time."""

import anthropic
from busy import HELPER, MAIN, QUESTION, SUMMARY, looked_up

client = anthropic.Anthropic(max_retries=0)
TOOLS = [
    {"name": name, "description": told, "input_schema": {"type": "object", "properties": {key: {}}}}
    for name, told, key in (
        ("look_up", "Look up a town.", "town"),
        ("ask_helper", "Ask the helper.", "input"),
    )
]


def called(use):
    if use.name == "look_up":
        return looked_up(use.input["town"])
    asked = [{"role": "user", "content": use.input["input"]}]
    told = client.messages.create(model="any", max_tokens=400, system=HELPER, messages=asked)
    return told.content[-1].text


def run(messages, *, streams=False):
    while True:
        asked = {"model": "any", "max_tokens": 400, "system": MAIN, "tools": TOOLS}
        if streams:
            with client.messages.stream(**asked, messages=messages) as stream:
                said = stream.get_final_message()
        else:
            said = client.messages.create(**asked, messages=messages)
        messages = [*messages, {"role": "assistant", "content": said.content}]
        if said.stop_reason != "tool_use":
            return messages
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": called(block)}
            for block in said.content
            if block.type == "tool_use"
        ]
        messages.append({"role": "user", "content": results})


def main():
    for _ in range(2):
        messages = run([{"role": "user", "content": QUESTION}])
    short = [{"role": "user", "content": "Hello"}, messages[-1]]
    ended = run([*short, {"role": "user", "content": SUMMARY}], streams=True)
    assert ended[-1]["content"][-1].text.startswith("done")


if __name__ == "__main__":
    main()
