"""Tools as typed Python functions: their JSON schema, and calls with checked arguments.

    def convert(amount: float, currency: str) -> str:
        '''Convert euros into another currency.'''

`Annotated[float, Field(description="in euros")]` describes a parameter. A parameter named `task`
receives the episode's task and is not in the schema; nor is the `self` of a method of an `Episode`.
A function may be a coroutine function. It returns text, or a `ToolOutput` that also says whether it
succeeded; any other value is written as JSON.
"""

from __future__ import annotations

import copy
import inspect
import typing
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError

from espalier.environments.contract import sandbox_losses
from espalier.records import EspalierError, JsonObject, Task, ToolCall
from espalier.records.message import ToolSpec
from espalier.records.trajectory import ToolResult

_TASK = "task"
_JSON: TypeAdapter[object] = TypeAdapter(object)


class ToolOutput(NamedTuple):
    """A tool's output, and whether the call succeeded."""

    content: str
    succeeded: bool = True


class ToolError(Exception):
    """Raised by a tool to refuse a call; the policy reads the message."""


class ToolSignatureError(EspalierError, TypeError):
    """A function that cannot be a tool, for its name, its tag or one of its parameters."""


_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Tool:
    """A function that a policy may call."""

    def __init__(
        self,
        function: Callable[..., object],
        *,
        call_tag: str = "",
        result_tag: str = "result",
        takes_code: bool = False,
    ) -> None:
        """Derive the schema of `function`; the other arguments are those of `ToolSpec`.

        Raises:
            ToolSignatureError: the function has no name, or a parameter no type or schema.
        """
        name = getattr(function, "__name__", None)
        if name is None:
            raise ToolSignatureError(f"{function!r} has no name that a policy could call: use def")
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except NameError as error:
            raise ToolSignatureError(f"tool {name}: {error}") from error
        parameters = dict(inspect.signature(function).parameters)
        if next(iter(parameters), "") == "self":  # a method of an episode's class
            del parameters["self"]
        self.wants_task = parameters.pop(_TASK, None) is not None
        if self.wants_task and hints.get(_TASK, Task) is not Task:
            raise ToolSignatureError(
                f"tool {name}: a parameter named task is handed the episode's Task; "
                "give this one another name"
            )
        fields: dict[str, Any] = {}
        for key, parameter in parameters.items():
            if key not in hints:
                raise ToolSignatureError(f"tool {name}: parameter {key} has no type")
            if parameter.kind not in _BY_NAME or key.startswith("_") or key == "model_config":
                raise ToolSignatureError(
                    f"tool {name}: parameter {key} cannot be given by that name"
                )
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[key] = (hints[key], default)
        try:
            self._arguments: type[BaseModel] = create_model(
                name, __config__=ConfigDict(extra="forbid"), **fields
            )
            schema = _schema(self._arguments)
        except (PydanticUserError, NameError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise ToolSignatureError(
                f"tool {name}: its parameters have no JSON schema: {reason}"
            ) from error
        self._function = function
        # a decorated coroutine function may be a plain function that returns a coroutine
        self.is_async = inspect.iscoroutinefunction(inspect.unwrap(function))
        self.spec = ToolSpec(
            name=name,
            description=(inspect.getdoc(function) or "").partition("\n\n")[0].replace("\n", " "),
            parameters=schema,
            call_tag=call_tag,
            result_tag=result_tag,
            takes_code=takes_code,
        )

    def over(self, function: Callable[..., object]) -> Tool:
        """Return this tool with the same schema, played by another function."""
        other = copy.copy(self)
        other._function = function
        return other

    def call(self, call: ToolCall, task: Task) -> ToolResult | Awaitable[ToolResult]:
        """Run the function on validated arguments; invalid arguments give an error observation.

        Raises:
            EnvironmentLostError, ProgramBrokeSandboxError: as `sandbox_losses`.
        """
        try:
            checked = self._arguments.model_validate(call.arguments)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            return refused(call, f"{where}: {first['msg']}" if where else first["msg"])
        arguments = {name: getattr(checked, name) for name in type(checked).model_fields}
        if self.wants_task:
            arguments[_TASK] = task
        return self._played(call, partial(self._function, **arguments))

    def _played(
        self, call: ToolCall, play: Callable[[], object]
    ) -> ToolResult | Awaitable[ToolResult]:
        if self.is_async:
            return self._awaited(call, typing.cast("Callable[[], Awaitable[object]]", play))
        try:
            with _FaultNote(call), sandbox_losses():
                return _result(call, play())
        except ToolError as error:
            return refused(call, str(error))

    async def _awaited(self, call: ToolCall, play: Callable[[], Awaitable[object]]) -> ToolResult:
        try:
            with _FaultNote(call), sandbox_losses():
                return _result(call, await play())
        except ToolError as error:
            return refused(call, str(error))


class DescribedTool(Tool):
    """A tool described by a server: its schema is data, and arguments are passed unchecked."""

    def __init__(self, spec: ToolSpec, play: Callable[[JsonObject], object]) -> None:
        """Bind `spec` to the function that plays a call, which gets its arguments unchecked.

        The function may be a coroutine function, as for a tool that a server plays.
        """
        self.spec = spec
        self.is_async = inspect.iscoroutinefunction(play)
        self.wants_task = False
        self._function = play

    def call(self, call: ToolCall, task: Task) -> ToolResult | Awaitable[ToolResult]:
        """Play a call; the function may refuse arguments with a ToolError."""
        del task
        return self._played(call, partial(self._function, call.arguments))


class _FaultNote:
    """Adds a note to an exception raised in the block, naming the call that raised it."""

    def __init__(self, call: ToolCall) -> None:
        self._call = call

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, ToolError | EspalierError):
            error.add_note(
                f"in the tool {self._call.name}, called with {self._call.arguments}; "
                "a tool raises ToolError for what a policy may cause"
            )


_TAKEN_TAGS = ("answer", "think")


def refuse_ambiguous_tools(specs: Sequence[ToolSpec]) -> None:
    """Check that every call refers to exactly one tool, in every dialect.

    Raises:
        ToolSignatureError: two tools share a name or tag, or a tag has another meaning.
    """
    taken = [*_TAKEN_TAGS, *{spec.result_tag for spec in specs}]
    for number, spec in enumerate(specs):
        before = specs[:number]
        if any(spec.name == other.name or spec.tag == other.tag for other in before):
            raise ToolSignatureError(f"two tools are named {spec.name}; give each a name and tag")
        if spec.tag in taken:
            raise ToolSignatureError(
                f"tool {spec.name}: the tag <{spec.tag}> has a meaning already "
                f"({', '.join(taken)}); give it another name, or a call_tag"
            )


def unknown_tool(call: ToolCall, known: typing.Iterable[str]) -> ToolResult:
    """Return the observation after a call of an unknown tool."""
    said = refused(call, f"no tool is named {call.name}; there are {', '.join(known)}")
    return replace(said, exists=False)


def _result(call: ToolCall, returned: object) -> ToolResult:
    if isinstance(returned, ToolOutput):
        return ToolResult(call=call, content=returned.content, succeeded=returned.succeeded)
    text = returned if isinstance(returned, str) else _JSON.dump_json(returned).decode()
    return ToolResult(call=call, content=text, succeeded=True)


def refused(call: ToolCall, reason: str) -> ToolResult:
    """Return the observation of a call that was refused or failed: `error: REASON`."""
    return ToolResult(call=call, content=f"error: {reason}", succeeded=False)


def _schema(arguments: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of the arguments, without pydantic's redundant titles."""
    schema = arguments.model_json_schema()
    schema.pop("title", None)
    for field in schema.get("properties", {}).values():
        field.pop("title", None)
    return schema
