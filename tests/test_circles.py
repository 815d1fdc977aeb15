"""Import cycles and layers of the Python packages: every import counts, type-only and in functions too."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

from inferq._lazy import homes

ROOT = Path(__file__).parent.parent / "python"
MOST_FILES = 4
"""The largest import cycle that is allowed."""
LAYERS = (
    ("_lazy", "_version", "elsewhere", "errors"),
    ("checks", "description", "display", "files", "inputs", "interval", "progress"),
    ("workload", "scheduler"),
    ("timing",),
    ("systems",),
    ("results",),
    ("simulation", "theory"),
    ("scenario", "reports", "serving"),
    ("experiments",),
    ("dist", "research", "cli"),
)
"""A module imports from its own layer and from those above it in this list."""
UPWARD: set[tuple[str, str]] = set()
"""Exceptions: (module, imported package)."""


def name_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(file): file for file in ROOT.rglob("*.py")}


def imports(module: str) -> Iterator[str]:
    """The modules of the packages that a module imports anywhere in its text."""
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module} imports relatively"
            for name in node.names:
                inside = f"{node.module}.{name.name}"
                target = inside if inside in MODULES else node.module
                if target in MODULES:
                    yield target


GRAPH = {module: sorted(set(imports(module)) - {module}) for module in MODULES}


def cycles() -> list[list[str]]:
    """Strongly connected components of more than one module (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for target in GRAPH[module]:
            if target not in index:
                visit(target)
            if target in stack:
                low[module] = min(low[module], low[target])
        if low[module] == index[module]:
            cut = stack.index(module)
            components.append(stack[cut:])
            del stack[cut:]

    for module in GRAPH:
        if module not in index:
            visit(module)
    return [sorted(component) for component in components if len(component) > 1]


def test_no_import_cycle_has_more_than_four_files():
    assert not [cycle for cycle in cycles() if len(cycle) > MOST_FILES]


def test_no_module_imports_from_a_higher_layer():
    layer = {name: height for height, names in enumerate(LAYERS) for name in names}

    def package(module: str) -> str:
        return [*module.split("."), ""][1]

    missing = {package(module) for module in MODULES if module.startswith("inferq.")} - {*layer}
    assert not missing, "every package has a layer"
    upward = {
        (module, target)
        for module, targets in GRAPH.items()
        for target in targets
        if module.startswith("inferq.")
        and target.startswith("inferq.")
        and layer[package(target)] > layer[package(module)]
    }
    assert {(module, package(target)) for module, target in upward} == UPWARD, upward


def test_papers_are_imported_by_their_command_alone():
    users = {
        module for module, targets in GRAPH.items() if any(t.startswith("inferq_papers") for t in targets)
    }
    assert {user for user in users if user.startswith("inferq.")} <= {"inferq.cli.paper"}


PUBLIC = {"inferq", "inferq.theory", "inferq.timing", "inferq.dist", "inferq.research", "inferq.display"}


def test_papers_use_the_public_api_alone():
    private = set()
    for module, file in MODULES.items():
        if module.partition(".")[0] != "inferq_papers":
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "inferq":
                package = importlib.import_module(str(node.module))
                stub = Path(f"{package.__file__}i")
                public = homes(stub, str(node.module)) if stub.exists() else package.__all__
                if node.module not in PUBLIC or not {name.name for name in node.names} <= {*public}:
                    private |= {f"{module}: {node.module}.{name.name}" for name in node.names}
            elif isinstance(node, ast.Import):
                private |= {
                    f"{module}: {name.name}" for name in node.names if name.name.startswith("inferq.")
                }
    assert not private
