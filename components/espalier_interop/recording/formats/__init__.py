"""The wire formats, one module each; `endpoint` chooses one by the path of a request."""
