"""`espalier evaluate --suite`: an endpoint, resumed, lost, compared; what it writes."""

import json
import logging
import re

import pytest

from espalier.environments import EnvironmentLostError
from espalier.orchestration.evaluating import EvaluationOrder, evaluate_on_suites
from espalier.records import (
    ArtifactError,
    DataError,
    EngineError,
    PolicyError,
    ProfileError,
    RegistryError,
)
from tests.fakes.endpoint_double import Scripted, completion, running_double

SUMS = "tests.factories.sums:Sums"
BRIEFLY = {"max_wait_s": 0.01, "attempts": 2}
SECRET = "sk-very-secret-0123456789"
PROFILE = """
name = "suites"
rollout.max_replays = 0
evaluation.bootstrap_resamples = 200
[evaluation.suites]
sums = {{environment = "{family}", tasks = "{rows}"}}
sums-4 = {{environment = "{family}", tasks = "{rows}", limit = 3, attempts = 4, temperature = 1.0}}
own = {{environment = "{family}", limit = 5}}
[endpoints.bare]
url = "{url}"
model = "bare"
key_variable = "TRY_KEY"
max_wait_s = 0.01
attempts = 2
"""


@pytest.fixture
def double():
    with running_double() as running:
        running.respond = answer
        yield running


@pytest.fixture
def at(tmp_path, double, monkeypatch):
    """The order for a model and suites; `rows` are ten sums."""
    rows = tmp_path / "sums.jsonl"
    lines = [{"question": f"{n} + 1", "answer": str(n + 1)} for n in range(10)]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    profile = tmp_path / "suites.toml"
    profile.write_text(PROFILE.format(family=SUMS, rows=rows, url=double.url))
    monkeypatch.setenv("TRY_KEY", SECRET)

    def order(suites="sums", model=f"{double.url}#small", **fields):
        return EvaluationOrder(
            model=model, suites=suites, profile=str(profile), runs=tmp_path / "runs",
            **{"out": tmp_path / "out", "endpoint": BRIEFLY} | fields,
        )  # fmt: skip

    return order


def answer(body):
    """Calls the tool, and then says what it said; wrong on every sum of an odd number."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return completion(last["content"])
    number = int(re.search(r"\d+", last["content"])[0])
    if number % 2 and body["model"] != "big":
        return completion("0")
    said = completion(None, finish_reason="tool_calls")
    arguments = json.dumps({"a": number, "b": 1})
    said["choices"][0]["message"]["tool_calls"] = [
        {"id": "c", "type": "function", "function": {"name": "add", "arguments": arguments}}
    ]
    return said


def evaluated(order):
    return evaluate_on_suites(order, lambda _: None)


def test_an_endpoint_is_judged_by_native_calls(at, double):
    results = evaluated(at(endpoint={"prompt_price": 1.0, "completion_price": 2.0}))
    suite = results["suites"]["sums"]
    found = suite["models"][f"{double.url}#small"]
    assert found["headline"]["mean"] == 0.5
    assert found["failures"] == {"wrong_answer": 5}
    assert found["tool_calls"] == 0.5
    assert found["tokens"] == {"prompt": 150, "completion": 75}
    assert found["cost"] == pytest.approx(300e-6)
    assert found["contamination"]["state"] == "unknown"
    assert suite["golds"]["accepted"] == 10
    first = double.seen[0][1]["messages"][0]
    assert first == {"role": "system", "content": "Add."}


def test_an_evaluation_loses_no_question_with_a_server(at, double):
    """Two servers of one model share the questions, and one is killed amid them."""
    prices = {"prompt_price": 1.0, "completion_price": 2.0, "attempts": 1}
    alone = evaluated(at(endpoint=prices, out=at().out / "alone"))["suites"]["sums"]
    with running_double() as other:

        def dying(body):
            other.is_dead = len(other.seen) > 2
            return answer(body)

        other.respond = dying
        order = at(model=f"{double.url},{other.url}#small", endpoint=prices)
        suite = evaluated(order)["suites"]["sums"]
    (found,), (expected,) = (one["models"].values() for one in (suite, alone))
    assert other.is_dead
    assert found["lost"] == 0
    for what in ("headline", "failures", "tokens", "cost", "tool_calls"):
        assert found[what] == expected[what]


def test_report_and_card_say_the_seven_traits(at):
    folder = evaluated(at()).folder
    card = json.loads((folder / "card.json").read_text())["sums"]
    (own,) = card.values()
    assert len(own["traits"]) == 7
    assert own["traits"][0]["holds"], "all ten tasks that there are"
    assert own["traits"][0]["trait"] == "1,000 questions, or all that there are"
    assert own["traits"][0]["found"].startswith("all 10 tasks that there are, fewer than 1,000")
    assert "sums" in (folder / "report.md").read_text()
    assert "<script" not in (folder / "report.html").read_text()


def test_the_same_command_asks_only_what_is_not_finished(at, double):
    double.respond = lambda body: completion("0")
    evaluated(at())
    asked = len(double.seen)
    (kept,) = (at().out / "sums").glob("attempts-*.jsonl")
    lines = kept.read_text().splitlines(keepends=True)
    kept.write_text("".join(lines[:-2]) + lines[-2][:30])  # killed while it wrote the ninth
    evaluated(at())
    assert len(double.seen) == asked + 2
    assert len(kept.read_text().splitlines()) == 11


def test_two_models_are_compared_in_pairs(at, double):
    compared = evaluated(at(against=f"{double.url}#big"))["suites"]["sums"]["against"]
    assert (compared["mean"], compared["n"]) == (-0.5, 10)
    with pytest.raises(ProfileError, match="same model"):
        evaluated(at(against=f"{double.url}#small"))


def test_suites_have_attempts_and_families_their_own_tasks(at, double):
    suites = evaluated(at("sums-4,own"))["suites"]
    found, own = (suites[name]["models"][f"{double.url}#small"] for name in ("sums-4", "own"))
    assert found["attempts"] == 12
    assert found["pass_at_4"] == found["pass_hat_4"] == found["headline"]["mean"]
    assert own["n"] == 5


def test_the_key_goes_to_its_server_and_nowhere_else(at, double, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG)
    folder = evaluated(at(model="bare")).folder
    assert {seen[2] for seen in double.seen} == {f"Bearer {SECRET}"}
    assert all(SECRET not in p.read_text() for p in folder.rglob("*") if p.is_file())
    assert SECRET not in caplog.text
    asked = len(double.seen)
    monkeypatch.delenv("TRY_KEY")
    with pytest.raises(EngineError, match="TRY_KEY"):
        evaluated(at(model="bare"))
    assert len(double.seen) == asked


@pytest.mark.parametrize(
    ("broken", "fields", "said"),
    [
        (Scripted({"error": {"message": "down"}}, 500), {}, "HTTP 500"),
        (Scripted(b"<html>"), {}, "completions"),
        (Scripted({}, hangs=True), {"timeout_s": 0.2}, "timeout_s=0.2"),
    ],
)
def test_an_endpoint_that_is_down_gives_no_figures(at, double, broken, fields, said):
    double.respond, double.usual = None, broken
    down = BRIEFLY | fields
    with pytest.raises(EnvironmentLostError, match=f"lost_call.*{said}"):
        evaluated(at(endpoint=down))
    assert not (at().out / "results.json").exists()


def test_one_lost_attempt_is_counted_and_tried_again(at, double):
    double.script = [Scripted({"error": {"message": "down"}}, 400)]
    respond = double.respond
    double.respond = None
    double.usual = Scripted(completion("0"))
    found = evaluated(at())["suites"]["sums"]["models"][f"{double.url}#small"]
    assert (found["lost"], found["failures"]["http_400"]) == (1, 1)
    double.respond = respond
    again = evaluated(at())["suites"]["sums"]["models"][f"{double.url}#small"]
    assert again["lost"] == 0


def test_malformed_calls_are_the_models_failure(at, double):
    def broken(body):
        said = completion(None, finish_reason="tool_calls")
        said["choices"][0]["message"]["tool_calls"] = [{"function": {"name": "add"}, "id": 3}]
        return said

    double.respond = broken
    found = evaluated(at())["suites"]["sums"]["models"][f"{double.url}#small"]
    assert found["failures"] == {"malformed_call": 10}
    assert found["finish_reasons"] == {"parse_error": 10}


@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        ({"suites": "sum"}, ProfileError, "mean sums"),
        ({"suites": "sums,sums"}, ProfileError, "sums twice"),
        ({"suites": "heldout"}, ProfileError, "--run"),
        ({"model": "nothing-there"}, RegistryError, "nothing-there"),
        ({"model": "http://127.0.0.1:1/v1"}, EngineError, "the model is missing"),
        ({"model": "http://a:pass@h/v1#m"}, EngineError, "user"),
        ({"model": "/"}, PolicyError, "directory"),
        ({"endpoint": {"key_variable": "sk-123"}}, EngineError, "key_variable"),
    ],
)
def test_what_cannot_be_asked_is_said_at_once(at, double, fields, error, said):
    with pytest.raises(error, match=said) as raised:
        evaluated(at(**fields))
    assert "pass@" not in str(raised.value)
    assert "sk-123" not in str(raised.value)
    assert not double.seen


def test_edited_golds_and_rows_are_named(at, tmp_path):
    evaluated(at())
    (golds,) = (tmp_path / "out" / "sums").glob("golds-*.json")
    golds.write_text(json.dumps({"suite": json.loads(golds.read_text())["suite"]}))
    with pytest.raises(ArtifactError, match="golds-"):
        evaluated(at())
    (tmp_path / "sums.jsonl").write_text('{"question": "1 + 1"}\n')
    with pytest.raises(DataError, match=r"line 1: answer"):
        evaluated(at())
