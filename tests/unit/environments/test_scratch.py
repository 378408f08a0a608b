import random
import re

from espalier.config import Profile
from espalier.dialects import SYNTAXES
from espalier.policy.embedded import train_tokenizer
from espalier.records import FinalAnswer, ToolCalls
from espalier_environments.python_math import PythonMath
from espalier_environments.python_math.arithmetic import OPERATIONS
from espalier_environments.python_math.scratch import ScratchWriter

TAGS = SYNTAXES["tags"]
PROFILE = Profile.model_validate({"environment": {"name": "python_math"}})
TOOLS = PythonMath(PROFILE).specs
QUESTIONS = ("ada has 12 coins . ada buys 7 more . how many coins does ada have now ?",)


def logs(count=60):
    writer = ScratchWriter(QUESTIONS)
    return [writer.write(random.Random(seed)) for seed in range(count)]


def program_of(log):
    [call] = log.pieces[0].calls
    assert call.name == "python"
    return call.arguments["code"]


def test_a_log_has_the_shape_of_an_episode():
    for log in logs():
        call, result, answer = log.pieces
        assert isinstance(call, ToolCalls)
        assert isinstance(result, str)
        assert answer == FinalAnswer(rf"\boxed{{{result}}}", "answer")


def test_a_log_programs_its_plan_with_the_prompts_numbers():
    for log in logs():
        plan = log.pieces[0].thought
        labels = [re.sub(r"\d+ ", "", step) for step in plan.split(" , ")[1:]]
        assert all(label in OPERATIONS for label in labels)
        program = program_of(log)
        assert program.count("\n") == len(labels) + 1
        for text in (plan, program):
            assert re.findall(r"\d+", text) == re.findall(r"\d+", log.prompt)


def test_logs_hold_no_question_and_invented_results():
    found = logs()
    assert sum(_result(log) == log.pieces[1] for log in found) < 3
    words = {word for log in found for word in log.prompt.split() if not word.isdigit()}
    assert words <= set(QUESTIONS[0].split())


def test_programs_survive_a_tokenizer_that_splits_digits():
    writer = ScratchWriter(QUESTIONS)
    texts = [*writer.texts(random.Random(0)), *QUESTIONS]
    tokenizer = train_tokenizer(texts, 500, TAGS, TOOLS, splits_digits=True)
    call = logs(1)[0].pieces[0]
    ids = tokenizer.encode(TAGS.write(call, TOOLS), add_special_tokens=False)
    assert TAGS.parse(tokenizer.decode(ids), TOOLS) == call
    pieces = [tokenizer.decode([i]) for i in tokenizer.encode(" 1273", add_special_tokens=False)]
    assert [piece.strip() for piece in pieces if piece.strip()] == ["1", "2", "7", "3"]


def _result(log):
    names = {}
    exec(program_of(log).replace("print(x)", ""), names)
    return str(names["x"])
