"""What shows that a batch was trained: a gradient that reached its loss, however the loop is written."""

import gc
import weakref
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

from raypack.batching.steps.planner import StepPlanner
from raypack.checkpoint.reading import read_state
from raypack.collate.loss import next_token_loss_sum
from raypack.errors import LoaderError
from raypack.train import PackedData
from raypack.train.receipt_accumulator import entry_of
from tests.conftest import long_tailed
from tests.support.local_run import LOCAL, Attempt, patch
from tests.train.test_step import KEY, receipt_of, row, step

VOCABULARY = 11


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tokens = torch.nn.Embedding(VOCABULARY, 8)
        self.head = torch.nn.Linear(8, VOCABULARY)

    def forward(self, batch):
        return self.head(torch.tanh(self.tokens(batch.input_ids)))


class Checkpointed(Model):
    """Its head is computed again in the backward pass."""

    def __init__(self, use_reentrant):
        super().__init__()
        self.use_reentrant = use_reentrant

    def forward(self, batch):
        return checkpoint(
            self.head, torch.tanh(self.tokens(batch.input_ids)), use_reentrant=self.use_reentrant
        )


def step_of(*documents):
    """A step of micro-batches of such documents."""
    documents = documents or ((0, 1), (2,), (5, 7))
    return step([row(k, indices=held) for k, held in enumerate(documents)])


def committed(one):
    """Commit a step and return what it adds to the ledger."""
    ended = []
    one._on_commit = lambda step: ended.append(entry_of(KEY, [step.trained()]))
    one.commit()
    return ended[0]


def observed(one):
    entry = committed(one)
    return entry.observed, entry.batches


# -- the same wherever the backward pass goes -------------------------------------------------------


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def plain(model, one):
    for batch in one:
        one.loss(model(batch), batch).backward()


def scaled(model, one):
    for batch in one:
        (one.loss(model(batch), batch) * 2.0**16).backward()


def divided(model, one):
    for batch in one:
        (one.loss(model(batch), batch) / one.micro_batches).backward()


def summed(model, one):
    sum(one.loss(model(batch), batch) for batch in one).backward()


def last_first(model, one):
    for batch in reversed(list(one)):
        one.loss(model(batch), batch).backward()


def logged_too(model, one):
    for batch in one:
        logits = model(batch)
        one.loss(logits, batch).backward()
        with torch.no_grad():
            one.loss(logits, batch)
        one.loss(logits.detach(), batch)


def twice(model, one):
    for batch in one:
        one.loss(model(batch), batch).backward()
        one.loss(model(batch), batch).backward()


def own(model, one):
    for batch in one:
        one.observe(next_token_loss_sum(model(batch), batch.labels) * one.loss_scale, batch).backward()


def two_losses_of_a_batch(model, one):
    for batch in one:
        logits = model(batch)
        (one.loss(logits, batch) + one.observe(logits.square().mean(), batch)).backward()


def only_the_gradient(model, one):
    for batch in one:
        torch.autograd.grad(one.loss(model(batch), batch), list(model.parameters()))


LOOPS = [plain, scaled, divided, summed, last_first, logged_too, twice, own, two_losses_of_a_batch]


KINDS = {"plain": Model, "reentrant": partial(Checkpointed, True), "recomputed": partial(Checkpointed, False)}
CASES = [(kind, loop) for kind in KINDS for loop in [*LOOPS, only_the_gradient]]
CASES.remove(("reentrant", only_the_gradient))  # torch refuses it


@pytest.mark.parametrize(("kind", "loop"), CASES)
def test_every_batch_is_seen_once_and_counts_once(kind, loop):
    one = step_of()
    loop(KINDS[kind](), one)
    entry = committed(one)
    assert (entry.observed, entry.batches) == (3, 3)
    assert entry.receipt == receipt_of([0, 1], [2], [5, 7])


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_under_ddp_without_synchronisation_each_batch_is_seen(group, loop):
    one, model = step_of(), torch.nn.parallel.DistributedDataParallel(Model())
    with model.no_sync():
        loop(model, one)
    assert observed(one) == (3, 3)


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_under_fsdp2_each_batch_is_seen(group, loop):
    from torch.distributed.fsdp import fully_shard

    one, model = step_of(), fully_shard(Model())
    model.set_requires_gradient_sync(False)
    loop(model, one)
    assert observed(one) == (3, 3)


def test_a_scaler_of_gradients_and_an_overflow_are_seen_like_any_other():
    one, model, scaler = step_of(), Model(), torch.amp.GradScaler("cpu", init_scale=2.0**120)
    for batch in one:
        scaler.scale(one.loss(model(batch) * 1e30, batch)).backward()
    assert not model.head.weight.grad.isfinite().all()
    assert observed(one) == (3, 3)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_loss_inside_of_a_checkpoint_is_seen(use_reentrant):
    one, model = step_of(), Model()

    def loss(hidden, batch):
        return one.loss(model.head(hidden), batch)

    for batch in one:
        checkpoint(loss, model.tokens(batch.input_ids), batch, use_reentrant=use_reentrant).backward()
    assert observed(one) == (3, 3)


def test_a_loss_between_parts_that_are_compiled_is_seen():
    one, model = step_of(), torch.compile(Model(), backend="aot_eager")
    plain(model, one)
    assert observed(one) == (3, 3)


def compiled_step(fullgraph):
    """Return a step, and its loss of some logits, compiled."""
    torch.compiler.reset()
    one, model = step_of(), Model()
    return one, torch.compile(
        lambda batch: one.loss(model(batch), batch) * 2, backend="aot_eager", fullgraph=fullgraph
    )


def test_a_loss_inside_of_what_is_compiled_in_parts_is_seen():
    one, loss = compiled_step(fullgraph=False)
    for batch in one:
        loss(batch).backward()
    assert observed(one) == (3, 3)


def test_a_loss_inside_of_what_is_compiled_whole_is_refused_by_torch():
    one, loss = compiled_step(fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="side effect"):
        loss(next(iter(one)))


# -- what a checkpoint says of it ---------------------------------------------------------------------


def counts(run, folder):
    epochs = read_state(LOCAL, str(run.save(folder, "a" * 32))).ledger.epochs
    return [(entry.observed, entry.batches) for entry in epochs]


def train(loader, model, own):
    """Train a run; a loss of one's own is not observed."""
    for one in loader:
        for batch in one:
            logits = model(batch)
            loss = next_token_loss_sum(logits, batch.labels) if own else one.loss(logits, batch)
            loss.backward()
        one.commit()


@pytest.fixture
def recipe_and_source(make_source, monkeypatch):
    patch(monkeypatch)
    source = make_source(long_tailed(60, seed=2), labels=True, vocabulary=VOCABULARY)
    fixed = {"maximum_tokens": 64, "batches_per_step": 3, "backend": "direct", "epochs": 2}
    return PackedData(source=source.path, **fixed), source


@pytest.mark.parametrize(
    ("data_ranks", "own", "share"),
    [
        (None, (), 1.0),
        (None, (0, 1, 2, 3), 0.0),
        ((0, 1, 0, 1), (0, 1), 1.0),  # of the stages of a pipeline the last alone has a loss
        ((0, 1, 0, 1), (0, 1, 2, 3), 0.0),
    ],
)
def test_a_checkpoint_says_how_many_of_its_batches_were_seen_to_be_trained(
    recipe_and_source, tmp_path, data_ranks, own, share
):
    recipe, source = recipe_and_source
    with Attempt(recipe, source, 4, data_ranks=data_ranks) as run:
        for rank, loader in enumerate(run.loaders):
            train(loader, Model(), rank in own)
        ledger = counts(run, tmp_path)
    planner = StepPlanner(source.fingerprint, source.lengths, recipe.options, batches_per_step=3, seed=0)
    first = sum(len(one.batches) for one in planner.steps(0, 10**6))
    planner.commit(len(planner.steps(0, 10**6)))
    planner.start_epoch(1)
    second = sum(len(one.batches) for one in planner.steps(0, 10**6))
    assert ledger == [(planned * share, planned) for planned in (first, second)]


# -- what is refused, and what is left open ----------------------------------------------------------


def test_a_batch_without_documents_need_not_be_trained():
    one, model = step_of((0, 1), (2,), ()), Model()
    for batch in one:
        if batch.num_documents:
            one.loss(model(batch), batch).backward()
    assert observed(one) == (2, 2)


def test_an_empty_batch_may_be_trained():
    one = step_of((0, 1), (2,), ())
    plain(Model(), one)
    assert observed(one) == (2, 2)


def test_a_loop_that_trains_some_batches_alone_is_refused_and_told_which():
    one, model = step_of((0, 1), (2,), (5, 7)), Model()
    for k, batch in enumerate(one):
        if k != 1:
            one.loss(model(batch), batch).backward()
    with pytest.raises(
        LoaderError,
        match=r"step 9 cannot be committed: .* micro-batch 1 \(examples 2; 1 of 3 .*step\.observe",
    ):
        one.commit()
    assert not one.committed


def test_a_loop_without_a_backward_pass_is_refused():
    one, model = step_of(tuple(range(12)), (2,), (5,)), Model()
    for batch in one:
        one.loss(model(batch), batch)
    with pytest.raises(LoaderError, match=r"micro-batch 0 \(examples 0, 1, 2, 3, 4, 5, 6, 7, \.\.\.; 3 of 3"):
        one.commit()


def test_a_refused_commit_can_be_mended():
    one, model = step_of(), Model()
    losses = [one.loss(model(batch), batch) for batch in one]
    losses[0].backward()
    with pytest.raises(LoaderError, match="micro-batch 1"):
        one.commit()
    sum(losses[1:]).backward()
    assert observed(one) == (3, 3)


def test_a_loop_whose_losses_are_its_own_is_not_observed_and_passes():
    one, model = step_of(), Model()
    for batch in one:
        next_token_loss_sum(model(batch), batch.labels).backward()
    entry = committed(one)
    assert (entry.observed, entry.batches) == (0, 3)
    assert entry.receipt == receipt_of([0, 1], [2], [5, 7])


def test_a_loop_that_only_logs_the_loss_is_not_observed():
    one, model = step_of(), Model()
    with torch.no_grad():
        for batch in one:
            one.loss(model(batch), batch)
    assert observed(one) == (0, 3)


def test_a_late_backward_pass_of_an_earlier_try_shows_nothing_of_the_present_one():
    one, model = step_of(), Model()
    late = [one.loss(model(batch), batch) for batch in one]
    one.retry()
    losses = [one.loss(model(batch), batch) for batch in one]
    sum(late).backward()
    sum(losses[1:]).backward()
    with pytest.raises(LoaderError, match="micro-batch 0"):
        one.commit()


def test_a_skipped_step_was_not_trained_whatever_was_seen_of_it():
    one = step_of()
    plain(Model(), one)
    ended = []
    one._on_commit = lambda step: ended.append(entry_of(KEY, [step.trained()]))
    one.skip()
    assert (ended[0].observed, ended[0].batches) == (0, 0)
    assert ended[0].refused.receipt == receipt_of([0, 1], [2], [5, 7])


def test_what_is_observed_must_be_a_tensor_of_a_batch_of_the_step():
    one = step_of()
    batch = next(iter(one))
    loss = Model()(batch).sum()
    assert one.observe(loss, batch) is loss
    with pytest.raises(TypeError, match="loss must be a tensor, got float"):
        one.observe(1.0, batch)
    with pytest.raises(LoaderError, match=r"step\.observe needs a batch of step 9"):
        one.observe(loss, next(iter(step_of())))


def test_a_watched_loss_keeps_neither_the_step_nor_its_batches():
    one, model = step_of(), Model()
    batch = next(iter(one))
    loss, kept = one.loss(model(batch), batch), weakref.ref(one)
    del one, batch
    gc.collect()
    assert kept() is None
    loss.backward()
