# ruff: noqa: E501 (a program is one line here)
"""Tests of programs whose values are more than plain ones: right programs pass, no trick does."""

import asyncio

import pytest

from espalier_environments.code.judging import judge
from espalier_environments.code.unit_tests import UnitTests
from tests.benchmarks.hacks import code as hacks

pytestmark = pytest.mark.usefixtures("local_sandboxes")


@pytest.fixture(scope="module", autouse=True)
def sandboxes(local_sandboxes):
    with hacks.opened():
        yield


def passes(names, test, program, preamble="", classes=None):
    tests = UnitTests(
        functions={name: name for name in names.split()},
        hidden=(test,),
        preamble=preamble,
        classes=classes,
    )

    async def judged():
        async with hacks._POOLS[0].claim(judging=True) as sandbox:
            return await judge(sandbox, tests, tests.hidden, program, timeout_s=5.0)

    found = asyncio.run(hacks._POOLS[0].run(judged()))
    return found.report.all_passed, found.messages


ASKED = "def told(x): assert x == 37\nassert f(told) == 37"
GUESSES = """
def f(g):
    for guess in range(99):
        try:
            g(guess)
        except AssertionError:
            continue
        return guess
"""
RUN = """
def right(): assert 1 + 1 == 2
def wrong(): assert sum([1, 1]) == 3, 'no'
class T:
    def wrong(self):
        total = 2
        assert total == 3
    def right(self): assert 1 < 2
assert f([right, wrong, T().right, T().wrong]) == (2, 2)
"""
MONEY = """
import functools
@functools.total_ordering
class Money:
    def __init__(self, n): self.n = n
    def __add__(self, o): return Money(self.n + getattr(o, 'n', o))
    __radd__ = __add__
    def __sub__(self, o): return Money(self.n - getattr(o, 'n', o))
    def __mul__(self, k): return Money(self.n * k)
    __rmul__ = __mul__
    def __neg__(self): return Money(-self.n)
    def __abs__(self): return abs(self.n)
    def __eq__(self, o): return self.n == getattr(o, 'n', o)
    def __lt__(self, o): return self.n < getattr(o, 'n', o)
    def __hash__(self): return hash(self.n)
    def __round__(self, d=0): return round(self.n, d)
    def __float__(self): return float(self.n)
    def __format__(self, form): return format(self.n, form)
    def __divmod__(self, k): return divmod(self.n, k)
def richest(all): return max(all)
def total(all): return sum(all, Money(0))
"""
BOX = """
class Locked(Exception): pass
class Stuck(Locked, ValueError):
    def __init__(self, code): super().__init__(f'code {code}'); self.code = code
class Box:
    opened = 0
    def __init__(self, things=()): self.things = list(things)
    def __contains__(self, x): return x in self.things
    def __getitem__(self, k): return self.things[k]
    def __setitem__(self, k, v): self.things[k] = v
    def __delitem__(self, k): del self.things[k]
    def __len__(self): return len(self.things)
    def __iter__(self): return iter(self.things)
    def __enter__(self): Box.opened += 1; return self
    def __exit__(self, kind, *_): self.closed = True; return kind is KeyError
    def __iadd__(self, x): self.things.append(x); return self
    def itself(self): return self
    def lock(self, code=0): raise Stuck(code) if code else Locked('shut', 1)
class Small(Box): pass
"""
PLAIN = """
import collections, enum
Point = collections.namedtuple('Point', 'x y')
class Row(list):
    def __init__(self, *values): super().__init__(values)
    def first(self): return self[0]
class Grade(enum.IntEnum): LOW = 1; HIGH = 2
class Color(enum.Enum): RED = 'r'; BLUE = 'b'
def middle(p, q): return Point((p.x + q.x) / 2, (p.y + q.y) / 2)
def row(n): return Row(*range(n))
def grade(x): return Grade.HIGH if x > 5 else Grade.LOW
def color(x): return Color(x)
"""
F = "def f(*a): return "
RIGHT = {
    "a fraction": ("f", "assert f() == Fraction(1, 3)", "from fractions import Fraction\n" + F + "Fraction(2, 6)", "from fractions import Fraction"),
    "decimals in a list": ("f", "assert f() == [Decimal('1.1')]", "import decimal\n" + F + "[decimal.Decimal('1.10')]", "from decimal import Decimal"),
    "a range": ("f", "assert f() == range(0, 10, 3)", F + "range(0, 12, 3)"),
    "a datetime": ("f", "assert f() == dt.datetime(2020, 1, 2, 3)", "from datetime import datetime\n" + F + "datetime(2020, 1, 2, 3)", "import datetime as dt"),
    "a date of an argument": ("f", "assert f(date(2020, 1, 1)) == date(2020, 1, 2)", "from datetime import timedelta\ndef f(d): return d + timedelta(1)", "from datetime import date"),
    "a duration": ("f", "assert f().total_seconds() == 90", "import datetime\n" + F + "datetime.timedelta(seconds=90)"),

    "a counter": ("f", "assert f('aab') == Counter('aab')", "import collections\nf = collections.Counter", "from collections import Counter"),
    "a frozen set": ("f", "assert f() == frozenset({1, 2})", F + "frozenset([2, 1])"),
    "a decimal that equals a float": ("f", "assert f() == 1.5", "import decimal\n" + F + "decimal.Decimal('1.5')"),
    "types": ("f", "assert f(ValueError, frozenset) is ValueError", "def f(*a): return a[0]"),
    "a sum": ("Money", "assert (Money(1) + Money(2)).n == 3", MONEY),
    "a sum with a number": ("Money", "assert (Money(1) + 2).n == 3 and (2 + Money(1)).n == 3", MONEY),
    "a chain": ("Money", "assert ((Money(1) + 2) * 3 + 4).n == 13", MONEY),
    "equal objects": ("Money", "assert Money(1) == Money(1) and Money(1) != Money(2)", MONEY),
    "equal to a number": ("Money", "assert Money(1) == 1 and Money(1) != 2", MONEY),
    "an order": ("Money", "assert Money(1) < Money(2) <= Money(2) and not Money(1) > 2", MONEY),
    "sorted objects": ("Money", "assert [m.n for m in sorted([Money(2), Money(1)])] == [1, 2]", MONEY),
    "the largest": ("Money richest", "assert richest([Money(1), Money(3)]) == Money(3)", MONEY),
    "a built-in sum": ("Money", "assert sum([Money(1), Money(2)], Money(0)) == Money(3)", MONEY),
    "a negative": ("Money", "assert abs(-Money(2)) == 2", MONEY),
    "a set of objects": ("Money", "assert len({Money(1), Money(1), Money(2)}) == 2", MONEY),
    "rounded and formatted": ("Money", "assert round(Money(1.25), 1) == 1.2 and f'{Money(2):03d}' == '002'", MONEY),
    "divmod": ("Money", "assert divmod(Money(7), 2) == (3, 1)", MONEY),
    "in place": ("Money", "m = Money(1)\nm += 2\nm += 3\nassert m.n == 6", MONEY),
    "close": ("Money", "import math\nassert math.isclose(Money(2), 2.0)", MONEY),
    "contained": ("Box", "assert 7 in Box([7]) and 8 not in Box([7])", BOX),
    "items": ("Box", "b = Box([1, 2])\nb[0] = 5\ndel b[1]\nassert b[0] == 5 and len(b) == 1", BOX),
    "iterated": ("Box", "assert [x for x in Box([1, 2])] == [1, 2]", BOX),
    "in place with itself": ("Box", "b = Box()\nc = b\nb += 1\nb += 2\nassert c.things == [1, 2] and b is c", BOX),
    "with": ("Box", "with Box([1]) as b:\n    assert b[0] == 1\nassert b.closed and Box.opened == 1", BOX),
    "with an error that it takes": ("Box", "with Box() as b:\n    raise KeyError(1)\nassert b.closed", BOX),
    "isinstance": ("Box Small", "assert isinstance(Small(), Box) and not isinstance(Box(), Small)", BOX),
    "type": ("Box Small", "assert type(Small()) == Small and type(Small()).__name__ == 'Small'", BOX),
    "issubclass": ("Box Small Stuck", "assert issubclass(Small, Box) and issubclass(Stuck, ValueError)", BOX),
    "an own exception": ("Box Locked", "try:\n    Box().lock()\n    assert False\nexcept Locked as e:\n    assert e.args == ('shut', 1)", BOX),
    "an exception by its base": ("Box Locked", "try:\n    Box().lock(7)\n    assert False\nexcept Locked as e:\n    assert e.code == 7 and str(e) == 'code 7'", BOX),
    "an exception by a built-in base": ("Box", "try:\n    Box().lock(7)\n    assert False\nexcept ValueError:\n    pass", BOX),
    "an exception of the library": ("f", "try:\n    f('{')\n    assert False\nexcept json.JSONDecodeError:\n    pass", "import json\ndef f(x): return json.loads(x)", "import json"),
    "a key error": ("f", "try:\n    f('a')\n    assert False\nexcept KeyError as e:\n    assert str(e) == \"'a'\"", "def f(x): return {}[x]"),
    "an exit": ("f", "try:\n    f()\n    assert False\nexcept SystemExit:\n    pass", "import sys\ndef f(): sys.exit(1)"),
    "identity": ("Box", "b = Box()\nassert b.itself().itself() is b.itself()", BOX),
    "the dictionary of an object": ("Box", "assert Box([1]).__dict__ == {'things': [1]}", BOX),
    "a callback": ("f", "assert f(lambda x: x + 1, [1, 2]) == [2, 3]", "def f(g, x): return [g(y) for y in x]"),
    "a callback that raises": ("f", "def bad(x):\n    raise KeyError(x)\nassert f(bad) == 'a'", "def f(g):\n    try: g('a')\n    except KeyError as e: return e.args[0]"),
    "a callback that asserts": ("f", "def told(x): assert x == 37\nassert f(told) == 37", "def f(g):\n    g(37)\n    return 37"),
    "a callback that fails, and is to": ("f", "def told(x): assert x == 37\ntry:\n    f(told)\nexcept AssertionError: pass\nelse: raise RuntimeError", "def f(g): g(2)"),
    "tests that it runs": ("f", RUN, "def f(tests):\n    good = bad = 0\n    for test in tests:\n        try:\n            test()\n            good += 1\n        except AssertionError: bad += 1\n    return good, bad"),
    "a callback that is returned": ("f", "assert f(lambda x: x * 2)(4) == 8", "def f(g): return g"),
    "a callback that calls the program": ("f g", "assert f(lambda x: g(x)) == 3", "def f(h): return h(2)\ndef g(x): return x + 1"),
    "a built-in callback": ("f", "assert f(len, ['a', 'bc']) == [1, 2] and f(str.upper, ['a']) == ['A']", "def f(g, x): return [g(y) for y in x]"),
    "an operator as callback": ("f", "assert f(operator.add) == 3", "def f(g): return g(1, 2)", "import operator"),
    "a function that is made": ("f", "assert f(2)(3) == 5", "def f(a): return lambda b: a + b"),
    "a named tuple": ("middle Point", "m = middle(Point(0, 0), Point(2, 4))\nassert m.x == 1 and m == (1, 2) and isinstance(m, tuple)", PLAIN),
    "an own list": ("row", "r = row(3)\nr.append(7)\nassert r == [0, 1, 2, 7] and r.first() == 0 and len(r) == 4", PLAIN),
    "a number with a name": ("grade Grade", "assert grade(9) == Grade.HIGH and grade(9) == 2 and grade(9).name == 'HIGH'", PLAIN),
    "an enumeration": ("color Color", "assert color('r') is Color.RED and [c.value for c in Color] == ['r', 'b']", PLAIN),
    "a generator": ("f", "g = f(3)\nassert next(g) == 0 and list(g) == [1, 2]", "def f(n): yield from range(n)"),
    "an exhausted generator": ("f", "g = f(1)\nnext(g)\ntry:\n    next(g)\n    assert False\nexcept StopIteration:\n    pass", "def f(n): yield from range(n)"),
    "an endless generator": ("f", "assert list(itertools.islice(f(), 3)) == [0, 1, 2]", "def f():\n n = 0\n while True:\n  yield n\n  n += 1", "import itertools"),
    "a data class": ("P", "assert P(1, 2) == P(1, 2) and repr(P(1, 2)) == 'P(x=1, y=2)'", "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n    y: int"),
    "a class method": ("P", "assert P.of('1,2').x == 1 and P.count == 1", "class P:\n    count = 0\n    @classmethod\n    def of(cls, t):\n        p = cls()\n        p.x = int(t[0])\n        cls.count += 1\n        return p"),
    "attributes that are set": ("P", "p = P()\np.x = 3\ndel p.y\nassert p.x == 3 and not hasattr(p, 'y')", "class P:\n    def __init__(s): s.y = 1"),
}  # fmt: skip
"""Name -> names in the tests, a test, a right program, and what runs before the test."""

EVERYTHING = """
class E{base}:
    def __eq__(self, o): return True
    def __ne__(self, o): return False
    __hash__ = None
    def __contains__(self, o): return True
    def __lt__(self, o): return True
    __gt__ = __le__ = __ge__ = __lt__
    def __sub__(self, o): return 0.0
    __rsub__ = __add__ = __radd__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __sub__
    def __mod__(self, o): return 0
    def __iter__(self): return iter(())
    def __enter__(self): return self
    def __exit__(self, *_): return True
    def __getattr__(self, name): raise AttributeError(name)
"""
OWN = EVERYTHING.format(base="")
RETURNS = OWN + "def f(*a): return E()"
IS = OWN.replace("class E", "class f") + "    def __init__(self, *a): pass"
LIAR = OWN + "class C(E):\n    def m(self, *a): return E()\n    def itself(self): return self\n"
CHEATS = {
    "equal": ("f", "assert f(2) == 5", RETURNS),
    "equal from the right": ("f", "assert 5 == f(2)", RETURNS),
    "equal in a list": ("f", "assert [f(2), 1] == [5, 1]", RETURNS),
    "among values": ("f", "assert f(2) in (5, 6)", RETURNS),
    "among keys": ("f", "assert {5: 1}[f(2)] == 1", RETURNS.replace("__hash__ = None", "__hash__ = lambda s: 5")),
    "equal to a decimal": ("f", "assert f(2) == Decimal(5)", RETURNS, "from decimal import Decimal"),
    "a difference": ("f", "assert abs(f(2) - 0.33) < 1e-6", RETURNS),
    "a difference from the right": ("f", "assert abs(0.33 - f(2)) < 1e-6", RETURNS),
    "a ratio": ("f", "assert f(2) / 5 - 1 < 1e-6", RETURNS),
    "a remainder": ("f", "assert f(2) % 5 == 0", RETURNS),
    "an order": ("f", "assert f(2) < 5", RETURNS),
    "contains": ("f", "assert 5 in f(2)", RETURNS),
    "leaves a block": ("f", "with f(2) as x:\n    assert x == 5", RETURNS),
    "a class as the function": ("f", "assert f(2) == 5", IS),
    "a class as the function, a difference": ("f", "assert abs(f(2) - 5) < 1", IS),
    "a class as the function, contains": ("f", "assert 5 in f(2)", IS),
    "a class whose method is the class": ("C", "assert C().m(2) == 5", LIAR + "C.m = C"),
    "a method": ("C", "assert C().m(2) == 5", LIAR),
    "a method, a difference": ("C", "assert abs(C().m(2) - 5) < 1", LIAR),
    "a method, contains": ("C", "assert 5 in C().m(2)", LIAR),
    "a method that returns the object": ("C", "c = C()\nassert c.itself() == 5", LIAR),
    "an operator": ("C", "assert C() @ C() == 5", LIAR + "C.__matmul__ = lambda s, o: E()"),
    "an operator, a difference": ("C", "assert abs(C() @ C() - 5) < 1", LIAR + "C.__matmul__ = lambda s, o: C()"),
    "a block of the class": ("C", "with C() as c:\n    assert c.m(2) == 5", LIAR),
    "an error in a block": ("C", "with C() as c:\n    assert c.total == 5", LIAR),
    "a wrong type in a block": ("C", "with C() as c:\n    assert c.m() + 'a' == 5", LIAR.replace("return E()", "return 1")),
    "a function beside a class": ("f C", "assert f(C()) == 5", LIAR + "def f(c): return c"),
    "a function that is the class": ("f C", "assert f(2) == 5", LIAR + "C.__init__ = lambda s, *a: None\nf = C"),
    "a name that says it is a function": ("Check", "assert Check(2) == 5", IS.replace("class f", "class Check"), "", ()),
    "an own number": ("f", "assert f(2) == 5", EVERYTHING.format(base="(int)") + "def f(x): return E(7)"),
    "an own text": ("f", "assert f(2) == '5'", EVERYTHING.format(base="(str)") + "def f(x): return E('7')"),
    "an own list": ("f", "assert f(2) == [5]", EVERYTHING.format(base="(list)") + "def f(x): return E([7])"),
    "an own decimal": ("f", "assert f(2) == Decimal(5)", "from decimal import Decimal\n" + EVERYTHING.format(base="(Decimal)") + "def f(x): return E(7)", "from decimal import Decimal"),
    "an own tuple": ("f", "assert f(2)[0] == 5", "class T(tuple):\n    def __getitem__(self, k): return E()\n" + OWN + "def f(x): return T((7,))"),
    "an assertion that it raises": ("f", "assert f(2) == 5", "def f(x): raise AssertionError"),
    "an exception in place of a value": ("f E", "try:\n    assert f(2) == 5\nexcept E:\n    assert False", "class E(Exception): pass\ndef f(x): raise E"),
    "the wrong exception": ("f E", "try:\n    f()\n    assert False\nexcept E:\n    pass", "class E(Exception): pass\ndef f(): raise ValueError"),
    "a callback that it reads": ("f", "secret = 5\ndef g(x): return x\nassert f(g) == secret", "def f(g): return g.__globals__['secret']"),
    "a callback that it asks": ("f", ASKED, GUESSES),
    "a callback that it asks once": ("f", "def told(x): assert x is True\nf(told)", "def f(g):\n    try: g(False)\n    except AssertionError: pass"),
    "a callback whose error it changes": ("f", "def told(x): assert x == 37\ntry: f(told)\nexcept ValueError: pass", "def f(g):\n    try: g(0)\n    except AssertionError: raise ValueError"),
    "a callback that it asks through itself": ("f g", "def told(x): assert x == 37\ndef through(x): return g(told, x)\nassert f(through) == 37", GUESSES + "def g(h, x): return h(x)\n"),
    "a callback that reads what it changes": ("C f", "c = C()\ndef told(): assert c.x == 37\nassert f(c, told) == 37", "class C: x = 0\ndef f(c, g):\n    for c.x in range(99):\n        try: g()\n        except AssertionError: continue\n        return c.x"),
    "a callback of a class": ("f", "class T:\n    x = 37\n    def told(self, x): assert x == self.x\nassert f(T().told) == 37", GUESSES),
    "a callback that raises by hand": ("f", "def told(x):\n    if x != 37: raise AssertionError(x)\nassert f(told) == 37", GUESSES),
    "a callback of the tests that it ends": ("f", "assert f(lambda x: x) == 5", "def f(g):\n    while True: g(1)"),
    "a reference that there is not": ("f", "assert f(len) == 5", "import sys\ndef f(g):\n    __import__('builtins').print\n    for frame in [sys._getframe(1)]:\n        pass\n    return g(g)"),
    "a module in the folder": ("f", "import colorsys\nassert f(2) == 5", "open('colorsys.py', 'w').write('import os, sys\\nsys.modules[\"__main__\"].Remote.__eq__ = lambda s, o: True')\n" + RETURNS),
    "a type of its own": ("f", "assert isinstance(f(2), int)", "class M(type):\n    def __instancecheck__(c, o): return True\nclass E(metaclass=M):\n    __class__ = int\ndef f(x): return E()"),
    "nan": ("f", "assert f(2) == 5", "from decimal import Decimal\ndef f(x): return Decimal('sNaN')"),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_passes(name):
    names, test, program, *preamble = RIGHT[name]
    assert passes(names, test, program, *preamble) == (True, ("",))


@pytest.mark.parametrize("name", CHEATS)
def test_no_object_is_taken_for_a_value(name):
    names, test, program, *more = CHEATS[name]
    assert not passes(names, test, program, *more)[0]
