"""The three kinds of tokenizer, and what is refused."""

import json
import os
import pickle
import sys

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from raypack.data.tokenizers import TextTokenizer, load_tokenizer
from raypack.errors import PrepareError


@pytest.fixture
def file(tmp_path):
    words = {"[UNK]": 0, "[BOS]": 1, "a": 2, "b": 3}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="[BOS] $A", special_tokens=[("[BOS]", 1)])
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def ids(tokenizer, *texts):
    lengths, flat = tokenizer.encode(texts)
    assert flat.dtype == np.int32
    return [part.tolist() for part in np.split(flat, np.cumsum(lengths)[:-1])] if len(lengths) else []


def test_bytes_are_ids():
    tokenizer = load_tokenizer("bytes")
    assert ids(tokenizer, "aé", "", "\0") == [[97, 0xC3, 0xA9], [], [0]]
    assert ids(tokenizer) == []
    assert tokenizer.vocabulary == 256


def test_a_file_adds_its_special_tokens_and_neither_cuts_nor_pads(file):
    tokenizer = load_tokenizer(str(file))
    assert ids(tokenizer, "a b a b", "c") == [[1, 2, 3, 2, 3], [1, 0]]
    assert ids(pickle.loads(pickle.dumps(tokenizer)), "a b a b") == [[1, 2, 3, 2, 3]]
    assert (tokenizer.kind, tokenizer.vocabulary, tokenizer.special_tokens) == ("file", 4, True)


def test_the_digest_is_of_the_files_contents(file, tmp_path):
    digest = load_tokenizer(str(file)).digest
    (tmp_path / "copy.json").write_bytes(file.read_bytes())
    assert load_tokenizer(str(tmp_path / "copy.json")).digest == digest
    record = json.loads(file.read_text())
    record["model"]["vocab"]["c"] = 4
    file.write_text(json.dumps(record))
    assert load_tokenizer(str(file)).digest != digest


def test_threads_of_the_tokenizer_are_left_as_they_were(file, monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    ids(load_tokenizer(str(file)), "a")
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"


def test_a_hugging_face_folder(file, tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"})
    )
    tokenizer = load_tokenizer(f"hf:{tmp_path}")
    assert ids(tokenizer, "a b a b", "c") == [[1, 2, 3, 2, 3], [1, 0]]
    assert ids(pickle.loads(pickle.dumps(tokenizer)), "a b a b") == [[1, 2, 3, 2, 3]]
    assert tokenizer.kind == "hf"
    # transformers may add special tokens of its own.
    assert tokenizer.vocabulary >= 4
    before = tokenizer.digest
    (tmp_path / "model.safetensors").write_text("weights are no part of a tokenizer")
    assert load_tokenizer(f"hf:{tmp_path}").digest == before
    (tmp_path / "special_tokens_map.json").write_text("{}")
    assert load_tokenizer(f"hf:{tmp_path}").digest != before


def test_a_folder_without_tokenizer_is_named(tmp_path):
    pytest.importorskip("transformers")
    with pytest.raises(PrepareError, match="transformers cannot read a tokenizer from"):
        load_tokenizer(f"hf:{tmp_path}")


def test_missing_transformers_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(PrepareError, match=r"pip install 'raypack\[hf\]'"):
        load_tokenizer(f"hf:{tmp_path}")


def test_what_is_no_tokenizer_is_refused(tmp_path):
    with pytest.raises(PrepareError, match="'gpt2' is no file"):
        load_tokenizer("gpt2")
    with pytest.raises(PrepareError, match="write hf:"):
        load_tokenizer(str(tmp_path))
    with pytest.raises(PrepareError, match="is no folder"):
        load_tokenizer("hf:nowhere")
    with pytest.raises(TypeError, match="tokenizer must be a str"):
        load_tokenizer(None)
    for text in ("{}", "x", ""):
        (tmp_path / "t.json").write_text(text)
        with pytest.raises(PrepareError, match=r"t\.json is no file of the tokenizers library"):
            load_tokenizer(str(tmp_path / "t.json"))
    (tmp_path / "t.json").write_bytes(b"\xff")
    with pytest.raises(PrepareError, match=r"t\.json is no file of the tokenizers library"):
        load_tokenizer(str(tmp_path / "t.json"))


def test_a_tokenizer_of_ones_own_is_checked():
    class Own(TextTokenizer):
        kind = "own"
        digest = None
        vocabulary = "many"
        special_tokens = False

        def encode(self, texts):
            raise NotImplementedError

    with pytest.raises(TypeError, match=r"tokenizer\.vocabulary"):
        load_tokenizer(Own())
    Own.vocabulary = 3
    assert load_tokenizer(Own()).kind == "own"
