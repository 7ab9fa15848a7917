"""The values that are chosen by name, and the limits that formats share, each defined once."""

from __future__ import annotations

SHUFFLES = ("full", "block")
"""How an epoch is ordered: one shuffle of all examples, or of blocks and within windows of some blocks."""
PACKINGS = ("best_fit", "greedy")
"""How an order becomes batches."""
DEALS = ("global", "rank")
"""Who plans: all ranks' steps together, or each rank its own."""
BACKENDS = ("ray_data", "direct")
"""What carries a rank's stream: a Ray Data pipeline, or a thread in the train process."""
OVERSIZE = ("error", "split", "truncate", "drop")
"""What happens to an example that is longer than is allowed."""
IGNORE_INDEX = -100
"""The label of a token that is not trained on, as in PyTorch's cross entropy."""
INT32_MAX = 2**31 - 1
"""The greatest length, offset and number of tokens that formats of raypack hold."""
