"""The epoch's order: the same for ever, a bijection, and with nothing to see in it."""

import hashlib
import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypack.errors import SamplerError
from raypack.sampling.orders.epoch_order import EpochOrder

SHUFFLES = ("full", "block")
# (N, shuffle): digest, {position: index}, of seed 2**63 + 11 and epoch 3. They must never change.
GOLDEN = {
    (0, "full"): ("ee8c0def78909cbf353eb16d481ee454", {}),
    (0, "block"): ("680483e634d49656b70962673a0c6bae", {}),
    (1, "full"): ("58d5da3ca925317f055ceef027c5ca55", {0: 0}),
    (1, "block"): ("8a493a9b4d63cc3ac8bd8d5ed398d077", {0: 0}),
    (2, "full"): ("7731b4fad62f92a5a68f3ae3aada73de", {0: 1, 1: 0}),
    (2, "block"): ("beb0d4d09c8013dd3f8667151b1a4d60", {0: 0, 1: 1}),
    (3, "full"): ("5f2a2d2d8ff4de54ac8230ecb1ae6800", {0: 2, 1: 0, 2: 1}),
    (3, "block"): ("08b9660b185ee39c7adf2d68f6e4a80e", {0: 2, 1: 0, 2: 1}),
    (5, "full"): ("e6fa509f6f8eb82afd519e5f46edf3c2", {0: 2, 1: 4, 2: 0, 3: 1, 4: 3}),
    (5, "block"): ("602be84f3cc1ee510e6c6ca1985ba6da", {0: 1, 1: 0, 2: 2, 3: 4, 4: 3}),
    (17, "full"): ("f3740f2162479f8246511c45499c30c1", {0: 4, 1: 8, 2: 14, 5: 12, 8: 9, 15: 1, 16: 0}),
    (17, "block"): ("1dcb30548a1b19eddcf969a150041f08", {0: 14, 1: 15, 2: 5, 5: 9, 8: 0, 15: 16, 16: 7}),
    (1000, "full"): (
        "7400ec188f2d2dcd569e865f8b8e4501",
        {0: 701, 1: 54, 2: 23, 333: 607, 500: 667, 998: 738, 999: 141},
    ),
    (1000, "block"): (
        "743865b7e279cc58235d86de15fb51c0",
        {0: 75, 1: 311, 2: 143, 333: 778, 500: 694, 998: 741, 999: 769},
    ),
    (1048583, "full"): (
        "8ee38d92e0578b3eea0b0505dc4c3c77",
        {0: 422269, 1: 288375, 2: 974309, 349527: 282292, 524291: 472754, 1048581: 513893, 1048582: 899111},
    ),
    (1048583, "block"): (
        "23a92d0eab17f2c00b5abf06c96de083",
        {0: 54510, 1: 755408, 2: 661837, 349527: 518336, 524291: 675212, 1048581: 289344, 1048582: 288972},
    ),
    (1000000007, "full"): (
        "a030aabc0640b96d555d1f4a753eac25",
        {
            0: 344014074,
            1: 694197350,
            2: 336618475,
            333333335: 763274439,
            500000003: 398583283,
            1000000005: 935718815,
            1000000006: 855441410,
        },
    ),
    (1000000007, "block"): (
        "193f64e39b2f9c400dd374ec695638ee",
        {
            0: 235735278,
            1: 935857872,
            2: 403285325,
            333333335: 504114749,
            500000003: 807331904,
            1000000005: 661775937,
            1000000006: 527371192,
        },
    ),
}


@pytest.mark.parametrize(("length", "shuffle"), GOLDEN)
def test_the_order_is_the_one_that_checkpoints_were_made_with(length, shuffle):
    digest, places = GOLDEN[length, shuffle]
    order = EpochOrder(length, seed=2**63 + 11, epoch=3, shuffle=shuffle)
    assert order.at(list(places)).tolist() == list(places.values())
    assert order.digest() == digest


def test_a_digest_covers_a_thousand_positions_of_a_billion():
    order = EpochOrder(10**9 + 7, seed=2**63 + 11, epoch=3)
    positions = [number * (10**9 + 6) // 1023 for number in range(1024)]
    text = hashlib.blake2b(order.at(positions).astype("<i8").tobytes(), digest_size=8).hexdigest()
    assert text == "10f9f379b5556022"


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize(
    "length", [0, 1, 2, 3, 64, 1023, 65_535, 65_536, 65_537, 66_560, 66_561, 131_072, 200_001, 2**18 + 1]
)
def test_every_index_comes_once(length, shuffle):
    for seed in (0, 1, 2**64 - 1):
        indices = EpochOrder(length, seed=seed, shuffle=shuffle).slice(0, length)
        assert indices.dtype == np.int64
        assert np.array_equal(np.sort(indices), np.arange(length))


@given(
    length=st.integers(1, 2**62),
    seed=st.integers(0, 2**64 - 1),
    shuffle=st.sampled_from(SHUFFLES),
    data=st.data(),
)
def test_positions_asked_for_alone_or_together_are_the_same(length, seed, shuffle, data):
    order = EpochOrder(length, seed=seed, shuffle=shuffle)
    start = data.draw(st.integers(0, length - 1))
    stop = min(length, start + 50)
    indices = order.slice(start, stop)
    assert ((indices >= 0) & (indices < length)).all()
    assert len(set(indices.tolist())) == stop - start
    backwards = order.at(np.arange(start, stop)[::-1])
    assert np.array_equal(backwards[::-1], indices)
    assert order.at([start]).tolist() == [indices[0]]


def test_no_seed_is_source_order():
    for epoch in (0, 5):
        assert EpochOrder(9, epoch=epoch).slice(2, 9).tolist() == [2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_an_order_survives_pickling(shuffle):
    order = EpochOrder(100_000, seed=5, epoch=2, shuffle=shuffle)
    again = pickle.loads(pickle.dumps(order))
    assert again == order
    assert np.array_equal(again.slice(0, 100), order.slice(0, 100))
    assert len(pickle.dumps(order)) < 1000


@pytest.mark.parametrize("length", [3, 4])
def test_every_order_of_a_few_examples_is_equally_frequent_over_seeds(length):
    orders = [tuple(EpochOrder(length, seed=seed).slice(0, length).tolist()) for seed in range(6000)]
    counts = [orders.count(order) for order in itertools.permutations(range(length))]
    expected = len(orders) / len(counts)
    chi_square = sum((count - expected) ** 2 / expected for count in counts)
    assert chi_square < {3: 20.5, 4: 49.7}[length]  # p = 0.001


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("length", [1000, 70_000, 131_072, 10**6, 10**9])
def test_indices_are_uniform_over_the_source(length, shuffle):
    count = min(length, 200_000)
    start = (length - count) // 2
    indices = EpochOrder(length, seed=9, shuffle=shuffle).slice(start, start + count)
    if shuffle == "block":
        # Any stretch of the order touches few blocks: judge the blocks' places and the offsets inside.
        indices = indices % 1024
        length = 1024
    found = np.histogram(indices, bins=50, range=(0, length))[0]
    expected = np.diff(np.ceil(np.linspace(0, length, 51))) / length * count
    assert ((found - expected) ** 2 / expected).sum() < 94  # 49 degrees of freedom, p = 0.0001


@pytest.mark.parametrize("length", [1000, 70_000, 131_073, 10**6, 10**9])
@pytest.mark.parametrize("other", [{"seed": 8}, {"epoch": 1}, {"seed": 6, "epoch": 1}])
def test_orders_of_other_epochs_and_seeds_have_nothing_in_common(length, other):
    positions = np.arange(min(length, 50_000))
    one = EpochOrder(length, seed=7).at(positions)
    two = EpochOrder(length, **{"seed": 7, **other}).at(positions)
    assert (one == two).sum() < 12  # 1 expected at the most
    assert abs(np.corrcoef(one, two)[0, 1]) < 5 / np.sqrt(len(positions))


@pytest.mark.parametrize("length", [1000, 70_000, 131_073, 10**6, 10**9])
def test_neighbours_in_the_order_are_no_neighbours_in_the_source(length):
    indices = EpochOrder(length, seed=3).slice(0, min(length, 100_000))
    for lag in (1, 2, 3, 256, 512):
        assert abs(np.corrcoef(indices[:-lag], indices[lag:])[0, 1]) < 5 / np.sqrt(len(indices) - lag)
    steps = np.diff(indices)
    assert np.unique(steps).size > 0.3 * min(len(steps), length)


def test_low_and_high_bits_of_indices_are_balanced():
    indices = EpochOrder(2**20 - 3, seed=12).slice(0, 200_000)
    for bit in range(20):
        ones = int(((indices >> bit) & 1).sum())
        assert abs(ones - 100_000) < 5 * np.sqrt(50_000)


def test_the_order_of_seed_and_epoch_is_no_function_of_their_sum():
    one = EpochOrder(100, seed=1, epoch=0).slice(0, 100)
    two = EpochOrder(100, seed=0, epoch=1).slice(0, 100)
    assert not np.array_equal(one, two)


def test_a_block_shuffle_reads_the_source_in_runs():
    order = EpochOrder(10**9, seed=4, shuffle="block")
    blocks = np.unique(order.slice(5 * 65_536, 6 * 65_536) // 1024)
    assert len(blocks) <= 65
    assert np.diff(np.sort(blocks)).max() > 1000


def test_the_short_block_lies_anywhere_in_the_order():
    places = set()
    for seed in range(40):
        indices = EpochOrder(100 * 1024 + 3, seed=seed, shuffle="block").slice(0, 100 * 1024 + 3)
        places.add(int(np.flatnonzero(indices >= 100 * 1024)[0]) // 65_536)
    assert places == {0, 1}


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"length": -1}, SamplerError),
        ({"length": 2**62 + 1}, SamplerError),
        ({"length": 3.0}, TypeError),
        ({"length": True}, TypeError),
        ({"length": 3, "seed": -1}, SamplerError),
        ({"length": 3, "seed": 2**64}, SamplerError),
        ({"length": 3, "epoch": -1}, SamplerError),
        ({"length": 3, "epoch": None}, TypeError),
        ({"length": 3, "shuffle": "best"}, SamplerError),
    ],
)
def test_an_order_checks_itself(fields, fault):
    with pytest.raises(fault):
        EpochOrder(**fields)


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize(
    ("positions", "fault"),
    [
        ([-1], SamplerError),
        ([10], SamplerError),
        ([0.5], TypeError),
        ([True], TypeError),
        ([[1]], SamplerError),
    ],
)
def test_positions_out_of_range_or_of_another_type_are_refused(seed, positions, fault):
    with pytest.raises(fault):
        EpochOrder(10, seed=seed).at(positions)


def test_numpy_integers_are_integers():
    order = EpochOrder(np.int32(10), seed=np.uint64(2**64 - 1), epoch=np.int8(1))
    assert order == EpochOrder(10, seed=2**64 - 1, epoch=1)
    assert order.at(np.array([3], np.uint8)).dtype == np.int64
