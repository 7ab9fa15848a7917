"""The packed sum equals the sum over documents, and an empty batch is a zero that backpropagates."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from raypack.collate import BatchError, PackedBatch, loss
from raypack.collate.loss import next_token_loss_sum

DOCUMENTS = [[5, 6, 7, 1, 2], [8], [9, 10, 3, 4]]
VOCABULARY = 12


@pytest.fixture
def model():
    """A model without attention: each token's logits depend on that token alone."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 8), torch.nn.Linear(8, VOCABULARY)).double()


def reference(logits, labels):
    return cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")


@pytest.fixture(params=[2**24, 5 * VOCABULARY])
def chunked(request, monkeypatch):
    monkeypatch.setattr(loss, "CHUNK_CELLS", request.param)


@pytest.mark.usefixtures("chunked")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-10)])
@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_the_sum_of_a_batch_is_the_sum_over_its_documents_alone(model, dtype, tolerance, layout):
    model = model.to(dtype)
    batch = PackedBatch.from_documents(DOCUMENTS, layout=layout, pad_to=12)
    together = next_token_loss_sum(model(batch.input_ids), batch.labels)
    alone = 0
    for document in DOCUMENTS:
        ids = torch.tensor([document])
        if len(document) > 1:
            alone = alone + reference(model(ids), ids)
    assert together.dtype == dtype
    assert abs(together - alone) <= tolerance * alone


@pytest.mark.usefixtures("chunked")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_gradients_equal_those_of_torch(dtype):
    torch.manual_seed(1)
    logits = torch.randn(2, 9, VOCABULARY, dtype=dtype, requires_grad=True)
    labels = torch.randint(0, VOCABULARY, (2, 9))
    labels[0, 3:5] = labels[1, 0] = -100
    next_token_loss_sum(logits, labels).mul(0.5).backward()
    wide = logits.detach().to(torch.float64).requires_grad_()
    reference(wide, labels).mul(0.5).backward()
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, torch.finfo(dtype).eps)
    assert logits.grad.dtype == dtype
    assert torch.allclose(logits.grad.double(), wide.grad, atol=tolerance, rtol=tolerance)


def test_the_gradient_passes_gradcheck():
    logits = torch.randn(1, 5, 4, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[-100, 1, 2, -100, 3]])
    assert torch.autograd.gradcheck(next_token_loss_sum, (logits, labels))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precisions_are_summed_in_float32(dtype):
    torch.manual_seed(2)
    logits = torch.randn(1, 4001, VOCABULARY).to(dtype)
    labels = torch.randint(0, VOCABULARY, (1, 4001))
    ours = next_token_loss_sum(logits, labels)
    assert ours.dtype == torch.float32
    assert torch.allclose(ours.double(), reference(logits.double(), labels), rtol=1e-4)


@pytest.mark.parametrize("size", [1, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_an_empty_batch_is_zero_and_gives_every_parameter_a_zero_gradient(model, dtype, size):
    model = model.to(dtype)
    batch = PackedBatch.from_documents([], pad_to=size)
    value = next_token_loss_sum(model(batch.input_ids), batch.labels)
    value.backward()
    assert value.item() == 0
    for parameter in model.parameters():
        assert (parameter.grad == 0).all()


def test_rows_that_are_not_supervised_never_spoil_the_others():
    logits = torch.zeros(1, 4, 3)
    logits[0, 2:] = float("nan")
    logits.requires_grad_()
    value = next_token_loss_sum(logits, torch.tensor([[-100, 1, 2, -100]]))
    value.backward()
    assert value.item() == pytest.approx(2 * torch.tensor(3.0).log().item(), rel=1e-4)
    assert (logits.grad[0, 2:] == 0).all()


def test_logits_that_are_a_strided_view_are_taken():
    torch.manual_seed(3)
    whole = torch.randn(2, 6, 2 * VOCABULARY, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, VOCABULARY, (2, 6))
    next_token_loss_sum(whole[..., ::2], labels).backward()
    ours, whole.grad = whole.grad, None
    reference(whole[..., ::2], labels).backward()
    assert torch.allclose(ours, whole.grad)


class Widest(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.cells = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.dtype == torch.float32:
            self.cells = max(self.cells, out.untyped_storage().nbytes() // 4)
        return out


def test_no_full_float32_copy_of_half_logits_is_made_forward_or_backward(monkeypatch):
    monkeypatch.setattr(loss, "CHUNK_CELLS", 100 * VOCABULARY)
    logits = torch.randn(1, 1000, VOCABULARY, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(0, VOCABULARY, (1, 1000))
    with Widest() as seen:
        next_token_loss_sum(logits, labels).backward()
    assert 0 < seen.cells <= 100 * VOCABULARY


@pytest.mark.parametrize(
    ("logits", "labels", "error", "message"),
    [
        (torch.zeros(2, 3), torch.zeros(2, 3).long(), BatchError, r"\(B, S, V\)"),
        (torch.zeros(2, 3, 4), torch.zeros(2, 4).long(), BatchError, r"got \(2, 3, 4\) and \(2, 4\)"),
        (torch.zeros(2, 3, 4).long(), torch.zeros(2, 3).long(), TypeError, "float tensor, got torch.int64"),
        (torch.zeros(2, 3, 4), torch.zeros(2, 3), TypeError, "int64, got torch.float32"),
    ],
)
def test_what_does_not_fit_is_refused(logits, labels, error, message):
    with pytest.raises(error, match=message):
        next_token_loss_sum(logits, labels)


@pytest.mark.parametrize("label", [VOCABULARY, -1])
def test_a_label_outside_the_vocabulary_is_never_ignored_in_silence(label):
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        next_token_loss_sum(torch.zeros(1, 2, VOCABULARY), torch.tensor([[-100, label]]))
