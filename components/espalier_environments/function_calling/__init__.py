"""Function calling (BFCL, API-Bank, ToolRL): tasks that offer functions of their own."""

from espalier_environments.function_calling.family import FunctionCalling

__all__ = ["FunctionCalling"]
