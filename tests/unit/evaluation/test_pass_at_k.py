import json
from pathlib import Path

import pytest

from espalier.evaluation import pass_at_k

GOLDEN = Path("../shared/golden/pass_at_k.json")


def golden_cases():
    if not GOLDEN.is_file():
        return [
            pytest.param(None, marks=pytest.mark.skip(reason=f"{GOLDEN} is not in this checkout"))
        ]
    cases = json.loads(GOLDEN.read_text())["cases"]
    return [
        pytest.param(case, id=case["name"]) for case in cases if "pass_at_k" in case["expected"]
    ]


@pytest.mark.parametrize("case", golden_cases())
def test_the_reference_implementation_gives_the_same_values(case):
    correct, samples = case["inputs"]["num_correct"], case["inputs"]["num_samples"]
    samples = samples if isinstance(samples, list) else [samples] * len(correct)
    ours = [pass_at_k(n, c, case["params"]["k"]) for n, c in zip(samples, correct, strict=True)]
    tolerance = case["tolerance"]
    assert ours == pytest.approx(
        case["expected"]["pass_at_k"], rel=tolerance["rtol"], abs=tolerance["atol"]
    )


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [
        (4, 1, 1, 0.25),
        (4, 1, 4, 1.0),
        (4, 0, 4, 0.0),
        (4, 2, 2, 1 - 1 / 6),  # C(2, 2) / C(4, 2)
        (5, 2, 3, 1 - 1 / 10),  # C(3, 3) / C(5, 3)
    ],
)
def test_hand_computed_values(n, c, k, expected):
    assert pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 0)])
def test_impossible_counts_are_refused(n, c, k):
    with pytest.raises(ValueError, match="right answers"):
        pass_at_k(n, c, k)
