"""A Ray of this machine for the tests of one module."""

from contextlib import contextmanager

import ray
from ray import cloudpickle


@contextmanager
def local_ray(*modules, cpus=2, store_mib=300):
    """Start Ray, and end it.

    Args:
        modules: Those whose functions workers get by value, for they do not have the tests on their path.
        cpus: As many as Ray is to believe in.
        store_mib: Size of its object store, MiB.
    """
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    ray.init(num_cpus=cpus, include_dashboard=False, object_store_memory=store_mib << 20, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
