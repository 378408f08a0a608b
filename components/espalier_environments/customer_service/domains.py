"""The two domains: their tools, bound to an episode's database, and the replay of gold actions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, wraps
from pathlib import Path
from typing import NamedTuple, cast

from espalier.environments.tools import Tool
from espalier.records import DataError, Task, ToolCall
from espalier.records.trajectory import ToolResult
from espalier_environments.customer_service.airline import AirlineTools
from espalier_environments.customer_service.database import Database, DatabaseCopy
from espalier_environments.customer_service.retail import RetailTools

TRANSFER = "transfer_to_human_agents"
"""Name of the call that ends a conversation."""

_READING = re.compile("get_|find_|list_|search_|calculate$|think$")
"""Beginning of the names of tools that change nothing."""

_DOMAINS = {"retail": RetailTools, "airline": AirlineTools}


_TAGS = {"think": "think_aloud"}
"""Other tags for tools whose names are taken: in the tag dialect, <think> is a thought."""


class Service(NamedTuple):
    """An episode's database, and the tools that change it."""

    state: DatabaseCopy
    tools: Mapping[str, Tool]


_TABLES = {"retail": "orders", "airline": "reservations"}


def domain_in(folder: Path) -> str:
    """Return the domain whose tables are in a folder in tau-bench's format.

    Raises:
        DataError: the folder has no tables of a domain.
    """
    for domain, table in _TABLES.items():
        if (folder / "data" / f"{table}.json").is_file():
            return domain
    raise DataError(
        f"{folder}: holds neither data/orders.json (retail) nor data/reservations.json (airline); "
        "name a folder of a domain in tau-bench's format"
    )


def is_reading(action: ToolCall) -> bool:
    """Return whether a call leaves the database as it is; a transfer does as well."""
    return action.name == TRANSFER or _READING.match(action.name) is not None


@lru_cache(maxsize=len(_DOMAINS))
def domain_tools(domain: str) -> tuple[Tool, ...]:
    """Return the tools of a domain with their schemas, over an empty database."""
    over = _DOMAINS[domain](Database({}).copy())
    names = [name for name in dir(over) if not name.startswith("_")]  # in alphabetical order
    return tuple(Tool(getattr(over, name), call_tag=_TAGS.get(name, "")) for name in names)


def service_of(
    domain: str, database: Database, render: Callable[[str], str] | None = None
) -> Service:
    """Return tools over a fresh copy of `database`; `render` formats results for the policy."""
    state = database.copy()
    over = _DOMAINS[domain](state)
    tools: dict[str, Tool] = {}
    for tool in domain_tools(domain):
        function = getattr(over, tool.spec.name)
        tools[tool.spec.name] = tool.over(_rendered(function, render) if render else function)
    return Service(state, tools)


def _rendered(function: Callable[..., str], render: Callable[[str], str]) -> Callable[..., str]:
    @wraps(function)
    def rendered(**arguments: object) -> str:
        return render(function(**arguments))

    return rendered


def final_digest(domain: str, database: Database, actions: Sequence[ToolCall], task: Task) -> str:
    """Return the digest of a fresh copy after replaying `actions`, as in tau-bench.

    Upstream's function is `calculate_reward`. An action that a tool refuses changes nothing and is
    not an error; a transfer is left out.
    """
    return played(domain, database, actions, task)[0]


def played(
    domain: str, database: Database, actions: Sequence[ToolCall], task: Task
) -> tuple[str, list[str]]:
    """Return the digest of a fresh copy after `actions`, as `final_digest`, and their results."""
    service = service_of(domain, database)
    shown = [
        cast("ToolResult", service.tools[action.name].call(action, task)).content
        for action in actions
        if action.name != TRANSFER and action.name in service.tools
    ]
    return service.state.digest(), shown
