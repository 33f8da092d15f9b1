"""The README's first example, word for word, under `torchrun` on a machine whose accelerator is the test device."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.device.build import ROOT, environment
from tests.device.models import dense_model

pytestmark = pytest.mark.usefixtures("device")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def first_example() -> str:
    found = re.search(
        r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert found is not None
    return found[1]


def run(folder: Path, *arguments: str) -> str:
    settings = {**environment(), "AUTOTP_CACHE": str(folder / "plans"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(arguments, cwd=folder, env=settings, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.sweep
def test_the_first_example_is_ten_lines_and_runs_unchanged(tmp_path: Path) -> None:
    example = first_example()
    assert len(list(filter(str.strip, example.splitlines()))) == 10
    (tmp_path / "quickstart.py").write_text(example)
    dense = dense_model("llama").float()
    dense.save_pretrained(tmp_path / "checkpoint")
    printed = run(tmp_path, *TORCHRUN, "2", "quickstart.py")
    assert printed.count("device='mock:0'") == printed.count("device='mock:1'") == 1
    texts = {re.sub(r"\s", "", text).partition(",device")[0] for text in printed.split("tensor")[1:]}
    assert len(texts) == 1  # both ranks drew the same tokens and wrote the same
    trained, before = load_file(tmp_path / "trained" / "model.safetensors"), dense.state_dict()
    assert all(
        value.shape == before[name].shape and not torch.equal(value, before[name]) for name, value in trained.items()
    )


@pytest.mark.long
def test_generate_starts_ranks_on_the_device(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate(["<unk>", *[f"w{i}" for i in range(249)]])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(tmp_path / "model")
    dense = dense_model("llama").float()
    dense.save_pretrained(tmp_path / "model")
    ids = torch.tensor([[words["w5"], words["w9"]]])
    expected = dense.generate(ids, max_new_tokens=8, do_sample=False)[0, 2:].tolist()
    command = ("-m", "autotp.cli", "generate", "model", "--prompt", "w5 w9", "--max-new-tokens", "8", "--json")
    for start in ((sys.executable, *command, "--tp", "2"), (*TORCHRUN, "2", *command)):
        assert json.loads(run(tmp_path, *start))["tokens"] == expected
