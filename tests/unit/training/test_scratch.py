import random
import re

from espalier.environments import Answer
from espalier.environments.python_math import PYTHON_GRAMMAR, Program, parse_action
from espalier.environments.python_math.arithmetic import OPERATIONS
from espalier.environments.python_math.scratch import ScratchWriter
from espalier.policy.tokenizer import train_tokenizer

QUESTIONS = ("ada has 12 coins . ada buys 7 more . how many coins does ada have now ?",)


def logs(count=60):
    writer = ScratchWriter(QUESTIONS, PYTHON_GRAMMAR)
    return [writer.write(random.Random(seed)) for seed in range(count)]


def test_a_log_speaks_the_grammar_of_episodes():
    for log in logs():
        (call, written), (result, observed), (answer, _) = log.pieces
        assert (written, observed) == (True, False)
        assert isinstance(parse_action(call), Program)
        assert parse_action(answer) == Answer(result)


def test_the_program_is_what_was_planned_with_the_numbers_of_the_prompt():
    for log in logs():
        call = log.pieces[0][0]
        plan = re.search(r"<think> (.*) </think>", call)[1]
        labels = [re.sub(r"\d+ ", "", step) for step in plan.split(" , ")[1:]]
        assert all(label in OPERATIONS for label in labels)
        program = parse_action(call).code
        assert program.count("\n") == len(labels) + 1
        for text in (plan, program):
            assert re.findall(r"\d+", text) == re.findall(r"\d+", log.prompt)


def test_nothing_is_asked_and_results_are_not_those_of_the_program():
    found = logs()
    assert sum(_result(log) == log.pieces[1][0] for log in found) < 3
    words = {word for log in found for word in log.prompt.split() if not word.isdigit()}
    assert words <= set(QUESTIONS[0].split())


def test_numbers_are_read_digit_by_digit_and_programs_survive_the_tokenizer():
    writer = ScratchWriter(QUESTIONS, PYTHON_GRAMMAR)
    texts = [*writer.texts(random.Random(0)), *QUESTIONS]
    tokenizer = train_tokenizer(texts, 500, PYTHON_GRAMMAR)
    call = logs(1)[0].pieces[0][0]
    decoded = tokenizer.decode(tokenizer.encode(call, add_special_tokens=False))
    assert parse_action(decoded) == parse_action(call)
    pieces = [tokenizer.decode([i]) for i in tokenizer.encode(" 1273", add_special_tokens=False)]
    assert [piece.strip() for piece in pieces if piece.strip()] == ["1", "2", "7", "3"]


def _result(log):
    names = {}
    exec(parse_action(log.pieces[0][0]).code.replace("print(x)", ""), names)
    return str(names["x"])
