"""Process groups: those that a user made are used, and of others there is one for each set of ranks, shared by all models.

A backend may need all of a group's ranks to free it, and a model is collected when Python sees fit, on each rank in its own
time. So a group that no model uses any more is freed when ranks meet next to make a model parallel, or with the world.
"""

from __future__ import annotations

import atexit
import copy
import json
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias

import torch.distributed as dist

from ..transport import operators
from ..transport.alarm import Alarm
from ..transport.shared import HostGroup
from ..transport.store import PrefixStore
from .callers import Callers

# Sets of global ranks that share no rank; each rank's group is that of the set it is in.
Parts: TypeAlias = tuple[tuple[int, ...], ...]


@dataclass(eq=False)
class Group:
    """A process group, and the memory that its ranks share where they can; both live as long as somebody uses them."""

    process_group: dist.ProcessGroup
    users: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    alarm: Alarm | None = None
    _host: list[HostGroup | None] = field(default_factory=list)

    def host(self) -> HostGroup | None:
        """What sends values of the CPU if the ranks share its memory; formed at first use, which all ranks reach together."""
        if not self._host:
            self._host.append(_form_host_group(self.process_group, self.alarm))
        return self._host[0]

    def mark(self, number: int) -> bool:
        """Let collectives through shared memory fail on ranks that have another number; False where there is none."""
        for host in self._host:
            if host is not None:
                host.mark = number
        return any(self._host)

    def turn_to(self, topic: int) -> None:
        """Let collectives through shared memory fail on ranks that have another topic, too."""
        for host in self._host:
            if host is not None:
                host.topic = topic


@dataclass
class _Made:
    """The groups that were made in one world, those that users gave, and who calls the models of some ranks."""

    world: Any
    groups: dict[Parts, Group] = field(default_factory=dict)
    given: list[Group] = field(default_factory=list)
    callers: dict[tuple[int, ...], Callers] = field(default_factory=dict)
    alarms: dict[tuple[int, ...], Alarm] = field(default_factory=dict)
    meetings: int = 0


_made = _Made(None)


def _present() -> _Made:
    global _made
    if _made.world is not dist.group.WORLD:
        _made = _Made(dist.group.WORLD)
        everybody = (tuple(range(dist.get_world_size())),)
        _made.groups[everybody] = Group(dist.group.WORLD)  # type: ignore[arg-type]
    return _made


@atexit.register
def _let_go() -> None:
    """Hold no group that the program has destroyed: gloo's threads end with it. One that has a tensor of Python's when the
    interpreter ends aborts the process."""
    global _made
    if dist.is_initialized():
        return
    for group in (*_made.groups.values(), *_made.given):
        del group.process_group
    _made = _Made(None)


def group_of(parts: Parts, user: object, like: dist.ProcessGroup | None) -> Group:
    """The group of this rank's part. All ranks call it together; `like` has the backends and options for a new one."""
    groups = _present().groups
    if parts not in groups:
        groups[parts] = _new_group(parts, like)
    groups[parts].users.add(user)
    return groups[parts]


def callers_of(line: Sequence[int]) -> Callers:
    """Who calls the models of these global ranks. It takes no group and no other rank."""
    return _present().callers.setdefault(tuple(line), Callers())


def alarm_of(line: Sequence[int]) -> Alarm:
    """Whether the computation of these global ranks broke off. It takes no group and no other rank."""
    return _present().alarms.setdefault(tuple(line), Alarm(line))


def given_group(process_group: dist.ProcessGroup, user: object) -> Group:
    """A group that somebody else made."""
    made = _present()
    made.given = [group for group in made.given if group.users]
    known = [*made.groups.values(), *made.given]
    found = next((group for group in known if group.process_group is process_group), None)
    if found is None:
        found = Group(process_group)
        made.given.append(found)
    found.users.add(user)
    return found


def _new_group(parts: Parts, like: dist.ProcessGroup | None) -> Group:
    settings: dict[str, Any] = {"timeout": timeout_of(like or dist.group.WORLD)}
    if like is not None:
        settings |= {"backend": dist.get_backend_config(like), "pg_options": _options_of(like)}
    made = [dist.new_group(list(part), **settings) for part in parts]
    return Group(next(group for group, part in zip(made, parts, strict=True) if dist.get_rank() in part))


def _options_of(group: Any) -> Any:
    """A copy of the options that a group's user has given to its backend, if that takes any: a new group writes into them."""
    options = getattr(group._get_backend(group._device_types[-1]), "options", None)
    return copy.copy(options) if hasattr(options, "__copy__") else None


def free_unused() -> None:
    """Free the groups that no rank uses any more. All ranks of the world call it together."""
    made = _present()
    ours = {parts: group for parts, group in made.groups.items() if group.process_group is not made.world}
    if not ours:
        return
    unused = [parts for parts, group in ours.items() if not group.users]
    for parts in _common(made, unused):
        dist.destroy_process_group(made.groups.pop(parts).process_group)


def _common(made: _Made, mine: Sequence[Parts]) -> list[Parts]:
    """What all ranks have on their lists, in one order. By the store that ranks met at: it takes no collective."""
    made.meetings += 1
    store = PrefixStore(f"autotp/groups/{made.meetings}", dist.distributed_c10d._get_default_store())
    store.set(str(dist.get_rank()), json.dumps(mine))
    keys = [str(rank) for rank in range(dist.get_world_size())]
    store.wait(keys, timeout_of(dist.group.WORLD))
    lists = [{tuple(map(tuple, parts)) for parts in json.loads(text)} for text in store.multi_get(keys)]
    return sorted(set.intersection(*lists))


def timeout_of(group: Any) -> timedelta:
    """How long a collective of a group waits. The user gave it for the whole world; torch does not hand it on by itself."""
    backend = group._get_backend(group._device_types[0])
    return getattr(getattr(backend, "options", None), "_timeout", dist.constants.default_pg_timeout)


def _form_host_group(group: dist.ProcessGroup, alarm: Alarm | None) -> HostGroup | None:
    """Where CPU tensors would go through gloo, and all ranks of a group can share memory instead: the group that does."""
    if "cpu:gloo" not in dist.get_backend_config(group).split(","):
        return None
    size = dist.get_world_size(group)

    def exchange(mine: Any) -> list[Any]:
        everything: list[Any] = [None] * size
        dist.all_gather_object(everything, mine, group=group)
        return everything

    made = HostGroup.form(dist.get_rank(group), size, exchange, timeout_of(group).total_seconds())
    if made is not None:
        made.listen(alarm, dist.get_process_group_ranks(group))
        operators.register(group.group_name, made)
    return made
