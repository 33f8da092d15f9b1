"""`autotp calibrate`: a hardware file that plans can be made for."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from autotp.cli import main
from autotp.planner.cost import hardware
from autotp.session.calibrate import write_node


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)), catch_exceptions=False)


@pytest.mark.sweep
def test_a_measured_node_is_one_to_plan_for(tmp_path: Path) -> None:
    done = run("calibrate", "here", "--tp", 2, "--out", tmp_path, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    node = asdict(hardware("here", (tmp_path,)))
    assert {name: value for name, value in found["node"].items() if isinstance(value, float)} == pytest.approx(
        {name: value for name, value in node.items() if isinstance(value, float)}, rel=1e-3
    )
    assert (node["gpus"], found["ranks"], len(found["timings"])) == (2, 2, 16)
    assert all(timing["seconds"] > 0 for timing in found["timings"])
    assert run("plan", "gpt2", "--tp", 2, "--rules", tmp_path, "--hardware", "here").exit_code == 0


def test_what_takes_no_time_is_still_a_time(tmp_path: Path) -> None:
    node = replace(hardware("h200-nvlink-8"), name="here", hop_us=0.0)
    write_node(node, tmp_path)
    assert "hop_us = 0.0\n" in (tmp_path / "hardware" / "here.toml").read_text(encoding="utf-8")
    found = hardware("here", (tmp_path,))
    assert [type(value) for value in asdict(found).values()] == [type(value) for value in asdict(node).values()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("my node", "--tp", 2), "'my node' is no name for a node"),
        (("../node", "--tp", 2), "'../node' is no name for a node"),
        (("node", "--tp", 1), "--tp 1 has no collectives to measure; give 2 or more"),
        (("node",), "say on how many ranks of this machine with --tp N"),
    ],
)
def test_what_cannot_be_measured_is_said_in_one_line(arguments: tuple[object, ...], message: str) -> None:
    done = run("calibrate", *arguments)
    assert done.exit_code != 0
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
