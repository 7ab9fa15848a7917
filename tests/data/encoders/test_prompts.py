"""A prompt is read and its completion trained on."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from raypack.errors import PrepareError
from tests.support.preparing import examples_of, nonzero, prepare_file, write_rows


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Bytes with two merges: a space and "P", and that and "a"."""
    letters = pre_tokenizers.ByteLevel.alphabet()
    words = {letter: number for number, letter in enumerate(sorted(letters))}
    words |= {"ĠP": 256, "ĠPa": 257, "</s>": 258, "<s>": 259}
    tokenizer = Tokenizer(models.BPE(words, [("Ġ", "P"), ("ĠP", "a")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    path = tmp_path_factory.mktemp("t") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def run(folder, rows, tokenizer="bytes", **options):
    rows = [
        row if isinstance(row, dict) else dict(zip(("prompt", "completion"), row, strict=True))
        for row in rows
    ]
    path = write_rows(folder / "in.jsonl", rows)
    (folder / "out").mkdir(exist_ok=True)
    if tokenizer == "bytes":
        options.setdefault("eos", False)
    return prepare_file(path, folder / "out", str(tokenizer), rows="prompt", **options)


def spell(ids):
    return "".join("_" if token == -100 else chr(token) for token in ids)


def spelled(folder, result):
    return [(spell(ids), spell(labels)) for ids, labels in examples_of(folder / "out", result)]


def test_the_prompt_is_masked_and_the_completion_is_not(tmp_path):
    result = run(tmp_path, [("2+2=", "4"), ("", "alone"), ("ab", "cd")])
    assert spelled(tmp_path, result) == [("2+2=4", "____4"), ("alone", "alone"), ("abcd", "__cd")]
    assert result.supervised.tolist() == [1, 4, 2]


def test_all_of_it_can_be_trained_on(tmp_path):
    result = run(tmp_path, [("ab", "cd")], train_on="all")
    assert spelled(tmp_path, result) == [("abcd", "abcd")]


def test_a_completion_ends_with_eos_and_the_prompt_begins_with_bos(tmp_path, file):
    result = run(tmp_path, [("ab", "cd")], file, bos="<s>", eos="</s>")
    [(ids, labels)] = examples_of(tmp_path / "out", result)
    assert (ids[0], ids[-1], len(ids)) == (259, 258, 6)
    assert labels == [-100, -100, -100, *ids[3:]]


def test_without_a_known_eos_the_choice_is_the_users(tmp_path, file):
    for tokenizer in (file, "bytes"):
        with pytest.raises(
            PrepareError, match=r"does not say which token is its EOS; give eos .* or eos=False"
        ):
            run(tmp_path, [("a", "b")], tokenizer, eos=None)
    with pytest.raises(PrepareError, match="eos must be a token of the vocabulary, got '<none>'"):
        run(tmp_path, [("a", "b")], file, eos="<none>")


def test_tokens_that_merge_over_the_boundary_are_an_error_or_kept_apart(tmp_path, file):
    rows = [("Capital:", " Paris"), ("Capital: ", "Paris")]
    fault = run(tmp_path, rows, file, eos=False).fault
    assert fault.startswith(f"{tmp_path}/in.jsonl, line 2: the last tokens of the prompt merge with")
    assert "on_token_merge 'separate'" in fault
    result = run(tmp_path, rows, file, eos=False, on_token_merge="separate")
    joined, apart = examples_of(tmp_path / "out", result)
    assert joined[1][-4:] == joined[0][-4:]
    assert 257 in joined[1]
    assert 257 not in apart[0]
    assert len(apart[0]) == len("Capital: Paris")
    assert [label for label in apart[1] if label != -100] == apart[0][-5:]
    assert nonzero(result)["separated"] == 1


def test_an_empty_completion_teaches_nothing(tmp_path):
    rows = [("ab", "cd"), ("ab", ""), ("", "")]
    assert "line 2: no token of the example is trained on" in run(tmp_path, rows).fault
    result = run(tmp_path, rows, unsupervised="drop")
    assert spelled(tmp_path, result) == [("abcd", "__cd")]
    assert nonzero(result) == {"documents": 3, "empty": 1, "unsupervised": 1, "examples": 1, "tokens": 4}


def test_eos_after_an_empty_completion_is_not_trained_on(tmp_path, file):
    assert "line 1: no token" in run(tmp_path, [("ab", "")], file, eos="</s>").fault


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"prompt": "a"},
            "field 'completion' is missing (there are ['prompt']); name the one with the completion",
        ),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "preference pairs are not trained on"),
        ({"prompt": "a", "completion": None}, "field 'completion' must be a string, got NoneType"),
        ({"prompt": [{"role": "user"}], "completion": "x"}, "got list; write the messages of prompt and"),
        ({"messages": []}, "or choose rows 'chat'"),
        ({"text": "x"}, "or choose rows 'text'"),
        ({"prompt": "a", "completion": "\ud800"}, "half a surrogate pair"),
    ],
)
def test_a_bad_row_is_named(tmp_path, row, message):
    fault = run(tmp_path, [("a", "b"), row]).fault
    assert fault.startswith(f"{tmp_path}/in.jsonl, line 2: ")
    assert message in fault


def test_other_columns_are_named_by_role(tmp_path):
    fields = {"prompt": "question", "completion": "answer"}
    result = run(tmp_path, [{"question": "ab", "answer": "cd", "id": 3}], fields=fields)
    assert spelled(tmp_path, result) == [("abcd", "__cd")]


def test_the_first_fault_in_the_order_of_the_rows_wins(tmp_path, file):
    rows = [("a", "b"), ("a", "b" * 9), ("a", None), ("x ", "Pa")]
    assert "line 2: the document has 10 tokens" in run(tmp_path, rows, max_length=9).fault
    assert (
        "line 3: the last tokens"
        in run(tmp_path, [*rows[:1], *rows[:1], rows[3], rows[2]], file, eos=False).fault
    )


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(st.text("ab", max_size=5), st.text("cd", max_size=5)), max_size=8),
    limit=st.integers(1, 9),
    policy=st.sampled_from(["split", "truncate", "drop"]),
)
def test_each_policy_is_what_a_plain_loop_does(tmp_path, rows, limit, policy):
    expected = []
    for prompt, completion in rows:
        text, masked = prompt + completion, "_" * len(prompt) + completion
        if policy == "drop" and len(text) > limit:
            continue
        cuts = range(0, len(text), limit) if policy == "split" else [0]
        expected += [(text[i : i + limit], masked[i : i + limit]) for i in cuts]
    result = run(tmp_path, rows, max_length=limit, oversize=policy, unsupervised="drop")
    assert spelled(tmp_path, result) == [e for e in expected if e[1][1:].strip("_")]
    c = result.counts
    assert c.examples == c.documents - c.empty - c.dropped - c.split + c.pieces - c.unsupervised


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": "pairs"}, "rows must be one of"),
        ({"rows": "prompt", "train_on": "last_answer"}, "train_on must be 'answers' or 'all'"),
        ({"train_on": "all"}, "train_on is for rows 'prompt' and 'chat', got rows 'text'"),
        ({"unsupervised": "drop"}, "unsupervised is for rows"),
        ({"rows": "chat", "on_token_merge": "separate"}, "on_token_merge is for rows 'prompt'"),
        ({"rows": "chat", "eos": True}, "eos is for rows 'text' and 'prompt'"),
        ({"rows": "prompt", "chat_template": "x"}, "chat_template is for rows 'chat'"),
        ({"rows": "prompt", "fields": {"answer": "x"}}, "must be 'prompt', 'completion'; got 'answer'"),
        ({"fields": {"text": "x"}}, "use text_field"),
        ({"eos": ""}, "eos must be"),
    ],
)
def test_options_that_do_not_fit_the_rows_are_refused(tmp_path, options, message):
    (tmp_path / "in.jsonl").write_text("")
    with pytest.raises(PrepareError, match=message):
        prepare_file(tmp_path / "in.jsonl", tmp_path, **options)


@pytest.mark.parametrize("options", [{"bos": 3}, {"fields": ["prompt"]}, {"rows": None}])
def test_options_of_a_wrong_type_are_refused(tmp_path, options):
    (tmp_path / "in.jsonl").write_text("")
    with pytest.raises(TypeError, match=next(iter(options))):
        prepare_file(tmp_path / "in.jsonl", tmp_path, **options)
