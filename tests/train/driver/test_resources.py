"""What a run needs of a cluster: told with numbers and a remedy before anything starts."""

import re
from dataclasses import replace

import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st
from ray.train import DataConfig, RunConfig, ScalingConfig
from ray.train.v2._internal.execution.context import TrainRunContext
from ray.train.v2._internal.execution.controller.state import (
    InitializingState,
    ReschedulingState,
    RestartingState,
    RunningState,
    SchedulingState,
)

from raypack.errors import ResourceError
from raypack.train import PackedData, PackedDataConfig, RaypackCallback
from raypack.train.driver import need, run_resources
from raypack.train.driver.need import Cluster, Need
from raypack.train.driver.resources import check_resources
from raypack.train.driver.run_resources import RunResources


def need_of(workers, backend="ray_data", **more):
    recipe = PackedData(source="/data/source", maximum_tokens=64, backend=backend)
    return Need.of(ScalingConfig(num_workers=workers, **more), [recipe])


def cluster_of(*nodes):
    """A cluster of nodes, each its CPUs or its resources."""
    return Cluster(tuple(node if isinstance(node, dict) else {"CPU": float(node)} for node in nodes))


GPU_NODE = {"CPU": 8.0, "GPU": 4.0, "accelerator_type:A100": 1.0}
FITS = [
    (need_of(2), cluster_of(3)),
    (need_of(2), cluster_of(1, 1, 1)),  # the readers run on the third node
    (need_of(2, "direct"), cluster_of(2)),
    (need_of(4, use_gpu=True), cluster_of(GPU_NODE)),
    (need_of(4, use_gpu=True, accelerator_type="A100"), cluster_of(2, GPU_NODE)),
    (need_of((1, 3)), cluster_of(1.5)),
    (need_of((2, 4), resources_per_worker={"CPU": 0.5}), cluster_of(2, 1)),
    (need_of(10, resources_per_worker={"CPU": 0.3}), cluster_of(6)),
    (need_of(2, "direct", placement_strategy="STRICT_PACK"), cluster_of(1, 2)),
    (need_of(2, "direct", placement_strategy="STRICT_SPREAD"), cluster_of(1, 1)),
    (need_of(2, "direct", resources_per_worker={"CPU": 1, "disk": 2}), cluster_of({"CPU": 2.0, "disk": 4.0})),
]
FAULTS = [
    (need_of(8), cluster_of(2), r"got num_workers=8 of \{'CPU': 1\} each: .*2 CPUs on 1 node has room for 2"),
    (need_of(2, "direct"), cluster_of(1), r"Take resources_per_worker=\{'CPU': 0.5\}, or num_workers=1"),
    (
        need_of(2, "direct", resources_per_worker={"CPU": 3}),
        cluster_of(2, 2, 2),
        r"6 CPUs on 3 nodes has room for 0 \(no node has more than 2 CPU\). .*'CPU': 2.0\}, or more nodes",
    ),
    (
        need_of(1, use_gpu=True),
        cluster_of(8),
        r"\{'GPU': 1\} each: .*no node has more than 0 GPU\). Take more nodes",
    ),
    (need_of((3, 5), "direct"), cluster_of(2), r"num_workers=\(3, 5\).*room for 2. Take .*'CPU': 0.66"),
    (
        need_of(2, placement_strategy="STRICT_PACK"),
        cluster_of(1, 1),
        "can hold on one node, got .*room for 1",
    ),
    (
        need_of(2, placement_strategy="STRICT_SPREAD"),
        cluster_of(4),
        "can hold on a node each, got .*room for 1",
    ),
    (
        need_of(2),
        cluster_of(2),
        r"leave 0.25 CPU each for their readers, got 2 workers that reserve 2 of 2 CPUs on 1 node. "
        r"Take resources_per_worker=\{'CPU': 0.75\}, or num_workers=1, or more nodes, or backend='direct'",
    ),
    (
        need_of((1, 8)),
        cluster_of(4),
        r"got 4 workers that reserve 4 of .*Take num_workers=\(1, 3\), or more",
    ),  # as many as fit
    (need_of(1), cluster_of(), "0 CPUs on 0 nodes has room for 0"),
]


@pytest.mark.parametrize(("asked", "cluster"), FITS)
def test_what_fits_is_let_through(asked, cluster):
    assert asked.fault(cluster) is None


@pytest.mark.parametrize(("asked", "cluster", "message"), FAULTS)
def test_what_never_fits_is_named_with_numbers_and_what_would_fit(asked, cluster, message):
    fault = asked.fault(cluster)
    assert fault is not None
    assert re.search(message, fault), fault


@given(
    cpus=st.lists(st.integers(1, 64), min_size=1, max_size=4),
    workers=st.integers(1, 40),
    share=st.integers(1, 32),
    backend=st.sampled_from(["ray_data", "direct"]),
    strategy=st.sampled_from(["PACK", "STRICT_PACK", "STRICT_SPREAD"]),
)
def test_each_remedy_that_is_named_starts(cpus, workers, share, backend, strategy):
    cluster = cluster_of(*(n / 4 for n in cpus))
    more = {"placement_strategy": strategy, "resources_per_worker": {"CPU": share / 4}}
    fault = need_of(workers, backend, **more).fault(cluster) or ""
    if found := re.search(r"resources_per_worker=\{'CPU': ([\d.]+)\}", fault):
        smaller = {**more, "resources_per_worker": {"CPU": float(found[1])}}
        assert need_of(workers, backend, **smaller).fault(cluster) is None
    if found := re.search(r", or num_workers=(\d+)|Take num_workers=(\d+)", fault):
        assert need_of(int(found[1] or found[2]), backend, **more).fault(cluster) is None


def test_a_scaling_config_of_another_kind_is_refused_by_its_type():
    with pytest.raises(TypeError, match=r"scaling_config must be a ray\.train\.ScalingConfig, got dict"):
        PackedData(source="/data/source", maximum_tokens=64).check({"num_workers": 2})


def test_local_mode_needs_nothing_and_starts_no_ray():
    PackedData(source="/data/source", maximum_tokens=64).check(ScalingConfig(num_workers=0))
    assert not ray.is_initialized()


# -- clusters that grow ----------------------------------------------------------------------------

NODE = {"NodeID": "a1", "Labels": {"ray.io/node-id": "a1"}}
REPORTS = [  # as Ray's autoscaler writes them
    (b"", False),
    (b"None", False),
    (b'{"autoscaler_report": {"node_type_mapping": {"a1": "node_a1"}}}', False),  # a cluster started by hand
    (b'{"autoscaler_report": {"node_type_mapping": {"a1": "ray.head.default"}}}', True),
    (b'{"autoscaler_report": null}', False),
]


@pytest.mark.parametrize(("report", "grows"), REPORTS)
def test_an_autoscaler_is_known_by_its_report(monkeypatch, report, grows):
    monkeypatch.setattr(need, "_internal_kv_get", lambda key: report)
    assert need._has_autoscaler([NODE]) is grows


def test_an_autoscaler_is_known_by_the_group_of_its_nodes(monkeypatch):
    monkeypatch.setattr(need, "_internal_kv_get", lambda key: None)
    assert need._has_autoscaler([NODE, {**NODE, "Labels": {"ray.io/node-group": "gpu"}}])


def test_where_nodes_may_be_added_the_run_is_warned_and_not_refused(monkeypatch, caplog):
    growing = replace(cluster_of(1), grows=True)
    monkeypatch.setattr(Cluster, "current", classmethod(lambda cls: growing))
    check_resources(need_of(4))
    assert re.search("until the autoscaler adds nodes .*num_workers=4 .* has room for 1", caplog.text)


def test_a_run_under_way_is_told_what_it_waits_for_once_in_a_while_and_goes_on(monkeypatch, caplog):
    nodes = [cluster_of(4), cluster_of(1)]
    monkeypatch.setattr(Cluster, "current", classmethod(lambda cls: nodes[0]))
    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": 4.0})
    watch = RunResources()
    recipe = PackedData(source="/data/source", maximum_tokens=64)
    assert watch.refusal(context_of(3, recipe)) is None
    nodes.pop(0)  # a node is lost
    for state in (SchedulingState(None), RunningState()):
        watch.look(state)
    assert caplog.text == ""
    monkeypatch.setattr(run_resources, "AGAIN_S", 0.0)
    watch.look(RunningState())
    assert caplog.text == ""
    for state in (RestartingState(None), ReschedulingState(None), InitializingState(), SchedulingState(None)):
        caplog.clear()
        watch.look(state)
        assert re.search("nodes to come back .*num_workers=3 .* has room for 1", caplog.text)


def test_the_recipes_of_a_run_are_found_wherever_its_configuration_holds_them(monkeypatch):
    monkeypatch.setattr(Cluster, "current", classmethod(lambda cls: cluster_of(1)))
    recipe = PackedData(source="/data/source", maximum_tokens=64)
    for config, dataset_config in (
        ({"data": {"train": [recipe]}, "lr": 1e-3}, DataConfig()),
        (None, PackedDataConfig({"train": recipe})),
    ):
        assert "for their readers" in str(RunResources().refusal(context_of(1, config, dataset_config)))


def test_the_callback_ends_a_run_that_never_fits_unless_it_is_told_not_to_look(monkeypatch):
    monkeypatch.setattr(Cluster, "current", classmethod(lambda cls: cluster_of(1)))
    context = context_of(3, None)
    with pytest.raises(ResourceError, match=r"num_workers=3 .* has room for 1"):
        RaypackCallback().after_controller_start(context)
    RaypackCallback(check_resources=False).after_controller_start(context)


def test_a_cluster_that_cannot_be_looked_at_ends_no_run(monkeypatch, lenient, caplog):
    def unknown(cls):
        raise KeyError("Resources")

    monkeypatch.setattr(Cluster, "current", classmethod(unknown))
    RaypackCallback().after_controller_start(context_of(3, None))
    assert "raypack's callback failed in after_controller_start; the run goes on" in caplog.text


def context_of(workers, config, dataset_config=None):
    """The context of a run, as Ray Train gives it to callbacks."""
    return TrainRunContext(
        run_config=RunConfig(),
        train_loop_config={"config": config},
        scaling_config=ScalingConfig(num_workers=workers),
        backend_config=None,
        dataset_config=dataset_config or DataConfig(),
    )
