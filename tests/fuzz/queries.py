"""SQL: files of questions with their dumps, queries in a process, and rows as an answer."""

import copy
import json
import math
import tempfile
from pathlib import Path

from pydantic import ValidationError

from espalier.records import DataError, Message, Task, TaskMetadata, Verifier
from espalier_environments.sql.databases import MAX_FILE_BYTES
from espalier_environments.sql.public_tasks import query_kind, read_public_file, row_arguments
from espalier_environments.sql.runs import QueryResult, read_written_rows, written_rows
from tests.factories.sql import LIMITS, PETS, asked, sql_family
from tests.fuzz.campaign import Violation
from tests.fuzz.mutations import changed_bytes, changed_json, odd_value, written_json
from tests.fuzz.parsers import ParserTarget

_DUMP = """
CREATE DATABASE IF NOT EXISTS `dev`; USE `dev`;
CREATE TABLE `t` (`id` int NOT NULL AUTO_INCREMENT, `No.` decimal(10,2) DEFAULT '0.00', `Who` text,
PRIMARY KEY (`id`), CONSTRAINT `c` FOREIGN KEY (`id`) REFERENCES `u` (`id`)) COLLATE=utf8mb4_ci;
INSERT INTO `t` VALUES (1, -1.50, 'it\\'s'),(2, 2e1, NULL);
INSERT INTO `t` (`Who`, `id`) VALUES ("a AND b", 3);
"""
_ROWS = {
    "intercode": {"db": "dev", "query": "how many t?", "gold": "SELECT COUNT Who FROM t"},
    "conditions": {
        "db": "dev",
        "query": "which t?",
        "gold": "SELECT id FROM t WHERE No. > 1.5 AND Who = a AND b",
    },
    "spider": {"db_id": "pets", "question": "which dogs?", "query": "SELECT name FROM dogs"},
}
_SIGNS = (
    "`", "'", '"', "\\", "(", ")", ",", ";", "/*", "*/", "--", "#", "\n", "1e999", "-", "9" * 400,
    "NULL", "CREATE TABLE", "INSERT INTO", "VALUES", "USE", "FOREIGN KEY", "`t`", "`x`", "int",
    "PRIMARY KEY", "\x00", "0x1", "b'1'", "é",
)  # fmt: skip
_WORDS = (
    "select", "name", "from", "dogs", "where", "age", "=", "<", "3", "'rex'", "(", ")", ",", "*",
    "count(*)", "group by", "order by", "limit", "with", "recursive", "n(i)", "as", "union all",
    "values", "1e999", "cast", "zeroblob(9)", "x'00'", "null", "join", "towns", "on", "and", "or",
    "printf('%.*c',99,'a')", "hex(randomblob(50))", "json_each('[1]')", ";", "--", "/*", "pragma",
    "attach", "into", "insert", "load_extension('x')", "like '%'", "glob", "case when 1 then",
    "end", "over (partition by", "\x00", "\ud800", "'", '"', "[", "1" * 40,
    "abs(-9223372036854775808)", "group_concat(name)", "exists", "in", "between", "collate nocase",
    "sqlite_master", "rowid",
)  # fmt: skip
_VALID = (
    "select name , age from dogs where age > 3 order by age desc limit 2",
    "select count(*) , town from dogs group by town",
    "select d.name from dogs d join towns t on d.town = t.name where t.people < 500",
    "with n as ( select 1 as i ) select i , 1e999 , x'00' , null , -0.0 from n",
    "select name from dogs union all select name from towns",
    "select sum(age) over ( order by age ) , typeof(name) , hex(name) from dogs",
)
_BOMBS = (
    "with recursive n(i) as (select 1 union all select i + 1 from n) select i from n",
    "select a.name from dogs a, dogs b, dogs c, dogs d, dogs e, dogs f, dogs g, dogs h",
    "select " + "(" * 200 + "1" + ")" * 200,
    "select '" + "x" * 9000 + "'",
)
_GOLD = ((("rex", 3), ("ada", 7)), ((), ), (("x", None), ("x", 1.5), ("x", None)))  # fmt: skip


class Queries(ParserTarget):
    """`read_public_file`, the program inside the sandbox, and the scores of answers."""

    name = "queries"

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory()
        self._families = [sql_family(outcome=one) for one in ("match", "intercode")]

    def make(self, dice):
        """A file with its dump, a query, or an answer."""
        match dice.randrange(4):
            case 0:
                return _file(dice)
            case 1:
                text = dice.choice(_BOMBS) if dice.random() < 0.01 else _query(dice)
                kind = dice.choice(("query", "query", "query", "table", "tables"))
                return b"query\n" + json.dumps([kind, text]).encode()
            case _:
                gold = dice.choice(_GOLD)
                rows = changed_json(dice, gold) if dice.random() < 0.8 else odd_value(dice)
                answer = written_json(dice, rows)
                if dice.random() < 0.2:
                    answer = changed_bytes(dice, answer)
                return b"answer %d\n" % _GOLD.index(gold) + answer

    def read(self, case):
        """See `ParserTarget`."""
        head, _, body = case.partition(b"\n")
        kind, _, number = head.partition(b" ")
        if kind == b"answer" and number in (b"0", b"1", b"2"):
            return self._scored(_GOLD[int(number)], body.decode("utf-8", "replace"))
        try:
            found = json.loads(body)
            if kind == b"query":
                asked_kind, text = found
                return self._asked(str(asked_kind), str(text))
            if kind == b"file":
                rows, dump = found
                return self._file(str(rows), str(dump))
        except (ValueError, TypeError, RecursionError):
            pass
        return "no case"

    def _file(self, rows, dump):
        folder = Path(self._folder.name) / "public"
        (folder / "database" / "pets").mkdir(parents=True, exist_ok=True)
        (folder / "database" / "pets" / "pets.sqlite").write_bytes(PETS.content)
        (folder / "rows.json").write_text(rows, encoding="utf-8", errors="replace")
        (folder / "rows.sql").write_text(dump, encoding="utf-8", errors="replace")
        said = []
        for golds in ("as_written", "quoted"):
            try:
                file = read_public_file(folder / "rows.json", golds)
            except DataError as refused:
                if len(str(refused)) > 3000:
                    raise Violation("a message as long as the file") from refused
                said.append("refused")
                continue
            if any(len(one.content) > MAX_FILE_BYTES for one in file.databases.values()):
                raise Violation("a database too large for a sandbox")
            if any(
                not question.gold or not query_kind(question.gold) for question in file.questions
            ):
                raise Violation("a question without a query")
            said.append("broken" if file.broken else "read")
        return f"file {' '.join(said)}"

    def _asked(self, kind, text):
        folder = Path(self._folder.name)
        found = asked(folder, text, kind if kind in ("query", "table") else "tables")
        try:
            result = QueryResult.model_validate_json(json.dumps(found))
        except ValidationError as error:
            raise Violation(f"no answer of the protocol: {error}"[:300]) from error
        if (folder / "database.sqlite").read_bytes() != PETS.content:
            raise Violation("the database was changed")
        if len(result.error) > 200 or len(result.rows) > LIMITS["max_rows"]:
            raise Violation("more than the limits allow")
        if read_written_rows(written_rows(result)) != result.found:
            raise Violation("rows are not read as they are written")
        return f"{kind} {'failed' if result.error else 'answered'}"

    def _scored(self, gold, answer):
        said = []
        for family in self._families:
            low, high = family.outcome_span(family.settings)
            for ordered in (True, False):
                task = _task(gold, ordered)
                outcome = family.verify(task, answer)
                if not low <= outcome <= high or math.isnan(outcome):
                    raise Violation(f"outcome {outcome}")
                if family.verify(task, json.dumps(gold)) != 1:
                    raise Violation("the gold rows are not right")
                said.append(outcome > 0)
        return f"answer {sum(said)} of 4"


def _task(gold, ordered):
    return Task(
        task_id="t",
        prompt=(Message(role="user", content="?"),),
        environment="sql",
        arguments=row_arguments("pets", gold, ordered),
        verifier=Verifier(gold=("select 1",)),
        metadata=TaskMetadata(split="heldout", source="fuzz"),
    )


def _query(dice):
    """Words in any order, or a query that runs with some of its words changed."""
    if dice.random() < 0.3:
        return " ".join(dice.choice(_WORDS) for _ in range(dice.randrange(24)))
    words = dice.choice(_VALID).split(" ")
    for _ in range(dice.choice((0, 1, 1, 2))):
        place = dice.randrange(len(words))
        words[place : place + dice.choice((0, 1))] = [dice.choice((*_WORDS, *words))]
    return " ".join(words)


def _file(dice):
    rows = [copy.deepcopy(dice.choice(list(_ROWS.values()))) for _ in range(2)]
    if dice.random() < 0.7:
        rows = changed_json(dice, rows)
    dump = _DUMP
    for _ in range(dice.choice((0, 1, 1, 3))):
        place = dice.randrange(len(dump) + 1)
        sign = dice.choice(_SIGNS) * dice.choice((1, 1, 1, 300))
        dump = dump[:place] + sign + dump[place + dice.choice((0, 1, 20)) :]
    text = written_json(dice, rows).decode("utf-8", "replace")
    return b"file\n" + json.dumps([text, dump]).encode()
