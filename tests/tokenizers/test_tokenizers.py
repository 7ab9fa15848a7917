"""The kinds of tokenizer, their special tokens, and what is refused."""

import base64
import json
import os
import pickle
import sys

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from raypack.errors import PrepareError
from raypack.tokenizers import TextTokenizer, TiktokenTokenizer, load_tokenizer
from raypack.tokenizers.special_tokens import choose_special_tokens, surround


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


@pytest.fixture(scope="module")
def piece_model(tmp_path_factory):
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the cat sat", "the mat the hat", "a bat and a rat"] * 9),
        model_writer=model,
        vocab_size=18,
        user_defined_symbols=["<end>"],
        minloglevel=2,
    )
    path = tmp_path_factory.mktemp("piece") / "tiny.model"
    path.write_bytes(model.getvalue())
    return path


def test_a_sentencepiece_model_adds_nothing_and_knows_its_tokens(piece_model):
    import sentencepiece

    tokenizer = load_tokenizer(str(piece_model))
    plain = sentencepiece.SentencePieceProcessor(model_file=str(piece_model))
    texts = ["the cat", "", "a mat"]
    assert ids(tokenizer, *texts) == [plain.encode(text) for text in texts]
    assert ids(pickle.loads(pickle.dumps(tokenizer)), *texts) == ids(tokenizer, *texts)
    assert (tokenizer.kind, tokenizer.vocabulary, tokenizer.special_tokens) == ("sentencepiece", 18, False)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (plain.bos_id(), plain.eos_id())
    assert tokenizer.token_id("<end>") == plain.piece_to_id("<end>")
    assert tokenizer.token_id("<none>") is None
    assert pickle.loads(pickle.dumps(tokenizer)).digest == tokenizer.digest


@pytest.mark.parametrize("data", [b"", b"noise", b"{}"])
def test_what_is_no_sentencepiece_model_is_refused(tmp_path, data):
    (tmp_path / "x.model").write_bytes(data)
    with pytest.raises(PrepareError, match=r"x\.model is no model file of sentencepiece"):
        load_tokenizer(str(tmp_path / "x.model"))


@pytest.fixture
def ranks(tmp_path):
    tokens = [bytes([byte]) for byte in range(256)] + [b"th", b"the", b" c", b" ca", b" cat"]
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)]
    (tmp_path / "x.tiktoken").write_text("".join(lines))
    return tmp_path / "x.tiktoken"


def test_a_file_of_ranks_is_read_by_tiktoken(ranks):
    tokenizer = load_tokenizer(str(ranks))
    assert ids(tokenizer, "the cat", "", "é<|endoftext|>") == [
        [257, 260],
        [],
        list("é<|endoftext|>".encode()),
    ]
    assert ids(pickle.loads(pickle.dumps(tokenizer)), "the cat") == [[257, 260]]
    assert (tokenizer.kind, tokenizer.vocabulary, tokenizer.eos_id) == ("tiktoken", 261, None)


def test_an_encoding_of_ones_own_brings_its_special_tokens(ranks):
    import tiktoken

    plain = load_tokenizer(str(ranks))
    special = {"<|endoftext|>": 300, "<|end|>": 301}
    encoding = tiktoken.Encoding(
        "own", pat_str=r"\S+|\s+", mergeable_ranks=plain._parts["mergeable_ranks"], special_tokens=special
    )
    tokenizer = pickle.loads(pickle.dumps(TiktokenTokenizer(encoding)))
    # A special token that stands in a text is text.
    assert ids(tokenizer, "<|end|>") == [list(b"<|end|>")]
    assert (tokenizer.vocabulary, tokenizer.eos_id, tokenizer.token_id("<|end|>")) == (302, 300, 301)
    assert tokenizer.digest != plain.digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-4], "line 261 must be a base64 token and its rank"),
        (lambda text: text.split("\n", 1)[1], "it has no token for byte 0x00"),
        (lambda text: text.replace(" 260", " 999"), "its ranks must be 0 to 260"),
        (lambda text: "", "it has no token for byte 0x00"),
        (lambda text: "a b c\n", "line 1 must be"),
    ],
)
def test_what_is_no_file_of_ranks_is_refused(ranks, change, message):
    ranks.write_text(change(ranks.read_text()))
    with pytest.raises(PrepareError, match=rf"x\.tiktoken is no file of tiktoken: {message}"):
        load_tokenizer(str(ranks))


def test_an_unknown_encoding_is_named():
    with pytest.raises(PrepareError, match="tiktoken cannot load the encoding 'nonsense'"):
        load_tokenizer("tiktoken:nonsense")
    with pytest.raises(PrepareError, match="the name after tiktoken: must be"):
        load_tokenizer("tiktoken:")


@pytest.mark.parametrize(("library", "suffix"), [("sentencepiece", "model"), ("tiktoken", "tiktoken")])
def test_a_missing_library_is_said_with_the_extra(tmp_path, monkeypatch, library, suffix):
    (tmp_path / f"x.{suffix}").write_bytes(b"AA== 0\n")
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(PrepareError, match=rf"needs {library}: pip install 'raypack\[{library}\]'"):
        load_tokenizer(str(tmp_path / f"x.{suffix}"))


def settled(tokenizer, bos=None, eos=None, answers=False):
    rule = choose_special_tokens(tokenizer, bos, eos, answers=answers)
    encode = tokenizer.encode if rule.own else tokenizer.encode_plain
    lengths, flat = surround(encode(["a b", "b"]), rule)
    return rule.record, [part.tolist() for part in np.split(flat, np.cumsum(lengths)[:-1])]


def test_who_adds_special_tokens_is_chosen_and_recorded(file):
    tokenizer = load_tokenizer(str(file))
    assert settled(tokenizer) == ("the tokenizer's own", [[1, 2, 3], [1, 3]])
    assert settled(tokenizer, bos=False) == ("none", [[2, 3], [3]])
    assert settled(tokenizer, eos="[UNK]") == ("1 before; 0 after", [[1, 2, 3, 0], [1, 3, 0]])
    assert settled(tokenizer, bos=False, eos="b") == ("3 after", [[2, 3, 3], [3, 3]])
    assert settled(tokenizer, bos="a", eos=False) == ("2 before", [[2, 2, 3], [2, 3]])
    assert settled(tokenizer, eos="b", answers=True) == ("1 before; 3 after", [[1, 2, 3, 3], [1, 3, 3]])


def test_bos_and_eos_of_a_model_are_added_once(piece_model):
    tokenizer = load_tokenizer(str(piece_model))
    plain = settled(tokenizer)
    assert plain[0] == "none"
    assert settled(tokenizer, bos=True, eos=True) == (
        "1 before; 2 after",
        [[1, *text, 2] for text in plain[1]],
    )
    assert settled(tokenizer, answers=True) == ("2 after", [[*text, 2] for text in plain[1]])
    assert settled(tokenizer, eos=False, answers=True) == plain


def test_a_text_without_tokens_gets_none(piece_model):
    tokenizer = load_tokenizer(str(piece_model))
    rule = choose_special_tokens(tokenizer, True, True, answers=False)
    lengths, flat = surround(tokenizer.encode_plain(["", "a", ""]), rule)
    assert lengths.tolist() == [0, len(flat), 0]
    assert (flat[0], flat[-1]) == (1, 2)


def test_a_tokenizer_of_ones_own_that_cannot_leave_its_tokens_out_is_refused():
    class Own(TextTokenizer):
        kind = "own"
        digest = None
        vocabulary = 3
        special_tokens = True

        def encode(self, texts):
            return np.full(len(texts), 2, np.int64), np.ones(2 * len(texts), np.int32)

    assert choose_special_tokens(Own(), None, None, answers=False).own
    with pytest.raises(PrepareError, match="cannot leave its own special tokens out; define encode_plain"):
        choose_special_tokens(Own(), False, None, answers=False)


def test_several_tokens_on_either_side_are_kept_in_order(file):
    record = json.loads(file.read_text())
    tokenizer = Tokenizer.from_str(json.dumps(record))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[BOS] a $A b [UNK]", special_tokens=[("[BOS]", 1), ("a", 2), ("b", 3), ("[UNK]", 0)]
    )
    tokenizer.save(str(file))
    own = load_tokenizer(str(file))
    assert settled(own)[1] == [[1, 2, 2, 3, 3, 0], [1, 2, 3, 3, 0]]
    assert settled(own, bos=False) == ("3, 0 after", [[2, 3, 3, 0], [3, 3, 0]])
    assert settled(own, eos=False) == ("1, 2 before", [[1, 2, 2, 3], [1, 2, 3]])
