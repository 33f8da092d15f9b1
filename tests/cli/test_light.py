"""What needs no model imports no torch: help, versions, completion and wrong arguments; and names that are imported late."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import transformers
from packaging.version import Version
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import autotp
import autotp.verify.verifier
from autotp.cli import export, main
from autotp.huggingface.names import names_in_files
from autotp.planner.advise import SERVE, TRAIN
from autotp.planner.cost import hardware_names, hardware_presets
from autotp.report.diff.text import CONTEXT
from autotp.report.export import SYSTEMS

pytestmark = pytest.mark.matrix

HEAVY = {"torch", "transformers", "numpy", "sympy", "networkx", "jsonschema"}
PROGRAM = """
import os, sys
from autotp.cli import main
try:
    main(sys.argv[1:], prog_name="autotp")
finally:
    packages = {name.partition(".")[0] for name in sys.modules}
    print("imported", *sorted(packages & set(os.environ["HEAVY"].split())), file=sys.stderr)
"""


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HEAVY": " ".join(HEAVY), **variables}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, env=environment, check=False
    )


@pytest.mark.parametrize(
    "arguments",
    [(), ("--help",), ("--version",), ("completion", "bash"), *((name, "--help") for name in sorted(main.commands))],
    ids=" ".join,
)
def test_help_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert (result.returncode, result.stderr.splitlines()[-1]) == (0 if arguments else 2, "imported")


@pytest.mark.parametrize(
    ("words", "found"),
    [("plan gpt_ne", "gpt_neox"), ("plan llama --hardware l4", "l4-pcie-4"), ("export llama --to tp", "tp_plan")],
)
def test_completion_imports_nothing_heavy(words: str, found: str) -> None:
    asked = {
        "COMP_WORDS": f"autotp {words}",
        "COMP_CWORD": str(len(words.split())),
        "_AUTOTP_COMPLETE": "bash_complete",
    }
    result = run(**asked)
    assert f"plain,{found}" in result.stdout.splitlines()
    assert result.stderr.splitlines() == ["imported"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", "lama", "--tp", "2"), "did you mean 'llama'"),
        (("plan", "llama"), "give one of --tp N, --compare N,N and --plan FILE"),
        (("plan", "llama", "--tp", "0"), "tp must be a whole number of at least 1, not 0"),
        (("plan", "llama", "--tp", "2", "--set", "a"), "'a' is no setting"),
        (("plan", "llama", "--tp", "2", "--rules", "/nowhere"), "the rules folder /nowhere does not exist"),
        (("plan", "llama", "--plan", "/nowhere"), "--plan: cannot read /nowhere"),
        (("advise", "llama", "--tokens", "0"), "--tokens must be at least 1, not 0"),
        (("diff", "lama", "--tp", "2"), "did you mean 'llama'"),
        (("diff", "llama"), "give the number of ranks"),
        (("export", "llama", "--to", "torch"), "give either --tp N or --plan FILE"),
        (("export", "llama", "--tp", "2", "--to", "jax"), "'jax' is not one of"),
        (("verify", "llama"), "Missing option '--tp'"),
        (("verify", "llama", "--tp", "65"), "verify runs all 65 ranks in this process"),
        (("generate", "llama", "--tp", "2", "--prompt", "a"), "'llama' is a type without weights"),
        (("demo", "--tp", "17"), "17 are too many"),
        (("shard", "a", "b", "--tp", "0"), "tp must be a whole number of at least 1, not 0"),
        (("nosuch",), "No such command 'nosuch'"),
    ],
    ids=str,
)
def test_a_wrong_argument_imports_nothing_heavy(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.splitlines()[-1] == "imported"


def test_an_unknown_hardware_names_the_nearest_without_torch() -> None:
    result = run("plan", "llama", "--tp", "2", "--hardware", "l4-pci-4")
    assert "unknown hardware 'l4-pci-4'; did you mean 'l4-pcie-4'?" in result.stderr
    assert "torch" not in result.stderr.splitlines()[-1]


def test_importing_the_package_imports_nothing_heavy() -> None:
    program = "import sys, autotp; print(*({name.partition('.')[0] for name in sys.modules} & set(sys.argv[1:])))"
    found = subprocess.run([sys.executable, "-c", program, *HEAVY], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpt2-large", "did you mean "),
        ("lama", "did you mean "),
        ("qwen", "did you mean "),
        ("zzzzzzz", f"none of the {len(CONFIG_MAPPING.keys())} that are known is like it"),
    ],
)
def test_an_unknown_model_names_at_most_five(name: str, message: str) -> None:
    with pytest.raises(autotp.UsageError, match=message) as caught:
        autotp.plan(name, 2)
    suggested = str(caught.value).partition("did you mean")[2].split("'")[1::2]
    assert len(suggested) <= 5
    assert set(suggested) <= set(CONFIG_MAPPING)
    assert len(str(caught.value)) < 200


def test_the_types_read_from_files_are_those_that_transformers_has() -> None:
    assert names_in_files() == set(CONFIG_MAPPING)


def test_what_the_light_commands_name_is_what_there_is() -> None:
    assert tuple(SYSTEMS) == export.SYSTEMS
    assert hardware_names() == list(hardware_presets())
    options = {(name, p.name): p for name, command in main.commands.items() for p in command.params}
    assert options["diff", "context"].default == CONTEXT
    assert {p.flag_value for p in main.commands["advise"].params if p.name == "purpose"} == {TRAIN, SERVE}  # type: ignore[attr-defined]


@pytest.mark.parametrize("module", [autotp, sys.modules["autotp.verify"]], ids=lambda module: module.__name__)
def test_what_is_imported_late_is_what_type_checkers_see(module: object) -> None:
    """Each name comes from the module that the imports for type checkers name, and asking for one that is not there fails."""
    package = vars(module)
    tree = ast.parse(Path(package["__file__"]).read_text(encoding="utf-8"))
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    imported = [node for node in checked.body if isinstance(node, ast.ImportFrom)]
    assert package["HOMES"] == {alias.name: f".{node.module}" for node in imported for alias in node.names}
    for name in (*package["HOMES"], *package["__all__"]):
        if name == "ParallelTrainer" and Version(transformers.__version__) < Version("5.20"):
            with pytest.raises(autotp.UsageError, match="install one of these"):
                getattr(module, name)
        else:
            assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nosuch'"):
        _ = module.nosuch  # type: ignore[attr-defined]


def test_verify_is_the_function_also_after_its_folder_is_imported() -> None:
    assert callable(autotp.verify)


@pytest.mark.parametrize("module", ["autotp", "autotp.cli"])
def test_the_module_is_the_command(module: str) -> None:
    command = [sys.executable, "-m", module, "--help"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.startswith("Usage: autotp [OPTIONS] COMMAND")
