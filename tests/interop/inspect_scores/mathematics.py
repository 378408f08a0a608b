"""Outputs for GSM8K, AIME 2024 and MATH."""

import re

from tests.interop.inspect_scores.rows import SHARED, Row, family, lines, other_gold, spread

MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")


def gsm8k(most):
    path = SHARED / "gsm8k" / "test.jsonl"
    written = {
        row["question"]: row for row in lines(path.with_name("example_model_solutions.jsonl"))
    }
    found = []
    for place, row, task, other in _asked(path, most):
        solution, _, gold = row["answer"].partition("\n#### ")
        outputs = numeric_outputs(re.sub(r"<<.*?>>", "", solution), gold, other)
        outputs["official form"] = row["answer"]
        labels = {}
        for writer in MODELS:
            said = written[row["question"]][writer]
            text = re.sub(r"^A: ", "ANSWER: ", said["solution"], flags=re.MULTILINE)
            outputs[f"model {writer}"], labels[f"model {writer}"] = text, said["is_correct"]
        found.append(Row("gsm8k", f"gsm8k-{place}", row, task, outputs, labels))
    return found


def aime2024(most):
    path = SHARED / "math" / "aime24" / "test.jsonl"
    found = []
    for place, row, task, other in _asked(path, most):
        record = {name: row[name.lower()] for name in ("Problem", "Answer", "Solution")}
        outputs = numeric_outputs(row["solution"].replace("\\boxed", ""), row["answer"], other)
        found.append(Row("aime2024", f"aime-{place}", record | {"ID": place}, task, outputs))
    return found


def _asked(path, most):
    """Place, row and task of a file's rows, and a gold answer that is another's."""
    rows, tasks = lines(path), family("python_math").read_benchmark(path)
    golds = [row["answer"].rpartition("#### ")[2] for row in rows]
    for place, (row, task) in spread(list(enumerate(zip(rows, tasks, strict=True))), most):
        yield place, row, task, other_gold(golds, place)


def numeric_outputs(solution, gold, other):
    """Forms of a number, right ones and wrong ones."""
    plain = gold.replace(",", "")
    number = float(plain)
    whole = number.is_integer()
    wrong = f"{int(number) + 1}" if whole else f"{number + 1}"
    outputs = {
        "solution and line": f"{solution}\nANSWER: {gold}",
        "line": f"ANSWER: {gold}",
        "bare": gold,
        "sentence end": f"ANSWER: {gold}.",
        "bold": f"ANSWER: **{gold}**",
        "bold line": f"**ANSWER: {gold}**",
        "boxed line": f"ANSWER: \\boxed{{{gold}}}",
        "boxed alone": f"\\boxed{{{gold}}}",
        "boxed behind solution": f"{solution}\nThe answer is \\boxed{{{gold}}}.",
        "currency": f"ANSWER: ${gold}",
        "mathematics": f"ANSWER: ${gold}$",
        "unit word": f"ANSWER: {gold} apples",
        "dollars": f"ANSWER: {gold} dollars",
        "unit in text": f"ANSWER: {gold}\\text{{ apples}}",
        "decimals": f"ANSWER: {plain}.0" if whole else f"ANSWER: {gold}0",
        "fraction": f"ANSWER: {int(number) * 2}/2",
        "percent": f"ANSWER: {gold}%",
        "line and farewell": f"ANSWER: {gold}\nI hope this helps.",
        "line and number": f"ANSWER: {gold}\nIt took 3 steps of 11",
        "equation": f"ANSWER: x = {gold}",
        "other gold": f"{solution}\nANSWER: {other}",
        "gold, then other": f"ANSWER: {gold}\nNo.\nANSWER: {other}",
        "one more": f"ANSWER: {wrong}",
        "negative": f"ANSWER: -{gold}",
        "hedged": f"ANSWER: {wrong} or {gold}",
        "bound": f"ANSWER: >={gold}",
        "empty": "",
        "no answer": "I cannot say.",
    }
    if whole and abs(number) >= 1000:
        outputs["commas"] = f"ANSWER: {int(number):,}"
    return outputs


def math(most):
    path = SHARED / "math" / "math500" / "test.jsonl"
    found = []
    for place, row, task, other in _asked(path, most):
        record = {**row, "type": row["subject"], "level": f"Level {row['level']}"}
        gold = row["answer"]
        outputs = {
            "line": f"ANSWER: {gold}",
            "mathematics": f"ANSWER: ${gold}$",
            "sentence end": f"ANSWER: ${gold}$.",
            "boxed line": f"ANSWER: \\boxed{{{gold}}}",
            "boxed behind solution": row["solution"],
            "display fractions": f"ANSWER: {gold}".replace("\\frac", "\\dfrac"),
            "no backslash left": f"ANSWER: {gold}".replace("\\left", "").replace("\\right", ""),
            "blanks": "ANSWER: " + gold.replace(",", ", ").replace("+", " + "),
            "equation": f"ANSWER: x = {gold}",
            "other gold": f"ANSWER: {other}",
            "plus one": f"ANSWER: {gold} + 1",
            "empty": "",
            "no answer": "I cannot say.",
        }
        found.append(Row("math", f"math-{place}", record, task, outputs))
    return found + _labelled_math(most)


def _labelled_math(most):
    """Answers that models gave to 53 problems of MATH, whose labels are public."""
    path = SHARED / "math" / "eval_rm_maj_example" / "math_cot_100.jsonl"
    example = family("python_math").read_benchmark(SHARED / "math" / "math500" / "test.jsonl")[0]
    found = []
    for row in spread(lines(path), most):
        solution = f"\\boxed{{{row['gt']}}}"
        record = {"problem": row["question"], "solution": solution, "type": "", "level": ""}
        verifier = example.verifier.model_copy(update={"gold": (row["gt"],)})
        task = example.model_copy(update={"verifier": verifier})
        outputs = {f"model {place}": f"ANSWER: {said}" for place, said in enumerate(row["pred"])}
        labels = {f"model {place}": said for place, said in enumerate(row["score"])}
        found.append(Row("math", f"labelled-{row['idx']}", record, task, outputs, labels))
    return found
