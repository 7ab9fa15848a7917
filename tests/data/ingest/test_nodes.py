"""A path that a node does not see is named before any work, with the node."""

import pytest
import ray
from ray.cluster_utils import Cluster

from raypack.data.ingest.nodes import check_nodes
from raypack.errors import PrepareError

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_nodes_that_do_not_see_a_path_are_named(tmp_path):
    options = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args=options)
    try:
        ray.init(cluster.address, log_to_driver=False)
        check_nodes([str(tmp_path / "nowhere")])
        cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
        cluster.wait_for_nodes()
        check_nodes([str(tmp_path), "memory://nowhere"])
        with pytest.raises(PrepareError, match="some nodes do not see all paths") as caught:
            check_nodes([str(tmp_path), str(tmp_path / "nowhere")])
        for node in ray.nodes():
            assert f"({node['NodeID'][:8]}): {tmp_path}/nowhere" in str(caught.value)
    finally:
        ray.shutdown()
        cluster.shutdown()
