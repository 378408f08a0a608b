"""Customer service (tau-bench, Yao et al. 2024, arXiv:2406.12045).

The policy talks to a user and calls tools that read and change a database. An episode is solved if
the database ends up as after the gold actions, and the user was given the required information.
"""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Generator, Hashable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import cast

from espalier.environments.benchmarks import benchmark_tasks
from espalier.environments.contract import Environments, EnvironmentsOver, waited
from espalier.environments.episode import EpisodeRules, Reply, TurnResults, written_calls
from espalier.environments.family import SimpleFamily
from espalier.environments.funnel import Funnel
from espalier.environments.mixins import FamilyQuestion, HasBenchmarks, PlainQuestion
from espalier.environments.teaching import Script
from espalier.environments.tools import Tool
from espalier.records import (
    DataError,
    Draft,
    FinalAnswer,
    Split,
    Task,
    ToolCalls,
    ToolSpec,
    Tracker,
)
from espalier.records.trajectory import Trajectory
from espalier_environments.customer_service.config import (
    CustomerServiceConfig,
    EndpointUserConfig,
    ScriptedUserConfig,
)
from espalier_environments.customer_service.database import Database, load_database
from espalier_environments.customer_service.domains import (
    TRANSFER,
    domain_in,
    domain_tools,
    is_reading,
    service_of,
)
from espalier_environments.customer_service.scoring import (
    gold_actions,
    is_solved,
    is_solved_by,
    outputs_of,
    written_actions,
)
from espalier_environments.customer_service.shop import make_shop
from espalier_environments.customer_service.shop_tasks import confirmation, shop_tasks
from espalier_environments.customer_service.tau_tasks import FILES, read_tau_tasks
from espalier_environments.customer_service.users import EndpointUser, ModelThread, ScriptedUser
from espalier_environments.customer_service.wording import in_words

INSTRUCTIONS = (
    "You serve the customers of a company. Find out who the user is before anything else. What you "
    "write goes to the user, who answers; call one tool at a time, and write nothing to the user "
    "beside a call. Before a call that changes something, tell the user what you will do and wait "
    "for their yes. Say nothing that neither the user nor a tool said.\n"
)


class CustomerService(SimpleFamily[CustomerServiceConfig], HasBenchmarks):
    """The family of conversations with customers."""

    name = "customer_service"
    config = CustomerServiceConfig
    instructions = INSTRUCTIONS
    splits_digits = True
    answers_from_evidence = False
    ends_by_call = True
    converses = True
    headline = "reward"

    def tools(self) -> Sequence[Tool]:
        """Return the schemas of the domain's tools; `environments` binds them to a database."""
        return domain_tools(self.settings.domain)

    def specs_of(self, task: Task) -> tuple[ToolSpec, ...]:
        """Return the tools of the task's domain."""
        return tuple(tool.spec for tool in domain_tools(_domain_of(task)))

    # ------------------------------------------------------------------------------ tasks

    def ingest(self, draft: Draft, tracker: Tracker) -> None:
        """Copy the domain's files into the artifact; a generated shop needs no files.

        Raises:
            DataError: a file is missing, malformed, or belongs to the other domain.
        """
        del tracker
        if self.settings.database is None:
            source = "A shop made by espalier."
        else:
            self._check(self.settings.database)
            shutil.copytree(self.settings.database, draft.path / _COPIED)
            source = f"Database and tasks of {self.settings.database.name}, in tau-bench's format."
        (draft.path / "attribution.txt").write_text(f"{source}\n", encoding="utf-8")

    def _check(self, folder: Path) -> None:
        domain = domain_in(folder)
        if domain != self.settings.domain:
            raise DataError(
                f'{folder}: holds the database of "{domain}"; set environment.domain to it'
            )
        database = load_database(folder / "data", domain)
        for path in sorted(folder.glob("tasks_*.json")):
            read_tau_tasks(path, "train", database, family=self.name)

    def questions(
        self, knowledge: Path, funnel: Funnel, tracker: Tracker
    ) -> dict[Split, Sequence[FamilyQuestion]]:
        """Return the requests of the shop's users, or the tasks of the domain's files."""
        if self.settings.database is None:
            return super().questions(knowledge, funnel, tracker)
        folder = knowledge / _COPIED
        database = load_database(folder / "data", self.settings.domain)
        asked = self.profile.synthesis
        counts: dict[Split, int] = {
            "train": asked.train_tasks, "dev": asked.dev_tasks, "heldout": asked.heldout_tasks,
        }  # fmt: skip
        found: dict[Split, Sequence[FamilyQuestion]] = {}
        for split, count in counts.items():
            if not (folder / FILES[split]).is_file():
                raise DataError(
                    f"{self.settings.database}: has no {FILES[split]}, and so nothing for the "
                    f"split {split}. To evaluate on the others, name one as the suite's `tasks`"
                )
            tasks = read_tau_tasks(folder / FILES[split], split, database, family=self.name)
            found[split] = [PlainQuestion(task) for task in tasks[:count]]
        return found

    def tasks(self, split: Split, count: int) -> Sequence[Task]:
        """Return requests of the split's users in the generated shop."""
        made = shop_tasks(
            self._shop, self.settings.shop, self.profile.splits, split, family=self.name
        )
        return made[:count]

    @cached_property
    def _shop(self) -> Database:
        return make_shop(self.settings.shop)

    # ------------------------------------------------------------------------------ playing

    @contextmanager
    def environments(self, knowledge: Path) -> Generator[EnvironmentsOver]:
        """Open environments over the generated shop, or over the ingested database."""
        if self.settings.database is None:
            database = self._shop
        else:
            database = load_database(knowledge / _COPIED / "data", self.settings.domain)
        with self._environments_over(database) as environments:
            yield lambda _view: environments

    @contextmanager
    def benchmark_environments(self, path: Path, knowledge: Path) -> Generator[Environments]:
        """Open environments over the database next to the file of tasks."""
        del knowledge
        folder = path if path.is_dir() else path.parent
        with self._environments_over(load_database(folder / "data", domain_in(folder))) as found:
            yield found

    @contextmanager
    def _environments_over(self, database: Database) -> Generator[Environments]:
        config = self.settings.user
        with ExitStack() as opened:
            models = (
                opened.enter_context(ModelThread(config))
                if isinstance(config, EndpointUserConfig)
                else None
            )

            def rules_of(task: Task) -> EpisodeRules:
                if models is not None:
                    instruction = str(task.arguments["instruction"])
                    user = EndpointUser(models, instruction, task.question)
                else:
                    facts = cast("Mapping[str, str]", task.arguments.get("facts", {}))
                    reminders = config.reminders if isinstance(config, ScriptedUserConfig) else 0
                    user = ScriptedUser(facts, reminders=reminders)
                return self._rules_of(task, database, user.reply)

            yield self.environments_by(self.tools(), rules_of)

    def _rules_of(self, task: Task, database: Database, reply: Reply) -> EpisodeRules:
        """Return the rules of one episode, with its own copy of the database."""
        domain = _domain_of(task)
        render = in_words if self.settings.results == "words" else None
        service = service_of(domain, database, render)
        replies: list[str] = []

        def solved(of: Task, answer: str | None, turns: TurnResults) -> float:
            # a conversation that was cut off counts as unsolved, as upstream
            if answer is None:
                return 0.0
            digest = service.state.digest()
            shown = [result.content for results in turns for result in results]
            return float(is_solved(of, digest, replies, shown, domain=domain, database=database))

        return replace(
            self.rules(tuple(service.tools.values())),
            verify=solved,
            reply=_heard(reply, replies),
            ending_tools=frozenset({TRANSFER}),
        )

    def verify(self, task: Task, answer: str | None) -> float:
        """Return 1 if actions, written as JSON, solve a task of the generated shop.

        Messages to the user are calls of `respond` with `content`. Episodes are scored by their
        database and do not use this method.
        """
        actions = written_actions(answer) if answer is not None else None
        if actions is None:
            return 0.0
        domain = _domain_of(task)
        return float(is_solved_by(task, actions, domain=domain, database=self._shop))

    def answer_key(self, task: Task) -> Hashable:
        """Return the gold actions that may change the database, and what the user must be told.

        A request that is refused changes nothing, and neither do the calls that read.
        """
        changes = [action for action in gold_actions(task) if not is_reading(action)]
        return written_calls(changes), outputs_of(task)

    # ------------------------------------------------------------------------------ benchmarks

    def read_benchmark(self, path: Path) -> Sequence[Task]:
        """Return tau-bench's tasks: a file of them, or all files of a domain's folder."""
        folder = path if path.is_dir() else path.parent
        files = sorted(path.glob("tasks_*.json")) if path.is_dir() else [path]
        database = load_database(folder / "data", domain_in(folder))
        read = [read_tau_tasks(one, "heldout", database, family=self.name) for one in files]
        return benchmark_tasks(path, [task for tasks in read for task in tasks])

    def official_scores(self, task: Task, trajectory: Trajectory) -> Mapping[str, float]:
        """Return tau-bench's reward, 0 or 1; over k trajectories it is reported as pass^k."""
        del task
        return {"reward": float(trajectory.is_right)}

    def gold_script(self, task: Task) -> Script:
        """Yield the gold actions, then the information that the user must be given."""
        actions = gold_actions(task)
        for action in actions:
            if action.name != TRANSFER:
                yield ToolCalls((action,))
        if outputs := outputs_of(task):
            yield FinalAnswer(", ".join(outputs))
        for action in actions:
            if action.name == TRANSFER:
                yield ToolCalls((action,))
        while True:
            yield FinalAnswer(", ".join(outputs) or _DONE)

    def demonstrate(self, task: Task) -> Script:
        """Ask who the user is, read, and ask for a yes before each change."""
        if not task.arguments.get("is_named", True):
            yield FinalAnswer("what is your name and zip ?")
        for action in gold_actions(task):
            if asked := confirmation(action):
                yield FinalAnswer(asked)
            yield ToolCalls((action,))
        while True:
            yield FinalAnswer(", ".join(outputs_of(task)) or _DONE)


_COPIED = "domain"
"""Folder of the knowledge artifact with the user's files."""
_DONE = "it is done ."


def _domain_of(task: Task) -> str:
    return str(task.arguments["domain"])


def _heard(reply: Reply, replies: list[str]) -> Reply:
    """Wrap `reply`: each message to the user is appended to `replies` before it is answered."""
    if inspect.iscoroutinefunction(reply):

        async def answered(said: str) -> str | None:
            replies.append(said)
            return await waited(reply(said))

        return answered

    def answered_at_once(said: str) -> str | None:
        replies.append(said)
        return cast("str | None", reply(said))

    return answered_at_once
