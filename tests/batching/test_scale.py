"""A billion examples: what a restart costs. Run with -m slow."""

import json
import subprocess
import sys

import numpy as np
import pytest

CODE = """
import json, resource, sys, time
import numpy as np
from raypack.batching import LengthTable, StatefulTokenBatchSampler, TokenBatchState
from raypack.batching.warm import warm_planning

state = TokenBatchState.from_dict(json.load(open(sys.argv[2])))
warm_planning(state.options, packing="greedy", shuffle=state.sampler.shuffle)  # as planners begin
begin = time.perf_counter()
table = LengthTable(
    np.load(sys.argv[1], mmap_mode="r"), "known", minimum=1, minimum_index=0, maximum=4096, maximum_index=1
)
batches = StatefulTokenBatchSampler.from_state(state, table)
plan = batches.next_plan()
seconds = time.perf_counter() - begin
with open("/proc/self/status") as status:
    private = next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
print(json.dumps({"seconds": seconds, "private_kib": private, "examples": len(plan)}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", ["full", "block"])
def test_a_billion_rows_at_99_percent_restart_within_a_second(tmp_path, shuffle):
    from raypack.batching import TokenBatchOptions, TokenBatchState
    from raypack.sampling import StatefulShardSampler
    from tests.support.worlds import changed

    rows = 10**9
    path = tmp_path / "lengths.npy"
    piece = np.random.default_rng(0).integers(1, 4097, 10**6).astype(np.int32)
    with open(path, "wb") as file:
        header = {"descr": "<i4", "fortran_order": False, "shape": (rows,)}
        np.lib.format.write_array_header_1_0(file, header)
        for _ in range(rows // len(piece)):
            file.write(piece)
    sampler = StatefulShardSampler("source", rows, seed=3, world_size=8, rank=5, shuffle=shuffle)
    state = changed(sampler.state(), committed=rows // 8 // 100 * 99)
    record = TokenBatchState(sampler=state, lengths_digest="known", options=TokenBatchOptions(4096))
    (tmp_path / "state.json").write_text(json.dumps(record.to_dict()))
    command = [sys.executable, "-c", CODE, str(path), str(tmp_path / "state.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures = json.loads(done.stdout)
    print(figures)
    assert figures["seconds"] < 1
    assert figures["private_kib"] < 500 * 1024
    assert len((tmp_path / "state.json").read_text()) < 4096
