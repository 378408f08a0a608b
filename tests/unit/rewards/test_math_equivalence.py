"""The verifier of mathematical answers, on upstream's cases and on hostile ones."""

import json
import os
import resource
import signal
import threading
from pathlib import Path

import pytest

from espalier.records import Verifier
from espalier.rewards.comparing import Comparer, ComparerError
from espalier.rewards.math_equivalence import (
    final_answer,
    last_boxed,
    math_equivalent,
)
from espalier.rewards.verdicts import is_right, retool_reward
from tests.golden_cases import golden_family

CASES = Path(__file__).resolve().parents[4] / "shared" / "data" / "math_equivalence"
NEEDS_CASES = pytest.mark.skipif(not CASES.is_dir(), reason=f"{CASES} is not here")

OTHER_OPTIONS = {
    ("test_number_extraction", 2),  # numbers as text: blanks and commas mean other things in LaTeX
    ("test_number_extraction", 5),
    ("test_number_extraction", 6),
    ("test_complex_math_expressions", 13),  # two digits of precision instead of six
    ("test_set_rel_assymetry", 2),  # a set may be written as a relation
    ("test_strict_variable_comparison", 1),  # the name of a variable does not count
    ("test_latex_notation", 6),  # text before the answer is refused there
}
"""Cases that upstream runs with options which the verifier does not take."""
SEVERAL_ANSWERS = {
    ("test_boxed", 0),
    ("test_math_extraction_additional_cases", 27),
    ("test_numina_cases", 12),
    *(("test_open_thoughts", case) for case in (12, 13, 14, 18, 19, 23, 24, 25, 26)),
}
"""Cases that spread one answer over several boxes: the last box alone is the answer here."""


def short_cases():
    if not CASES.is_dir():
        return []
    cases = json.loads((CASES / "math_verify_cases.json").read_bytes())
    named = [(case["source"].rpartition("::")[2], case["case"], case) for case in cases]
    return [
        pytest.param(case, id=f"{name}-{number}")
        for name, number, case in named
        if len(case["prediction"]) <= 200 and (name, number) not in OTHER_OPTIONS | SEVERAL_ANSWERS
    ]


@pytest.mark.slow
@NEEDS_CASES
@pytest.mark.parametrize("case", short_cases())
def test_agrees_with_math_verify_on_its_own_cases(case):
    assert math_equivalent(case["prediction"], [case["gold"]]) == case["expected"]


@NEEDS_CASES
def test_agrees_with_the_cases_of_the_math_data_set():
    cases = json.loads((CASES / "hendrycks_math_equivalence.json").read_bytes())
    assert all(math_equivalent(c["str1"], [c["str2"]]) == c["expected"] for c in cases)


EQUAL = (
    (r"\boxed{84}", "84"), ("84.0", "84"), ("1,234", "1234"), (r"$15$.", "15"), ("y = 5", "5"),
    (r"x = \$18.90", r"\$18.90"), ("x = 14,000", "14000"), ("5", "x = 5"),
    (r"10, \!080", r"10,\!080"), (r"x = 11{,}111{,}100", r"11,\! 111,\! 100"),
    (r"\boxed{\frac{14}{4}}", "3.5"),
    ("\u00bd", "0.5"), ("1\u00bd", "3/2"), ("\u20135", "-5"), ("(\u20135, 2)", "(-5, 2)"),
    ("x\u00b2", "x^2"), ("x\u00b9\u2070", "x^{10}"), ("\u221a2", r"\sqrt{2}"),
    ("2sqrt3", r"2\sqrt{3}"), ("2sqrt{3}", r"2\sqrt{3}"), ("2^3^2", "512"), ("x^2^3", "x^8"),
    (r"\{2,1\}", r"\{1,2\}"), ("(1,2)", "(1, 2)"),
    ("\u221a(x+1)", r"\sqrt{x+1}"), ("2\u00b73", "6"), ("\u221e", r"\infty"),
)  # fmt: skip
UNEQUAL = (
    ("2^3^2", "64"), ("(2,1)", r"\{1,2\}"), ("(3,1,2)", r"$\left\{1,2,3\right\}$"),
    (r"\{1,2\}", "(1,2)"), (r"\{2,1\}", "(1,2)"),
    ("x = 14,000", "14"), ("$y = 5$", "x = 5"), (r"\$18.91", r"\$18.90"), ("-7", "7"),
    ("8 4", "84"), ("", "0"), ("84" * 300, "84"), ("seven", "7"), (">=7", "7"),
    *((f"{sign}7", "7") for sign in (
        "\u2260", "!=", "\u00ac", "\u226a", "\u226e", "\u2272", "\u223c", r"\leqslant ",
        r"\geqslant ",
        r"\nleq ", r"\nless ", r"\ngtr ", r"\not= ", r"\not\le ", r"\ll ", r"\gg ", r"\lesssim ",
        r"\neg ", r"\lnot ", r"\ne", r"\propto ", r"\simeq ", r"\geqq ", r"x \geqslant ", r"$\not=",
    )),
    (r"x \leq 7", "7"), ("$~7$", "7"), (None, "7"), ("1\u00b2", "12"), ("-\u221e", "\u221e"),
    ("\u221a2", "2"), ("\u20135", "5"),
)  # fmt: skip


TYPED = (
    ("pi", r"\pi"), ("2pi", r"2\pi"), ("2 pi", r"2\pi"), ("pi/2", r"\frac{\pi}{2}"),
    ("pi r^2", r"\pi r^2"), ("(pi/2, 1)", r"(\frac{\pi}{2}, 1)"), ("sin(x)", r"\sin x"),
    ("cos 2x", r"\cos(2x)"),
    ("sin(pi/2)", "1"), ("arcsin(1/2)", r"\frac{\pi}{6}"), ("log(100)", "2"), ("ln(e)", "1"),
    ("x**2", "x^2"), ("2**10", "1024"), ("(x+1)**2", "(x+1)^2"), ("10^-3", "0.001"),
    ("x^-1", r"\frac{1}{x}"), ("2^-x", "2^{-x}"), ("4^0.5", "4^{0.5}"),
    ("<2,-1>", "(2,-1)"), (r"\langle 2,-1\rangle", "(2,-1)"), (r"$\langle 1,2\rangle$", "(1,2)"),
    (r"\sin 30^\circ", r"\frac12"), (r"\cos(60^{\circ})", "0.5"), ("sin 30\u00b0", "1/2"),
    (r"2\tan 45^\circ", "2"), ("1e10", "10^{10}"),
    ("6.02e23", r"6.02\times 10^{23}"), ("2.5E-3", r"2.5\cdot 10^{-3}"),
)  # fmt: skip
NOT_TYPED = (
    ("pie", r"\pi"), ("2pi", r"3\pi"), ("pi", "i p"), ("sin(x)", r"\cos x"), ("x**2", "x^3"),
    ("10^-3", "1000"), ("<2,-1>", "(-1,2)"), ("<2,-1>", "(2,1)"), (r"\sin 30^\circ", r"\sin 30"),
    (r"\sin 30^\circ", "-0.988"), ("1e10", "10^{11}"), ("2e", "2"), ("1e-7", "2e-7"),
    ("x<5, y>3", "(5,3)"),
)  # fmt: skip


RATES = (
    ("100 km/h", "100"), ("100 km/h", r"100\text{ km/h}"), ("100 mph", "100 miles per hour"),
    ("100 kilometers per hour", "100 km/h"), ("5 m/s", r"5\ \mathrm{m/s}"),
    ("5 meters per second", "5 m/s"), ("9.8 m/s^2", r"9.8\text{ m/s}^2"), ("40 mi/hr", "40 mph"),
)  # fmt: skip
STOPPED = (
    ("x+1.", "x+1"), ("ANSWER: x^2 + 1.", "x^2+1"), (r"\boxed{\frac{x}{2}.}", r"\frac{x}{2}"),
    ("(1, 2).", "(1,2)"), ("$x+1.$", "x+1"), ("ANSWER: A.", "A"), ("x+1", "x+1."), ("7.", "7"),
    (r"\sqrt{2}.", r"\sqrt{2}"), (r"$\{1,2\}$.", r"\{1,2\}"),
)  # fmt: skip
NOT_STOPPED = (
    ("7...", "7"), ("x+1..", "x+1"), ("x+1...", "x+1"), ("7.5.", "75"), ("A.B.", "AB"), (".", "0"),
    ("x+1.", "x+2"), ("7.1", "7"),
)  # fmt: skip
DRAWN = (
    (r"\textcolor{red}{12}", "12"), (r"\underline{12}", "12"), (r"\color{blue}12", "12"),
    (r"\boxed{\underline{\frac{1}{2}}}", "1/2"), (r"$\textcolor{red}{12}$", "12"), ("12\\ ", "12"),
    (r"12 \mathrm{~cm}", "12 cm"), (r"12~\mathrm{cm}", "12 cm"), ("1.5x10^3", "1500"),
    ("1.5 \u00d7 10^3", "1500"), ("-2 x 10^-3", "-0.002"),
)  # fmt: skip
OTHERWISE_DRAWN = (
    (r"\underline{12}", "13"), (r"\textcolor{red}{12}", "2"), (r"12~\text{cm}", "12 km"),
    ("~12", "12"), (r"12\ldots", "12"), (r"3.14\dots", "3.14"), (r"$0.5\ldots$", "1/2"),
    ("1.5x10^3", "150"), ("5x", "5"),
)  # fmt: skip
OTHER_RATES = (
    ("100 km/h", "100 mi/h"), ("5 m/s", "5 m"), ("5 m/s", "5 s/m"), ("5 m/s", "5 m/s^2"),
    ("100 miles per hour", "100 miles per day"), ("100 mph", "100 km/h"), ("5 x/y", "5"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("pairs", "right"),
    [
        (TYPED, True),
        (NOT_TYPED, False),
        (RATES, True),
        (OTHER_RATES, False),
        (STOPPED, True),
        (NOT_STOPPED, False),
        (DRAWN, True),
        (OTHERWISE_DRAWN, False),
    ],
)
def test_typed_mathematics_and_rates_are_read(pairs, right):
    found = {pair: math_equivalent(pair[0], [pair[1]]) for pair in pairs}
    assert set(found.values()) == {right}, found


OTHER_WORDS = (
    ("nylevE", "Evelyn"), ("neve", "even"), ("ddo", "odd"), ("Neil", "Line"), ("onno", "noon"),
    ("May", "Amy"), ("listen", "silent"), ("Lisa", "Ails"), ("EVEN", "NEVE"),
    ("rhombus", "brhomus"), ("x = odd", "y = odd"),
    (r"\textbf{nylevE}", "Evelyn"), ("$nylevE$", "Evelyn"), (r"\boxed{erif}", r"\boxed{fire}"),
    (r"\text{Lyneve}", r"\text{Evelyn}"), ("parabola.", "abolapar"), ("Trevor", "Evelyn"),
    ("true", "false"), ("IX", "XI"), ("VI", "IV"), ("CAT", "ACT"), ("ACT", "CAT"), ("ABC", "ACB"),
)  # fmt: skip
SAME_WORDS = (
    ("Evelyn", "Evelyn"), ("evelyn", "Evelyn"), ("Evelyn.", "Evelyn"),
    (r"\textbf{Evelyn}", "Evelyn"), ("tan", "Tan"), ("tan shoes", "tan shoes"),
    ("Even", "even"), (r"\text{odd}", "odd"), ("$Evelyn$", r"\text{Evelyn}"), ("BA", "AB"),
    ("ba", "ab"), ("zyx", "xyz"), ("hB", "Bh"), ("rtP", "Prt"), ("abcd", r"a \cdot bcd"),
    ("xyz", r"x \cdot y \cdot z"), ("TRUE", "true"),
)  # fmt: skip


@pytest.mark.parametrize(("pairs", "right"), [(SAME_WORDS, True), (OTHER_WORDS, False)])
def test_a_word_is_no_product_of_its_letters(pairs, right):
    found = {pair: math_equivalent(pair[0], [pair[1]]) for pair in pairs}
    assert set(found.values()) == {right}, found


TINY_INSIDE = (
    ("(0.0000001,2)", "(0.0000002,2)"), ("(2,0.0000001)", "(2,0.0000003)"),
    ("[0.0000001,2)", "[0.0000002,2)"), (r"\{0.0000001,2\}", r"\{0.0000002,2\}"),
    ("0.0000001, 2", "0.0000002, 2"), ("(0.00000001,1,2)", "(0.00000002,1,2)"),
    (r"\begin{pmatrix}0.0000001\\2\end{pmatrix}", r"\begin{pmatrix}0.0000002\\2\end{pmatrix}"),
    ("((0.0000001,1),(2,3))", "((0.0000002,1),(2,3))"), ("(-0.0000001,0)", "(0.0000001,0)"),
    ("(0,2)", "(0.0000002,2)"), (r"(0.0000001,\infty)", r"(0.0000002,\infty)"),
    (r"[0,0.0000001]\cup[2,3]", r"[0,0.0000002]\cup[2,3]"), ("(0.0000001,5,x)", "(0.0000002,5,x)"),
)  # fmt: skip
SAME_INSIDE = (
    ("(0.0000001,2)", "(10^{-7},2)"), ("(0.0000002,2)", "(0.00000020,2)"),
    ("(1/3,2)", "(0.333333,2)"), ("(0,2)", "(0.0,2)"),
    (r"\{2,0.0000001\}", r"\{0.0000001,2\}"), ("2, 0.0000001", "0.0000001, 2"),
    (r"(-\infty,0.0000001)", r"(-\infty,0.0000001)"), (r"(\frac{1}{10000000},1)", "(0.0000001,1)"),
    (r"[0,1]\cup[2,3]", r"[2,3]\cup[0,1]"), (r"\{(1,2),(3,4)\}", r"\{(3,4),(1,2)\}"),
    (r"\{1/3,0.5\}", r"\{1/2,0.333333\}"), ("(x,0.5)", "(x,1/2)"),
    (r"\begin{pmatrix}1\\0.5\end{pmatrix}", r"\begin{pmatrix}1\\1/2\end{pmatrix}"),
)  # fmt: skip


@pytest.mark.parametrize(("pairs", "right"), [(SAME_INSIDE, True), (TINY_INSIDE, False)])
def test_numbers_inside_of_others_are_compared_by_value(pairs, right):
    for answer, gold in pairs:
        assert math_equivalent(answer, [gold]) is right, (answer, gold)
        assert math_equivalent(gold, [answer]) is right, (gold, answer)


@pytest.mark.parametrize(("pairs", "right"), [(EQUAL, True), (UNEQUAL, False)])
def test_numbers_are_compared_by_value(pairs, right):
    for answer, gold in pairs:
        assert math_equivalent(answer, [gold]) is right, (answer, gold)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{" * 20_000, None),
        (r"\boxed{1}" + r"\boxed{" * 20_000, "1"),
        (r"\boxed{1} \boxed{2", "1"),
        (r"\boxed{a\boxed{b}c}", "b"),
        (r"\boxed{a{b}{c{d}}}", "a{b}{c{d}}"),
        (r"} \boxed{1} }", "1"),
        (r"{ \boxed{1}", "1"),
        (r"\boxed{\boxed{1}", "1"),
        (r"\boxed{}", ""),
        (r"\boxed {1}", None),
        (r"\boxed{1}" * 10_000, "1"),
        ("{" * 50_000 + r"\boxed{1}" + "}" * 50_000, "1"),
    ],
)
def test_the_last_closed_box_is_found_in_one_pass(text, content):
    assert last_boxed(text) == content


def test_the_kind_of_verifier_decides():
    assert is_right("0.5", Verifier(kind="math_equivalence", gold=("x", r"\frac{1}{2}")))
    assert is_right("The Lyon", Verifier(gold=("lyon",)))
    assert not is_right("2/4", Verifier(gold=("1/2",)))


JUDGED = (r"\boxed{\frac{2}{4}}", r"\boxed{0.5}")


@pytest.fixture(scope="module")
def judge():
    judge = Comparer("math", within_s=10)
    yield judge
    judge.close()


@pytest.mark.slow
def test_an_endless_comparison_is_wrong_within_its_time():
    judge = Comparer("math", within_s=1)
    try:
        judge.compare("1", "2")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert not judge.compare(r"\boxed{\int_0^1 x^{x^{x^x}} dx}", r"\boxed{2}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)  # of the process that was ended
        assert 1.0 < after.ru_utime - before.ru_utime < 10.0
        assert any(judge.compare(*JUDGED) for _ in range(4))
    finally:
        judge.close()


def children():
    """Ids of the processes of this one."""
    return {
        int(one)
        for path in Path("/proc/self/task").glob("*/children")
        for one in path.read_text().split()
    }


@pytest.fixture
def stopped_judge():
    """A judge whose process is given no processor time, and the id of the process."""
    before = children()
    judge = Comparer("math", within_s=1, reply_within_s=5)
    judge.compare("1", "2")
    (pid,) = children() - before
    os.kill(pid, signal.SIGSTOP)
    yield judge, pid
    judge.close()


@pytest.mark.slow
def test_a_comparison_that_waits_for_the_processor_is_right(stopped_judge):
    judge, pid = stopped_judge
    timer = threading.Timer(2.5, os.kill, (pid, signal.SIGCONT))  # more than within_s
    timer.start()
    assert judge.compare(*JUDGED)
    timer.join()


@pytest.mark.slow
def test_a_process_without_processor_time_is_an_error(stopped_judge):
    judge, _ = stopped_judge
    with pytest.raises(ComparerError, match="5 s"):
        judge.compare(*JUDGED)
    assert judge.compare(*JUDGED), "another process is started"


HOSTILE = (
    "__import__('os').system('touch /tmp/espalier-was-here')", "2}$ \\input{/etc/passwd} ${",
    "\x00\x00", "{" * 200, "\\boxed" * 40, "lambda: 0", "1/0", "(" * 150 + "2" + ")" * 150,
    "\ud800", "\n".join("9" * 9),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("answer", HOSTILE)
def test_hostile_answers_are_wrong_and_nothing_is_run(judge, answer):
    assert not judge.compare(answer, r"\boxed{3}")
    assert not Path("/tmp/espalier-was-here").exists()
    assert judge.compare(*JUDGED)


ANSWERS = (
    (r"\boxed{84}", "84"), (r"so \boxed{\frac{1}{2}} it is", r"\frac{1}{2}"),
    (r"\boxed{3}, no: \boxed{ 4 }", "4"), (r"\boxed{7} and \boxed{8", "7"),
    ("24 + 48 = 72\nANSWER: 72", "72"), ("**Final Answer:** **$72$**\r\nIndeed.", "$72$"),
    ("Answer: 1\nanswer: 2", "2"), ("Answer: 1\nor \\boxed{2}", "2"),
    ("the answer: 72", "the answer: 72"), ("24 + 48 = 72\n#### 1,072", "1,072"),
    ("Answer: 1\n#### 2", "2"), ("#### Step 1", "#### Step 1"), (r"\boxed{}", r"\boxed{}"),
)  # fmt: skip


@pytest.mark.parametrize(("text", "answer"), ANSWERS)
def test_the_last_whole_box_holds_the_answer(text, answer):
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    "case", golden_family("retool", topic="rewards"), ids=lambda case: case["name"]
)
def test_agrees_with_verls_recipe_where_messages_are_credited(case):
    inputs, correct = case["inputs"], last_boxed(case["inputs"]["solution_str"])
    correct = math_equivalent(correct, [inputs["ground_truth"]])
    messages = inputs["num_turns"]
    credited = retool_reward(correct=correct, num_messages=messages, credit_per_message=0.05)
    assert credited == pytest.approx(case["expected"]["score"])
    assert retool_reward(correct=correct, num_messages=messages) == (1.0 if correct else -1.0)
