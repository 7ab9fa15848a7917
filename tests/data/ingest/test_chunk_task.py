"""One chunk becomes one shard: policies, counts and faults, without Ray."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raypack.data.formats.inputs import find_inputs
from raypack.data.ingest.choose_reader import choose_reader
from raypack.data.ingest.chunk_task import prepare_chunk, read_results
from raypack.data.ingest.chunks import cut_chunks
from raypack.data.ingest.options import PrepareOptions
from raypack.errors import PrepareError
from raypack.source.paths.location import locate
from raypack.source.store.shards import map_shard
from raypack.tokenizers import TextTokenizer


def prepare_file(path, out, tokenizer=None, **options):
    files, options = find_inputs(path), PrepareOptions(**options)
    [chunk] = cut_chunks(files, 1 << 30)
    return prepare_chunk(chunk, str(out), choose_reader(files, tokenizer or "bytes", options), options)


def run(folder, texts, tokenizer=None, **options):
    path = folder / "in.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    out = folder / "out"
    out.mkdir(exist_ok=True)
    result = prepare_file(path, out, tokenizer, **options)
    [again] = read_results(result.to_table())
    assert (again.number, again.counts, again.shards, again.fault) == (
        result.number,
        result.counts,
        result.shards,
        result.fault,
    )
    assert again.lengths.tolist() == result.lengths.tolist()
    assert again.supervised.tolist() == result.supervised.tolist()
    return again


def texts_of(folder, result):
    if not result.shards:
        return []
    [entry] = result.shards
    shard = map_shard(locate(folder / "out").child(entry.file), entry, ("input_ids",))
    assert (np.array(shard.ends) - np.array(shard.starts)).tolist() == result.lengths.tolist()
    edges = [0, *shard.ends.tolist()]
    return [bytes(shard.input_ids[a:b].astype("u1")).decode() for a, b in pairwise(edges)]


def nonzero(result):
    return {name: n for name, n in result.counts.to_dict().items() if n and name != "bytes"}


def test_documents_become_their_bytes_and_empty_ones_are_counted(tmp_path):
    result = run(tmp_path, ["ab", "", "c", "", " "])
    assert texts_of(tmp_path, result) == ["ab", "c", " "]
    assert nonzero(result) == {"documents": 5, "empty": 2, "examples": 3, "tokens": 4}


def test_split_cuts_pieces_of_the_limit_and_one_of_the_rest(tmp_path):
    result = run(tmp_path, ["abcdefg", "xy", "123456", "z"], max_length=3, oversize="split")
    assert texts_of(tmp_path, result) == ["abc", "def", "g", "xy", "123", "456", "z"]
    assert nonzero(result) == {"documents": 4, "split": 2, "pieces": 5, "examples": 7, "tokens": 16}


def test_truncate_keeps_the_beginning(tmp_path):
    result = run(tmp_path, ["abcdefg", "xy", "123"], max_length=3, oversize="truncate")
    assert texts_of(tmp_path, result) == ["abc", "xy", "123"]
    assert nonzero(result) == {"documents": 3, "truncated": 1, "examples": 3, "tokens": 8}


def test_drop_leaves_out(tmp_path):
    result = run(tmp_path, ["abcdefg", "xy", "1234"], max_length=3, oversize="drop")
    assert texts_of(tmp_path, result) == ["xy"]
    assert nonzero(result) == {"documents": 3, "dropped": 2, "examples": 1, "tokens": 2}


def test_dropping_all_gives_no_shard(tmp_path):
    result = run(tmp_path, ["abcd"], max_length=3, oversize="drop")
    assert result.shards == ()
    assert list((tmp_path / "out").iterdir()) == []


def test_error_names_file_line_length_and_remedies(tmp_path):
    result = run(tmp_path, ["abc", "", "abcdefg"], max_length=3)
    assert result.fault == (
        f"{tmp_path}/in.jsonl, line 3: the document has 7 tokens, more than max_length 3; raise it, "
        "or choose oversize split, truncate or drop"
    )
    assert list((tmp_path / "out").iterdir()) == []


def test_without_max_length_nothing_is_oversize(tmp_path):
    assert texts_of(tmp_path, run(tmp_path, ["abcdefg"])) == ["abcdefg"]


@pytest.mark.parametrize("policy", ["split", "truncate", "drop"])
def test_a_policy_that_would_do_nothing_is_refused(policy):
    with pytest.raises(PrepareError, match=f"oversize '{policy}' needs max_length"):
        PrepareOptions(oversize=policy)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.text("ab", max_size=9), max_size=9),
    limit=st.integers(1, 9),
    policy=st.sampled_from(["split", "truncate", "drop"]),
)
def test_each_policy_is_what_a_plain_loop_does(tmp_path, texts, limit, policy):
    expected = []
    for text in texts:
        if policy == "split":
            expected += [text[i : i + limit] for i in range(0, len(text), limit)]
        elif policy == "truncate" or len(text) <= limit:
            expected.append(text[:limit])
    result = run(tmp_path, texts, max_length=limit, oversize=policy)
    assert texts_of(tmp_path, result) == [text for text in expected if text]
    c = result.counts
    assert c.examples == c.documents - c.empty - c.dropped - c.split + c.pieces == len(result.lengths)
    assert c.tokens == result.lengths.sum()


def test_the_first_fault_in_the_order_of_the_input_wins(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": "ab"}\n{"text": "abcdef"}\nnonsense\n')
    result = prepare_file(path, tmp_path, max_length=3)
    assert "line 2: the document has 6 tokens" in result.fault


def test_doing_it_again_writes_the_same_bytes(tmp_path):
    first = run(tmp_path, ["ab", "c"])
    before = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    assert run(tmp_path, ["ab", "c"]).shards == first.shards
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == before


def test_a_folder_that_went_away_is_a_fault_and_not_made_again(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": "ab"}\n')
    result = prepare_file(path, tmp_path / "gone")
    assert "FileNotFoundError" in result.fault
    assert not (tmp_path / "gone").exists()


class Odd(TextTokenizer):
    kind = "odd"
    digest = None
    vocabulary = 1
    special_tokens = False

    def encode(self, texts):
        if "bad" in texts:
            raise RuntimeError("no such word")
        ids = np.array([-1 if text == "negative" else 1 for text in texts], np.int32)
        return np.ones(len(texts), np.int64), ids[: -1 if "short" in texts else None]


@pytest.mark.parametrize(
    ("text", "message"), [("bad", "no such word"), ("negative", "the id -1"), ("short", "it gave int32 ids")]
)
def test_a_tokenizer_that_fails_names_the_document(tmp_path, text, message):
    fault = run(tmp_path, ["fine", "fine", text, "fine"], tokenizer=Odd()).fault
    assert fault.startswith(f"{tmp_path}/in.jsonl, line 3: the tokenizer failed: ")
    assert message in fault


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"oversize": "chop"}, PrepareError),
        ({"oversize": None}, TypeError),
        ({"max_length": 0}, PrepareError),
        ({"max_length": True}, TypeError),
        ({"max_length": 2.0}, TypeError),
        ({"text_field": ""}, PrepareError),
        ({"text_field": 3}, TypeError),
        ({"chunk_bytes": 0}, PrepareError),
    ],
)
def test_options_check_themselves(options, error):
    [name] = options
    with pytest.raises(error, match=name):
        PrepareOptions(**options)
