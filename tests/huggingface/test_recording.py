"""What is inside of blocks cannot be recorded, and says so."""

from __future__ import annotations

import pytest
import torch

from autotp.dispatch.apply import apply_plan, make_compilers
from autotp.errors import UsageError
from autotp.huggingface.examples import examples_for
from autotp.huggingface.models import build_model
from autotp.huggingface.recording import refuse_recordings
from autotp.planner.make import make_plan
from autotp.planner.survey import survey
from autotp.runtime.ranks import Ranks
from tests.families import FAMILIES, MIXTURES


@pytest.mark.parametrize(("name", "wanted"), [("llama", "output_attentions"), ("qwen2_moe", "output_router_logits")])
def test_what_no_hook_would_see_is_refused(name: str, wanted: str) -> None:
    config = (FAMILIES | MIXTURES)[name].config()
    config._attn_implementation = "eager"  # the others give no weights of attention
    model = build_model(config, meta=False)
    found = survey(model, examples_for(model, None))
    plan = make_plan(model, found, 2)
    apply_plan(model, plan, Ranks(0, 2), make_compilers(plan, found))
    refuse_recordings(model)
    ids = torch.randint(3, 250, (2, 7))
    with pytest.raises(UsageError, match=f"{wanted}=True records what is inside of blocks"):
        model(ids, **{wanted: True})
    setattr(model.config, wanted, True)
    with pytest.raises(UsageError, match=f"{wanted}=True records what is inside of blocks"):
        model(ids)
    setattr(model.config, wanted, False)
    with pytest.raises(
        UsageError, match="only planned"
    ):  # what blocks give is recorded: it gets to the first collective
        model(ids, output_hidden_states=True)
