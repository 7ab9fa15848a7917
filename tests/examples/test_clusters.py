"""The cluster files are what Ray and KubeRay accept, and fit the example's elastic run.

Nothing is launched: Ray's own code reads both files offline, as ``ray up`` and the autoscaler beside a
KubeRay head do. What KubeRay publishes of its resources is no part of this repository; where its file
`ray-operator/config/crd/bases/ray.io_rayjobs.yaml` is at hand, name it and the job is checked against
it too, unknown fields refused at any depth:

    RAYPACK_RAYJOB_CRD=ray.io_rayjobs.yaml python -m pytest tests/examples/test_clusters.py
"""

import copy
import os
import re
import shlex

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
from ray.autoscaler._private.util import prepare_config, validate_config

from tests.support.head import ROOT

CRD = os.environ.get("RAYPACK_RAYJOB_CRD")
JOB_FIELDS = {
    "entrypoint",
    "runtimeEnvYAML",
    "backoffLimit",
    "shutdownAfterJobFinishes",
    "ttlSecondsAfterFinished",
    "rayClusterSpec",
}
CLUSTER_FIELDS = {
    "rayVersion",
    "authOptions",
    "enableInTreeAutoscaling",
    "autoscalerOptions",
    "headGroupSpec",
    "workerGroupSpecs",
}
GROUP_FIELDS = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}


@pytest.fixture
def cluster():
    return yaml.safe_load((ROOT / "cluster.yaml").read_text())


@pytest.fixture
def documents():
    return {one["kind"]: one for one in yaml.safe_load_all((ROOT / "examples/job/rayjob.yaml").read_text())}


@pytest.fixture
def job(documents):
    return documents["RayJob"]


def flags_of(command, example):
    """Parse a command line of the example with its own parser."""
    return example.parser().parse_args(shlex.split(command.partition("train.py")[2]))


def submitted(text):
    """Return the command that a file's comments tell its reader to submit."""
    words = re.sub(r"^# *", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    return next(
        line for line in words.splitlines() if line.lstrip().startswith("RAY_AUTH_MODE=token ray job")
    )


# -- the cluster launcher --------------------------------------------------------------------------


def test_ray_accepts_the_cluster_file_as_ray_up_does(cluster):
    validate_config(prepare_config(copy.deepcopy(cluster)))


def test_the_cluster_names_all_that_a_launch_needs(cluster):
    assert cluster["provider"]["type"] == "aws"
    assert cluster["cluster_name"]
    assert cluster["head_node_type"] in cluster["available_node_types"]
    for kind in cluster["available_node_types"].values():
        assert kind["node_config"]["InstanceType"]
        assert kind["node_config"]["ImageId"].startswith("ami-")
        assert kind["min_workers"] <= kind["max_workers"] <= cluster["max_workers"]


def test_the_workers_are_spot_nodes_with_gpus_for_the_runs_largest_size(cluster, example):
    flags = flags_of(submitted((ROOT / "cluster.yaml").read_text()), example)
    kinds = cluster["available_node_types"]
    workers = [kind for name, kind in kinds.items() if name != cluster["head_node_type"]]
    assert flags.gpu
    assert sum(kind["max_workers"] * kind["resources"]["GPU"] for kind in workers) == flags.workers[1]
    assert sum(kind["max_workers"] for kind in workers) == cluster["max_workers"]
    for kind in workers:
        assert kind["min_workers"] in (0, 1)
        assert kind["node_config"]["InstanceMarketOptions"]["MarketType"] == "spot"


def test_every_path_of_the_job_is_mounted_on_every_node(cluster, example):
    flags = flags_of(submitted((ROOT / "cluster.yaml").read_text()), example)
    assert "-v /shared:/shared" in cluster["docker"]["run_options"]
    assert any(
        "mount -t nfs4" in command and command.endswith(" /shared")
        for command in cluster["initialization_commands"]
    )
    for path in (flags.source, flags.storage):
        assert path.startswith("/shared/")


def test_head_and_workers_start_with_one_environment(cluster):
    head, worker = cluster["head_start_ray_commands"][-1], cluster["worker_start_ray_commands"][-1]
    exported = [re.search(r"export ([^;]*);", command).group(1) for command in (head, worker)]
    assert exported[0] == exported[1]
    for setting in ("RAY_AUTH_MODE=token", "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S=25"):
        assert setting in exported[0].split()
    assert "--autoscaling-config" in head
    assert "$RAY_HEAD_IP" in worker


def test_raypack_is_installed_of_the_mounted_sources(cluster):
    assert cluster["file_mounts"]["/home/ray/raypack"] == "."
    assert any(
        command.startswith("pip install") and "/home/ray/raypack" in command
        for command in cluster["setup_commands"]
    )


# -- KubeRay ---------------------------------------------------------------------------------------


def test_the_job_has_the_fields_that_kuberay_knows_and_no_others(job):
    spec = job["spec"]
    assert job["apiVersion"] == "ray.io/v1"
    assert len(job["metadata"]["name"]) <= 47  # KubeRay's limit
    assert set(spec) == JOB_FIELDS
    assert set(spec["rayClusterSpec"]) == CLUSTER_FIELDS
    assert set(spec["rayClusterSpec"]["headGroupSpec"]) == {"rayStartParams", "template"}
    for group in spec["rayClusterSpec"]["workerGroupSpecs"]:
        assert set(group) == GROUP_FIELDS
    assert isinstance(spec["entrypoint"], str)
    assert isinstance(spec["runtimeEnvYAML"], str)
    assert spec["rayClusterSpec"]["autoscalerOptions"]["version"] in ("v1", "v2")


def test_rays_own_autoscaler_reads_the_jobs_cluster(job):
    cluster = {"metadata": {"name": "job", "namespace": "default"}, "spec": job["spec"]["rayClusterSpec"]}
    config = _derive_autoscaling_config_from_ray_cr(cluster)
    group = config["available_node_types"]["gpu"]
    assert (group["min_workers"], group["max_workers"]) == (1, 4)
    assert group["resources"] == {"CPU": 4, "GPU": 1, "memory": 16 << 30}


def test_the_replicas_hold_the_runs_smallest_and_largest_size(job, example):
    least, most = flags_of(job["spec"]["entrypoint"], example).workers
    groups = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert job["spec"]["rayClusterSpec"]["enableInTreeAutoscaling"]
    assert sum(group["minReplicas"] for group in groups) <= least
    assert sum(group["maxReplicas"] for group in groups) >= most
    for group in groups:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_head_and_workers_mount_the_claimed_volume_where_the_job_looks(documents, job, example):
    flags = flags_of(job["spec"]["entrypoint"], example)
    claim = documents["PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        claims = {one["name"]: one["persistentVolumeClaim"]["claimName"] for one in pod["volumes"]}
        (container,) = pod["containers"]
        (mount,) = container["volumeMounts"]
        assert claims[mount["name"]] == claim["metadata"]["name"]
        for path in (flags.source, flags.storage):
            assert path.startswith(f"{mount['mountPath']}/")


def test_the_runtime_environment_is_yaml_that_ray_accepts(job):
    from ray.runtime_env import RuntimeEnv

    runtime_env = RuntimeEnv(**yaml.safe_load(job["spec"]["runtimeEnvYAML"]))
    assert runtime_env.env_vars()["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] == "25"


def test_both_files_run_the_ray_that_raypack_is_tested_with(cluster, job):
    import ray

    assert job["spec"]["rayClusterSpec"]["rayVersion"] == ray.__version__
    assert f"rayproject/ray:{ray.__version__}-" in cluster["docker"]["image"]
    assert f"rayproject/ray:{ray.__version__}-" in (ROOT / "examples/job/README.md").read_text()


@pytest.mark.skipif(CRD is None, reason="RAYPACK_RAYJOB_CRD names no published schema")
def test_the_job_is_what_kuberays_published_schema_accepts(job):
    with open(CRD, encoding="utf-8") as file:
        versions = {one["name"]: one for one in yaml.safe_load(file)["spec"]["versions"]}
    schema = closed(versions["v1"]["schema"]["openAPIV3Schema"])
    jsonschema.validate(job, schema)
    misspelt = copy.deepcopy(job)
    misspelt["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["maxReplica"] = 4
    with pytest.raises(jsonschema.ValidationError, match="maxReplica"):
        jsonschema.validate(misspelt, schema)


def closed(schema):
    """Return a schema that refuses the fields it does not name, as the API server does when it is strict."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    whole = {name: closed(value) for name, value in schema.items()}
    if "properties" in whole and not whole.get("x-kubernetes-preserve-unknown-fields"):
        whole.setdefault("additionalProperties", False)
    return whole
