"""`make lint` checks project.py as strictly as mypy can, as somebody does who uses autotp. Here: that it leaves nothing out."""

from __future__ import annotations

import ast
from pathlib import Path

import autotp

PROJECT = Path(__file__).with_name("project.py")


def test_the_project_uses_every_public_name() -> None:
    nodes = list(ast.walk(ast.parse(PROJECT.read_text(encoding="utf-8"))))
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    assert {*autotp.__all__, *autotp.HOMES} - attributes - {
        node.id for node in nodes if isinstance(node, ast.Name)
    } == set()
