"""Objects of the program as the tests see them: whatever is done with one is done by the program.

What the program answers is rebuilt here. It never learns what an answer is compared with:

    f(2) == 5               compared here: unequal, unless the object is of a class derived from int
    f(2) - 5, 5 in f(2)     refused: an object that sees 5 could say 0, or True
    f(2) == f(3)            asked of the program, which wrote both
    C(2) == 5, C(2) + 5     asked of the program where the tests construct an object of a class that
                            is tested: what its operators do is what they are about
    (C(2) + 3) * 2          asked, but it has to be an object again; a difference is refused
"""

from __future__ import annotations

import builtins
import functools
import operator
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from espalier_environments.code.inside.values import OWN_MODULE

COMPUTED, CONSTRUCTED = 1, 2
"""How far an object is trusted with values of the tests; 0 is not at all."""
_STATE = "state of the object"
"""Name of an attribute that no program reads: it has blanks."""
UNCHANGING: tuple[Any, ...] = (int, float, complex, str, bytes, tuple, frozenset)
"""Types whose values cannot change: an object of a derived class is one of these here too."""


class Channel(Protocol):
    """Operations on the program."""

    def ask(self, operation: str, *parts: Any) -> Any:  # noqa: ANN401 (any value)
        """Return the result of an operation."""
        ...

    def remote(self, number: int, mirror: Any, *, trust: int = 0) -> Any:  # noqa: ANN401 (of the mirror)
        """Return the object of a number."""
        ...

    def may_leave(self, error: BaseException, trace: types.TracebackType | None) -> bool:
        """Return whether a block may end by an error that the program calls harmless."""
        ...


class State(NamedTuple):
    """What is known of an object or class of the program."""

    channel: Channel
    number: int
    trust: int = 0
    plain: Any = None
    """Plain value of an object of a class that is derived from a plain one."""


def state_of(value: Any) -> State:  # noqa: ANN401 (a remote object, or a mirror)
    """Return what is known of an object or class of the program."""
    read = type.__getattribute__ if isinstance(value, type) else object.__getattribute__
    return read(value, _STATE)


def with_state(value: Any, state: State) -> Any:  # noqa: ANN401 (a remote object, or a mirror)
    """Return an object after its state is set."""
    write = type.__setattr__ if isinstance(value, type) else object.__setattr__
    write(value, _STATE, state)
    return value


def is_remote(value: object) -> bool:
    """Return whether a value is an object or a class of the program."""
    return issubclass(type(value), Remote | Mirror)


def _ask(operation: str, of: Any, *parts: Any) -> Any:  # noqa: ANN401 (any value)
    return state_of(of).channel.ask(operation, of, *parts)


class Mirror(type):
    """A class of the program: here it has its name, its bases, and no content."""

    def __call__(cls, *positional: Any, **named: Any) -> Any:  # noqa: ANN401 (any value)
        """Construct an object in the program."""
        return _ask("call", cls, positional, named)

    def __getattr__(cls, name: str) -> Any:  # noqa: ANN401 (any value)
        if name.startswith("__"):
            raise AttributeError(name)
        return _ask("get", cls, name)

    def __setattr__(cls, name: str, value: Any) -> None:  # noqa: ANN401 (any value)
        _ask("set", cls, name, value)

    def __getitem__(cls, key: Any) -> Any:  # noqa: ANN401 (any value)
        return _ask("getitem", cls, key)

    def __iter__(cls) -> Iterator[Any]:
        return iter(_ask("iterate", cls))

    def __len__(cls) -> int:
        return _ask("len", cls)

    def __bool__(cls) -> bool:
        return True

    def __eq__(cls, other: object) -> bool:
        return isinstance(other, Mirror) and state_of(cls)[:2] == state_of(other)[:2]

    def __hash__(cls) -> int:
        return hash(state_of(cls).number)


class TestedMirror(Mirror):
    """The class under its name in the tests, which construct objects of it to test them."""

    def __call__(cls, *positional: Any, **named: Any) -> Any:  # noqa: ANN401 (any value)
        """Construct an object in the program, which is trusted if it is of this class."""
        made = super().__call__(*positional, **named)
        return _trusted(made, CONSTRUCTED) if isinstance(made, cls) else made

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.__bases__[0])

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, cls.__bases__[0])


def mirror_of(name: str, bases: Sequence[Any], state: State) -> Any:  # noqa: ANN401 (a class)
    """Return a class for one of the program.

    Raises:
        TypeError: no class can have these bases.
    """
    own: list[Any] = [base for base in bases if isinstance(base, Mirror)] or [Remote]
    kept = [one for one in bases if issubclass(one, BaseException) or one in UNCHANGING]
    others: list[Any] = [base for base in kept if not isinstance(base, Mirror)]
    return with_state(Mirror(name, (*own, *others), {"__module__": OWN_MODULE}), state)


def tested(mirror: Mirror) -> Any:  # noqa: ANN401 (a class)
    """Return the class whose objects are trusted; an exception is only raised and caught."""
    if issubclass(mirror, BaseException):
        return mirror
    return with_state(
        TestedMirror(mirror.__name__, (mirror,), {"__module__": OWN_MODULE}), state_of(mirror)
    )


def _trusted(value: Any, trust: int) -> Any:  # noqa: ANN401 (any value)
    if not trust or not isinstance(value, Remote):
        return value
    state = state_of(value)
    return state.channel.remote(state.number, type(value), trust=trust)


class _Attribute:
    """The attribute `__dict__` of an object: the program's."""

    def __get__(self, of: Any, _kind: object = None) -> Any:  # noqa: ANN401 (any value)
        return _ask("get", of, "__dict__")


class Remote:
    """An object of the program."""

    __dict__ = _Attribute()  # pyright: ignore[reportAssignmentType] (the program's, not ours)

    def __call__(self, *positional: Any, **named: Any) -> Any:  # noqa: ANN401 (any value)
        """Call the program's function and return its result."""
        return _ask("call", self, positional, named)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (any value)
        if name.startswith("__") and name != "__name__":
            raise AttributeError(name)
        return _ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401 (any value)
        if name.startswith("__"):
            object.__setattr__(self, name, value)  # an exception's traceback
        else:
            _ask("set", self, name, value)

    def __delattr__(self, name: str) -> None:
        _ask("delete", self, name)

    def __iter__(self) -> Iterator[Any]:
        values = _ask("iterate", self)
        return self if values is None else iter(values)

    def __next__(self) -> Any:  # noqa: ANN401 (any value)
        return _ask("next", self)

    def __contains__(self, item: Any) -> bool:  # noqa: ANN401 (any value)
        if is_remote(item) or state_of(self).trust:
            return _ask("contains", self, item)
        return any(item is value or item == value for value in self)

    def __eq__(self, other: object) -> Any:  # noqa: ANN401 (what the program's operator returns)
        if is_remote(other) or state_of(self).trust == CONSTRUCTED:
            return _ask("eq", self, other)
        return state_of(self).plain is not None and _plain(self) == other

    def __ne__(self, other: object) -> Any:  # noqa: ANN401 (as `__eq__`)
        equal = self == other
        return not equal if isinstance(equal, bool) else _ask("ne", self, other)

    def __hash__(self) -> int:
        # hashes of texts differ from one process to another
        plain = state_of(self).plain
        return _ask("hash", self) if plain is None else hash(plain)

    def __getitem__(self, key: Any) -> Any:  # noqa: ANN401 (any value)
        return _ask("getitem", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:  # noqa: ANN401 (any value)
        _ask("setitem", self, key, value)

    def __delitem__(self, key: Any) -> None:  # noqa: ANN401 (any value)
        _ask("delitem", self, key)

    def __enter__(self) -> Any:  # noqa: ANN401 (any value)
        entered = _ask("enter", self)
        return self if _is_same(self, entered) else entered

    def __exit__(self, kind: Any, error: Any, trace: types.TracebackType | None) -> bool:  # noqa: ANN401
        if error is None:
            return bool(_ask("exit", self, None, ()))
        if is_remote(error):
            kind = error
        elif getattr(builtins, kind.__name__, None) is not kind:
            kind = Exception
        may_leave = state_of(self).channel.may_leave(error, trace)
        # a message of an assertion could say what is expected
        left = _ask("exit", self, kind, error.args if may_leave else ())
        return may_leave and bool(left)


def _is_same(of: Any, result: Any) -> bool:  # noqa: ANN401 (any values)
    return isinstance(result, Remote) and state_of(result).number == state_of(of).number


def _plain(value: Any) -> Any:  # noqa: ANN401 (any value)
    """Return a value, or the plain value of an object of the program."""
    if not is_remote(value):
        return value
    plain = state_of(value).plain
    if isinstance(plain, list | dict | set):  # it may have changed since
        plain = _ask("plain", value)
    if plain is None or is_remote(plain):
        raise TypeError(f"an object of the program, {type(value).__name__}, and a value of a test")
    return plain


def _operated(name: str, left: Any, right: Any) -> Any:  # noqa: ANN401 (any values)
    """Return the result of a binary operator, one of whose operands is an object of the program."""
    remotes = [one for one in (left, right) if is_remote(one)]
    trust = max(state_of(one).trust for one in remotes)
    is_free = len(remotes) == 2 or trust == CONSTRUCTED
    if not is_free and (trust != COMPUTED or name not in _COMPUTING):
        operate = getattr(operator, name, None) or getattr(builtins, name)
        return operate(_plain(left), _plain(right))
    result = state_of(remotes[0]).channel.ask(name, left, right)
    if not is_free and not isinstance(result, Remote):
        raise TypeError(f"{name} of an object that was computed gives a plain value")
    return (
        left
        if _is_same(remotes[0], result) and is_remote(left)
        else _trusted(result, min(trust, COMPUTED))
    )


_ARITHMETIC = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift", "and",
    "or", "xor",
)  # fmt: skip
_COMPUTING = frozenset({*_ARITHMETIC, "and_", "or_", *(f"i{name}" for name in _ARITHMETIC)}) - {
    "sub", "isub",
}  # fmt: skip
"""Operators that a computed object may have with values of the tests: tests take differences from
what they expect."""


def _forwarded(name: str) -> Callable[..., Any]:
    def operate(*operands: Any) -> Any:  # noqa: ANN401 (any values)
        result = _ask(name, *operands)
        return _trusted(result, min(state_of(operands[0]).trust, COMPUTED))

    return operate


def _binary(name: str, *, is_reflected: bool = False) -> Callable[[Any, Any], Any]:
    def operate(of: Any, other: Any) -> Any:  # noqa: ANN401 (any values)
        return _operated(name, other, of) if is_reflected else _operated(name, of, other)

    return operate


def _special_methods() -> Iterator[tuple[str, Callable[..., Any]]]:
    for word in (*_ARITHMETIC, "divmod"):
        name = f"{word}_" if word in {"and", "or"} else word
        yield word, _binary(name)
        yield f"r{word}", _binary(name, is_reflected=True)
        if word != "divmod":
            yield f"i{word}", _binary(f"i{word}")
    for name in ("lt", "le", "gt", "ge"):
        yield name, _binary(name)
    for name in (
        "neg", "pos", "invert", "abs", "len", "bool", "str", "repr", "int", "float", "complex",
        "index", "reversed", "round", "format",
    ):  # fmt: skip
        yield name, _forwarded(name)


for _name, _method in _special_methods():
    setattr(Remote, f"__{_name}__", _method)

_HANDED = frozenset(
    {
        "abs", "all", "any", "callable", "chr", "divmod", "hash", "isinstance", "len", "max", "min",
        "ord", "pow", "print", "repr", "round", "sorted", "sum",
    }
)  # fmt: skip


def may_be_handed(value: Any) -> bool:  # noqa: ANN401 (any value)
    """Return whether the program may call a value of the tests: a function that shows no other."""
    if isinstance(value, functools.partial):
        return may_be_handed(value.func)
    if isinstance(value, types.FunctionType | types.MethodType):
        return True
    if isinstance(value, types.MethodDescriptorType):
        return (
            value.__objclass__ in (*UNCHANGING, list, dict, set) and "format" not in value.__name__
        )
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", "")
    is_builtin = isinstance(value, types.BuiltinFunctionType | type)
    return is_builtin and (
        module in {"_operator", "math"} or (module == "builtins" and name in _HANDED)
    )
