"""Customer service: conversations that change a database, as tau-bench has them."""

from espalier.environments.customer_service.config import CustomerServiceConfig
from espalier.environments.customer_service.family import CustomerService

__all__ = ["CustomerService", "CustomerServiceConfig"]
