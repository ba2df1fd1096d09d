"""The shape of the tree: one class a name, no class cut over several files, rooms that one can survey.

A class or a file has no number: it is one noun, neither cut nor glued to meet a limit. Each rule has a list of what
does not keep it yet (`tests/arch/allowed`); lists only shrink.
"""

from __future__ import annotations

from collections import Counter

from tests.support import house
from tests.support.allowed import check

MODULES_MAX = 20
CHAIN_MAX = 7


def test_a_class_name_means_one_class() -> None:
    """A name that is searched for leads to one class; twins of the native core are one class with two bodies."""
    names = Counter(one.name for one in house.classes() if not one.module.twin)
    check("class_names", {name: number for name, number in names.items() if number > 1}, "one name, several classes")


def test_no_base_class_with_a_single_subclass() -> None:
    """Such a class is one class cut in two; it becomes a part. Interfaces and exceptions are no such cuts."""
    known = house.by_full_name()
    counts = Counter(base for one in house.classes() for base in one.bases if base in known)
    cut = {
        known[base].name: 1
        for base, number in counts.items()
        if number == 1 and not house.is_error(known[base]) and not house.is_interface(known[base])
    }
    check("single_subclass", cut, "a base class with a single subclass")


def test_folders_can_be_surveyed() -> None:
    """A folder with more modules has rooms inside that want a folder of their own."""
    sizes = {room: len(names) for room, names in house.rooms().items()}
    check("folders", {room: size for room, size in sizes.items() if size > MODULES_MAX}, "too many modules in a folder")


def test_chains_of_imports_are_short() -> None:
    """Who reads the top of a room need not know all that lies below it."""
    chains = {room: house.longest_chain(names) for room, names in house.rooms().items()}
    long = {room: chain for room, chain in chains.items() if len(chain) > CHAIN_MAX}
    check("chains", {room: len(chain) for room, chain in long.items()}, f"a long chain of imports {long}")
