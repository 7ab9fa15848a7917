"""A real Ray head of a test's own, with token authentication, and the job command against it."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent  # not resolved: a virtual environment's own folder
START_S, STOP_S, JOB_S = 120, 60, 300


class Head:
    """A running head: where it is, and how to talk to it."""

    def __init__(self, address, env, pid):
        self.address, self.env, self.pid = address, env, pid

    def job(self, *arguments, **env):
        """Start ``ray job ...`` as a process of its own; its output is one text."""
        return subprocess.Popen(
            [BIN / "ray", "job", arguments[0], "--address", self.address, *arguments[1:]],
            env={**self.env, **env},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def submit(self, *flags, name):
        """Submit the example as its README says, and follow it."""
        options = ("--submission-id", name, "--working-dir", "examples/job")
        return self.job("submit", *options, "--", "python", "train.py", *map(str, flags))


def finish(process, timeout=JOB_S):
    """Wait for a command and return its exit code and output."""
    try:
        output, _ = process.communicate(timeout=timeout)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return process.returncode, output


@contextlib.contextmanager
def running_head(num_cpus):
    """Start a head on ports of its own and end it by its process alone (``ray stop`` ends any Ray)."""
    scratch = Path(tempfile.mkdtemp(prefix="rj-", dir="/tmp"))  # short: Ray puts sockets below it
    (scratch / "token").write_text(secrets.token_hex(32))
    # Explicit on both sides: a head turns authentication on where it finds a token, a client does not.
    env = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(scratch / "token")}
    env["PATH"] = f"{BIN}:{env['PATH']}"  # the job's `python` is the head's
    env["PYTHONPATH"] = str(ROOT)
    env["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] = "0"  # else it waits half a minute for its own tasks
    env.pop("RAY_ADDRESS", None)
    names = ("port", "dashboard-port", "ray-client-server-port", "metrics-export-port")
    names += ("dashboard-agent-listen-port", "dashboard-agent-grpc-port", "runtime-env-agent-port")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    flags = [f"--{name}={port}" for name, port in ports.items()]
    flags += [
        "--min-worker-port=0",
        "--max-worker-port=0",
        f"--num-cpus={num_cpus}",
        f"--temp-dir={scratch / 'r'}",
    ]
    flags += ["--object-store-memory=200000000", "--disable-usage-stats"]
    log = scratch / "head.log"
    with log.open("w") as output:
        head = subprocess.Popen(
            [BIN / "ray", "start", "--head", "--block", *flags], env=env, stdout=output, stderr=output
        )
    try:
        wait_for(ports["dashboard-port"], head, log)
        yield Head(f"http://127.0.0.1:{ports['dashboard-port']}", env, head.pid)
    finally:
        head.send_signal(signal.SIGTERM)
        try:
            head.wait(STOP_S)
        except subprocess.TimeoutExpired:
            head.kill()  # its processes end with it
            raise
        shutil.rmtree(scratch)


def free_ports(count):
    """Return ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def wait_for(port, head, log):
    """Wait until the dashboard answers; a head that ended says why."""
    ends = time.monotonic() + START_S
    while True:
        with socket.socket() as probe:
            if (
                probe.connect_ex(("127.0.0.1", port)) == 0
                and "This command will now block" in log.read_text()
            ):
                return
        assert head.poll() is None, log.read_text()
        assert time.monotonic() < ends, log.read_text()
        time.sleep(0.2)
