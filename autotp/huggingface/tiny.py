"""A small model of the same kind: a configuration with its standard sizes shrunken, everything else kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers import PretrainedConfig

HIDDEN, INNER, LAYERS, HEADS, VOCABULARY, POSITIONS = 64, 128, 2, 8, 256, 128

# Attribute -> its new value; aliases of a configuration's `attribute_map` are looked up under their standard name.
_FIXED: Mapping[str, int] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd"), HIDDEN),
    **dict.fromkeys(("input_embedding_size", "output_embedding_size"), HIDDEN // 2),
    **dict.fromkeys(
        """intermediate_size n_inner ffn_dim ffn_hidden_size inner_dim d_ff d_inner dim_feedforward
        encoder_ffn_dim decoder_ffn_dim""".split(),
        INNER,
    ),
    **dict.fromkeys(
        "moe_intermediate_size shared_expert_intermediate_size moe_shared_expert_intermediate_size".split(), INNER // 4
    ),
    **dict.fromkeys("num_hidden_layers num_layers encoder_layers decoder_layers num_decoder_layers".split(), LAYERS),
    **dict.fromkeys(
        "num_attention_heads num_heads n_head encoder_attention_heads decoder_attention_heads".split(), HEADS
    ),
    **dict.fromkeys("vocab_size vocab_size_per_layer_input".split(), VOCABULARY),
    **dict.fromkeys("max_position_embeddings original_max_position_embeddings max_seq_len n_ctx".split(), POSITIONS),
    # latent attention: ranks of the projections, the two parts of a head
    **{"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "qk_head_dim": 24},
    "v_head_dim": 16,
    # state-space mixers: their heads make up twice the hidden size
    **{"mamba_n_heads": HEADS, "mamba_d_head": 2 * HIDDEN // HEADS, "mamba_d_ssm": 2 * HIDDEN, "lru_width": HIDDEN},
}
# Attribute -> the largest value it may keep.
_LARGEST: Mapping[str, int] = {
    **dict.fromkeys("num_experts n_routed_experts num_local_experts".split(), 8),
    **dict.fromkeys("num_experts_per_tok num_experts_per_token moe_topk".split(), 2),
    **dict.fromkeys("n_group attn_layer_period expert_layer_period".split(), 2),
    **dict.fromkeys(
        "topk_group first_k_dense_replace max_window_layers attn_layer_offset expert_layer_offset".split(), 1
    ),
    **dict.fromkeys("sliding_window window_size attention_chunk_size".split(), 8),
    # what chooses the positions that are attended to
    **{"index_n_heads": HEADS // 2, "index_head_dim": 16},
}
# Attribute -> what it gets where a configuration leaves it to a checkpoint and the model cannot run without.
_MISSING: Mapping[str, int] = {
    "num_experts_per_tok": 2,
    "num_key_value_heads": HEADS,
    "head_dim": HIDDEN // HEADS,
    "vocab_size": VOCABULARY,
}
# What a configuration computes from the rest, so that the old value would contradict the new sizes.
_COMPUTED = frozenset("stage_names out_features out_indices _out_features _out_indices".split())
_KV_HEADS = ("num_key_value_heads", "num_kv_heads")
_PATCHES = 3  # an image's side, in patches


def tiny_config(config: PretrainedConfig) -> PretrainedConfig:
    """A copy of a configuration with two layers and small sizes.

    Kept as far as possible: the ratio of heads to key-value heads, heads that do not make up the hidden size, the share
    of a head that is rotated, the kinds of layers, and which special tokens are equal. A model of several stages, each
    with sizes of its own, is copied as it is.
    """
    return type(config).from_dict(_Shrinker(config).data())


class _Shrinker:
    """Shrinks one configuration; nested ones are shrunken by their own."""

    def __init__(self, config: PretrainedConfig) -> None:
        self.config = config
        self.standard = {own: name for name, own in (config.attribute_map or {}).items()}
        self.old: dict[str, Any] = config.to_dict()
        self.hidden = self._first("hidden_size", "d_model")
        self.heads = self._first("num_attention_heads", "num_heads")
        self.layers = self._first("num_hidden_layers", "num_layers")
        self.head_dim = self._first("head_dim") or (self.hidden // self.heads if self.heads else 0)
        self.kept_layers = self._kept_layers()
        self.tokens: dict[int, int] = {}

    def data(self) -> dict[str, Any]:
        """The new configuration as plain data."""
        if "depths" in self.old:
            return self.old
        return {name: self._shrunken(name, value) for name, value in self.old.items() if name not in _COMPUTED}

    def _first(self, *names: str) -> int:
        own = self.config.attribute_map or {}
        values = (self.old.get(own.get(name, name)) for name in names)
        return next((value for value in values if isinstance(value, int)), 0)

    def _new_head_dim(self) -> int:
        if "qk_rope_head_dim" in self.old or self.head_dim * self.heads == self.hidden:
            return HIDDEN // HEADS
        return 2 * HIDDEN // HEADS

    def _shrunken(self, name: str, value: Any) -> Any:
        nested = self.config.__dict__.get(name)
        if isinstance(nested, PretrainedConfig):
            return {**_Shrinker(nested).data(), "model_type": nested.model_type}
        if value is None:
            return _MISSING.get(name)
        if isinstance(value, (bool, str, float)):
            return value
        standard = self.standard.get(name, name)
        if name == "per_layer_config":
            return self._own_sizes(value)
        if isinstance(value, int):
            return self._number(standard, value)
        if isinstance(value, dict):
            return {key: self._rotary(key, entry) for key, entry in value.items()} if "rope" in name else value
        return self._list(standard, value)

    def _number(self, name: str, value: int) -> int:
        """The new value of a size, or the old one of a number that is none."""
        special: dict[str, Callable[[int], int]] = {
            **dict.fromkeys(_KV_HEADS, self._kv_heads),
            **dict.fromkeys(("head_dim", "d_kv", "d_head"), lambda _: self._new_head_dim()),
            "rotary_dim": self._of_head,
            "image_size": lambda size: _PATCHES * self._first("patch_size") or size,
        }
        if name in special:
            return special[name](value)
        if name in _FIXED:
            return _FIXED[name]
        if name.endswith("_token_id"):
            return self._token(value)
        if name.endswith(("_dim", "_size")) and value == self.hidden:
            return HIDDEN
        return min(value, _LARGEST.get(name, value))

    def _kv_heads(self, old: int) -> int:
        """The same share of the heads, as a number that divides them."""
        share = max(1, HEADS * old // max(self.heads, 1))
        return max(n for n in range(1, HEADS + 1) if HEADS % n == 0 and n <= share)

    def _of_head(self, old: int) -> int:
        """The same share of a head, as an even number."""
        return max(2, old * self._new_head_dim() // max(self.head_dim, 1) // 2 * 2)

    def _token(self, old: int) -> int:
        """A token of the small vocabulary; equal ones stay equal, different ones different."""
        if old < VOCABULARY:
            return old
        return self.tokens.setdefault(old, VOCABULARY - 1 - len(self.tokens))

    def _list(self, name: str, values: Sequence[Any]) -> Sequence[Any]:
        if name == "attention_types":  # [[kinds, times], ...]
            return [[[kind], 1] for kinds, times in values for kind in kinds * times][:LAYERS]
        if self.layers and len(values) == self.layers:
            return [values[i] for i in self.kept_layers]
        if name.endswith("_token_id"):
            return [self._token(value) for value in values]
        return values

    def _kept_layers(self) -> list[int]:
        """The first layer, and the first that some list of the configuration says is of another kind."""
        lists = [v for v in self.old.values() if isinstance(v, (list, tuple)) and len(v) == self.layers]
        if not self.layers:
            return []
        kinds = [[entries[i] for entries in lists] for i in range(self.layers)]
        return [0, next((i for i in range(1, self.layers) if kinds[i] != kinds[0]), min(1, self.layers - 1))]

    def _own_sizes(self, layers: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """The sizes that single layers have of their own, for the layers that are kept."""
        numbered = {int(layer): sizes for layer, sizes in layers.items()}
        return {
            str(new): {
                k: self._of_head(v) if k == "head_dim" else self._shrunken(k, v) for k, v in numbered[old].items()
            }
            for new, old in enumerate(self.kept_layers)
            if old in numbered
        }

    def _rotary(self, name: str, value: Any) -> Any:
        """An entry of the rotary embedding's parameters: lists over a head's frequencies shrink with the head."""
        if isinstance(value, dict):
            return {key: self._rotary(key, entry) for key, entry in value.items()}
        if name in _FIXED:
            return _FIXED[name]
        if not isinstance(value, (list, tuple)) or not self.head_dim:
            return value
        new = self._new_head_dim()
        if name.endswith("_section"):
            ends = [sum(value[: i + 1]) * new // self.head_dim for i in range(len(value))]
            return [end - start for start, end in zip([0, *ends], ends, strict=False)]
        return list(value)[: max(1, len(value) * new // self.head_dim)]
