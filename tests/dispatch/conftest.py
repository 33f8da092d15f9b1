"""The functions and objects with rules that are used here stand for those of the package that the rules are about."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotp.capture.functions.package_of", lambda function: "transformers")
    monkeypatch.setattr("autotp.capture.handles.package_of", lambda method: "transformers")
    monkeypatch.setattr("autotp.capture.handles.packages_within", lambda value: frozenset())
