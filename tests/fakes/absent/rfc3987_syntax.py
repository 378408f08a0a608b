"""Not installed, as for users: of what is installed here, only cyclonedx-bom asks for it.

jsonschema tries to import it, and it parses its grammar then: once in each process with Ray.
"""

raise ImportError("left out, see its docstring")
