"""Build hook: compiles the hot loops with Cython where that is possible, and builds the pure twins alone where not.

The modules are listed in `pyproject.toml` (`[tool.hatch.build.hooks.custom]`): `modules` are written for Cython, so are
`linux`, which call Linux itself, `typed` are ordinary Python with a `.pxd` beside them, where annotations mean nothing
to Cython. What comes out lies beside its source, in a wheel as in an editable install, and the packages choose when
they are imported.
Invariant: a machine without compiler, headers or Cython gets a working package; one line says what was built.
LIGHTMQ_PURE=1 asks for that.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PURE_VARIABLE = "LIGHTMQ_PURE"
DIRECTIVES = {"language_level": 3, "embedsignature": False, "initializedcheck": False, "auto_pickle": False}
TYPED_DIRECTIVES = {**DIRECTIVES, "annotation_typing": False, "binding": False}
"""For typed modules: the `.pxd` alone says what is typed, because an annotation `int` there takes a bool or an enum."""
LOOP_FLAGS = ["-O3", "-fno-plt", "-g0"]
TYPED_FLAGS = ["-O2", "-fno-plt", "-g0", "-Wno-array-bounds", "-Werror=incompatible-pointer-types"]
"""No debug information, because an installation waits for the compiler. `-O2` moves the error paths, which are most of
the C, away from the others, and without a PLT every call into CPython is one indirect jump less: a lone message, which
finds the caches cold, takes 8 % less CPU than with `-O1`. A typed method that is taken from its class as an object
would be called with too few arguments; the last flag refuses it, as younger compilers do anyway."""
LINK_FLAGS = ["-Wl,-s"] if sys.platform == "linux" else []
"""No symbols, which only debuggers and profilers look for: a seventh of the extensions' size. Every linker of Linux
knows the flag."""
SHARED = "remoting/native/compiled/shared.py"
"""Becomes Cython's own support code (memory views, keywords, imports): compiled once instead of in every module, where
it was up to two thirds of the C."""


class CompiledCore(BuildHookInterface[Any]):
    """Adds the extension modules to wheels and editable installs."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's signature
        """Compile in place before the files are collected."""
        if self.target_name != "wheel":
            return
        root, modules, typed = Path(self.root), list(self.config["modules"]), list(self.config["typed"])
        if sys.platform == "linux":
            modules += self.config["linux"]
        for module in modules + typed:
            for stale in (root / module).parent.glob(f"{Path(module).stem}.*.so"):
                stale.unlink()
        if os.environ.get(PURE_VARIABLE, "") not in {"", "0"}:
            self.app.display_info(f"{PURE_VARIABLE} is set: building without the compiled core")
            return
        try:
            made = compile_modules(root, modules, typed)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever is missing, the pure twins still work
            reason = str(error).strip().splitlines() or [type(error).__name__]
            self.app.display_warning(f"building without the compiled core, which is several times faster: {reason[-1]}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["artifacts"] += [f"/{path.relative_to(root).as_posix()}" for path in made]
        self.app.display_info(f"compiled core: {len(made)} modules")


def compile_modules(root: Path, modules: list[str], typed: list[str]) -> list[Path]:
    """Compile each module (a path below `root`) and return the extensions, which lie beside their sources."""
    from Cython.Compiler import Options
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    Options.docstrings = True
    before = Path.cwd()
    os.chdir(root)  # module names and include paths are taken from where the packages are
    try:
        with tempfile.TemporaryDirectory(prefix="lightmq-build-") as scratch:
            sources = _translated(root, modules, DIRECTIVES, LOOP_FLAGS, scratch)
            sources += _translated(root, typed, TYPED_DIRECTIVES, TYPED_FLAGS, scratch)
            sources.sort(key=_c_bytes, reverse=True)  # so that no long one comes last
            command = build_ext(Distribution({"ext_modules": sources}))
            command.build_lib, command.build_temp = f"{scratch}/lib", f"{scratch}/objects"
            command.parallel = os.cpu_count() or 1
            command.ensure_finalized()
            command.run()
            built = [(extension.name, Path(command.get_ext_fullpath(extension.name))) for extension in sources]
            return [_beside_its_source(root, name, path) for name, path in built]
    finally:
        os.chdir(before)


def _translated(
    root: Path, modules: list[str], directives: dict[str, Any], flags: list[str], scratch: str
) -> list[Any]:
    """The C extensions to build of these modules."""
    from Cython.Build import cythonize
    from setuptools import Extension

    extensions = [
        Extension(
            _dotted(module),
            [module] if module != SHARED else [],
            include_dirs=[str(root / "remoting" / "native" / "compiled")],
            extra_compile_args=flags if sys.platform != "win32" else [],
            extra_link_args=LINK_FLAGS,
        )
        for module in modules
    ]
    translated: list[Any] = cythonize(
        extensions, build_dir=scratch, compiler_directives=directives, quiet=True, include_path=[str(root)],
        nthreads=os.cpu_count() or 1, shared_utility_qualified_name=_dotted(SHARED),
    )  # fmt: skip
    return translated


def _c_bytes(extension: Any) -> int:
    return Path(extension.sources[0]).stat().st_size


def _dotted(module: str) -> str:
    return module.removesuffix(".py").replace("/", ".")


def _beside_its_source(root: Path, name: str, built: Path) -> Path:
    """Put an extension beside its source, whole or not at all: processes may be starting from this tree."""
    target = root / Path(*name.split(".")[:-1]) / built.name
    arriving = target.with_name(f".{target.name}.new")
    shutil.copy2(built, arriving)
    arriving.touch()
    arriving.replace(target)
    return target
