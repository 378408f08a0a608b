"""A family without sandboxes or documents: sums, with a tool that adds. For tests of suites."""

from espalier.config import EnvironmentConfig
from espalier.environments import (
    BenchmarkRow,
    HasBenchmarks,
    SimpleFamily,
    Tool,
    benchmark_tasks,
    make_task,
    read_rows,
)
from espalier.records import FinalAnswer


class Row(BenchmarkRow):
    question: str
    answer: str


class SumsConfig(EnvironmentConfig):
    name: str = "tests.factories.sums:Sums"


class Sums(SimpleFamily[SumsConfig], HasBenchmarks):
    name = "tests.factories.sums:Sums"
    config = SumsConfig
    instructions = "Add."

    def tools(self):
        def add(a: int, b: int) -> str:
            """Add two numbers."""
            return str(a + b)

        return [Tool(add)]

    def tasks(self, split, count):
        first = {"train": 0, "dev": 1000, "heldout": 2000}[split]
        return [self._task(f"{n} + {n}", str(2 * n), split) for n in range(first, first + count)]

    def _task(self, question, answer, split):
        names = {"entities": [question.split()[0]], "query": question}
        return make_task(
            self.name, f"what is {question}?", gold=(answer,), split=split, source="sums",
            key=question, metadata={"extra": names},
        )  # fmt: skip

    def verify(self, task, answer):
        return float(answer == task.verifier.gold[0])

    def demonstrate(self, task):
        yield FinalAnswer(task.verifier.gold[0])

    def read_benchmark(self, path):
        rows = read_rows(path, Row)
        return benchmark_tasks(
            path,
            [
                make_task(
                    self.name, row.question, gold=(row.answer,), split="heldout",
                    source=path.name, key=row.question,
                )
                for _, row in rows
            ],
        )  # fmt: skip
