"""The loss that transformers computes from a packed batch: of all documents alone, and never NaN."""

import pytest
import torch

from raypack.collate import BatchError, PackedBatch
from tests.support.models import DOCUMENTS, tiny_model


def summed_alone(model):
    """Return the documents' summed loss and their supervised tokens, by transformers itself."""
    total, count = 0.0, 0
    for document in DOCUMENTS:
        ids = torch.tensor([document])
        total += model(input_ids=ids, labels=ids).loss.item() * (len(document) - 1)
        count += len(document) - 1
    return total, count


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("slots", [None, 5])
def test_the_loss_is_the_mean_over_all_supervised_tokens_of_the_documents_alone(layout, slots):
    model = tiny_model("Llama", "sdpa", torch.float64)
    batch = PackedBatch.from_documents(DOCUMENTS, pad_to=19, layout=layout, pad_documents_to=slots)
    loss = model(**batch.for_hf_sdpa(), **batch.for_hf_loss()).loss
    total, count = summed_alone(model)
    assert batch.for_hf_loss()["num_items_in_batch"] == batch.num_supervised == count
    assert loss.item() == pytest.approx(total / count, rel=1e-4)


def test_micro_batches_of_one_step_add_up_to_its_mean():
    model = tiny_model("Llama", "sdpa", torch.float64)
    total, count = summed_alone(model)
    batches = [PackedBatch.from_documents(part) for part in (DOCUMENTS[:1], DOCUMENTS[1:], [])]
    losses = [model(**batch.for_hf_sdpa(), **batch.for_hf_loss(count)).loss for batch in batches]
    assert sum(loss.item() for loss in losses) == pytest.approx(total / count, rel=1e-4)
    assert losses[2].item() == 0


@pytest.mark.parametrize("documents", [[], [[5]], [[5], [6], [7]]])
@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("num_items", [None, 0, 7])
def test_a_batch_with_nothing_supervised_gives_zero_and_zero_gradients(documents, layout, num_items):
    model = tiny_model("Llama", "sdpa")
    batch = PackedBatch.from_documents(documents, layout=layout, pad_to=6)
    loss = model(**batch.for_hf_sdpa(), **batch.for_hf_loss(num_items)).loss
    loss.backward()
    assert loss.item() == 0
    assert all((p.grad == 0).all() for p in model.parameters() if p.grad is not None)


def test_without_a_number_of_items_an_empty_batch_would_be_nan():
    batch = PackedBatch.from_documents([], pad_to=6)
    assert tiny_model()(**batch.for_hf_sdpa(), labels=batch.labels).loss.isnan()


@pytest.mark.parametrize(("documents", "expected"), [(DOCUMENTS, 12), ([], 1)])
def test_labels_that_nobody_counted_are_counted_on_their_device(documents, expected):
    batch = PackedBatch.from_documents(documents, pad_to=19)
    object.__setattr__(batch, "num_supervised", None)
    count = batch.for_hf_loss()["num_items_in_batch"]
    assert isinstance(count, torch.Tensor)
    assert count == expected


def test_a_number_of_items_may_be_a_tensor_or_less_than_one():
    batch = PackedBatch.from_documents(DOCUMENTS)
    assert batch.for_hf_loss(torch.tensor(9))["num_items_in_batch"] == 9
    assert batch.for_hf_loss(0.125)["num_items_in_batch"] == 0.125


@pytest.mark.parametrize(
    ("num_items", "error", "message"),
    [
        (-1, BatchError, "num_items must not be negative, got -1"),
        (float("nan"), BatchError, "num_items must not be negative, got nan"),
        ("9", TypeError, "num_items must be a number or a tensor, got str"),
        (True, TypeError, "num_items must be a number or a tensor, got bool"),
    ],
)
def test_a_number_of_items_that_divides_nothing_is_refused(num_items, error, message):
    with pytest.raises(error, match=message):
        PackedBatch.from_documents(DOCUMENTS).for_hf_loss(num_items)
