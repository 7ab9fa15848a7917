"""A checkpoint that anybody may have written: one story, bounded before it is believed, no call elsewhere."""

import copy
import json
import random
import resource
import time
from dataclasses import replace

import pyarrow.fs as pafs
import pytest
from click.testing import CliRunner

from raypack.audit import recorded_source as opening
from raypack.audit import verify
from raypack.audit.state.reshard import reshard
from raypack.audit.state.show import show
from raypack.batching.steps.planner import StepPlanner
from raypack.checkpoint.reading import read_files, read_state
from raypack.cli import main
from raypack.errors import CheckpointError
from tests.conftest import long_tailed
from tests.support.rank_states import train, write_ranks
from tests.support.state_factory import forge, name_of, run_of, trained, write

LOCAL = pafs.LocalFileSystem()
LONG_S, LARGE_BYTES = 20, 1 << 30


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    from raypack.source import write_source
    from tests.conftest import documents_table

    return write_source(str(tmp_path_factory.mktemp("s") / "source"), [documents_table(long_tailed(150))])


@pytest.fixture
def checkpoint(tmp_path, source):
    state = trained(source, steps=5)
    write(tmp_path / name_of(state), state)
    return tmp_path / name_of(state)


@pytest.fixture
def ranks(tmp_path, source):
    return write_ranks(tmp_path / "ranks", source, *train(source))


def put(values, path, value):
    """Set what lies at a path of keys."""
    for key in path[:-1]:
        values = values[key]
    values[path[-1]] = value


def setting(*changes):
    def change(values):
        for path, value in changes:
            put(values, path, value)
        return values

    return change


def said(checkpoint):
    """What is said of a checkpoint by the audit and, where they refuse it, by the other commands."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    findings = list(verify(checkpoint).findings)
    for command in (show, lambda path: reshard(path, 3)):
        try:
            command(checkpoint)
        except CheckpointError as error:
            findings.append(str(error))
    assert time.monotonic() - began < LONG_S
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < LARGE_BYTES
    return "; ".join(findings)


# -- one story ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([(("plan", "epoch"), 1)], "plan stands at step 5 of epoch 1, the ledger has 0 steps of it"),
        ([(("plan", "epoch"), 10**12)], "the ledger has 0 steps of it and ends in epoch 0"),
        ([(("plan", "cursor", "steps"), 6)], "plan stands at step 6 of epoch 0, the ledger has 5"),
        ([(("plan", "cursor", "batches"), 4)], "cursor must lie 5 steps into the epoch"),
        ([(("plan", "cursor", "batches"), 21)], "StepCursor(steps=5, position=0, batches=21)"),
        ([(("plan", "cursor", "position"), 150), (("plan", "cursor", "batches"), 0)], "position=150"),
        ([(("plan", "seed"), 2)], "order_digest"),
        ([(("plan", "source_length"), 149)], "source: examples must be 149, the plan's, got 150"),
        ([(("source", "fingerprint"), "x")], "source: fingerprint must be"),
        ([(("source", "tokens"), "many")], "source must have a field 'tokens'"),
        ([(("source", "tokens"), 10**9)], "tokens of the source must be"),
        ([(("plan", "batches_per_step"), 0)], "batches_per_step must be at least 1"),
        ([(("ledger", "attempts", 0, "batches_per_step"), 3)], "its steps end at"),
        ([(("ledger", "attempts", 0, "number"), 3)], "attempts must be 0, 1, 2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_plan_a_cursor_or_a_summary_of_another_story_is_named(checkpoint, changes, message):
    forge(checkpoint, "state.json", setting(*changes))
    assert message in said(checkpoint)
    assert not verify(checkpoint).consistent


@pytest.mark.parametrize("steps", [None, 5])
def test_a_plan_at_the_start_of_the_next_epoch_is_right_after_a_whole_epoch_alone(tmp_path, source, steps):
    state = trained(source, steps=steps)
    planner = StepPlanner.from_state(state.plan, source.lengths, state.plan.options)
    planner.start_epoch(1)
    state = replace(state, plan=planner.state())
    audit = verify(run_of(tmp_path, state))
    assert audit.consistent == (steps is None), audit.findings
    if steps:
        assert "it was left after" in audit.findings[0]


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("state.json", [(("plan", "epoch"), 10**12)], "epoch must be 0, that of the ranks"),
        ("state.json", [(("plan", "steps"), 3)], "plan stands at step 3 of epoch 0, the ledger has 4"),
        ("state.json", [(("ledger", "attempts", 0, "world_size"), 2)], "the ranks' records leave is not"),
        ("rank_00001.json", [(("state", "sampler", "committed"), 1)], "the ranks' records leave is not"),
        ("rank_00001.json", [(("state", "sampler", "epoch"), 10**12)], "order_digest"),
        ("rank_00001.json", [(("state", "lengths_digest"), "x")], "must agree in lengths_digest"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_records_of_ranks_of_another_story_are_named(ranks, file, changes, message):
    forge(ranks, file, setting(*changes))
    assert message in said(ranks)
    assert not verify(ranks).consistent


def test_rank_records_at_another_epoch_than_the_ledgers_are_refused(ranks, source):
    from raypack.sampling.orders.epoch_order import EpochOrder

    digest = EpochOrder(len(source), seed=4, epoch=10**12, shuffle="full").digest()
    forge(ranks, "state.json", setting((("plan", "epoch"), 10**12)))
    for rank in range(3):
        sampler = ("state", "sampler")
        changes = [((*sampler, "epoch"), 10**12), ((*sampler, "order_digest"), digest)]
        forge(ranks, f"rank_0000{rank}.json", setting(*changes))
    assert "plan stands at step 4 of epoch 1000000000000, the ledger has 0 steps of it" in said(ranks)


# -- bounds ---------------------------------------------------------------------------------------

HUGE = 10**18
STEPS = [
    (("ledger", "attempts", 0, "steps"), HUGE),
    (("ledger", "epochs", 0, "steps"), HUGE),
    (("plan", "cursor", "steps"), HUGE),
    (("step",), HUGE),
]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (STEPS, "150 examples make no more than as many"),
        ([*STEPS, (("plan", "cursor", "batches"), HUGE)], "150 examples make no more than as many"),
        ([(("plan", "window"), 2**61)], "planned "),
        ([(("plan", "source_length"), 2**61), (("source", "examples"), 2**61)], "tokens must be at least"),
        ([(("ledger", "attempts", 0, "world_size"), 10**12)], ""),
        ([(("ledger", "attempts", 0, "batches_per_step"), HUGE)], "the ledger has 5 steps, its plan 1"),
        ([(("plan", "batches_per_step"), HUGE)], ""),
        ([(("plan", "options", "maximum_tokens"), HUGE)], ""),
        ([(("ledger", "attempts", 0, "options", "maximum_tokens"), HUGE)], "its steps end at"),
        ([(("goal", "epochs"), HUGE)], ""),
        ([(("ledger", "attempts"), [])], "the attempts hold 0 steps, the epochs 5"),
    ],
    ids=str,
)
def test_huge_numbers_of_the_global_deal_are_refused_or_harmless_in_seconds(checkpoint, changes, message):
    forge(checkpoint, "state.json", setting(*changes))
    assert message in said(checkpoint)


def test_attempts_and_epochs_without_a_step_are_refused(checkpoint):
    def many(values):
        first = values["ledger"]["attempts"][0]
        values["ledger"]["attempts"] += [{**first, "number": n, "steps": 0} for n in range(1, 100)]
        return values

    forge(checkpoint, "state.json", many)
    assert "with a step or more each, got number 1 with 0 steps" in said(checkpoint)


def test_a_ledger_of_more_ranks_than_its_source_explains_is_refused(ranks):
    forge(ranks, "state.json", setting((("ledger", "attempts", 0, "world_size"), 10**12)))
    assert "have 1000000000000 data ranks together, more than the" in said(ranks)


def test_a_shard_of_two_to_the_61_is_refused(ranks, source):
    from raypack.sampling.orders.epoch_order import EpochOrder

    size = 2**61
    digest = EpochOrder(size, seed=4, epoch=0, shuffle="full").digest()
    for rank in range(3):
        sampler = ("state", "sampler")
        names = {"source_length": size, "epoch_size": size, "scope_size": size, "order_digest": digest}
        changes = [((*sampler, name), value) for name, value in names.items()]
        changes += [((*sampler, "committed"), size // 3)] * (rank == 0)
        forge(ranks, f"rank_0000{rank}.json", setting(*changes))
    assert "scattered positions of the epoch, more than the 16777216" in said(ranks)


def test_a_head_that_claims_more_than_fits_is_refused_before_it_is_unpacked(ranks):
    forge(ranks, "rank_00000.json", setting((("state", "sampler", "head", "count"), 2**40)))
    assert "the ranks' records hold 1099511627776 scattered positions" in said(ranks)


def test_an_explicit_order_is_no_runs(ranks):
    forge(ranks, "rank_00000.json", setting((("state", "sampler", "order"), {"count": 2**40})))
    assert "must have no explicit order" in said(ranks)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"a": %s}' % (b"9" * 5_000), "holds an integer of 5000 digits"),
        (b'{"a": -%s}' % (b"9" * 21), "holds an integer of 22 digits"),
        (b'{"a": 1e999}', "holds the number '1e999'"),
        (b'{"a": NaN}', "a number that JSON has not (NaN)"),
        (b"[" * 987 + b"]" * 987, "nested at most 32 levels"),
        (b"[" * 100_000, "nested at most 32 levels"),
        (b"[" * 33 + b"]" * 33, "nested at most 32 levels"),
        (b'{"a": [' + b"[]," * 3_000_000 + b"[]]}", "must hold at most 2097152 values"),
        (b'{"a": "\\ud800"}', "text that is no Unicode"),
        (b'{"\\udfff": 1}', "text that is no Unicode"),
        (b"\xff", "is no complete JSON file"),
    ],
    ids=["digits", "negative", "float", "nan", "987", "100000", "33", "many", "half", "key", "bytes"],
)
@pytest.mark.parametrize("file", ["state.json", "manifest.json"])
def test_json_that_no_state_is_is_refused_by_name(checkpoint, file, data, message):
    forge(checkpoint, file, lambda values: data)
    found = said(checkpoint)
    assert message in found
    assert file in found


# -- whatever is changed --------------------------------------------------------------------------

VALUES = [0, -1, 1, 2, 7, 2**31, 2**53, 2**61, 2**63 - 1, 10**18, None, True, 1.5, "", "x", "../y", [], {}]


def places(values, path=()):
    """Give the path of every value inside of some."""
    for key in values if isinstance(values, dict) else range(len(values)):
        yield (*path, key)
        if isinstance(values[key], (dict, list)):
            yield from places(values[key], (*path, key))


def mutated(values, rng):
    """Return values with one to three changes: other values, entries lost, doubled or moved."""
    values = copy.deepcopy(values)
    for _ in range(rng.choice([1, 1, 2, 3])):
        every = [*places(values)]
        path = rng.choice(every)
        kind = rng.choice(["value", "value", "number", "lost", "doubled", "other"])
        holder = values
        for key in path[:-1]:
            holder = holder[key]
        old = holder[path[-1]]
        if kind == "lost":
            del holder[path[-1]]
        elif kind == "doubled" and isinstance(holder, list) and len(holder) < 50:
            holder += [copy.deepcopy(old)] * rng.choice([1, 30])
        elif kind == "number" and type(old) is int:
            holder[path[-1]] = rng.choice([old + 1, old - 1, old * 2, old**2 + 1, old << 40])
        elif kind == "other":
            other = values
            for key in rng.choice(every):
                other = other[key]
            holder[path[-1]] = copy.deepcopy(other)
        else:
            holder[path[-1]] = copy.deepcopy(rng.choice(VALUES))
    return values


@pytest.mark.parametrize("deal", ["global", "rank"])
def test_whatever_is_changed_gives_the_same_state_or_a_refusal_by_name(tmp_path, checkpoint, ranks, deal):
    directory = checkpoint if deal == "global" else ranks
    folder = directory / "raypack"
    rng = random.Random(5)
    whole = {file.name: file.read_bytes() for file in folder.iterdir()}
    state = read_state(LOCAL, str(directory))
    for _ in range(250):
        file = rng.choice(sorted(whole))
        forge(directory, file, lambda values: mutated(values, rng))
        outcome = {}
        for examples in (None, 150):  # offline, and at a resume
            try:
                outcome[examples] = read_state(LOCAL, str(directory), examples=examples)
            except CheckpointError as error:
                outcome[examples] = str(error)
                assert "raypack/" in outcome[examples]
        findings = said(directory)
        if isinstance(outcome[150], str):
            assert findings
        elif not findings:
            assert harmless(outcome[150]) == harmless(state), "a forged state passes as another"
        for name, data in whole.items():
            (folder / name).write_bytes(data)


def harmless(state):
    """Return what of a state decides which examples are trained, were trained and are left."""
    plan, ledger = state.plan, state.ledger
    left = plan.consolidated.sampler if state.deal == "rank" else plan.cursor
    receipts = [(entry.epoch, entry.steps, entry.receipt + entry.refused.receipt) for entry in ledger.epochs]
    order = (plan.source_id, plan.seed, plan.shuffle, plan.packing, plan.source_length, plan.epoch)
    return order, left, plan.steps, receipts


# -- elsewhere ------------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch):
    """The sources that are opened."""
    seen = []

    def watched(path):
        seen.append(str(path))
        raise OSError("this machine calls nobody")

    monkeypatch.setattr(opening, "open_source", watched)
    return seen


@pytest.mark.parametrize(
    "path",
    [
        "s3://stranger/source",
        "http://stranger/source",
        "simplecache::http://stranger/source",
        "fsspec+http://stranger/source",
        "file::http://stranger/source",
    ],
)
def test_a_remote_source_is_not_opened_on_the_checkpoints_word(tmp_path, source, opened, path):
    write(tmp_path / "c", replace(trained(source, steps=3), source_path=path))
    (finding,) = verify(tmp_path / "c").findings
    assert f"the source that the checkpoint names, {path}, lies in another store than the run" in finding
    assert "--source" in finding
    (view,) = show(tmp_path / "c")
    assert "lies in another store than the run" in view.source_fault
    assert "lies in another store than the run" in reshard(tmp_path / "c", 2).source_fault
    for command in (["verify"], ["state", "show"], ["state", "reshard", "--world-size", "2"]):
        CliRunner().invoke(main, [*command, str(tmp_path / "c")])
    assert opened == []
    verify(tmp_path / "c", source=path)
    show(tmp_path / "c", source=path)
    assert opened == [path, path]


@pytest.mark.parametrize(
    ("run", "path", "is_opened"),
    [
        ("s3://bucket/runs/one", "s3://bucket/source", True),
        ("s3://bucket/runs/one", "S3://bucket/source", True),
        ("s3://bucket/runs/one", "s3://other/source", False),
        ("s3://bucket/runs/one", "gs://bucket/source", False),
        ("s3://bucket/runs/one", "s3://bucket/source?endpoint_override=stranger", False),
        ("s3://bucket/runs/one?region=x", "s3://bucket/source?region=x", True),
        ("s3://bucket/runs/one", "s3://key:secret@bucket/source", False),
        ("s3://bucket/runs/one", "/local/source", True),
        ("/local/runs/one", "file:///local/source", True),
        ("/local/runs/one", "FILE:///local/source", True),
        ("/local/s3:/bucket", "s3://bucket/source", False),
    ],
)
def test_a_source_in_the_store_of_its_run_is_opened(opened, run, path, is_opened):
    with pytest.raises(OSError if is_opened else CheckpointError):
        opening.open_recorded(path, run, None)
    assert opened == [path] * is_opened


@pytest.mark.parametrize("name", ["../other", "a/b", "/tmp", "..", ".", "", "a\\b", "a\0b", "\ud800", ["x"]])
def test_a_checkpoints_name_that_leads_elsewhere_is_refused(tmp_path, source, name):
    write(tmp_path / "other", trained(source))
    run = tmp_path / "run"
    run.mkdir()
    snapshot = {"latest_checkpoint_result": {"checkpoint_dir_name": name}}
    (run / "checkpoint_manager_snapshot.json").write_text(json.dumps(snapshot))
    audit = verify(run)
    assert audit.verdict == "fault"
    assert "must name a folder beside it as the last checkpoint" in audit.findings[0]


def test_metrics_of_the_runs_list_may_be_what_no_state_is(tmp_path, source):
    run = run_of(tmp_path, trained(source))
    file = run / "checkpoint_manager_snapshot.json"
    metrics = '"metrics": {"loss": NaN, "big": %s, "text": "\\ud800"}}' % ("9" * 6_000)
    file.write_text(file.read_text()[:-1] + ", " + metrics)
    assert verify(run).ok


@pytest.mark.parametrize("name", ["../x", "a/b", "/tmp", "", "a b"])
def test_a_loaders_name_that_leads_elsewhere_is_refused(checkpoint, name):
    with pytest.raises(CheckpointError, match="name must be"):
        read_files(LOCAL, str(checkpoint), name)


def test_control_characters_in_the_sources_path_never_reach_a_terminal(tmp_path, source):
    write(tmp_path / "c", trained(source, steps=3))
    forge(tmp_path / "c", "state.json", setting((("source_path",), "/x\x1b]0;hello\x07")))
    for command in (["verify"], ["state", "show"]):
        done = CliRunner().invoke(main, [*command, str(tmp_path / "c")])
        assert done.exit_code == 1
        assert "\x1b]" not in done.output
        assert "no control characters" in " ".join(done.output.split())
