"""Customer service: tables of other people, and the arguments that policies give its tools."""

import copy
import json
import tempfile
from pathlib import Path

from pydantic import ValidationError

from espalier.records import DataError, ToolCall
from espalier.records.trajectory import ToolResult
from espalier_environments.customer_service.database import load_database
from espalier_environments.customer_service.domains import domain_tools, service_of
from tests.fuzz.campaign import Violation
from tests.fuzz.mutations import changed_bytes, changed_json, odd_value, written_json
from tests.fuzz.parsers import ParserTarget
from tests.unit.environments.customer_service.tables import AIRLINE, ARGUMENTS, RETAIL, TASK

_TABLES = {"retail": RETAIL, "airline": AIRLINE}


class Services(ParserTarget):
    """`load_database`, and every tool over what it accepts."""

    name = "services"

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory()

    def make(self, dice):
        """A domain, a table nearly as it should be, and calls nearly as they should be."""
        domain = dice.choice(list(_TABLES))
        table = dice.choice(list(_TABLES[domain]))
        content = copy.deepcopy(_TABLES[domain][table])
        if dice.random() < 0.5:
            content = changed_json(dice, content)
        calls = [_call(dice, dice.choice(domain_tools(domain)).spec) for _ in range(6)]
        head = json.dumps({"domain": domain, "table": table, "calls": calls}).encode()
        body = written_json(dice, content)
        return head + b"\n" + (changed_bytes(dice, body) if dice.random() < 0.1 else body)

    def read(self, case):
        """See `ParserTarget`."""
        head, _, body = case.partition(b"\n")
        try:
            asked = json.loads(head)
            domain, table, calls = asked["domain"], asked["table"], asked["calls"]
            tables = _TABLES[domain]
        except (ValueError, KeyError, TypeError):
            return "no case"
        folder = Path(self._folder.name)
        for name, content in tables.items():
            (folder / f"{name}.json").write_text(json.dumps(content))
        (folder / f"{table}.json").write_bytes(body)
        try:
            database = load_database(folder, domain)
        except DataError as refused:
            if len(str(refused)) > 2000:
                raise Violation("a message as long as the file") from refused
            return "refused"
        return _played(domain, database, calls)


def _call(dice, tool):
    """A call with arguments that would be right, some of them changed."""
    names = tool.parameters["properties"]
    arguments = {name: copy.deepcopy(dice.choice(ARGUMENTS[name])) for name in names}
    if dice.random() < 0.5:
        arguments = changed_json(dice, arguments)
    if arguments and isinstance(arguments, dict) and dice.random() < 0.2:
        arguments[dice.choice(list(arguments))] = odd_value(dice)
    return {"name": tool.name, "arguments": arguments}


def _played(domain, database, calls):
    service = service_of(domain, database)
    before = json.dumps(database.tables, sort_keys=True)
    succeeded = 0
    for one in calls:
        try:
            call = ToolCall.model_validate(one)
        except ValidationError:
            continue
        result = service.tools[call.name].call(call, TASK)
        if not isinstance(result, ToolResult):
            raise Violation(f"{call.name} gave {type(result).__name__}")
        succeeded += result.succeeded
        service.state.digest()
    if json.dumps(database.tables, sort_keys=True) != before:
        raise Violation("an episode changed the database of all")
    return f"{domain} {min(succeeded, 3)} succeeded"
