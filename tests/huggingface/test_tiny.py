"""Small configurations keep what matters and make models that run."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, LlamaConfig, Phi3Config, Qwen2VLTextConfig

from autotp.huggingface.models import build_model, example_inputs
from autotp.huggingface.names import names_a_type
from autotp.huggingface.tiny import tiny_config

TYPES = """
    llama gpt2 bloom gpt_neox opt falcon qwen3 gemma2 phi3 bert vit mpt gptj gpt_neo deepseek_v2 cohere olmo2
    t5 mixtral jamba deepseek_v3 gemma3 gemma4_text mamba2
""".split()


@pytest.mark.parametrize("kind", TYPES)
def test_a_small_model_runs(kind: str) -> None:
    model = build_model(tiny_config(AutoConfig.for_model(kind)), meta=False)
    assert sum(parameter.numel() for parameter in model.parameters()) < 2_000_000
    inputs = {
        name: torch.zeros_like(value, device="cpu") if isinstance(value, torch.Tensor) else value
        for name, value in example_inputs(model, 2, 13).items()
    }
    with torch.no_grad():
        assert model(**inputs).logits.isfinite().all()


@pytest.mark.parametrize(
    ("heads", "kv_heads", "small"), [(32, 32, 8), (32, 8, 2), (64, 8, 1), (71, 1, 1), (24, 8, 2), (14, 2, 1), (6, 4, 4)]
)
def test_the_share_of_key_value_heads_is_kept(heads: int, kv_heads: int, small: int) -> None:
    config = LlamaConfig(num_attention_heads=heads, num_key_value_heads=kv_heads, hidden_size=64 * heads)
    config = tiny_config(config)
    assert (config.num_attention_heads, config.num_key_value_heads) == (8, small)


def test_heads_that_are_not_the_hidden_size_stay_so() -> None:
    assert tiny_config(LlamaConfig()).head_dim == 8
    assert tiny_config(LlamaConfig(hidden_size=2304, num_attention_heads=8, head_dim=256)).head_dim == 16


def test_both_kinds_of_layers_are_kept() -> None:
    config = tiny_config(AutoConfig.for_model("gemma3_text"))
    assert config.num_hidden_layers == 2
    assert config.layer_types == ["sliding_attention", "full_attention"]


def test_rotary_lists_shrink_with_the_head() -> None:
    factors = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    config = tiny_config(Phi3Config(rope_parameters={**factors, "original_max_position_embeddings": 4096}))
    assert config.rope_parameters["long_factor"] == [2.0] * 4
    sections = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [16, 24, 24]}
    assert tiny_config(Qwen2VLTextConfig(rope_parameters=sections)).rope_parameters["mrope_section"] == [1, 1, 2]


def test_special_tokens_fit_the_vocabulary_and_equal_ones_stay_equal() -> None:
    config = tiny_config(LlamaConfig(bos_token_id=1, eos_token_id=[31000, 31001], pad_token_id=31000))
    assert config.bos_token_id == 1
    assert config.eos_token_id == [config.pad_token_id, 254]


def test_the_original_is_left_alone() -> None:
    config = LlamaConfig()
    before = config.to_dict()
    tiny_config(config)
    assert config.to_dict() == before


def test_a_type_is_told_from_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert names_a_type("gpt2")
    assert not names_a_type("some/model")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").mkdir()
    assert not names_a_type("gpt2")
