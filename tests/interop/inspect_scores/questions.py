"""Outputs for questions with a short answer, scored by the scorers of the task squad."""

import json

from tests.interop.inspect_scores.rows import SHARED, Row, family, other_gold, spread


def squad(most):
    found = []
    for name in ("multihop_qa/2wiki.json", "multihop_qa/musique.json", "bamboogle/data.json"):
        path = SHARED / name
        rows = json.loads(path.read_text(encoding="utf-8"))
        both = list(zip(rows, family("search_qa").read_benchmark(path), strict=True))
        golds = [task.verifier.gold[0] for _, task in both]
        for place, (_, task) in spread(list(enumerate(both)), most):
            answers = {"text": list(task.verifier.gold)}
            record = {"id": place, "context": "", "question": task.question, "answers": answers}
            outputs = answer_outputs(golds[place], other_gold(golds, place))
            found.append(Row("squad", f"{path.stem}-{place}", record, task, outputs))
    return found


def answer_outputs(gold, other):
    words = gold.split()
    outputs = {
        "gold": gold,
        "capitals": gold.upper(),
        "article": f"the {gold}",
        "full stop": f"{gold}.",
        "quoted": f'"{gold}"',
        "sentence": f"The answer is {gold}",
        "twice": f"{gold} {gold}",
        "hyphens": gold.replace(" ", "-"),
        "other gold": other,
        "yes": "yes",
        "and a word": f"{gold} perhaps",
        "empty": "",
        "article alone": "the",
    }
    if len(words) > 1:
        outputs["last word"] = words[-1]
    return outputs
