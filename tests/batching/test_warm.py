"""What is warm compiles nothing more, whatever array the lengths come in."""

import subprocess
import sys

import pytest

CODE = """
import sys
import numpy as np
from raypack.batching import *
from raypack.batching.warm import in_background, warm_planning, warm_receipts
from raypack.sampling import StatefulShardSampler
from raypack.sampling.receipt import Receipt

packing, layout, shuffle, folder = sys.argv[1:]
options = TokenBatchOptions(64, None, layout)
in_background(lambda: warm_planning(options, packing=packing, shuffle=shuffle))
warm_planning(options, packing=packing, shuffle=shuffle)
warm_receipts()

def compiled():
    modules = [module for name, module in sys.modules.items() if ".kernels." in name]
    kernels = [k for module in modules for k in vars(module).values() if hasattr(k, "signatures")]
    return {kernel.py_func.__name__: len(kernel.signatures) for kernel in kernels}

before = compiled()
lengths = np.random.default_rng(0).integers(1, 65, 70_000).astype(np.int32)
np.save(folder + "/lengths.npy", lengths)
mapped = np.load(folder + "/lengths.npy", mmap_mode="r")
tables = (lengths, lengths.astype(np.int64), lengths.tolist(), mapped)
for table in tables:
    more = {"batches_per_step": 8, "packing": packing, "shuffle": shuffle}
    for seed in (None, 3):
        planner = StepPlanner("s", table, options, seed=seed, **more)
        planner.steps(0, 3)
        planner.state()
    sampler = StatefulShardSampler("s", 70_000, seed=1, shuffle=shuffle, rank=1, world_size=3)
    if packing == "greedy":
        StatefulTokenBatchSampler(sampler, table, options).plans(0, 9)
writable = np.arange(9)
Receipt.of(2**64 - 1, writable, 9)
Receipt.of(0, writable[::2], 9)
assert compiled() == before, (before, compiled())
print(len(before))
"""


@pytest.mark.parametrize(
    ("packing", "layout", "shuffle"),
    [("best_fit", "packed", "full"), ("best_fit", "padded", "full"), ("greedy", "packed", "block")],
)
def test_after_warming_up_nothing_more_is_compiled(packing, layout, shuffle, tmp_path):
    command = [sys.executable, "-c", CODE, packing, layout, shuffle, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 5
