import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypack.errors import SamplerError
from raypack.sampling.receipt import Receipt, index_hashes, receipt_key

KEY = receipt_key("source", 3)


def test_key_and_hashes_never_change():
    assert receipt_key("source", 3) == GOLDEN_KEY
    assert index_hashes(KEY, np.array([0, 1, 2**40])).tolist() == GOLDEN_HASHES


@given(st.lists(st.integers(0, 2**40), unique=True, max_size=50), st.randoms(use_true_random=False))
def test_receipts_add_up_whatever_the_order_and_the_parts(indices, random):
    shuffled = indices[:]
    random.shuffle(shuffled)
    cut = random.randrange(len(indices) + 1)
    parts = [Receipt.of(KEY, np.array(p, np.int64), len(p)) for p in (shuffled[:cut], shuffled[cut:])]
    assert parts[0] + parts[1] == Receipt.of(KEY, np.array(indices, np.int64), len(indices))


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**62), max_size=40))
def test_the_hash_of_a_receipt_is_the_sum_of_its_indices_hashes(key, indices):
    array = np.array(indices, np.int64)
    assert Receipt.of(key, array, 1).hash == sum(index_hashes(key, array).tolist()) % 2**64


def test_no_two_indices_share_a_hash():
    assert len(np.unique(index_hashes(KEY, np.arange(200_000)))) == 200_000


def test_a_missing_a_doubled_and_a_swapped_example_change_the_receipt():
    whole = Receipt.of(KEY, np.arange(100), 100)
    for other in (np.arange(99), np.r_[np.arange(100), 5], np.r_[np.arange(99), 5]):
        assert Receipt.of(KEY, other, 100).hash != whole.hash


def test_trained_twice_counts_twice():
    one = Receipt.of(KEY, np.arange(3), 30)
    twice = one + one
    assert (twice.examples, twice.tokens, twice.hash) == (6, 60, 2 * one.hash % 2**64)
    assert one + Receipt() == one


@pytest.mark.parametrize("values", [(-1, 0, 0), (0, -1, 0), (0, 0, 2**64)])
def test_numbers_out_of_range_are_refused(values):
    with pytest.raises(SamplerError, match=r"receipt\."):
        Receipt(*values)


GOLDEN_KEY = 16926829572651507676
GOLDEN_HASHES = [12324566277472404450, 9261759473306092140, 10588187282946631339]
