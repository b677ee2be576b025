"""What a forked process does with the locks and the open databases that it inherits."""

from __future__ import annotations

import ctypes
import gc
import os
import weakref
from typing import Protocol


class Holder(Protocol):
    """What holds something that a forked process cannot go on with."""

    def after_fork(self) -> None:
        """Put it right, in the child process."""
        ...


_HOLDERS: weakref.WeakSet[Holder] = weakref.WeakSet()


def follow_forks(holder: Holder) -> None:
    """Have `after_fork` called in every child process, as long as the holder lives."""
    _HOLDERS.add(holder)


def keep_for_ever(inherited: object) -> None:
    """Have Python never free an object, not even when it ends or clears the parent's threads."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))


def _after_fork() -> None:
    # What the parent had not freed yet may be the engine's, and is not to be freed here.
    gc.freeze()
    for holder in list(_HOLDERS):
        holder.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_after_fork)
