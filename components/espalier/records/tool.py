"""What a policy is told about a tool, and what its dialect needs to write a call of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from espalier.records.message import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as its environment offers it.

    The tag dialect writes a call of `search(query: str)` as `<search> QUERY </search>`; the other
    dialects take name and JSON schema alone.
    """

    name: str
    description: str = ""
    parameters: JsonObject = field(default_factory=dict)
    """JSON schema of the arguments: an object with its properties."""
    call_tag: str = ""
    """Tag of a call in the tag dialect; empty takes the tool's name."""
    result_tag: str = "result"
    """Tag of a result in the tag dialect."""
    takes_code: bool = False
    """Its one argument is a program, whose line breaks and angle brackets are kept."""

    @property
    def tag(self) -> str:
        """The tag of a call."""
        return self.call_tag or self.name

    @property
    def text_argument(self) -> str | None:
        """Name of the argument where there is one alone, and it is text."""
        properties = self.parameters.get("properties")
        if isinstance(properties, dict) and len(properties) == 1:
            ((name, schema),) = properties.items()
            if isinstance(schema, dict) and schema.get("type") == "string":
                return name
        return None

    def as_function(self) -> JsonObject:
        """An entry of `tools` in OpenAI's chat API and in Hugging Face's chat templates."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.parameters,
            },
        }
