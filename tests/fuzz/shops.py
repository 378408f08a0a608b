"""The shop: WebShop's files as others write them, and the calls of policies over them."""

import copy
import json
import tempfile
from pathlib import Path

from pydantic import ValidationError

from espalier.records import DataError, ToolCall
from espalier.records.trajectory import ToolResult
from espalier_environments.shop.goals import goal_task
from espalier_environments.shop.tools import ScoredVisit, shop_tools, tools_of
from espalier_environments.shop.webshop_files import load_webshop
from tests.fuzz.campaign import Violation
from tests.fuzz.mutations import changed_bytes, changed_json, odd_value, written_json
from tests.fuzz.parsers import ParserTarget
from tests.unit.environments.shop.shops import ATTRIBUTES, HUMAN, PRODUCTS

_FILES = {"items_shuffle": PRODUCTS, "items_ins_v2": ATTRIBUTES, "items_human_ins": HUMAN}
_CLICKS = (
    "b0aaaaaaa1",
    "b0aaaaaaa2",
    "crimson red",
    "large",
    "next",
    "back",
    "features",
    "buy now",
)


class Shops(ParserTarget):
    """`load_webshop`, and a visit to what it accepts."""

    name = "shops"

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory()

    def make(self, dice):
        """A file nearly as it should be, and calls nearly as they should be."""
        file = dice.choice(list(_FILES))
        content = copy.deepcopy(_FILES[file])
        for _ in range(dice.randrange(3)):
            content = changed_json(dice, content)
        calls = [_call(dice) for _ in range(8)]
        head = json.dumps({"file": file, "calls": calls}).encode()
        body = written_json(dice, content)
        return head + b"\n" + (changed_bytes(dice, body) if dice.random() < 0.1 else body)

    def read(self, case):
        """See `ParserTarget`."""
        head, _, body = case.partition(b"\n")
        try:
            asked = json.loads(head)
            file, calls = asked["file"], asked["calls"]
            _FILES[file]
        except (ValueError, KeyError, TypeError):
            return "no case"
        folder = Path(self._folder.name)
        for name, content in _FILES.items():
            (folder / f"{name}.json").write_text(json.dumps(content))
        (folder / f"{file}.json").write_bytes(body)
        try:
            shop = load_webshop(folder, max_results=50)
        except DataError as refused:
            if len(str(refused)) > 2000:
                raise Violation("a message as long as the file") from refused
            return "refused"
        tasks = [goal_task(g, family="shop", split="heldout", source="fuzz") for g in shop.goals]
        visit = ScoredVisit(shop.catalogue, shop.goals[0].goal, page_size=1)
        return _played(visit, calls, tasks[0])


def _call(dice):
    """A call with arguments that would be right, some of them changed."""
    name = dice.choice([tool.spec.name for tool in shop_tools()])
    arguments = {
        "search": {"query": dice.choice(("shirt", "lamp", "cotton lamp shirt"))},
        "click": {"target": dice.choice(_CLICKS)},
        "buy": {},
    }[name]
    if dice.random() < 0.3:
        arguments = changed_json(dice, arguments)
    if isinstance(arguments, dict) and arguments and dice.random() < 0.1:
        arguments[dice.choice(list(arguments))] = odd_value(dice)
    return {"name": name, "arguments": arguments}


def _played(visit, calls, task):
    tools = {tool.spec.name: tool for tool in tools_of(visit)}
    succeeded = 0
    for one in calls:
        try:
            call = ToolCall.model_validate(one)
        except ValidationError:
            continue
        result = tools[call.name].call(call, task)
        if not isinstance(result, ToolResult):
            raise Violation(f"{call.name} gave {type(result).__name__}")
        result.content.encode()  # what is stored of an episode is UTF-8
        succeeded += result.succeeded
        if not 0 <= visit.score <= 1:
            raise Violation(f"a score of {visit.score}")
    return f"{min(succeeded, 3)} succeeded, bought {visit.is_over}"
