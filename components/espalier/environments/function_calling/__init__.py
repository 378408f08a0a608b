"""Function calling (BFCL, API-Bank, ToolRL): a family of tasks with functions of their own."""

from espalier.environments.function_calling.family import FunctionCalling

__all__ = ["FunctionCalling"]
