"""The wire formats, one module each; `endpoint` chooses by the path of a request."""
