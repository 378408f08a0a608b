"""Function calling: rows of other people, and the calls that policies write."""

import copy
import json
import math
import tempfile
from pathlib import Path

from espalier.config import Profile
from espalier.environments import family_of
from espalier.records import DataError
from espalier_environments.function_calling.conversations import Services
from espalier_environments.function_calling.states import APIS, parameter_names, tool_names
from tests.fuzz.campaign import Violation
from tests.fuzz.mutations import changed_bytes, changed_json, odd_value, written_json
from tests.fuzz.parsers import ParserTarget
from tests.unit.environments.function_calling.rows import CALLS, FILES, VALUES

_CREDITS = ("exact", "toolrl")


class Functions(ParserTarget):
    """`read_benchmark`, `verify` of what it accepts, and every tool of the services."""

    name = "functions"

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory()
        self._families = [
            family_of(
                Profile.model_validate({"environment": {"name": "function_calling", "credit": one}})
            )
            for one in _CREDITS
        ]

    def make(self, dice):
        """A file nearly as it should be with an answer, or calls of a service."""
        if dice.random() < 0.4:
            service = dice.choice(list(APIS))
            calls = [_call(dice, service) for _ in range(8)]
            config = changed_json(dice, VALUES["config"]) if dice.random() < 0.5 else {}
            return json.dumps({"service": service, "config": config, "calls": calls}).encode()
        name = dice.choice(list(FILES))
        content = copy.deepcopy(FILES[name])
        answer = written_json(dice, changed_json(dice, dice.choice(CALLS)))
        if dice.random() < 0.7:
            content = changed_json(dice, content)
        body = written_json(dice, content)
        if dice.random() < 0.1:
            body = changed_bytes(dice, body)
        head = {"file": name, "answer": answer.decode("utf-8", "replace")}
        return json.dumps(head).encode() + b"\n" + body

    def read(self, case):
        """See `ParserTarget`."""
        head, _, body = case.partition(b"\n")
        try:
            asked = json.loads(head)
            if "service" in asked:
                return _played(asked)
            name, answer = asked["file"], asked["answer"]
            FILES[name]
        except (ValueError, KeyError, TypeError, RecursionError):
            return "no case"
        return self._judged(name, body, answer)

    def _judged(self, name, body, answer):
        folder = Path(self._folder.name)
        for other, content in FILES.items():
            path = folder / other
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_text(json.dumps(content))
        (folder / name).write_bytes(body)
        read = folder / name.replace("possible_answer/", "").replace(
            "multi_turn_func_doc/ticket_api.json", "BFCL_v4_multi_turn_base.json"
        )
        for family in self._families:
            try:
                tasks = family.read_benchmark(read)
            except DataError as refused:
                if len(str(refused)) > 3000:
                    raise Violation("a message as long as the file") from refused
                return f"{Path(name).suffix} refused"
            low, high = family.outcome_span(family.settings)
            for task in tasks:
                family.specs_of(task)
                outcome = family.verify(task, answer)
                if not low <= outcome <= high or math.isnan(outcome):
                    raise Violation(f"outcome {outcome}")
        return f"{read.name} judged"


def _call(dice, service):
    """A call with arguments of fitting and of other types."""
    tool = dice.choice(tool_names(APIS[service]))
    names = parameter_names(APIS[service], tool)
    arguments = {
        name: odd_value(dice) if dice.random() < 0.3 else dice.choice(VALUES["arguments"])
        for name in names
        if dice.random() < 0.95
    }
    return [tool, arguments]


def _played(asked):
    service, config = asked["service"], asked["config"]
    try:
        services = Services([service], {service: config if isinstance(config, dict) else {}})
    except DataError:
        return "configuration refused"
    succeeded = 0
    for tool, arguments in asked["calls"]:
        output = services.call(str(tool), arguments if isinstance(arguments, dict) else {})
        if not isinstance(output.content, str):
            raise Violation(f"{tool} gave {type(output.content).__name__}")
        succeeded += output.succeeded
    services.end_turn()
    if services.turns[0].states != services.turns[0].states:
        raise Violation("a state that is not equal to itself")
    return f"{service} {min(succeeded, 3)} succeeded"
