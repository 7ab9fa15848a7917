"""Keyed bijections: forth and back, at every size."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypack.errors import SamplerError
from raypack.sampling.blocks import BlockPermutation
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
        tweaks = np.full(2**bits, tweak, np.uint32)
        images = network.images(np.arange(2**bits), 2**bits, tweaks=tweaks)
        assert np.array_equal(np.sort(images), np.arange(2**bits))
        back = network.images(images, 2**bits, tweaks=tweaks, backward=True)
        assert np.array_equal(back, np.arange(2**bits))


def test_flipping_one_bit_of_the_position_changes_half_of_the_index():
    network = Feistel(b"avalanche", 40)
    positions = np.random.default_rng(0).integers(0, 2**40, 4000)
    images = network.images(positions, 2**40)
    for bit in range(40):
        flipped = network.images(positions ^ (1 << bit), 2**40)
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


def plain_image(value, size, keys, tweak, backward=False):
    """The network and its cycle walking in Python's integers."""
    (left_bits, right_bits), *pairs = keys.tolist()
    rounds = list(enumerate(pairs))
    while True:
        left, right = value >> right_bits, value & (1 << right_bits) - 1
        for number, (factor, term) in reversed(rounds) if backward else rounds:
            mixed = ((left if number % 2 else right) * factor + term + tweak) % 2**32
            mixed = (mixed ^ mixed >> 16) * 0x9E3779B1 % 2**32
            if number % 2:
                right ^= mixed >> 32 - right_bits
            else:
                left ^= mixed >> 32 - left_bits
        value = left << right_bits | right
        if value < size:
            return value


@given(bits=st.integers(2, 62), key=st.binary(max_size=9), data=st.data())
def test_networks_are_those_of_plain_integers(bits, key, data):
    network, size = Feistel(key, bits), data.draw(st.integers(2 ** (bits - 1) + 1, 2**bits))
    positions = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=9))
    tweaks = data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=len(positions), max_size=len(positions)))
    for backward in (False, True):
        images = network.images(positions, size, tweaks=np.array(tweaks, np.uint32), backward=backward)
        pairs = zip(positions, tweaks, strict=True)
        assert images.tolist() == [plain_image(p, size, network.keys, tweak, backward) for p, tweak in pairs]


@pytest.mark.parametrize("size", [70_000, 2**40 + 1])
@pytest.mark.parametrize("place", [0, 1023, 1024, 3000])
@pytest.mark.parametrize("wrong", [-1, "size", 2**62, -(2**63)])
@pytest.mark.parametrize("kind", [KeyedPermutation, BlockPermutation])
def test_a_position_out_of_range_is_named_wherever_it_stands(kind, size, place, wrong):
    positions = np.arange(3001)
    positions[place] = size if wrong == "size" else wrong
    with pytest.raises(SamplerError, match=rf"positions must be in \[0, {size}\), got {positions[place]}$"):
        kind(b"key", size).at(positions)
    with pytest.raises(SamplerError, match=f"got {2**63 + 5}$"):
        kind(b"key", size).at(np.array([3, 2**63 + 5], np.uint64))
