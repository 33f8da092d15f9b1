"""Scaled dot-product attention."""

from __future__ import annotations

import torch

from ..call import Call
from ..facts import Fact
from ..term import Product, axis


def attention(call: Call) -> Fact:
    """q [.., H, s, d], k [.., H, t, d], v [.., H, t, e]: d and t are whole, and s where a causal mask counts it.

    With `enable_gqa` the query heads are (key heads · repeats).
    """
    query, key, value = (call.dims(call.get(name)) for name in ("query", "key", "value"))
    grouped = bool(call.get("enable_gqa")) and query[-3].size != key[-3].size
    leading = call.broadcast([query[:-3], key[:-3], value[:-3]]) if grouped else ()
    if grouped:
        call.equal(key[-3], value[-3])
        call.equal(query[-3], Product((key[-3], axis(query[-3].size // key[-3].size))))
        heads = (*leading, query[-3])
    else:
        heads = call.broadcast([query[:-2], key[:-2], value[:-2]])
    call.equal(query[-1], key[-1])
    call.equal(key[-2], value[-2])
    call.pin([query[-1], key[-2]], "attention needs the whole of it")
    if call.get("is_causal"):
        call.pin([query[-2]], "a causal mask counts its positions")
    mask = call.get("attn_mask")
    if isinstance(mask, torch.fx.Node):
        call.broadcast([(*heads, query[-2], key[-2]), call.dims(mask)])
    return call.fact((*heads, query[-2], value[-1]), linear=[[2]], zeros=[[2]], attends=True)


RULES = {"aten.scaled_dot_product_attention": attention}
