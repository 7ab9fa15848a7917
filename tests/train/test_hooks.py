"""A whole run in which Ray Train's controller calls every hook of the callback: what each did, and its logs.

One worker; the first checkpoint is damaged on the storage before it is read again; the run is resized to two
workers; one of them is killed; the run goes on to its end.
"""

import json

import pytest

from raypack.audit import verify
from raypack.source import write_source
from raypack.train import callback
from tests.conftest import documents_table, long_tailed
from tests.support import failing_storage, running, witness
from tests.support.local_ray import local_ray
from tests.support.session_logs import SessionLogs

pytestmark = pytest.mark.ray

DAMAGED = r"cannot be resumed from: .*state\.json"
KILLED = r"WorkerGroupError|WorkerDiedError|ActorDiedError|Connection closed by peer|SYSTEM_ERROR"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The lines that the callback wrote down, the logs, the audit and the worlds with their first steps."""
    place = tmp_path_factory.mktemp("hooks")
    source = write_source(str(place / "source"), [documents_table(long_tailed(12_000, seed=7))])
    storage = failing_storage.failing_storage(place / "orders")
    failing_storage.damage(place / "orders", "state.json")
    with local_ray(witness, failing_storage, cpus=running.CPUS):
        logs = SessionLogs()
        result = running.fit(
            witness.train,
            place,
            running.recipe_of(source),
            (1, 2),
            name="hooks",
            failures=1,
            scaling={"elastic_resize_monitor_interval_s": 1.0},
            run={"callbacks": [witness.Witness(str(place))], "storage_filesystem": storage},
            expected=(DAMAGED, KILLED),
        )
        text, found = logs.text(), logs.unexpected((KILLED,))
    assert result.metrics["done"]
    lines = [json.loads(line) for line in (place / "hooks.jsonl").read_text().splitlines()]
    starts = [tuple(map(int, line.split())) for line in (place / "starts").read_text().splitlines()]
    return lines, text, found, verify(place / "storage/hooks"), starts


def of(lines, hook):
    return [line for line in lines if line["hook"] == hook]


def test_every_hook_is_called_by_rays_controller_in_its_turn(run):
    lines = run[0]
    assert len(callback._needed) == 7
    assert "RunningState" in {line["state"] for line in of(lines, "state")}
    order = [line["hook"] for line in lines if line["hook"] not in ("report", "state")]
    assert order == [
        *("controller start", "resize", "start"),
        *("resize", "shutdown", "start"),
        *("failure", "resize", "shutdown", "start"),
        "shutdown",
    ]
    assert [line["workers"] for line in of(lines, "start")] == [1, 2, 2]
    assert all(line["forgotten"] for line in of(lines, "shutdown"))
    assert of(lines, "failure")[0]["failed"]


def test_a_save_before_a_resize_is_counted_and_its_wait_recorded_and_logged(run):
    lines, text, _, _, _ = run
    first, planned, restart = of(lines, "resize")
    assert (first["resizes"], restart["resizes"]) == ([], [])  # no workers yet, and none left
    ((workers, outcome, waited_s),) = planned["resizes"]
    assert (workers, outcome, planned["saves"]) == (2, "saved", 1)
    assert waited_s > 0
    assert f"before the resize to 2 workers: saved; the resize waited {waited_s:.2f} s" in text
    saves = [line for line in of(lines, "report") if "raypack_saved_for" in line]
    assert [line["raypack_saved_for"] for line in saves] == ["resize"]


def test_a_resize_loses_no_step_and_the_run_is_whole(run):
    lines, _, _, audit, starts = run
    assert audit.ok, audit.findings
    assert audit.epochs[0].complete
    (saved,) = [k for k, line in enumerate(lines) if line.get("raypack_saved_for")]
    assert [world for world, _ in starts] == [1, 2, 2]
    at_resize, at_restart = starts[1][1], starts[2][1]
    assert at_resize > lines[saved]["step"] + 1 or at_resize % 8 == 0  # the step it was saved at
    assert at_restart >= at_resize
    assert [attempt.first_step for attempt in audit.attempts[:2]] == [0, at_resize]


def test_a_checkpoint_that_is_damaged_on_storage_is_reported_as_an_error_by_its_file(run):
    lines, text, found, _, _ = run
    damaged = of(lines, "report")[0]["path"]
    assert all("cannot be resumed from" in entry for entry in found)
    assert any(damaged.rsplit("/", 1)[1] in entry and "state.json" in entry for entry in found)
    assert "ERROR callback.py: the checkpoint cannot be resumed from" in text
    for line in of(lines, "report")[1:]:
        assert f"verified {line['path']}: step" in text
