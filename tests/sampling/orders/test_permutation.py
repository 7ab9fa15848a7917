"""Keyed bijections: forth and back, at every size."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypack.errors import SamplerError
from raypack.sampling.orders.block_permutation import BlockPermutation
from raypack.sampling.orders.feistel import Feistel, key_words
from raypack.sampling.orders.permutation import MAXIMUM_SIZE, KeyedPermutation


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


def plain_tweak(key, number):
    low, high = key_words(key, "window tweak", 2)
    mixed = (number + (low | high << 32)) % 2**64
    for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        mixed = (mixed ^ mixed >> 30) * factor % 2**64
    return mixed >> 32


def plain_block_image(position, key, size):
    """The block shuffle of one position, slots and windows counted out."""
    last, missing = -(-size // 1024) - 1, -size % 1024
    blocks = KeyedPermutation(b"blocks" + key, last + 1)
    short = int(blocks.inverse([last])[0])

    def start_of(slot):
        return slot * 1024 - (missing if slot > short else 0)

    def as_if_full(place):
        return place + (missing if place >= start_of(short + 1) else 0)

    number = as_if_full(position) >> 16
    start, stop = start_of(64 * number), start_of(min(64 * number + 64, last + 1))
    if number in (short // 64, last // 64):
        table = KeyedPermutation(b"irregular window" + number.to_bytes(8, "little") + key, stop - start)
        inside = int(table.at([position - start])[0])
    else:
        inside = plain_image(
            position - start, 2**16, Feistel(b"window" + key, 16).keys, plain_tweak(key, number)
        )
    slot, offset = divmod(as_if_full(start + inside), 1024)
    return int(blocks.at([slot])[0]) * 1024 + offset


@pytest.mark.parametrize("size", [1024, 65_537, 100 * 1024 + 3, 131_072, 200_001, 10**9 + 7])
@pytest.mark.parametrize("key", [b"a", b"b"])
def test_the_block_shuffle_is_that_of_plain_integers(size, key):
    shuffle = BlockPermutation(key, size)
    short = int(shuffle._blocks.inverse([-(-size // 1024) - 1])[0]) * 1024
    near = [edge + step for edge in (0, 65_536, short, short + 1024, size) for step in (-1025, -1, 0, 1)]
    drawn = np.random.default_rng(size).integers(0, size, 9).tolist()
    positions = [position for position in near + drawn if 0 <= position < size]
    expected = [plain_block_image(position, key, size) for position in positions]
    assert shuffle.at(positions).tolist() == expected
