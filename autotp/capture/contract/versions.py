"""A dict that nobody wrote to since it was looked at has what it had: its version says so in one step, for all of its entries.

Python counts the writes of every dict (PEP 509); since Python 3.12 torch counts those of the dicts that it is asked about.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from torch._C._dynamo.guards import dict_version

__all__ = ["VERSIONED", "check_text", "dict_version", "entries_of"]

# Of these `held[key]` asks the dict and nothing else.
VERSIONED = (dict, OrderedDict)
_FAILURES = "(LookupError, AttributeError, ValueError, TypeError, RuntimeError)"


def entries_of(kind: type) -> Any:
    """The dict behind a class, of which `vars` gives a view."""
    (entries,) = gc.get_referents(vars(kind))
    return entries


def check_text(terms: Mapping[str, str | None], given: Sequence[str]) -> str:
    """Text of a function `bind(dict_version, *given)`, which gives a function that says if all terms hold.

    Terms about one dict, whose name they come with, are looked at again only when somebody has written to that dict.
    """
    dicts = list(dict.fromkeys(name for name in terms.values() if name is not None))
    same = [f"dict_version({name}) == n{i}" for i, name in enumerate(dicts)]
    others = [term for term, name in terms.items() if name is None]
    lines = [
        f"def bind({', '.join(['dict_version', *given])}):",
        *(f" n{i} = -1" for i in range(len(dicts))),
        " def unchanged():",
        *(f"  nonlocal n{i}" for i in range(len(dicts))),
        "  try:",
        f"   if {_all(same + others)}: return True",
        *(f"   m{i} = dict_version({name})" for i, name in enumerate(dicts)),
        f"   if not ({_all(terms)}): return False",
        f"  except {_FAILURES}:",
        "   return False",
        *(f"  n{i} = m{i}" for i in range(len(dicts))),
        "  return True",
        " return unchanged",
    ]
    return "\n".join(lines) + "\n"


def _all(terms: Sequence[str] | Mapping[str, Any]) -> str:
    return " and ".join(terms) or "True"
