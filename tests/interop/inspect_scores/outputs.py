"""What both sides score: outputs for each public row, right ones and altered ones.

Gold answers are written as the prompt of the task in inspect_evals asks, and in other forms; the
others are wrong, empty or odd. No program here was written by a model: they are gold programs, and
a few lines of our own.
"""

from tests.interop.inspect_scores.calls import CALLED, TALKS, UNANSWERABLE, bfcl
from tests.interop.inspect_scores.mathematics import aime2024, gsm8k, math
from tests.interop.inspect_scores.programs import humaneval, mbpp
from tests.interop.inspect_scores.questions import squad

_READERS = {
    "gsm8k": gsm8k,
    "math": math,
    "aime2024": aime2024,
    "humaneval": humaneval,
    "mbpp": mbpp,
    **{f"bfcl/{one}": bfcl(one) for one in (*CALLED, *UNANSWERABLE, TALKS)},
    "squad": squad,
}
TASKS = tuple(_READERS)


def rows_of(name, most=0):
    """The rows of one task with their outputs; of at most `most` rows if that is not 0."""
    return _READERS[name](most)
