"""The documentation: Markdown pages, and what builds them into a site."""
