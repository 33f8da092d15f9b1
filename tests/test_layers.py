"""Imports go up the list of folders only, `runtime/` knows no compiler stage, transformers stays in `huggingface/`."""

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

PACKAGE = Path(__file__).parents[1] / "autotp"

LAYERS = (
    "errors",
    "outside",
    "axes",
    "capture",
    "chains",
    "placement",
    "planner",
    "rewrite",
    "dispatch",
    "runtime",
    "checkpoint",
    "huggingface",
    "report",
    "session",
    "verify",
    "cli",
)
ROOT = "the public API"  # autotp/__init__.py and api.py: they join the layers, so they may import any
LOOSE = {"__init__", "__main__", "api", "errors"}

# A rank runs what the compiler made, not the compiler. Axes are data about layouts, so they are not a stage.
RUNTIME_IMPORTS = {"errors", "outside", "axes", "runtime"}
# The imports down the list: the passes put the parallel layers into the graph, and a call runs on its rank, so they name them.
# They close no cycle, because `runtime/` imports no compiler stage.
DOWNWARD = {("rewrite", "runtime"), ("dispatch", "runtime")}
KNOWS_HUGGINGFACE = {"huggingface", "session", "verify", "cli"}
PROGRAMS = {
    "cli/work/encode.py",
    "cli/work/write.py",
}  # what ranks run that a command starts; tokenizers are of transformers
KNOWS_ROOT = {"cli"}
MOST_LINES = 300


def layer_of(module: str) -> str:
    _, _, rest = module.partition(".")
    name = rest.partition(".")[0]
    return name if name in LAYERS else ROOT


def is_allowed(importer: str, imported: str) -> bool:
    if importer == ROOT:
        return True
    if imported == ROOT:
        return importer in KNOWS_ROOT
    if imported == "huggingface":
        return importer in KNOWS_HUGGINGFACE
    if importer == "runtime":
        return imported in RUNTIME_IMPORTS
    return (importer, imported) in DOWNWARD or LAYERS.index(imported) <= LAYERS.index(importer)


def imports(tree: ast.Module, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Line and absolute name of everything imported, also inside functions and by `importlib`.

    `package` is the package of the module that `tree` is, against which relative imports are resolved.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                above = package[: len(package) - level + 1] if level else ()
                base = ".".join((*above, *([module] if module else [])))
                yield from ((node.lineno, f"{base}.{alias.name}") for alias in names)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield node.lineno, name


def violations(package: Path) -> list[str]:
    """One line for each import that the layout forbids, and for each folder that the layout does not have."""
    found = []
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package)
        module = ("autotp", *inside.with_suffix("").parts)
        importer = layer_of(".".join(module))
        where = f"autotp/{inside.as_posix()}"
        if importer == ROOT and len(inside.parts) > 1:
            found.append(f"{where}: {inside.parts[0]}/ is not a folder of the layout")
        if len(inside.parts) == 1 and inside.stem not in LOOSE:
            found.append(f"{where} lies beside the folders")
        for line, name in imports(ast.parse(path.read_text(encoding="utf-8")), module[:-1]):
            top = name.partition(".")[0]
            if top == "transformers" and importer != "huggingface" and inside.as_posix() not in PROGRAMS:
                found.append(f"{where}:{line}: {importer} may not import transformers")
            elif top == "autotp" and not is_allowed(importer, layer_of(name)):
                found.append(f"{where}:{line}: {importer} may not import {name}")
    return found


def test_no_modules_import_each_other() -> None:
    """Also not for type checking alone, and not through a third one."""
    files = {
        ".".join(("autotp", *path.relative_to(PACKAGE).with_suffix("").parts)): path for path in PACKAGE.rglob("*.py")
    }
    graph = nx.DiGraph()
    for module, path in files.items():
        package = tuple(module.split(".")[:-1])
        for _, name in imports(ast.parse(path.read_text(encoding="utf-8")), package):
            found = [known for known in (name, name.rpartition(".")[0]) if known in files and known != module]
            graph.add_edges_from((module, known) for known in found[:1])
    assert graph.number_of_edges() > len(files)
    assert [sorted(group) for group in nx.strongly_connected_components(graph) if len(group) > 1] == []


def test_the_rooms_of_runtime_import_one_way() -> None:
    graph = nx.DiGraph()
    for path in (PACKAGE / "runtime").rglob("*.py"):
        parts = ("autotp", *path.relative_to(PACKAGE).with_suffix("").parts)
        assert len(parts) == 4 or path.name == "__init__.py", f"{path.name} is in no room"
        for _, name in imports(ast.parse(path.read_text(encoding="utf-8")), parts[:-1]):
            room = name.split(".")[2:3]
            if name.startswith("autotp.runtime.") and room != [parts[2]]:
                graph.add_edge(parts[2], *room)
    assert graph.number_of_nodes() == len(
        [path for path in (PACKAGE / "runtime").iterdir() if (path / "__init__.py").exists()]
    )
    assert nx.is_directed_acyclic_graph(graph)


def test_files_are_about_one_thing() -> None:
    lengths = {
        str(path.relative_to(PACKAGE)): len(path.read_text(encoding="utf-8").splitlines())
        for path in PACKAGE.rglob("*.py")
    }
    assert {name: length for name, length in lengths.items() if length > MOST_LINES} == {}


def test_imports_follow_the_layout() -> None:
    assert list(PACKAGE.rglob("*.py")), f"no modules under {PACKAGE}"
    found = violations(PACKAGE)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("axes/term.py", "import autotp.planner"),
        ("axes/term.py", "from autotp.capture.trace import trace"),
        ("axes/term.py", "from autotp import capture"),
        ("axes/term.py", "from autotp import parallelize"),
        ("axes/term.py", "import transformers.models.auto"),
        ("axes/operators/view.py", "from ...capture import trace"),
        ("axes/__init__.py", "from ..capture import trace"),
        ("errors.py", "from autotp.axes import Term"),
        ("capture/trace.py", "def f():\n    from transformers import Cache"),
        ("chains/load.py", "import importlib\nimportlib.import_module('autotp.cli')"),
        ("planner/cost.py", "import torch\nif torch:\n    import autotp.runtime.simulator"),
        ("runtime/layers/parallel.py", "from autotp.rewrite import passes"),
        ("runtime/layers/parallel.py", "from autotp.placement import Placement"),
        ("checkpoint/load.py", "from autotp.huggingface import names"),
        ("report/html.py", "from autotp.huggingface import names"),
        ("report/html.py", "from transformers import AutoConfig"),
        ("report/html.py", "from autotp import cli"),
        ("cli/plan.py", "import transformers"),
        ("session/study.py", "from autotp import plan"),
        ("session/study.py", "import transformers"),
        ("util/misc.py", "import math"),
        ("misc.py", "import math"),
    ],
)
def test_an_import_against_the_layout_is_found(tmp_path: Path, path: str, source: str) -> None:
    write(tmp_path, path, source)
    assert len(violations(tmp_path)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("__init__.py", "from autotp.cli import main\nfrom autotp.huggingface import names"),
        ("api.py", "from .runtime import simulator\nfrom .planner import plan"),
        ("errors.py", "import torch"),
        ("axes/operators/view.py", "from ..term import Term\nfrom ...errors import AutotpError\nfrom . import base"),
        ("capture/trace.py", "from autotp import axes, errors"),
        ("planner/cost.py", "from autotp.placement import Placement"),
        ("rewrite/linear.py", "from autotp.runtime import layers"),
        ("runtime/layers/parallel.py", "from autotp.axes import Term\nfrom autotp.errors import AutotpError"),
        ("huggingface/names.py", "import transformers\nfrom autotp.checkpoint import slices"),
        ("cli/plan.py", "import autotp\nfrom autotp.huggingface import names"),
        ("cli/work/write.py", "import transformers"),
    ],
)
def test_an_import_along_the_layout_is_left_alone(tmp_path: Path, path: str, source: str) -> None:
    write(tmp_path, path, source)
    assert not violations(tmp_path)


def write(package: Path, path: str, source: str) -> None:
    file = package / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source, encoding="utf-8")
