"""The text web: pages of others, what policies call, and tasks in WebArena's format."""

import json
import tempfile
from pathlib import Path

from pydantic import ValidationError

from espalier.config import Profile
from espalier.environments import ToolError, family_of
from espalier.records import DataError, ToolCall
from espalier.records.trajectory import ToolResult
from espalier_environments.web.browser import Browser
from espalier_environments.web.website import Reply, Website
from tests.fuzz.campaign import Violation
from tests.fuzz.mutations import changed_bytes, changed_json, odd_value, written_json
from tests.fuzz.parsers import ParserTarget

_SITE = {"products": 3, "threads": 3, "issues": 3, "users": 3, "page_size": 2}
_ARGUMENTS = {
    "id": ("1", "3", "7", "12", "[2]", 4),
    "text": ("hello", "<b>x</b>\n 1 link y", "'); x(\"", "9" * 400),
    "option": ("open", "closed", "ada", "2", "any"),
    "path": ("/issues/1/edit", "/shop?page=2&kind=lamp", "/forum/1/comment", "//[x", "/cart"),
}
_ROW = {
    "task_id": 1,
    "start_url": "__GITLAB__/1?x=1",
    "intent": "close it",
    "eval": {
        "eval_types": ["string_match", "url_match", "program_html"],
        "reference_answers": {"exact_match": "done", "must_include": ["a", "b"]},
        "reference_url": "__SHOPPING__/1 |OR| __HOMEPAGE__",
        "url_note": "GOLD in PRED",
        "program_html": [
            {
                "url": "__HOMEPAGE__/account",
                "locator": "document.querySelector('p #city').outerText",
                "required_contents": {"must_include": ["oslo |OR| rome"]},
            }
        ],
    },
}


class Pages(ParserTarget):
    """Browsers on changed pages, calls of every tool, and files of tasks."""

    name = "pages"

    def __init__(self):
        profile = Profile.model_validate(
            {
                "environment": {
                    "name": "web", "sites": 1, "site": _SITE, "max_observation_characters": 900,
                }
            }
        )  # fmt: skip
        self._family = family_of(profile)
        self._tasks = self._family.tasks("train", 50)
        self._folder = tempfile.TemporaryDirectory()

    def make(self, dice):
        """A page, calls at a task, or a file of tasks; each nearly as it should be."""
        kind = dice.choice(("page", "calls", "calls", "tasks"))
        if kind == "page":
            url = dice.choice(("/", "/shop", "/shop/1", "/issues/1/edit", "/account/edit"))
            page = Website(json.loads(self._family.initial_state(self._tasks[0]))).reply("GET", url)
            body = changed_bytes(dice, page.html.encode())
        elif kind == "calls":
            place = dice.randrange(len(self._tasks))
            body = json.dumps([place, [self._call(dice) for _ in range(8)]]).encode()
        else:
            value = [changed_json(dice, _ROW)] if dice.random() < 0.9 else odd_value(dice)
            body = written_json(dice, value)
            body = changed_bytes(dice, body) if dice.random() < 0.1 else body
        return kind.encode() + b"\n" + body

    def _call(self, dice):
        tool = dice.choice(self._family.specs)
        names = tool.parameters.get("properties", {})
        arguments = {name: dice.choice(_ARGUMENTS[name]) for name in names}
        if arguments and dice.random() < 0.3:
            arguments[dice.choice(list(arguments))] = odd_value(dice)
        return {"name": tool.name, "arguments": arguments}

    def read(self, case):
        """See `ParserTarget`."""
        kind, _, body = case.partition(b"\n")
        match kind:
            case b"page":
                return _browsed(body.decode(errors="surrogateescape"))
            case b"calls":
                return self._played(body)
            case _:
                return self._loaded(body)

    def _played(self, body):
        try:
            place, calls = json.loads(body)
            task = self._tasks[place]
            calls = [ToolCall.model_validate(one) for one in calls]
        except (ValueError, TypeError, IndexError, ValidationError):
            return "no case"
        with self._family.environments(Path("none")) as over:
            environment = over("full")(task)
            environment.reset(task)
            tools = {tool.spec.name: tool for tool in environment._rules.tools}
            results = [
                _finished(tools[call.name].call(call, task)) for call in calls if call.name in tools
            ]
        if any(len(result.content) > 2000 for result in results):
            raise Violation("an observation beyond its limit")
        json.loads(self._family.initial_state(task))
        return f"{min(sum(result.succeeded for result in results), 3)} succeeded"

    def _loaded(self, body):
        path = Path(self._folder.name) / "tasks.json"
        path.write_bytes(body)
        try:
            tasks = self._family.read_benchmark(path)
        except DataError as refused:
            if len(str(refused)) > 2000:
                raise Violation("a message as long as the file") from refused
            return "refused"
        for task in tasks:
            if self._family.verify(task, "done") not in (0.0, 1.0):
                raise Violation("a score that is none")
        return "read"


def _finished(result):
    """The result of a coroutine that waits for nothing: a site in this process answers at once."""
    if isinstance(result, ToolResult):
        return result  # its arguments were refused
    try:
        result.send(None)
    except StopIteration as ended:
        return ended.value
    raise Violation("a tool of a site in this process waits")


def _browsed(html):
    """Read a page in every form, and act on each of its elements."""
    acted = 0
    for form in ("tree", "html", "dom", "words"):
        browser = Browser(form, 900)
        if len(browser.show(Reply("/x", 200, html))) > 900:
            raise Violation("an observation beyond its limit")
        for control in browser.controls:
            acted += _acted(browser, str(control.number))
    return f"{min(acted, 3)} acted"


def _acted(browser, number):
    done = 0
    for act in (
        lambda: browser.click(number),
        lambda: browser.type(number, "x\ny"),
        lambda: browser.select(number, "open"),
    ):
        try:
            said = act()
        except ToolError:
            continue
        done += 1
        if isinstance(said, str) and len(said.splitlines()) > 1:
            raise Violation("a field of several lines")
        if not isinstance(said, str) and not said.url.startswith("/"):
            raise Violation("a request of another site")
    return done
