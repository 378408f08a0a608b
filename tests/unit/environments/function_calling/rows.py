"""A small file in each public format, and values for the services' tools."""

SYSTEM = (
    "You help.\n\n**Available Tools**\nIn your response, you can use the following tools:\n"
    "1. Name: Get Rate\nDescription: The rate.\n2. of a currency\nParameters: "
    '{"code": {"description": "Its code.", "type": "str", "default": ""}}\n'
    "2. Pay: Pay somebody.\nParameters: {'to': {'type': 'list(str)', 'description': 'Who.'}}\n\n"
    "**Steps for Each Turn**\n1. **Think:** think."
)
TOLD = "<think> so </think>\n<tool_call>\n"
GOLD = '{"name": "Get Rate", "parameters": {"code": "EUR"}}\n</tool_call>'
RATE = {
    "name": "bank.rate",
    "description": "The rate of a currency.",
    "parameters": {
        "type": "dict",
        "required": ["code"],
        "properties": {
            "code": {"type": "string", "enum": ["EUR", "USD"]},
            "days": {"type": "array", "items": {"type": "integer"}},
            "of": {"type": "dict", "properties": {"bank": {"type": "string"}}},
        },
    },
}
ASKED = [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Rate of EUR?"}]]
ANSWER = {"bank.rate": {"code": ["EUR", "eur."], "days": ["", [1]], "of": [{"bank": ["X"]}, ""]}}
TICKET = {
    "name": "create_ticket",
    "description": "Create a ticket.",
    "parameters": {
        "type": "dict",
        "required": ["title"],
        "properties": {"title": {"type": "string"}, "priority": {"type": "integer"}},
    },
}
FILES = {
    "BFCL_v4_simple_python.json": {"id": "a", "question": ASKED, "function": [RATE]},
    "possible_answer/BFCL_v4_simple_python.json": {"id": "a", "ground_truth": [ANSWER]},
    "BFCL_v4_irrelevance.json": {"id": "b", "question": ASKED, "function": [RATE]},
    "BFCL_v4_multi_turn_base.json": {
        "id": "c",
        "question": [[{"role": "user", "content": "One."}], [{"role": "user", "content": "Two."}]],
        "initial_config": {"TicketAPI": {"current_user": "ada", "ticket_counter": 5}},
        "involved_classes": ["TicketAPI"],
        "path": [],
    },
    "possible_answer/BFCL_v4_multi_turn_base.json": {
        "id": "c",
        "ground_truth": [["create_ticket('Lamp', priority=2)"], []],
    },
    "multi_turn_func_doc/ticket_api.json": TICKET,
    "level-1-api_processed.json": {
        "system": SYSTEM,
        "user": "The rate of EUR?",
        "answer": [{"name": "Get Rate", "parameters": {"code": "EUR"}}],
    },
    "rlla_sft.json": {"instruction": SYSTEM, "input": "The rate?", "output": f"{TOLD}{GOLD}"},
}
"""Path of a file -> its only row."""
CALLS = (
    [{"name": "bank_rate", "arguments": {"code": "EUR", "days": [1], "of": {"bank": "x"}}}],
    [{"name": "Get_Rate", "arguments": {"code": "EUR"}}],
    [[{"name": "create_ticket", "arguments": {"title": "Lamp", "priority": 2}}], []],
    "nothing fits",
)
VALUES = {
    "config": {
        "root": {"h": {"type": "directory", "contents": {"a": {"type": "file", "content": ""}}}},
        "orders": {"1": {"id": 1, "status": "Open"}},
        "tweets": {"0": {"id": 0, "username": "ada", "content": "hi", "tags": [], "mentions": []}},
        "ticket_queue": [{"id": 1, "status": "Open", "created_by": "ada"}],
        "doorStatus": {"driver": "locked"},
        "inbox": [{"USR002": "hi"}],
        "credit_card_list": {"1": {"balance": 500}},
        "current_user": "ada",
        "authenticated": True,
    },
    "arguments": (
        "a.txt", "b", "..", "USR002", "ada", "SFO", "LAX", "economy", "2024-05-20", "1", "START",
        1, 2, 0.5, 1e308, 10**40, -3, True, [1, 2], ["ada"], {"status": "Closed"},
    ),
}  # fmt: skip
