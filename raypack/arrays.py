"""Arrays as kernels take them: contiguous, of one type and read-only, so that each is compiled once."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray


def read_only(values: ArrayLike, dtype: DTypeLike) -> NDArray[np.generic]:
    """Return a contiguous read-only view, or a copy where the values come in another form.

    Args:
        values: An array or a sequence of numbers; a memory map stays on disk.
        dtype: The type of the elements.
    """
    view = np.ascontiguousarray(values, dtype).view(np.ndarray)
    view.flags.writeable = False
    return view
