"""assert_isolated passes what isolates, and names what leaks into what."""

import pickle
from types import SimpleNamespace

import pytest
import torch

from raypack.collate import BatchError, IsolationError, PackedBatch, assert_isolated, build_attention_mask
from raypack.collate.attention.isolation import hf_export
from tests.support.models import DOCUMENTS, tiny_model


def packed(**options):
    return PackedBatch.from_documents(DOCUMENTS, **{"pad_to": 19, **options})


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_model_of_any_dtype_passes_with_its_own_exporter(attention, dtype):
    model = tiny_model("Llama", attention, dtype)
    for parameter in model.parameters():
        parameter.data.div_(5)
    assert_isolated(model, packed())


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_a_sliding_window_passes(layout):
    model = tiny_model("Mistral", "eager", sliding_window=3)
    assert_isolated(model, packed(layout=layout))


def test_a_leak_names_the_documents_it_goes_from_and_to():
    model = tiny_model("Llama", "sdpa")
    with pytest.raises(IsolationError) as caught:
        assert_isolated(model, packed(), export=lambda b: {**b.for_hf_sdpa(), "use_cache": True})
    message = str(caught.value)
    for pair in ("document 0 into document 1", "document 0 into document 2", "document 1 into document 2"):
        assert pair in message
    assert "into document 0" not in message
    assert "padding into" not in message
    assert caught.value.leaks == ((0, 1), (0, 2), (1, 2))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.leaks) == (message, caught.value.leaks)


def test_an_erased_window_is_told_from_a_leak():
    model = tiny_model("Mistral", "eager", sliding_window=3)
    with pytest.raises(IsolationError, match=r"it is no leak: .*sliding window erased"):
        assert_isolated(model, packed(), export=lambda b: b.for_hf_eager(torch.float32))


def one_layer(mask_of, seed=0):
    """A plain attention layer over a PackedBatch, masked as told."""
    torch.manual_seed(seed)
    table = torch.randn(32, 16)

    def run(batch):
        x = table[batch.input_ids][:, None]
        out = torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask_of(batch))
        return out[:, 0]

    return run


def own_mask(batch):
    return build_attention_mask(segment_ids=batch.segment_ids, dtype=torch.bool, pad_rows="self")


def test_a_plain_callable_of_batches_passes_or_fails_by_its_mask():
    assert_isolated(one_layer(own_mask), packed())

    def everything(batch):
        return torch.ones_like(own_mask(batch))

    with pytest.raises(IsolationError) as caught:
        assert_isolated(one_layer(everything), packed())
    assert "document 2 into document 0" in str(caught.value)
    assert "padding into document" in str(caught.value)


def test_a_leak_in_one_direction_only_is_found_where_it_is():
    def second_sees_first(batch):
        mask = own_mask(batch)
        if batch.num_documents > 1:
            mask[..., 5:8, 0:5] = True
        return mask

    with pytest.raises(IsolationError, match=r"Leaks: document 0 into document 1; call"):
        assert_isolated(one_layer(second_sees_first), packed())


def test_logits_that_are_not_finite_never_pass():
    def spoilt(batch):
        logits = one_layer(own_mask)(batch)
        return (
            logits
            if batch.num_documents == 1
            else logits.masked_fill(batch.input_ids[..., None] == 11, torch.nan)
        )

    with pytest.raises(IsolationError, match=r"document 1 .*differ by inf"):
        assert_isolated(spoilt, packed())


def test_a_callable_of_keyword_arguments_is_called_through_its_exporter():
    def model(input_ids, attention_mask):
        batch = SimpleNamespace(input_ids=input_ids)
        return SimpleNamespace(logits=one_layer(lambda _: attention_mask)(batch))

    def export(batch):
        return {"input_ids": batch.input_ids, "attention_mask": own_mask(batch)}

    assert_isolated(model, packed(), export=export)


def test_documents_of_one_repeated_token_still_show_a_leak():
    batch = PackedBatch.from_documents([[0, 0, 0], [0, 0]])

    class Counter:
        def __call__(self, batch):
            sums = torch.nn.functional.one_hot(batch.input_ids, 4).cumsum(1).float()
            return sums

    with pytest.raises(IsolationError, match="document 0 into document 1"):
        assert_isolated(Counter(), batch)


def test_the_model_is_left_in_the_mode_it_was_in():
    model = tiny_model("Llama", "sdpa", attention_dropout=0.5)
    model.train()
    model.model.norm.eval()
    assert_isolated(model, packed())
    assert model.training
    assert model.model.layers[0].training
    assert not model.model.norm.training


def test_the_exporter_follows_the_attention_implementation():
    def model(name):
        return SimpleNamespace(config=SimpleNamespace(_attn_implementation=name), dtype=torch.float32)

    batch = packed()
    assert "cu_seq_lens_q" in hf_export(model("flash_attention_2"))(batch)
    assert "attention_mask" not in hf_export(model("sdpa"))(batch)
    assert hf_export(model("eager"))(batch)["attention_mask"].dtype == torch.float32
    with pytest.raises(TypeError, match="export must be given for the attention implementation 'mine'"):
        hf_export(model("mine"))


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(BatchError, match="must hold a document"):
        assert_isolated(one_layer(own_mask), PackedBatch.from_documents([]))
    with pytest.raises(TypeError, match="model must be callable, got int"):
        assert_isolated(3, packed())
    with pytest.raises(BatchError, match=r"logits must be a float tensor \(rows, tokens, V\), got dict"):
        assert_isolated(lambda batch: {}, packed())
    with pytest.raises(BatchError, match="logits must be of the batch's"):
        assert_isolated(lambda batch: torch.zeros(1, 2, 3), packed())


@pytest.mark.parametrize(
    ("batch", "export", "message"),
    [
        (packed().for_hf_sdpa(), None, "batch must be a PackedBatch, got dict: give the batch itself"),
        (packed(), packed().for_hf_sdpa, "export must take a batch, got a method of one batch"),
    ],
)
def test_an_exported_batch_and_a_bound_exporter_are_refused_with_what_to_give(batch, export, message):
    with pytest.raises(TypeError, match=message):
        assert_isolated(tiny_model("Llama", "sdpa"), batch, export=export)
