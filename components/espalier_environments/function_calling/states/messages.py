"""MessageAPI: users of a workspace, and the messages that the current one sent."""

from __future__ import annotations

import random
from typing import Any, ClassVar

from espalier_environments.function_calling.states.api import Api, Fields, Reply

_USERS = {"Alice": "USR001", "Bob": "USR002", "Catherine": "USR003", "Daniel": "USR004"}
_INBOX = (
    ("USR002", "My name is Alice. I want to connect."),
    ("USR003", "Could you upload the file?"),
    ("USR004", "Could you upload the file?"),
)
"""Inbox of a workspace without a configured one (DEFAULT_STATE of `message_api.py`)."""
_NOBODY = {"error": "nobody is logged in"}


class MessageAPI(Api):
    """BFCL's simulated message service."""

    _FIELDS: ClassVar[Fields] = {
        "random_seed": (int,), "generated_ids": (list,), "user_count": (int,), "user_map": (dict,),
        "inbox": (list,), "message_count": (int,),
    }  # fmt: skip

    def _begin(self, config: dict[str, Any]) -> None:
        self._random = random.Random(config.get("random_seed", 200191))
        self.generated_ids: Any = config.get("generated_ids", set())
        self.user_count: int = config.get("user_count", 4)
        self.user_map: dict[str, Any] = config.get("user_map", dict(_USERS))
        self.inbox: list[dict[str, str]] = config.get("inbox", [{to: text} for to, text in _INBOX])
        self.message_count: int = config.get("message_count", 3)
        self.current_user: Any = config.get("current_user")

    def list_users(self) -> Reply:
        """Names of all users."""
        return {"user_list": list(self.user_map)}

    def get_user_id(self, user: str) -> Reply:
        """Id of a user."""
        if user not in self.user_map:
            return {"error": f"no user is named {user}"}
        return {"user_id": self.user_map[user]}

    def message_login(self, user_id: str) -> Reply:
        """Log in as a user."""
        if user_id not in [*self.user_map.values()]:
            return {"login_status": False, "message": f"no user has the id {user_id}"}
        self.current_user = user_id
        return {"login_status": True, "message": f"{user_id} is logged in"}

    def message_get_login_status(self) -> Reply:
        """Whether somebody is logged in."""
        return {"login_status": bool(self.current_user)}

    def send_message(self, receiver_id: str, message: str) -> Reply:
        """Send a message to a user."""
        if not self.current_user:
            return _NOBODY
        if receiver_id not in [*self.user_map.values()]:
            return {"error": f"no user has the id {receiver_id}"}
        number = self._random.randint(10_000, 99_999)
        while number in self.generated_ids:
            number = self._random.randint(10_000, 99_999)
        self.generated_ids.add(number)  # fails if the configuration gave a list, as upstream
        self.inbox.append({receiver_id: message})
        self.message_count += 1
        return {
            "sent_status": True,
            "message_id": {"new_id": number},
            "message": f"the message to {receiver_id} is sent",
        }

    def delete_message(self, receiver_id: str) -> Reply:
        """Delete the last message to a user."""
        if not self.current_user:
            return _NOBODY
        for message in reversed(self.inbox):
            if _receiver_and_text(message)[0] == receiver_id:
                self.inbox.remove(message)  # removes the first equal message, as upstream
                return {
                    "deleted_status": True,
                    "receiver_id": receiver_id,
                    "message": f"the last message to {receiver_id} is deleted",
                }
        return {"error": f"no message to {receiver_id}"}

    def view_messages_sent(self) -> Reply:
        """Messages by receiver."""
        if not self.current_user:
            return _NOBODY
        sent: dict[str, list[str]] = {}
        for receiver, text in self._messages():
            sent.setdefault(receiver, []).append(text)
        return {"messages": sent}

    def add_contact(self, user_name: str) -> Reply:
        """Add a user."""
        if user_name in self.user_map:
            return {"error": f"a user is named {user_name} already"}
        self.user_count += 1
        user_id = f"USR{self.user_count:03d}"
        if user_id in self.user_map.values():
            return {"error": f"a user has the id {user_id} already"}
        self.user_map[user_name] = user_id
        return {"added_status": True, "user_id": user_id, "message": f"{user_name} is added"}

    def search_messages(self, keyword: str) -> Reply:
        """Messages that contain a word."""
        if not self.current_user:
            return _NOBODY
        found = [
            {"receiver_id": receiver, "message": text}
            for receiver, text in self._messages()
            if keyword.lower() in text.lower()
        ]
        return {"results": found}

    def get_message_stats(self) -> Reply:
        """Numbers of messages and receivers."""
        if not self.current_user:
            return _NOBODY
        receivers = [receiver for receiver, _ in self._messages()]
        return {"stats": {"received_count": len(receivers), "total_contacts": len(set(receivers))}}

    def _messages(self) -> list[tuple[str, str]]:
        """Return receiver and text of each message."""
        return [_receiver_and_text(message) for message in self.inbox]


def _receiver_and_text(message: dict[str, str]) -> tuple[str, str]:
    """Return the receiver and text of a message.

    Raises:
        LookupError: the message, from a configuration, is empty.
    """
    for entry in message.items():
        return entry
    raise LookupError("a message without a receiver")
