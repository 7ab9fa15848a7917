"""Hooks of Ray Train's controller: a check of their signatures, and logging into the controller's log."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

import ray

from raypack.errors import RaypackError


def check_hooks(callback: type, bases: tuple[type, ...], needed: tuple[str, ...]) -> None:
    """Check that each hook of a callback has the parameters that the installed Ray gives it.

    Ray passes some by position and some by name, so names and order must both be those of its base class.

    Args:
        callback: The class of the callback.
        bases: Ray's classes that declare its hooks.
        needed: Hooks that Ray must declare.

    Raises:
        RaypackError: A hook is missing in Ray, or has other parameters there.
    """
    for name in sorted({*needed, *_overridden(callback, bases)}):
        declared = [getattr(base, name) for base in bases if hasattr(base, name)]
        if not declared:
            raise RaypackError(
                f"{callback.__name__} needs the hook {name}, which Ray {ray.__version__} does not have; "
                "install a Ray that raypack's requirements allow"
            )
        own, wanted = _parameters(getattr(callback, name)), _parameters(declared[0])
        if own != wanted:
            raise RaypackError(
                f"{callback.__name__}.{name} must take ({', '.join(n for n, _ in wanted)}), as Ray "
                f"{ray.__version__} calls it, got ({', '.join(n for n, _ in own)}); rename its parameters, "
                "or install a Ray that raypack's requirements allow"
            )


def _overridden(callback: type, bases: tuple[type, ...]) -> list[str]:
    """Return the names of Ray's hooks that the callback has as its own."""
    return [
        name
        for base in bases
        for name in dir(base)
        if not name.startswith("_")
        and callable(getattr(base, name))
        and all(getattr(callback, name) is not getattr(other, name, None) for other in bases)
    ]


def _parameters(hook: Callable[..., Any]) -> list[tuple[str, inspect._ParameterKind]]:
    return [(p.name, p.kind) for p in inspect.signature(hook).parameters.values()]


def log_where_ray_train_does() -> None:
    """Send raypack's log lines to Ray Train's handlers, unless logging is configured here already.

    In its controller Ray Train configures only its own logger: raypack's info messages would be lost, and
    its warnings would be missing from Ray Train's files.
    """
    own, trains = logging.getLogger("raypack"), logging.getLogger("ray.train")
    if trains.handlers and not own.handlers and not logging.getLogger().handlers:
        own.handlers = list(trains.handlers)
        own.setLevel(logging.INFO)
