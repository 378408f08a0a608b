"""Plays and checks calls with BFCL's own code; run by `bfcl.py` in a process of its own.

python bfcl_calls.py CHECKOUT JOBS: a JSON list of jobs in, a list of answers on standard output.

    {"kind": "play", "services": [...], "config": {...}, "turns": [[call]]}
        -> {"results": [[text]], "states": [{service: state}]}, one entry for each turn
    {"kind": "conversation", "services", "config", "turns": [[call]], "gold": [[text]]} -> bool
    {"kind": "calls", "functions", "calls": [call], "gold": [...], "category"} -> bool

A call is {"name": ..., "arguments": ...}. It imports nothing of espalier: what a state is compared
by is said twice, here and in `bfcl.py`.
"""

import json
import sys
import types
from pathlib import Path

WRITER = "espalier"
HIDDEN = {"long_context"}


def spelled(call):
    arguments = ", ".join(f"{name}={value!r}" for name, value in call["arguments"].items())
    return f"{call['name']}({arguments})"


def as_state(value):
    """Files as their text, folders as name and contents, sets as sorted lists."""
    if isinstance(value, set):
        return sorted(value)
    if isinstance(value, dict):
        return {str(key): as_state(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_state(one) for one in value]
    if hasattr(value, "contents"):
        return {"name": value.name, "contents": as_state(value.contents)}
    return value.content if hasattr(value, "content") else value


def state_of(instance):
    shown = {name: one for name, one in vars(instance).items() if not name.startswith("_")}
    return as_state({name: one for name, one in shown.items() if name not in HIDDEN})


class Upstream:
    """BFCL's executor and checkers."""

    def __init__(self, checkout):
        root = Path(checkout)
        inner = root / "berkeley-function-call-leaderboard"
        sys.path.insert(0, str(inner if inner.is_dir() else root))
        # the table of models imports every vendor's client, and says one thing that matters here
        table = types.ModuleType("bfcl_eval.constants.model_config")
        config = types.SimpleNamespace(underscore_to_dot=False)
        table.MODEL_CONFIG_MAPPING = {WRITER: config}
        sys.modules["bfcl_eval.constants.model_config"] = table
        from bfcl_eval.constants.enums import Language
        from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker
        from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_checker, multi_turn_utils
        from bfcl_eval.eval_checker.multi_turn_eval.func_source_code.posting_api import TwitterAPI

        self.language = Language.PYTHON
        self.check_calls = ast_checker
        self.check_turns = multi_turn_checker.multi_turn_checker
        self.execute = multi_turn_utils.execute_multi_turn_func_call
        self.posting = TwitterAPI

    def play(self, job, number):
        results, states = [], []
        for turn in job["turns"]:
            said, instances = self.execute(
                [spelled(call) for call in turn],
                job["config"],
                job["services"],
                WRITER,
                f"job_{number}",
            )
            results.append(said)
            # as text at once: later turns change the same objects
            states.append(json.loads(json.dumps({n: state_of(i) for n, i in instances.items()})))
        return {"results": results, "states": states}

    def conversation(self, job, number):
        entry = {
            "id": f"multi_turn_base_{number}",
            "initial_config": job["config"],
            "involved_classes": job["services"],
        }
        turns = [[[spelled(call) for call in turn]] if turn else [] for turn in job["turns"]]
        return self.check_turns(turns, job["gold"], entry, "multi_turn_base", WRITER)["valid"]

    def calls(self, job, number):
        del number
        output = [{call["name"]: call["arguments"]} for call in job["calls"]]
        try:
            return self.check_calls(
                job["functions"], output, job["gold"], self.language, job["category"], WRITER
            )["valid"]
        except (TypeError, KeyError, AttributeError):  # of values that no row's gold foresees
            return False

    def answer(self, job, number):
        # lists that were left out are one list for the whole process otherwise
        self.posting.post_tweet.__defaults__ = ([], [])
        return getattr(self, job["kind"])(job, number)


def main(checkout, jobs):
    upstream = Upstream(checkout)
    asked = json.loads(Path(jobs).read_text())
    print(json.dumps([upstream.answer(job, number) for number, job in enumerate(asked)]))


if __name__ == "__main__":
    main(*sys.argv[1:])
