"""Reduces gradients over ranks only in a step's last call, whatever the order of its micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from raypack.errors import LoaderError


class SyncCalls:
    """The calls of `Step.sync` in one try of a step, for each model that is passed to it.

    A model's gradients are reduced in the call that brings the last of the step's micro-batches, and in
    calls after that one: as many calls on every rank, whatever the order of the batches and however often
    one comes. A rank that leaves a micro-batch out never gets there, while the others wait for it in the
    reduction; so it raises as soon as the omission is certain.

    Args:
        step: Number of the step.
        micros: Micro-batches of the step.
    """

    def __init__(self, step: int, micros: int) -> None:
        self._step, self._micros = step, micros
        self._models: dict[int, tuple[Any, set[int]]] = {}
        self._one_by_one = False

    @property
    def used(self) -> bool:
        """Whether there was a call."""
        return bool(self._models)

    @contextmanager
    def context(self, model: Any, micro: int, given: int) -> Iterator[None]:
        """Enter a call; one that an exception ends, such as out of memory, does not count.

        Args:
            model: Wrapped by DDP (``no_sync``), by FSDP2 (``set_requires_gradient_sync``), or plain.
            micro: Number of the micro-batch.
            given: Micro-batches that the loop has taken.
        """
        passed = self._models.setdefault(id(model), (model, set()))[1]
        first = micro not in passed
        passed.add(micro)
        if micro + 1 == given < self._micros:
            self._one_by_one = True
        try:
            with gradient_sync(model, len(passed) == self._micros):
                yield
        except BaseException:
            if first:
                passed.discard(micro)
            raise

    def check_before(self, used_before: bool | None) -> None:
        """Check a call against the steps before: one without any call left its reduction to the peers alone.

        Args:
            used_before: Whether earlier steps were trained with `Step.sync`; None where there are none.

        Raises:
            LoaderError: They were trained without it.
        """
        if used_before is False:
            raise LoaderError(
                f"step {self._step} uses step.sync, but a step before it was committed without any call: "
                "gradients would be reduced with those of another step on other ranks; use 'with "
                "step.sync(model, batch)' for every micro-batch of every step, also for an empty one"
            )

    def check_next(self, given: int) -> None:
        """Check a loop that passes each micro-batch before it takes the next, when it asks for the next.

        Args:
            given: Micro-batches that the loop has taken.

        Raises:
            LoaderError: It has left out the one that it took last.
        """
        if self._one_by_one and not any(given - 1 in passed for _, passed in self._models.values()):
            raise self._left_out(given - 1)

    def check_all(self, used_before: bool) -> None:
        """Check the whole step.

        Args:
            used_before: Whether the loop has used `Step.sync` in an earlier step.

        Raises:
            LoaderError: The loop uses `Step.sync` and has left out a micro-batch.
        """
        if used_before and not self.used:
            raise self._left_out(0)
        for _, passed in self._models.values():
            if len(passed) < self._micros:
                raise self._left_out(min(set(range(self._micros)) - passed))

    def _left_out(self, micro: int) -> LoaderError:
        return LoaderError(
            f"step {self._step}: micro-batch {micro} of {self._micros} was not passed to step.sync, which "
            "this loop uses: gradients are exchanged in the call that brings the last one, so other ranks "
            "may wait for this one without end; use 'with step.sync(model, batch)' for every micro-batch, "
            "also for an empty one"
        )


def gradient_sync(model: Any, last: bool) -> AbstractContextManager[Any]:
    """Return the context for a micro-batch's forward and backward pass.

    Args:
        model: Wrapped by DDP (``no_sync``), by FSDP2 (``set_requires_gradient_sync``), or plain.
        last: Whether gradients are reduced in it.
    """
    if hasattr(model, "set_requires_gradient_sync"):
        return _fsdp_sync(model, last)
    if hasattr(model, "no_sync") and not last:
        context: AbstractContextManager[Any] = model.no_sync()
        return context
    return nullcontext()


@contextmanager
def _fsdp_sync(model: Any, last: bool) -> Iterator[None]:
    model.set_requires_gradient_sync(last)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)
