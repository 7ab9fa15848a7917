"""Choosing between offsets and masks."""

import numpy as np
import pytest

from raypack.packing import select_packing_strategy


def test_the_flag_chooses_and_is_keyword_only():
    assert select_packing_strategy(flash_attn_available=True) == "varlen"
    assert select_packing_strategy(flash_attn_available=False) == "4d_mask"
    with pytest.raises(TypeError):
        select_packing_strategy(True)


@pytest.mark.parametrize("value", [1, 0, None, "yes", np.True_])
def test_anything_but_a_bool_is_refused(value):
    with pytest.raises(TypeError, match="must be bool, got") as caught:
        select_packing_strategy(flash_attn_available=value)
    if isinstance(value, np.bool_):
        assert "numpy.bool" in str(caught.value)
