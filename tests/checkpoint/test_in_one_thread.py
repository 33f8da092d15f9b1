"""transformers opens a model whose tensors are lazy in one thread, and is told otherwise as before."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from transformers import AutoConfig

from autotp.errors import CheckpointError
from autotp.huggingface.models import build_model
from autotp.session.opening import open_checkpoint
from tests.families import FAMILIES

SWITCH = "HF_DEACTIVATE_ASYNC_LOAD"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build_model(FAMILIES["llama"].config(), meta=False).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("before", [None, "0", "1"])
def test_the_switch_is_as_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    if before is None:
        monkeypatch.delenv(SWITCH, raising=False)
    else:
        monkeypatch.setenv(SWITCH, before)
    open_checkpoint(folder)
    assert os.environ.get(SWITCH) == before
    config = AutoConfig.from_pretrained(folder)
    config.num_hidden_layers += 1
    config.save_pretrained(folder)
    with pytest.raises(CheckpointError):
        open_checkpoint(folder)
    assert os.environ.get(SWITCH) == before


def test_threads_that_open_models_at_once_leave_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    opened: list[object] = []
    threads = [threading.Thread(target=lambda: opened.append(open_checkpoint(folder))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == len(threads)
    assert SWITCH not in os.environ
