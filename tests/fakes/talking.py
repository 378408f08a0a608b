"""A program in place of `espalier_ui.talking`: its answers are made, hostile or missing.

It imports nothing of ours, so that it is there in a moment.
"""

import json
import sys
import time

HOSTILE = "<script>document.title='owned'</script>\u202egnp.exe\u202c\x1b[2J\u200b\x00\ud800"


def say(said):
    print(json.dumps(said), flush=True)


def record(text):
    """An attempt that searches once and answers; `text` is what the search found."""
    call = {"name": "search", "arguments": {"query": "lyon"}}
    return {
        "messages": [
            {"role": "user", "content": "what is asked by t0"},
            {"role": "assistant", "content": "", "thought": text, "tool_calls": [call]},
            {"role": "tool", "content": text},
            {"role": "assistant", "content": "france"},
        ],
        "tool_calls": [{**call, "result": text, "succeeded": True}],
        "turns": [],
        "spans": [["sampling", 0.0, 1.0, 0]],
        "reward": {"outcome": 1.0},
        "answer": "france",
        "finish_reason": "answered",
    }


def main():
    say({"ready": True, "step": 7 if len(sys.argv) > 3 else None})
    for line in sys.stdin:
        asked = json.loads(line)
        match asked.get("question"):
            case "die":
                sys.exit("out of memory")
            case "garble":
                print("no json", flush=True)
            case "arguments":
                say({"error": " ".join(sys.argv[1:])})
            case "wait":
                time.sleep(60)
            case "refuse":
                say({"error": "the run's tasks have a state of their own"})
            case question:
                found = record(HOSTILE if question == "hostile" else "country: france")
                gold = ["france"] if "task" in asked else None
                say({"episode": found, "gold": gold, "seconds": 0.5})


if __name__ == "__main__":
    main()
