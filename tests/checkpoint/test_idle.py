import logging

import pytest

from raypack.checkpoint.idle import idle_share, next_good, warn_of_idle


@pytest.mark.parametrize(
    ("batches", "world", "idle", "good"),
    [
        (8, 8, 0, 8),
        (8, 3, 1 / 9, 9),
        (64, 60, 56 / 120, 114),
        (1, 5, 0.8, 5),
        (19, 4, 0.05, 19),
        (7, 7, 0, 7),
    ],
)
def test_the_idle_share_and_the_next_number_of_batches_that_is_good(batches, world, idle, good):
    assert idle_share(batches, world) == pytest.approx(idle)
    assert next_good(batches, world) == good
    assert idle_share(good, world) <= 0.05 + 1e-12


def test_more_than_5_percent_idle_gives_one_warning_with_the_remedy(caplog):
    with caplog.at_level(logging.WARNING):
        warn_of_idle(8, 3)
        warn_of_idle(19, 4)
    (record,) = caplog.records
    assert "11% of the micro-batches are empty" in record.getMessage()
    assert "batches_per_step=9" in record.getMessage()
