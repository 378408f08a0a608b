"""TicketAPI: a queue of support tickets, and who is logged in."""

from __future__ import annotations

from typing import Any, ClassVar

from espalier_environments.function_calling.states.api import Api, Fields, Reply

_EDITABLE = {"title", "description", "status", "priority"}


class TicketAPI(Api):
    """BFCL's simulated ticket service."""

    _FIELDS: ClassVar[Fields] = {"ticket_queue": (list,), "ticket_counter": (int,)}

    def _begin(self, config: dict[str, Any]) -> None:
        self.ticket_queue: list[dict[str, Any]] = config.get("ticket_queue", [])
        self.ticket_counter: int = config.get("ticket_counter", 1)
        self.current_user: Any = config.get("current_user")

    def create_ticket(self, title: str, description: str = "", priority: int = 1) -> Reply:
        """Put a new ticket into the queue."""
        if not self.current_user:
            return {"error": "log in to create a ticket"}
        if priority < 1 or priority > 5:
            return {"error": "priority: needs 1 to 5"}
        ticket = {
            "id": self.ticket_counter,
            "title": title,
            "description": description,
            "status": "Open",
            "priority": priority,
            "created_by": self.current_user,
        }
        self.ticket_queue.append(ticket)
        self.ticket_counter += 1
        return ticket

    def get_ticket(self, ticket_id: int) -> Reply:
        """One ticket."""
        return self._ticket(ticket_id) or _no_ticket(ticket_id)

    def close_ticket(self, ticket_id: int) -> Reply:
        """Close a ticket."""
        ticket = self._ticket(ticket_id)
        if not ticket:
            return _no_ticket(ticket_id)
        if ticket["status"] == "Closed":
            return {"error": f"ticket {ticket_id} is closed already"}
        ticket["status"] = "Closed"
        return {"status": f"ticket {ticket_id} is closed"}

    def resolve_ticket(self, ticket_id: int, resolution: str) -> Reply:
        """Resolve a ticket, and say how."""
        ticket = self._ticket(ticket_id)
        if not ticket:
            return _no_ticket(ticket_id)
        if ticket["status"] == "Resolved":
            return {"error": f"ticket {ticket_id} is resolved already"}
        ticket["status"] = "Resolved"
        ticket["resolution"] = resolution
        return {"status": f"ticket {ticket_id} is resolved"}

    def edit_ticket(self, ticket_id: int, updates: dict[str, Any]) -> Reply:
        """Change fields of a ticket."""
        ticket = self._ticket(ticket_id)
        if not ticket:
            return _no_ticket(ticket_id)
        if unknown := sorted(updates.keys() - _EDITABLE):
            return {"error": f"cannot be edited: {', '.join(unknown)}"}
        ticket.update({name: value for name, value in updates.items() if value is not None})
        return {"status": f"ticket {ticket_id} is edited"}

    def ticket_login(self, username: str, password: str) -> Reply:
        """Log in; any name and password will do."""
        if not (username and password):
            return {"success": False}
        self.current_user = username
        return {"success": True}

    def ticket_get_login_status(self) -> Reply:
        """Whether somebody is logged in."""
        return {"login_status": bool(self.current_user)}

    def logout(self) -> Reply:
        """Log out."""
        was_in = bool(self.current_user)
        if was_in:
            self.current_user = None
        return {"success": was_in}

    def get_user_tickets(self, status: str | None = None) -> list[Reply]:
        """Tickets of the current user, of one status if it is given."""
        if not self.current_user:
            return [{"error": "log in to see tickets"}]
        own = [one for one in self.ticket_queue if one["created_by"] == self.current_user]
        if not status:
            return own
        return [one for one in own if one["status"].lower() == status.lower()]

    def _ticket(self, ticket_id: int) -> dict[str, Any] | None:
        return next((one for one in self.ticket_queue if one["id"] == ticket_id), None)


def _no_ticket(ticket_id: int) -> Reply:
    return {"error": f"no ticket has the id {ticket_id}"}
