"""Chats are rendered by the template, and trained on where an assistant wrote."""

from datetime import date, timedelta

import pytest

pytest.importorskip("transformers")

from raypack.data.formats.inputs import find_inputs
from raypack.data.ingest.choose_reader import choose_reader, record_of
from raypack.data.ingest.options import PrepareOptions
from raypack.errors import PrepareError
from raypack.tokenizers import load_tokenizer
from tests.support.preparing import (
    CHATML,
    MARKED,
    chat_folder,
    examples_of,
    nonzero,
    prepare_file,
    write_rows,
)


def say(*turns):
    return [{"role": role, "content": content} for role, content in turns]


TWO = say(
    ("system", "Be short."),
    ("user", "Hello"),
    ("assistant", "Hi."),
    ("user", "Capital?"),
    ("assistant", "Paris."),
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("tokenizers")
    return {name: chat_folder(root / name, text) for name, text in (("plain", CHATML), ("marked", MARKED))}


def run(folder, tokenizer, *chats, **options):
    rows = [chat if isinstance(chat, dict) else {"messages": chat} for chat in chats]
    path = write_rows(folder / "in.jsonl", rows)
    (folder / "out").mkdir(exist_ok=True)
    return prepare_file(path, folder / "out", f"hf:{tokenizer}", rows="chat", **options)


def trained(folder, tokenizer, result):
    """Return for each example the whole text, and the runs of it that are trained on."""
    inner = load_tokenizer(f"hf:{tokenizer}").inner
    out = []
    for ids, labels in examples_of(folder / "out", result):
        assert all(label in (-100, token) for token, label in zip(ids, labels, strict=True))
        runs, run = [], []
        for label in [*labels, -100]:
            if label == -100 and run:
                runs.append(inner.decode(run))
                run = []
            elif label != -100:
                run.append(label)
        out.append((inner.decode(ids), runs))
    return out


RENDERED = (
    "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
    "<|im_start|>assistant\nHi.<|im_end|>\n<|im_start|>user\nCapital?<|im_end|>\n"
    "<|im_start|>assistant\nParis.<|im_end|>\n"
)


def test_only_what_the_assistant_wrote_is_trained_on(tmp_path, folders):
    result = run(tmp_path, folders["plain"], TWO)
    assert trained(tmp_path, folders["plain"], result) == [
        (RENDERED, ["Hi.<|im_end|>\n", "Paris.<|im_end|>\n"])
    ]
    [(_, labels)] = examples_of(tmp_path / "out", result)
    assert result.supervised.tolist() == [sum(label != -100 for label in labels)]


def test_a_template_that_marks_answers_decides_itself(tmp_path, folders):
    result = run(tmp_path, folders["marked"], TWO)
    assert trained(tmp_path, folders["marked"], result) == [(RENDERED, ["Hi.<|im_end|>", "Paris.<|im_end|>"])]


@pytest.mark.parametrize("name", ["plain", "marked"])
def test_the_last_answer_alone_or_every_token_can_be_trained_on(tmp_path, folders, name):
    result = run(tmp_path, folders[name], TWO, train_on="last_answer")
    assert trained(tmp_path, folders[name], result) == [(RENDERED, ["Paris.<|im_end|>\n"])]
    result = run(tmp_path, folders[name], TWO, train_on="all")
    assert trained(tmp_path, folders[name], result) == [(RENDERED, [RENDERED])]


def test_the_two_ways_give_the_same_tokens(tmp_path, folders):
    plain = examples_of(tmp_path / "out", run(tmp_path, folders["plain"], TWO, TWO[:3]))
    marked = examples_of(tmp_path / "out", run(tmp_path, folders["marked"], TWO, TWO[:3]))
    assert [ids for ids, _ in plain] == [ids for ids, _ in marked]


# Drops the thoughts of all answers but the last, as reasoning models' templates do.
FORGETFUL = CHATML.replace(
    "{{ message.content }}",
    "{% if loop.last %}{{ message.content }}{% else %}{{ message.content.split('</think>')[-1] }}{% endif %}",
)


def test_a_template_that_changes_earlier_turns_is_a_fault_with_its_remedies(tmp_path):
    folder = chat_folder(tmp_path / "forgetful", FORGETFUL)
    chat = say(
        ("user", "a"), ("assistant", "<think>x</think>b"), ("user", "c"), ("assistant", "<think>y</think>d")
    )
    result = run(tmp_path, folder, TWO, chat)
    assert result.fault.startswith(f"{tmp_path}/in.jsonl, line 2: the chat through messages[1] does not give")
    assert "'last_answer'" in result.fault
    assert "{% generation %}" in result.fault
    result = run(tmp_path, folder, chat, train_on="last_answer")
    assert trained(tmp_path, folder, result)[0][1] == ["<think>y</think>d<|im_end|>\n"]


# Nothing stands before an answer but the end of the question, and only answers are closed.
INSTRUCT = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'user' %}[INST] {{ message.content }} "
    "[/INST]{% else %} {{ message.content }}{{ eos_token }}{% endif %}{% endfor %}"
)


def test_a_template_without_a_header_for_answers_is_understood(tmp_path, folders):
    chat = say(("user", "a"), ("assistant", "Hi."), ("user", "b"), ("assistant", "Paris."))
    template = INSTRUCT.replace("{{ bos_token }}", "<|endoftext|>")
    result = run(tmp_path, folders["plain"], chat, chat_template=template)
    assert trained(tmp_path, folders["plain"], result) == [
        (
            "<|endoftext|>[INST] a [/INST] Hi.<|im_end|>[INST] b [/INST] Paris.<|im_end|>",
            [" Hi.<|im_end|>", " Paris.<|im_end|>"],
        )
    ]


def test_an_answer_that_merges_with_what_stands_before_it_is_a_fault(tmp_path, folders):
    # A byte pair of the last letter before the answer and the answer's first.
    template = (
        INSTRUCT.replace("{{ bos_token }}", "").replace("[/INST]", "[/INST] P").replace(" {{ m", "{{ m")
    )
    chat = say(("user", "a"), ("assistant", "aris."))
    fault = run(tmp_path, folders["plain"], chat, chat_template=template).fault
    assert "line 1: the chat up to messages[1] does not give the first tokens of the whole chat" in fault


def test_a_chat_template_of_ones_own_takes_the_place_of_the_tokenizers(tmp_path, folders):
    result = run(tmp_path, folders["plain"], TWO, chat_template=MARKED)
    assert trained(tmp_path, folders["plain"], result)[0][1] == ["Hi.<|im_end|>", "Paris.<|im_end|>"]


def test_a_first_message_of_the_assistant_needs_a_marking_template(tmp_path, folders):
    chat = say(("assistant", "Hello!"), ("user", "a"))
    assert "messages[0] is an answer with nothing before it" in run(tmp_path, folders["plain"], chat).fault
    result = run(tmp_path, folders["marked"], chat)
    assert trained(tmp_path, folders["marked"], result)[0][1] == ["Hello!<|im_end|>"]


def test_chats_without_an_answer_are_an_error_or_dropped_and_counted(tmp_path, folders):
    chats = [TWO, say(("user", "Anyone?")), TWO]
    fault = run(tmp_path, folders["plain"], *chats).fault
    assert fault.startswith(f"{tmp_path}/in.jsonl, line 2: no token of the example is trained on")
    assert "unsupervised 'drop'" in fault
    result = run(tmp_path, folders["plain"], *chats, unsupervised="drop")
    counts = nonzero(result)
    assert (counts["documents"], counts["unsupervised"], counts["examples"]) == (3, 1, 2)


def test_an_answer_that_truncation_cuts_off_is_named_as_such(tmp_path, folders):
    options = {"max_length": 8, "oversize": "truncate"}
    assert "or only past max_length 8" in run(tmp_path, folders["plain"], TWO, **options).fault
    result = run(tmp_path, folders["plain"], TWO, **options, unsupervised="drop")
    assert nonzero(result) == {"documents": 1, "truncated": 1, "unsupervised": 1}


def test_split_pieces_without_an_answer_are_dropped_and_the_rest_kept(tmp_path, folders):
    whole = examples_of(tmp_path / "out", run(tmp_path, folders["plain"], TWO))
    result = run(tmp_path, folders["plain"], TWO, max_length=10, oversize="split", unsupervised="drop")
    pieces = [(whole[0][0][i : i + 10], whole[0][1][i : i + 10]) for i in range(0, len(whole[0][0]), 10)]
    kept = [piece for piece in pieces if any(label != -100 for label in piece[1][1:])]
    assert examples_of(tmp_path / "out", result) == kept
    assert result.counts.unsupervised == len(pieces) - len(kept) > 0


TOOLS = MARKED.replace("{% for message", "{% if tools %}{{ tools | tojson }}\n{% endif %}{% for message", 1)


def test_tools_reach_the_template(tmp_path):
    folder = chat_folder(tmp_path / "tools", TOOLS)
    row = {"messages": TWO[1:3], "tools": [{"type": "function", "function": {"name": "look"}}]}
    result = run(tmp_path, folder, row, TWO[1:3])
    [(first, runs), (second, _)] = trained(tmp_path, folder, result)
    assert first.startswith('[{"type": "function", "function": {"name": "look"}}]\n<|im_start|>user')
    assert second.startswith("<|im_start|>user")
    assert runs == ["Hi.<|im_end|>"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"messages": "hi"}, "field 'messages' must be a list of messages, got str"),
        ({"messages": []}, "must be a list of messages, got an empty list"),
        ({"messages": None}, "must be a list of messages, got NoneType"),
        ({"messages": ["hi"]}, "messages[0] must be an object, got str"),
        ({"messages": [{"from": "human", "value": "hi"}]}, "must have a 'role'"),
        ({"messages": TWO, "tools": "{}"}, "field 'tools' must be a list, got str"),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "DPOTrainer"),
        ({"prompt": "a", "completion": "b"}, "choose rows 'prompt'"),
        ({"conversations": TWO}, "name the one with the messages by fields={'messages': ...}"),
    ],
)
def test_what_is_no_chat_is_named(tmp_path, folders, row, message):
    fault = run(tmp_path, folders["plain"], TWO, row).fault
    assert fault.startswith(f"{tmp_path}/in.jsonl, line 2: ")
    assert message in fault


def test_an_error_of_the_template_names_the_row(tmp_path, folders):
    strict = (
        "{% if messages[0].role != 'user' %}{{ raise_exception('begin with the user') }}{% endif %}" + CHATML
    )
    fault = run(tmp_path, folders["plain"], TWO[1:3], TWO, chat_template=strict).fault
    assert "line 2: the chat template failed" in fault
    assert "begin with the user" in fault


def test_another_column_may_hold_the_chats(tmp_path, folders):
    result = run(tmp_path, folders["plain"], {"turns": TWO}, fields={"messages": "turns"})
    assert result.counts.examples == 1


def choose(path, tokenizer, **options):
    options = PrepareOptions(rows="chat", **options)
    return record_of(choose_reader(find_inputs(path), tokenizer, options), options)


def test_tokenizers_without_a_template_are_refused(tmp_path):
    path = write_rows(tmp_path / "in.jsonl", [{"messages": TWO}])
    with pytest.raises(PrepareError, match="need a chat template, so a tokenizer 'hf:FOLDER'; got 'bytes'"):
        choose(path, "bytes")
    bare = chat_folder(tmp_path / "bare", None)
    with pytest.raises(PrepareError, match="no chat template of its own; give one by chat_template"):
        choose(path, f"hf:{bare}")
    (tmp_path / "x.txt").write_text("x")
    with pytest.raises(PrepareError, match=r"x\.txt is one text, and rows 'chat' are read from"):
        choose(tmp_path / "x.txt", f"hf:{bare}")


def test_the_template_and_what_is_trained_on_are_in_the_manifest(tmp_path, folders):
    path = write_rows(tmp_path / "in.jsonl", [{"messages": TWO}])
    record = choose(path, f"hf:{folders['plain']}")
    assert record["special_tokens"] == "the chat template's"
    assert (record["rows"], record["train_on"], record["unsupervised"]) == ("chat", "answers", "error")
    own = choose(path, f"hf:{folders['plain']}", chat_template=MARKED)
    assert own["chat_template_digest"] != record["chat_template_digest"]
    assert own["chat_template_digest"] == choose(path, f"hf:{folders['marked']}")["chat_template_digest"]
    assert choose(path, f"hf:{folders['marked']}")["tokenizer_digest"] != record["tokenizer_digest"]


def test_a_template_that_writes_the_day_says_so_in_the_manifest(tmp_path, folders):
    path = write_rows(tmp_path / "in.jsonl", [{"messages": TWO}])
    dated = "{{ strftime_now('%d %b %Y') }}" + CHATML
    assert "template_date" not in choose(path, f"hf:{folders['plain']}")
    record = choose(path, f"hf:{folders['plain']}", chat_template=dated)
    assert record["template_date"] in {str(date.today()), str(date.today() - timedelta(days=1))}
