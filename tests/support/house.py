"""The product's modules, classes and imports as data, for the tests of its structure: parsed once, never imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.support.tree import PACKAGES, ROOT

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Module:
    """One file of the product."""

    name: str
    path: Path
    lines: int
    tree: ast.Module
    imports: set[str] = field(default_factory=set)
    """Modules of the product that it imports anywhere, for types or inside functions as well."""
    loads: set[str] = field(default_factory=set)
    """Modules of the product that are imported when it is imported."""

    @property
    def room(self) -> str:
        """The folder it is in."""
        return str(self.path.parent.relative_to(ROOT))

    @property
    def compiled(self) -> bool:
        """Whether it is one of the native core's sources, which are not Python alone."""
        return self.path.parent.name == "compiled"

    @property
    def twin(self) -> bool:
        """Whether it is a body of the native core: compiled, or the reference that has the same names."""
        return self.compiled or self.path.parent.name == "reference"


@dataclass
class Class:
    """A class at the top of a module."""

    name: str
    module: Module
    node: ast.ClassDef
    bases: list[str] = field(default_factory=list)
    """Full names where the base is the product's, last names otherwise."""

    @property
    def full_name(self) -> str:
        """Module and name."""
        return f"{self.module.name}.{self.name}"

    @property
    def methods(self) -> list[Function]:
        """What is defined in its body."""
        return [node for node in self.node.body if isinstance(node, Function)]

    @property
    def decorators(self) -> set[str]:
        """Last names of its decorators."""
        return {last_name(node.func if isinstance(node, ast.Call) else node) for node in self.node.decorator_list}


def last_name(node: ast.expr) -> str:
    """`c` of `a.b.c` and of `a.b.c[T]`."""
    if isinstance(node, ast.Subscript):
        return last_name(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


@cache
def modules() -> dict[str, Module]:
    """Every module of the product by name; a package is the module of its `__init__.py`."""
    found = {}
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        text = path.read_text()
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found[name] = Module(name, path, len(text.splitlines()), ast.parse(text))
    for module in found.values():
        for node, loaded in _import_nodes(module.tree):
            names = _imported(node, module, found)
            module.imports |= names
            module.loads |= names if loaded else set()
    return found


def _import_nodes(tree: ast.Module) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Every import and whether it is carried out when the module is imported."""
    todo: list[tuple[ast.AST, bool]] = [(tree, True)]
    while todo:
        node, loaded = todo.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, loaded
            continue
        if isinstance(node, Function | ast.Lambda) or (isinstance(node, ast.If) and _for_types(node.test)):
            loaded = False
        todo += [(child, loaded) for child in ast.iter_child_nodes(node)]


def _for_types(test: ast.expr) -> bool:
    return last_name(test) == "TYPE_CHECKING"


def _imported(node: ast.Import | ast.ImportFrom, module: Module, known: dict[str, Module]) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names if alias.name in known}
    origin = node.module or ""
    if node.level:
        above = module.name.split(".")[: -node.level + (module.path.name == "__init__.py") or None]
        origin = ".".join([*above, *([origin] if origin else [])])
    names = {f"{origin}.{alias.name}" for alias in node.names} & set(known)
    if len(names) < len(node.names) and origin in known:
        names.add(origin)
    return names - {module.name}


@cache
def classes() -> list[Class]:
    """Every class at the top of a module of the product, with its bases resolved; the native core's twins left out."""
    found = []
    for module in modules().values():
        if module.compiled:
            continue
        names = _names_of(module)
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                names[node.name] = f"{module.name}.{node.name}"
                bases = [names.get(_dotted(base), last_name(base)) for base in node.bases]
                found.append(Class(node.name, module, node, [_resolved(base, names) for base in bases]))
    return found


def _names_of(module: Module) -> dict[str, str]:
    """Local name -> full name of what a module imports."""
    found = {}
    for node, _ in _import_nodes(module.tree):
        if isinstance(node, ast.ImportFrom):
            found.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
        else:
            found.update({alias.asname or alias.name: alias.name for alias in node.names})
    return found


def _dotted(node: ast.expr) -> str:
    return ast.unparse(node.value if isinstance(node, ast.Subscript) else node)


def _resolved(base: str, names: dict[str, str]) -> str:
    head, _, rest = base.partition(".")
    return f"{names[head]}.{rest}" if rest and head in names else base


@cache
def by_full_name() -> dict[str, Class]:
    """Classes by module and name."""
    return {one.full_name: one for one in classes()}


def ancestors(one: Class) -> list[Class]:
    """The product's classes that it inherits from, however far up."""
    found: list[Class] = []
    todo = list(one.bases)
    while todo:
        base = by_full_name().get(todo.pop())
        if base is not None and base not in found:
            found.append(base)
            todo += base.bases
    return found


def outer_bases(one: Class) -> set[str]:
    """Last names of what it and its ancestors inherit from outside the product."""
    names = {base for each in [one, *ancestors(one)] for base in each.bases if base not in by_full_name()}
    return {name.rpartition(".")[2] for name in names}


def is_error(one: Class) -> bool:
    """Whether it is an exception."""
    return any(name.endswith(("Error", "Exception", "Warning")) for name in outer_bases(one))


def is_interface(one: Class) -> bool:
    """Whether it is a protocol: classes implement it without inheriting from it."""
    return "Protocol" in {base.rpartition(".")[2] for base in one.bases}


@cache
def importers() -> dict[str, set[str]]:
    """Module -> modules of the product that import it, in whatever way."""
    found: dict[str, set[str]] = {name: set() for name in modules()}
    for module in modules().values():
        for name in module.imports:
            found[name].add(module.name)
    return found


def longest_chain(names: set[str]) -> list[str]:
    """The longest row of these modules in which each imports the next when it is imported."""
    graph = {name: sorted(modules()[name].loads & names) for name in names}
    best: dict[str, list[str]] = {}

    def below(name: str, above: frozenset[str]) -> list[str]:
        if name not in best:
            rows = [below(each, above | {name}) for each in graph[name] if each not in above]
            best[name] = [name, *max(rows, key=len, default=[])]
        return best[name]

    return max((below(name, frozenset()) for name in sorted(names)), key=len, default=[])


@cache
def rooms() -> dict[str, set[str]]:
    """Folder -> names of the modules that lie directly in it, packages' own `__init__` left out."""
    found: dict[str, set[str]] = {}
    for module in modules().values():
        if module.path.name != "__init__.py":
            found.setdefault(module.room, set()).add(module.name)
    return found
