"""@remote_memory: a module whose parameters live outside the memory of the device."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Callable, Optional, TypeVar

from headrace._errors import HeadraceError
from headrace._memory import Size, parse_bytes

C = TypeVar("C", bound=type)

_ATTRIBUTE = "__headrace_remote__"
# Workloads have whole numbers for priorities; two digits of a fraction are kept.
_PRIORITIES = 100
_made: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()  # by id


@dataclass(frozen=True)
class RemoteMemory:
    """What was asked for a class of modules.

    Attributes:
        max_size_bytes: how much of each of its tensors may be outside the device at most; 0: all.
        prefetch_priority: 0 to 1; of two transfers that want the same time the higher goes first.
    """

    max_size_bytes: int = 0
    prefetch_priority: float = 0.5

    def rule(self) -> dict[str, int]:
        """The value of "remote_memory" of a tensor in a workload (docs/guide/workload.md)."""
        return {"max_size": self.max_size_bytes,
                "prefetch_priority": round(self.prefetch_priority * _PRIORITIES)}


def remote_memory(max_size: Optional[Size] = None,
                  prefetch_priority: float = 0.5) -> Callable[[C], C]:
    """Decorates a class of modules: its parameters live on a tier, and are loaded around their use.

        @headrace.remote_memory(max_size="128MB", prefetch_priority=0.8)
        class LargeEmbedding(nn.Module): ...

    headrace.fit, torch.compile(backend="headrace") and compile_step obey it. Without a door it
    changes nothing. Subclasses inherit it.

    Args:
        max_size: the most of each tensor that is outside the device, bytes or text; None: all.
        prefetch_priority: 0 to 1; higher ones are loaded earlier where two want the same time.

    Raises:
        HeadraceError: "usage", when an argument is none of these, or what is decorated is no class.
    """
    if callable(max_size):
        raise HeadraceError("write @remote_memory() with parentheses")
    size = 0 if max_size is None else parse_bytes(max_size, "max_size")
    if isinstance(prefetch_priority, bool) or not isinstance(prefetch_priority, (int, float)) or \
            not 0 <= prefetch_priority <= 1:
        raise HeadraceError(f"prefetch_priority={prefetch_priority!r}: a number from 0 to 1")
    asked = RemoteMemory(size, float(prefetch_priority))

    def decorate(cls: C) -> C:
        if not isinstance(cls, type):
            raise HeadraceError(f"@remote_memory is for classes of modules, not {cls!r}")
        setattr(cls, _ATTRIBUTE, asked)
        _note_instances(cls)
        return cls

    return decorate


def _note_instances(cls: type) -> None:
    plain = cls.__new__

    def __new__(kind: type, *args: Any, **kwargs: Any) -> Any:
        if plain is object.__new__:
            made = plain(kind)
        else:
            made = plain(kind, *args, **kwargs)
        _made[id(made)] = made
        return made
    cls.__new__ = __new__


def marked_modules() -> list[Any]:
    """All instances that there are of classes marked with @remote_memory, the oldest first.
    torch.compile's backends are not told which module is compiled."""
    return list(_made.values())


def remote_of(module: Any) -> Optional[RemoteMemory]:
    """What its class (or one that it inherits from) was decorated with; None: nothing."""
    return getattr(type(module), _ATTRIBUTE, None)
