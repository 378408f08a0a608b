from tests.integration.conftest import local_sandboxes

__all__ = ["local_sandboxes"]
