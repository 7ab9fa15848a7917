"""A tiny copy keeps what decides on isolation: kinds of layers, windows, heads to a key head."""

import pytest
import torch

from raypack.audit.doctor.tiny_model import VOCABULARY, WINDOW, load_config, tiny_config, tiny_model
from raypack.errors import DoctorError

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize(
    ("heads", "key_heads", "expected"),
    [(32, 32, (4, 4)), (32, 8, (8, 2)), (32, 16, (4, 2)), (28, 4, (14, 2)), (71, 1, (8, 1))],
)
def test_the_ratio_of_heads_to_key_heads_is_kept(heads, key_heads, expected):
    config = transformers.LlamaConfig(
        num_attention_heads=heads, num_key_value_heads=key_heads, hidden_size=heads * 128
    )
    tiny = tiny_config(config)
    assert (tiny.num_attention_heads, tiny.num_key_value_heads) == expected
    assert tiny.hidden_size == tiny.num_attention_heads * tiny.head_dim


def test_each_kind_of_layer_is_kept_once_in_its_order():
    tiny = tiny_config(transformers.Gemma3TextConfig())
    assert tiny.layer_types == ["sliding_attention", "full_attention"]
    assert tiny.num_hidden_layers == 2
    assert tiny.sliding_window == WINDOW


def test_a_window_is_kept_and_none_is_added():
    assert tiny_config(transformers.MistralConfig()).sliding_window == WINDOW
    assert tiny_config(transformers.MistralConfig(sliding_window=None)).sliding_window is None
    assert tiny_config(transformers.MistralConfig(sliding_window=2)).sliding_window == 2


def test_names_of_its_own_are_found():
    tiny = tiny_config(transformers.GPT2Config())
    assert (tiny.n_layer, tiny.n_head, tiny.n_embd, tiny.n_positions) == (2, 4, 64, 256)


def test_tables_of_the_full_width_are_left_behind():
    config = transformers.LlamaConfig(
        rope_scaling={"rope_type": "longrope", "short_factor": [1.0] * 64, "long_factor": [2.0] * 64}
    )
    assert tiny_config(config).rope_parameters["rope_type"] == "default"


def test_the_full_config_is_left_as_it_is():
    config = transformers.MistralConfig()
    before = config.to_dict()
    tiny_config(config)
    assert config.to_dict() == before


@pytest.mark.parametrize("name", ["llama", "qwen3", "mixtral", "deepseek_v3", "gpt2", "falcon", "lfm2"])
def test_copies_are_small_and_the_same_each_time(name):
    config = load_config(name)
    first, second = (tiny_model(config, "eager", torch.float32, "cpu") for _ in range(2))
    assert sum(parameter.numel() for parameter in first.parameters()) < 2e6
    ids = torch.arange(3, 9)[None]
    logits = first(input_ids=ids, use_cache=False).logits
    assert logits.shape == (1, 6, VOCABULARY)
    assert torch.equal(logits, second(input_ids=ids, use_cache=False).logits)


def test_sizes_that_cannot_be_made_to_fit_are_an_error_with_the_reason(monkeypatch):
    def refuse(values):
        raise ValueError("widths do not match")

    config = transformers.LlamaConfig()
    monkeypatch.setattr(transformers.LlamaConfig, "from_dict", refuse)
    with pytest.raises(DoctorError, match="no small copy can be made of a llama: widths do not match"):
        tiny_config(config)
