"""A docstring says something that the name beside it does not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.support import house
from tests.support.allowed import check

LETTERS_MIN = 14
"""Letters below which no sentence says what something is for, in what unit, or when."""

EMPTY_WORDS = set(
    re.findall(
        r"\w+",
        """a all an and are as at be been by for from has have here how in into is it its itself mine of off on one or
        our out own that the them there they this those to was what when where which who whose with
        says said does do did""",
    )
)
"""Words that carry nothing by themselves."""


def documented(module: house.Module) -> Iterator[tuple[str, str]]:
    """Names of a module's public classes and functions, each with its docstring."""
    todo: list[ast.AST] = [module.tree]
    while todo:
        for child in ast.iter_child_nodes(todo.pop()):
            if isinstance(child, ast.ClassDef | house.Function):
                text = ast.get_docstring(child)
                if text is not None:
                    yield child.name, text
                if isinstance(child, ast.ClassDef):
                    todo.append(child)


def words_of(name: str) -> set[str]:
    """Words of an identifier, without endings."""
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name)
    return {stem(part) for part in parts}


def stem(word: str) -> str:
    """A word without the endings that change nothing for this purpose."""
    return re.sub(r"(?<=\w{3})(ing|ed|es|s|e)$", "", word.lower())


def says_nothing(name: str, text: str) -> bool:
    """Whether a docstring holds no word that is neither empty nor part of the name."""
    if sum(letter.isalpha() for letter in text) < LETTERS_MIN:
        return True
    words = [word for word in re.findall(r"[A-Za-z]+|\d+", text) if word.lower() not in EMPTY_WORDS]
    return all(stem(word) in words_of(name) for word in words)


def test_docstrings_say_something() -> None:
    """How many are too short to, or only repeat the name."""
    found = [
        f"{module.name}.{name}: {text}"
        for module in house.modules().values()
        for name, text in documented(module)
        if not module.compiled and says_nothing(name, text)
    ]
    check("docstrings", {"product": len(found)}, f"docstrings that say nothing: {found}")


def test_what_says_nothing() -> None:
    """Restatements are found, whatever their grammar; a unit or a reason is enough."""
    for name, text in [
        ("ended", "It has ended."),
        ("view", "Itself."),
        ("Twin", "One twin."),
        ("SharedTake", "SHARED_TAKE."),
        ("close_connection", "Closes the connection."),
    ]:
        assert says_nothing(name, text), (name, text)
    for name, text in [
        ("close_connection", "Closes the connection after its output was written."),
        ("idle_ms", "Milliseconds since the last byte came."),
    ]:
        assert not says_nothing(name, text), (name, text)
