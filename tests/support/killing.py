"""A spot node that vanishes: one train worker of a run is killed, once the run has a checkpoint."""

import threading
import time
from contextlib import contextmanager

import psutil

PATIENCE_S = 180


def has_checkpoint(run):
    """Whether a run that starts again goes on from a checkpoint."""
    states = list(run.glob("step_*/raypack/state.json"))
    return bool(states) and (run / "checkpoint_manager_snapshot.json").exists()


def kill_a_worker(above):
    """Kill one train worker among the processes that a process has started; return whether there was one."""
    for process in psutil.Process(above).children(recursive=True):
        try:
            if "RayTrainWorker" in " ".join(process.cmdline()):
                process.kill()
                return True
        except psutil.NoSuchProcess:
            continue
    return False


@contextmanager
def a_worker_killed(run, above):
    """Kill one train worker of a run while the block runs.

    Args:
        run: The run's folder.
        above: Process whose children the workers are.
    """
    ended, killed = threading.Event(), []

    def watch():
        ends = time.monotonic() + PATIENCE_S
        while not killed and not ended.is_set() and time.monotonic() < ends:
            if has_checkpoint(run) and kill_a_worker(above):
                killed.append(True)
            time.sleep(0.05)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert killed, "the run ended before a worker could be killed"
