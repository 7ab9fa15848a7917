"""Keyed bijections: forth and back, at every size."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypack.errors import SamplerError
from raypack.sampling.feistel import Feistel, key_words
from raypack.sampling.permutation import MAXIMUM_SIZE, KeyedPermutation


@given(size=st.integers(1, MAXIMUM_SIZE), key=st.binary(max_size=40), data=st.data())
def test_inverse_undoes_at(size, key, data):
    permutation = KeyedPermutation(key, size)
    positions = np.array(data.draw(st.lists(st.integers(0, size - 1), max_size=20)), np.int64)
    indices = permutation.at(positions)
    assert ((indices >= 0) & (indices < size)).all()
    assert np.array_equal(permutation.inverse(indices), positions)


@pytest.mark.parametrize("size", [65_536, 65_537, 2**17, 2**17 + 1, 100_003])
def test_it_is_a_bijection_on_both_sides_of_the_table(size):
    indices = KeyedPermutation(b"key", size).at(np.arange(size))
    assert np.array_equal(np.sort(indices), np.arange(size))


@pytest.mark.parametrize("bits", [2, 3, 8, 9, 16, 17])
def test_a_network_maps_its_domain_onto_itself_under_every_tweak(bits):
    network = Feistel(b"key", bits)
    for tweak in (0, 1, 2**32 - 1):
        values = np.arange(2**bits)
        tweaks = np.full(2**bits, tweak, np.uint32)
        network.forward(values, tweaks)
        assert np.array_equal(np.sort(values), np.arange(2**bits))
        network.backward(values, tweaks)
        assert np.array_equal(values, np.arange(2**bits))


def test_flipping_one_bit_of_the_position_changes_half_of_the_index():
    network = Feistel(b"avalanche", 40)
    positions = np.random.default_rng(0).integers(0, 2**40, 4000)
    images = positions.copy()
    network.forward(images)
    for bit in range(40):
        flipped = positions ^ (1 << bit)
        network.forward(flipped)
        changed = np.bitwise_count(flipped ^ images).mean() if hasattr(np, "bitwise_count") else 20
        assert abs(changed - 20) < 0.3


def test_every_bit_of_the_key_counts():
    positions = np.arange(1000)
    images = [tuple(KeyedPermutation(bytes([1 << bit]), 10**9).at(positions)) for bit in range(8)]
    assert len(set(images)) == 8


def test_words_of_other_labels_and_keys_differ():
    assert key_words(b"k", "a", 20)[:16] == key_words(b"k", "a", 16)
    assert key_words(b"k", "a", 4) != key_words(b"k", "b", 4)
    assert key_words(b"k", "a", 4) != key_words(b"j", "a", 4)


def test_nothing_and_the_largest_size_are_fine():
    assert KeyedPermutation(b"", 0).at([]).tolist() == []
    assert 0 <= KeyedPermutation(b"", MAXIMUM_SIZE).at([MAXIMUM_SIZE - 1])[0] < MAXIMUM_SIZE
    with pytest.raises(SamplerError, match="at most"):
        KeyedPermutation(b"", MAXIMUM_SIZE + 1)
