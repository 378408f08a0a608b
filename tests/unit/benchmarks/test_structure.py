"""The figures of tests/benchmarks/structure.py on packages counted by hand."""

from textwrap import dedent

import pytest

from tests.benchmarks.structure import (
    code_line_numbers,
    importers_of,
    measure,
    modules_of,
    names_defined_twice,
    protocol_implementers,
)


@pytest.fixture
def package(tmp_path):
    """A factory: files by path -> the modules of a package named `a`."""

    def written(files):
        for name, text in ({"__init__.py": ""} | files).items():
            path = tmp_path / "a" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(dedent(text))
        return modules_of(tmp_path / "a")

    return written


def test_code_lines_are_neither_docstring_import_comment_nor_blank(package):
    text = '''\
        """Docstring
        of two lines."""
        import os
        from pathlib import (
            Path,
        )

        # a comment
        WIDTH = 3  # code with a comment
        """Of the attribute."""

        TEXT = """one

        three"""
        '''
    (module,) = [each for each in package({"b.py": text}) if each.name == "a.b"]

    assert code_line_numbers(module) == {9, 12, 14}


def test_importers_are_found_by_every_form_of_import(package):
    modules = package(
        {
            "target.py": "NAME = 1\n",
            "one.py": "import a.target\n",
            "two.py": "from a import target\n",
            "three.py": "def late():\n    from a.target import NAME\n",
            "four.py": "from .target import NAME\n",
            "inner/__init__.py": "from ..target import NAME\n",
        }
    )

    assert importers_of(modules)["a.target"] == {"a.one", "a.two", "a.three", "a.four", "a.inner"}


def test_module_with_one_importer_is_counted_once(package):
    structure = measure(
        package(
            {
                "once.py": "NAME = 1\n",
                "twice.py": "NAME = 1\n" * 61,
                "b.py": "from a import once, twice\nfrom a.once import NAME\n",
                "c.py": "from a import twice\nimport a.b\nimport a.d\n",
                "d.py": "NAME = 1\n" * 61,
            }
        )
    )

    assert structure.modules_with_one_importer == ("a.b", "a.d", "a.once")
    assert structure.small_modules_with_one_importer == ("a.b", "a.once")


def test_implementers_have_the_members_of_the_protocol(package):
    modules = package(
        {
            "b.py": """
                class Reads(Protocol):
                    size: int
                    def read(self, name: str) -> str: ...

                class Above:
                    def __init__(self): self.size = 1

                class Inherits(Above):
                    def read(self, name, times=1): ...

                class OtherParameters(Above):
                    def read(self, path): ...

                class NoSize:
                    def read(self, name): ...

                class Derives(Reads): ...
                """
        }
    )

    assert protocol_implementers(modules) == {"a.b.Reads": ("a.b.Inherits", "a.b.Derives")}


def test_class_names_of_several_modules_are_listed(package):
    modules = package({"b.py": "class Step: ...\nclass Run: ...\n", "c.py": "class Step: ...\n"})

    assert names_defined_twice(modules) == {"Step": ("a.b", "a.c")}
