"""Customer service: conversations that change a database, as in tau-bench."""

from espalier_environments.customer_service.config import CustomerServiceConfig
from espalier_environments.customer_service.family import CustomerService

__all__ = ["CustomerService", "CustomerServiceConfig"]
