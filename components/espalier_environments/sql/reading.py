"""Query logs: queries under prompts that ask nothing, for the tiny policy to read.

A log has the tables of a database and, among unrelated words, the columns and values of a query in
order; then the query, some rows, and the submission:

    <|user|> dogs ( name , age , breed ) owners ( name , town ) ; most 'collie' count age name 7 .
    <|assistant|> <sql> select age from dogs where breed = 'collie' and age < 7 </sql>
    <result> 4 </result> <submit> {} </submit>

A policy learns to write queries, to copy names and numbers, and that a submission follows a result.
It does not learn what a question asks for: the query and its comparisons are random.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from espalier.environments.reading import Log
from espalier.records import ToolCall, ToolCalls
from espalier_environments.sql.questions import draw_query
from espalier_environments.sql.worlds import MadeDatabase

_MAX_NOISE_WORDS = 4
_TOKENIZER_LOGS = 400
_GRAMMAR = frozenset(
    ("select", "from", "where", "and", "or", "order", "by", "group", "limit", "desc", "join", "on",
     "count", "=", "<", ">", "<>", ",", "*", "(", ")", ".")
)  # fmt: skip


class QueryLogWriter:
    """Writes query logs about training databases.

    Args:
        databases: databases of the training split.
        questions: training questions; their words are the noise.
    """

    def __init__(self, databases: Sequence[MadeDatabase], questions: Sequence[str]) -> None:
        words = {word for question in questions for word in question.partition(" ; ")[2].split()}
        self._noise = sorted(word for word in words if word.isalpha())
        self._databases = databases

    def write(self, rng: random.Random) -> Log:
        """Return one log; depends on the state of `rng` only."""
        about = rng.choice(self._databases)
        query = draw_query(about, rng)
        return Log(
            f"{about.schema} ; {self._said(query, about, rng)}",
            (
                ToolCalls((ToolCall(name="execute", arguments={"query": query}),)),
                self._rows(about, rng),
                ToolCalls((ToolCall(name="submit", arguments={}),)),
            ),
        )

    def texts(self, rng: random.Random) -> Iterator[str]:
        """Yield prompts, queries and rows, with the spaces that stand between tags."""
        for _ in range(_TOKENIZER_LOGS):
            log = self.write(rng)
            call, rows, _ = log.pieces
            assert isinstance(call, ToolCalls), "a log begins with a query"
            yield f" {log.prompt} "
            yield f" {call.calls[0].arguments['query']} "
            yield f" {rows} "

    def _said(self, query: str, about: MadeDatabase, rng: random.Random) -> str:
        """Return the parts of the query in order, each after some noise words."""
        words: list[str] = []
        for part in query.replace("(", " ( ").replace(")", " ) ").replace(".", " . ").split():
            if part not in _GRAMMAR:
                words += rng.choices(self._noise, k=rng.randrange(_MAX_NOISE_WORDS))
                words.append(part)
        return " ".join([*words, rng.choice(("?", "."))])

    def _rows(self, about: MadeDatabase, rng: random.Random) -> str:
        """Return cells of one of the tables, chosen at random."""
        table = rng.choice((about.larger, about.smaller))
        shown = rng.sample(range(len(table.columns)), rng.choice((1, 1, 1, 2)))
        rows = rng.sample(list(table.rows), rng.choice((1, 1, 2, 3)))
        return "\n".join(" | ".join(str(row[place]) for place in shown) for row in rows)
