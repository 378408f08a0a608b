"""Reference text that is generated from the code: profile keys, commands, the chain, presets."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from espalier.algorithms.presets import PRESETS
from espalier.chain import CHAIN
from espalier.cli import command_line
from espalier.config import Profile, TrainingConfig
from espalier.config.environment import family_class
from espalier.records.step_figures import STEP_FIGURES, Per
from espalier.training.health import DETECTORS

FAMILIES = (
    "search_qa",
    "python_math",
    "customer_service",
    "code",
    "function_calling",
    "openenv",
    "procedural",
    "web",
    "shop",
    "sql",
    "mixture",
    "software_repair",
)
_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
_NAMES = {
    bool: "true or false", int: "integer", float: "number", str: "text", Path: "path",
    NoneType: "none",
}  # fmt: skip


def profile_keys() -> str:
    """Every section of a profile: key, type, default and description, members of unions included.

    Raises:
        LookupError: a key has no description; the message names it.
    """
    top, sections = table_of(Profile, ()), [*_sections(Profile, ())]
    return "\n\n".join(["## Keys outside any section", top, *sections])


def attribute_docstrings(model: type[BaseModel]) -> dict[str, str]:
    """The string below each field of `model` and of its base classes."""
    found: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if owner is BaseModel or not issubclass(owner, BaseModel):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0].body  # pyright: ignore[reportAttributeAccessIssue] (a class)
        for field, below in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                found[ast.unparse(field.target)] = " ".join(ast.literal_eval(below.value).split())
    return found


def commands() -> str:
    """Every command with its arguments, options and examples."""
    return "\n\n".join(_commands(typer.main.get_command(command_line()), ("espalier",)))


def chain_table() -> str:
    """The stages in order: what each reads and publishes."""
    rows = [
        (
            f"`{stage.name}`",
            stage.summary,
            ", ".join(f"`{name}`" for name in stage.inputs) or "-",
            f"`{stage.output}`: {stage.output_summary}",
            ", ".join(f"`{name}`" for name in stage.sections),
        )
        for stage in CHAIN
    ]
    return markdown_table(("stage", "what it does", "reads", "publishes", "profile sections"), rows)


def presets() -> str:
    """Every preset of `[training.algorithm]` and the paper or code that it comes from."""
    rows = [
        (
            f"`{name}`",
            preset.source,
            ", ".join(f"`{key}`" for key in preset.settings),
            ", ".join(f"`{key} = {field_json(value)}`" for key, value in preset.elsewhere.items()),
        )
        for name, preset in PRESETS.items()
    ]
    return markdown_table(("preset", "source", "sets", "and elsewhere, by default"), rows)


def step_figures() -> str:
    """Every figure of a training step with its denominator, and what the denominators cover."""
    rows = [(f"`{name}`", one.what, one.scale) for name, one in STEP_FIGURES.items()]
    covers = [(per.unit, per.covers) for per in Per]
    figures = markdown_table(("column", "what it is", "unit and denominator"), rows)
    return f"{figures}\n\n{markdown_table(('denominator', 'what is counted'), covers)}"


def detectors() -> str:
    """Every health detector: the column it watches, what it tells, and the key to look at."""
    rows = []
    for name, make in DETECTORS.items():
        it = make(TrainingConfig())
        said = getattr(it, "meaning", None) or (type(it).__doc__ or "").split("\n")[0].rstrip(".")
        rows.append((f"`{name}`", f"`{it.figure}`", said, f"`{it.key}`"))
    return markdown_table(("detector", "column", "what it tells", "key to look at"), rows)


def markdown_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; a bar inside a cell is escaped."""
    lines = [titles, ["---"] * len(titles), *rows]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)


def _sections(model: type[BaseModel], place: tuple[str, ...]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        keys = (*place, name)
        title = ".".join(keys)
        if keys == ("environment",):
            yield "## [environment]\n\nThe family of tasks, chosen by `name`, with its own keys."
            for family in FAMILIES:
                yield from _model(family_class(family).config, keys, f'{title}: name = "{family}"')
            continue
        members = [*models_in(field.annotation)]
        if len(members) > 1:
            chosen_by = _discriminator(members)
            listed = "A list of rules" if _is_list(field.annotation) else "One rule"
            chosen = getattr(field.get_default(call_default_factory=True), chosen_by, None)
            default = f' Default: `{chosen_by} = "{chosen}"`.' if chosen else ""
            yield f"{_heading(keys)} [{title}]\n\n{listed}, chosen by `{chosen_by}`.{default}"
            for member in members:
                tag = get_args(member.model_fields[chosen_by].annotation)[0]
                yield from _model(member, keys, f'{title}: {chosen_by} = "{tag}"')
        elif members:
            yield from _model(members[0], keys, f"[{title}]")


def _model(model: type[BaseModel], keys: tuple[str, ...], title: str) -> Iterator[str]:
    about = (inspect.getdoc(model) or "").partition("\n\n")[0].replace("\n", " ")
    is_member = not title.startswith("[")
    yield f"{_heading(keys)}{'#' if is_member else ''} {title}\n\n{escaped(about)}"
    if table := table_of(model, keys):
        yield table
    yield from _sections(model, keys)


def _heading(keys: tuple[str, ...]) -> str:
    return "#" * min(4, 1 + len(keys))


def table_of(model: type[BaseModel], keys: tuple[str, ...]) -> str:
    """The keys of a section as a Markdown table; empty where it has none of its own.

    Raises:
        LookupError: a key has no description.
    """
    described = attribute_docstrings(model)
    rows: list[tuple[str, str, str, str]] = []
    for name, field in model.model_fields.items():
        if [*models_in(field.annotation)] or (keys == () and name == "environment"):
            continue
        about = described.get(name) or field.description
        if about is None and name in ("name", "backend"):
            about = "Chooses it."
        if about is None:
            raise LookupError(
                f"{model.__module__}.{model.__name__}.{name} has no description: write it as a "
                "string below the field"
            )
        rows.append((f"`{name}`", _type(field), _default(field), escaped(about)))
    return markdown_table(("key", "type", "default", "what it does"), rows) if rows else ""


def _type(field: FieldInfo) -> str:
    bounds = [
        f"{sign} {_number(getattr(rule, bound))}"
        for rule in field.metadata
        for bound, sign in _BOUNDS.items()
        if getattr(rule, bound, None) is not None
    ]
    return " ".join([_spelled(field.annotation), ", ".join(bounds)]).strip()


def _number(bound: float) -> str:
    return "2^63" if bound == 1 << 63 else f"{bound:g}"


def _spelled(annotation: Any) -> str:  # noqa: ANN401 (any annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _spelled(arguments[0])
    if origin is Literal:
        return " or ".join(f'"{one}"' if isinstance(one, str) else str(one) for one in arguments)
    if origin in (Union, UnionType):
        return " or ".join(_spelled(one) for one in arguments)
    if origin is tuple and arguments[-1] is not ...:
        return f"list of {len(arguments)}: {', '.join(dict.fromkeys(map(_spelled, arguments)))}"
    if origin in (tuple, list):
        return f"list of {_spelled(arguments[0])}"
    if origin is dict:
        return f"table of {_spelled(arguments[1])}"
    return _NAMES.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if default is None or default is PydanticUndefined:
        return "unset"
    shown = field_json(default)
    return f"`{shown}`"


def field_json(value: object) -> str:
    """A default as a profile spells it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | Path):
        return f'"{value}"'
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(field_json, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {field_json(one)}" for key, one in value.items()) + "}"
    return f"{value:_}" if isinstance(value, int) and value >= 10_000 else str(value)


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:  # noqa: ANN401 (any annotation)
    """The sections that an annotation may hold, members of unions and of lists included."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) is Annotated:
        yield from models_in(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType, tuple, list):
        for part in get_args(annotation):
            yield from models_in(part)
    elif get_origin(annotation) is dict:  # a table of sections by a name of the user's
        yield from models_in(get_args(annotation)[1])


def _discriminator(members: Sequence[type[BaseModel]]) -> str:
    shared = set.intersection(*(set(member.model_fields) for member in members))
    return next(name for name in ("name", "backend", "kind") if name in shared)


def _is_list(annotation: Any) -> bool:  # noqa: ANN401 (any annotation)
    return get_origin(annotation) in (tuple, list)


def escaped(text: str) -> str:
    """Text that Markdown takes as it is, code between backticks apart."""
    parts = text.split("`")
    for number in range(0, len(parts), 2):
        for character in "*_[<":
            parts[number] = parts[number].replace(character, f"\\{character}")
    return "`".join(parts)


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[str]:  # noqa: ANN401 (click's)
    subcommands = getattr(command, "commands", {})
    if subcommands:
        if len(path) > 1:
            yield f"## {' '.join(path)}\n\n{escaped(inspect.cleandoc(command.help or ''))}"
        for name, one in sorted(subcommands.items()):
            yield from _commands(one, (*path, name))
        return
    usage = " ".join(p.metavar or p.name.upper() for p in command.params if _is_argument(p))
    yield f"{'#' * len(path)} {' '.join(path)}\n\n`{' '.join(path)} {usage} [options]`".replace(
        "  ", " "
    )
    yield escaped(inspect.cleandoc(command.help or ""))
    rows = [
        (
            f"`{' '.join(p.opts)}`" if not _is_argument(p) else f"`{p.metavar or p.name}`",
            _default_of(p),
            escaped(p.help or ""),
        )
        for p in command.params
    ]
    if rows:
        yield markdown_table(("option or argument", "default", "what it does"), rows)
    if command.epilog:
        lines = command.epilog.replace("\b\nExamples:\n", "").splitlines()
        yield "```text\n" + "\n".join(line.strip() for line in lines) + "\n```"


def _is_argument(parameter: Any) -> bool:  # noqa: ANN401 (click's)
    return parameter.param_type_name == "argument"


def _default_of(parameter: Any) -> str:  # noqa: ANN401 (click's)
    if parameter.required:
        return "required"
    default = parameter.default
    return "" if default in (None, False, (), []) else f"`{getattr(default, 'value', default)}`"
