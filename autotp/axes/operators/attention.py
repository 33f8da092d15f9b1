"""Scaled dot-product attention."""

from __future__ import annotations

import torch

from ..call import Call
from ..facts import Fact
from ..record import Rule
from ..term import Product, Term, axis


def attention(call: Call) -> Fact:
    """q [.., H, s, d], k [.., H, t, d], v [.., H, t, e]: d and t are whole, and s where a causal mask counts it.

    With `enable_gqa` the query heads are (key heads · repeats), and (value heads · repeats), which may be others.
    """
    query, key, value = (call.dims(call.get(name)) for name in ("query", "key", "value"))
    grouped = bool(call.get("enable_gqa")) and {query[-3].size} != {key[-3].size, value[-3].size}
    leading = call.broadcast([query[:-3], key[:-3], value[:-3]]) if grouped else ()
    if grouped:
        for own in (key[-3], value[-3]):
            same = own.size == query[-3].size
            call.equal(query[-3], own if same else Product((own, axis(query[-3].size // own.size))))
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


def opaque_attention(call: Call) -> Fact:
    """A function (module, q [b, H, s, d], k [b, G, t, d], v [b, G, t, e], mask, ..) -> [b, s, H, e] behind Python.

    The query heads are (key heads · repeats), and the function finds the repeats by itself. A mask over heads is cut with
    them, and so is a value per head (a sink); of anything else the function gets all.
    """
    heads = _opaque_heads(call)
    query, value = call.dims(call.operands[0]), call.dims(call.operands[2])
    return call.fact((query[0], query[2], heads, value[-1]), linear=[[2]], zeros=[[2]], attends=True)


def opaque_attention_of_whole_groups(call: Call) -> Fact:
    """The same for a function that may know how many query heads share a key head: it gets all of a group's."""
    heads = _opaque_heads(call)
    keys = call.dims(call.operands[1])[1]
    if heads.size != keys.size:
        repeats = axis(heads.size // keys.size)
        call.equal(heads, Product((keys, repeats)))
        call.pin([repeats], "the function may count the query heads of a group")
    query, value = call.dims(call.operands[0]), call.dims(call.operands[2])
    return call.fact((query[0], query[2], heads, value[-1]), linear=[[2]], zeros=[[2]], attends=True)


def _opaque_heads(call: Call) -> Term:
    """State what an attention function does to its operands; returns the query heads."""
    query, key, value = (call.dims(operand) for operand in call.operands[:3])
    if query[1].size == key[1].size:
        call.equal(query[1], key[1])
    else:
        call.equal(query[1], Product((key[1], axis(query[1].size // key[1].size))))
    pairs = zip((query[0], query[3], *key[:3]), (key[0], key[3], *value[:3]), strict=True)
    for left, right in pairs:
        call.equal(left, right)
    call.pin([query[2], query[3], key[2]], "attention needs the whole of it")
    for other in call.operands[3:]:
        dims = call.dims(other)
        if len(dims) == 4:
            call.broadcast([(query[0], query[1], query[2], key[2]), dims])
        elif len(dims) == 1 and dims[0].size == query[1].size:
            call.equal(dims[0], query[1])
        else:
            call.pin(dims, "the attention function needs the whole of it")
    return query[1]


RULES: dict[str, Rule] = {
    "opaque.attention": opaque_attention,
    "opaque.attention_of_whole_groups": opaque_attention_of_whole_groups,
    "aten.scaled_dot_product_attention": attention,
}
