"""The compiler infers what a weight is from the graph, so no name of a model, a module or a parameter is in it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

PACKAGE = Path(__file__).parents[1] / "autotp"
COMPILER = ("axes", "capture", "chains", "placement", "planner", "rewrite")

# Model types that are also words a message of the compiler may use: forbidden only where they are the whole string.
WORDS = {"align", "beam", "bit", "clip", "encoder-decoder", "funnel", "git", "led", "opt", "radio", "rag"}
MODEL_TYPES = {name for name in CONFIG_MAPPING_NAMES if len(name) >= 3}
# LlamaConfig gives Llama, and with it LlamaAttention, LlamaMLP, LlamaForCausalLM.
MODEL_CLASSES = {
    str(config).removesuffix("Config") for name, config in CONFIG_MAPPING_NAMES.items() if name in MODEL_TYPES - WORDS
}
PARTS = set(
    """
    q_proj k_proj v_proj o_proj out_proj qkv qkv_proj in_proj query_key_value Wqkv W_pack c_attn c_proj c_fc
    q_a_proj q_b_proj kv_a_proj_with_mqa kv_b_proj self_attn self_attention encoder_attn EncDecAttention SelfAttention
    gate_proj up_proj down_proj gate_up_proj dense_h_to_4h dense_4h_to_h fc1 fc2 fc_in fc_out wi wi_0 wi_1 wo w1 w2 w3
    DenseReluDense block_sparse_moe shared_expert shared_experts
    x_proj dt_proj A_log
    embed_tokens embed_in embed_out embed_positions word_embeddings position_embeddings wte wpe lm_head rotary_emb
    relative_attention_bias input_layernorm post_attention_layernorm ln_1 ln_2 ln_f final_layernorm q_norm k_norm
    """.split()
)

# (file, name) -> why this use of the name is not a use of the model or parameter that bears it.
ALLOWED: dict[tuple[str, str], str] = {}


def alternatives(names: set[str]) -> str:
    return "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))


WHOLE = re.compile(alternatives(WORDS), re.IGNORECASE)
NAME = rf"(?i:{alternatives((MODEL_TYPES - WORDS) | PARTS)})"
CLASS = rf"(?:{alternatives(MODEL_CLASSES)})(?:MLP|[A-Z][a-z])\w*"
ANYWHERE = re.compile(rf"(?<!\w)(?:{NAME}|{CLASS})(?!\w)")


def names_in(text: str) -> list[str]:
    return [text] if WHOLE.fullmatch(text) else ANYWHERE.findall(text)


def strings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Every string that is a value, parts of f-strings included: not docstrings, nor other bare strings."""
    bare = {statement.value for statement in ast.walk(tree) if isinstance(statement, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in bare:
            yield node


def uses(package: Path) -> Iterator[tuple[str, str, int]]:
    """File, name and line of every name found in the compiler."""
    for folder in COMPILER:
        for path in sorted((package / folder).rglob("*.py")):
            where = path.relative_to(package.parent).as_posix()
            for node in strings(ast.parse(path.read_text(encoding="utf-8"))):
                yield from ((where, name, node.lineno) for name in names_in(str(node.value)))


def test_the_compiler_names_no_model_and_no_parameter() -> None:
    found = [f"{where}:{line}: {name!r}" for where, name, line in uses(PACKAGE) if (where, name) not in ALLOWED]
    assert not found, "\n".join(found)


def test_every_allowance_is_used_and_has_a_reason() -> None:
    assert set(ALLOWED) <= {(where, name) for where, name, _ in uses(PACKAGE)}
    assert all(ALLOWED.values())


@pytest.mark.parametrize(
    "source",
    [
        "kind = 'llama'",
        "kind = 'align'",
        "raise ValueError('this is done for Llama only')",
        "name.endswith('self_attn.q_proj.weight')",
        "name = f'{prefix}.lm_head'",
        "kind = 'xlm-roberta'",
        "type(block).__name__ == 'LlamaDecoderLayer'",
        "type(block).__name__ == 'GPT2MLP'",
        "names = {'fc1': 0}",
    ],
)
def test_a_name_is_found(tmp_path: Path, source: str) -> None:
    assert list(uses(write(tmp_path, "planner/choose.py", source)))


@pytest.mark.parametrize(
    "source",
    [
        '"""What llama calls q_proj."""',
        "def f():\n    'What llama calls q_proj.'",
        "x = 1\n'the fc1 of an MLP'",
        "raise ValueError('the parts do not align, one bit is left')",
        "target = 'aten.linear.default'",
        "q_proj = 1",
    ],
)
def test_other_text_is_left_alone(tmp_path: Path, source: str) -> None:
    assert not list(uses(write(tmp_path, "planner/choose.py", source)))


def test_only_the_compiler_is_searched(tmp_path: Path) -> None:
    assert not list(uses(write(tmp_path, "huggingface/names.py", "kind = 'llama'")))


def write(parent: Path, path: str, source: str) -> Path:
    package = parent / "autotp"
    (package / path).parent.mkdir(parents=True)
    (package / path).write_text(source, encoding="utf-8")
    return package
