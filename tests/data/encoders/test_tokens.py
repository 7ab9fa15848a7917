"""Tokens made before come from Parquet as they are, without what the attention mask hides."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raypack.errors import PrepareError
from tests.support.preparing import examples_of, nonzero, prepare_file

KINDS = [pa.list_(pa.int64()), pa.large_list(pa.int32()), pa.list_(pa.uint16())]


def write(path, kind=None, groups=2, **columns):
    arrays = {name: pa.array(values, kind or pa.list_(pa.int64())) for name, values in columns.items()}
    pq.write_table(pa.table(arrays), path, row_group_size=groups)
    return path


def run(folder, path, **options):
    (folder / "out").mkdir(exist_ok=True)
    return prepare_file(path, folder / "out", rows="tokens", **options)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_taken_as_they_are(tmp_path, kind):
    ids = [[1, 2, 3], [4], [], [5, 6]]
    result = run(tmp_path, write(tmp_path / "x.parquet", kind, input_ids=ids))
    assert examples_of(tmp_path / "out", result) == [(row, None) for row in ids if row]
    assert nonzero(result) == {"documents": 4, "empty": 1, "examples": 3, "tokens": 6}
    assert result.supervised.tolist() == [2, 0, 1]


def test_lists_of_a_fixed_size_are_lists(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"input_ids": pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2))}), path)
    assert examples_of(tmp_path / "out", run(tmp_path, path)) == [([1, 2], None), ([3, 4], None)]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.booleans()), max_size=6), max_size=6
    ),
    limit=st.integers(1, 6),
)
def test_labels_and_mask_are_what_a_plain_loop_does(tmp_path, rows, limit):
    path = write(
        tmp_path / "x.parquet",
        input_ids=[[token for token, _, _ in row] for row in rows],
        labels=[[token if trained else -100 for token, trained, _ in row] for row in rows],
        attention_mask=[[int(shown) for _, _, shown in row] for row in rows],
    )
    expected = []
    for row in rows:
        shown = [(token, token if trained else -100) for token, trained, is_shown in row if is_shown]
        for start in range(0, len(shown), limit):
            piece = shown[start : start + limit]
            if any(label != -100 for _, label in piece[1:]):
                expected.append(([token for token, _ in piece], [label for _, label in piece]))
    result = run(tmp_path, path, max_length=limit, oversize="split", unsupervised="drop")
    assert examples_of(tmp_path / "out", result) == expected


def test_other_columns_are_named_by_role(tmp_path):
    path = write(tmp_path / "x.parquet", tokens=[[1, 2]], targets=[[-100, 2]])
    result = run(tmp_path, path, fields={"input_ids": "tokens", "labels": "targets"})
    assert examples_of(tmp_path / "out", result) == [([1, 2], [-100, 2])]
    with pytest.raises(
        PrepareError, match=r"field 'wanted' is missing \(there are \['targets', 'tokens'\]\)"
    ):
        run(tmp_path, path, fields={"input_ids": "tokens", "labels": "wanted"})


GOOD = [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"input_ids": [[1, 2], [3], None]}, "input_ids must have no nulls; row 2 is null"),
        ({"input_ids": [[1, 2], [3], [None]]}, "input_ids must have no nulls; row 2 holds one"),
        ({"input_ids": [[1, 2], [3], [-4]]}, ", row 2 (from 0): input_ids must be at least 0, got -4"),
        ({"input_ids": [[1, 2], [3], [2**31]]}, "input_ids must fit int32"),
        (
            {"input_ids": GOOD, "labels": [[1, 2], [3, 4], [-1, 6]]},
            ", row 2 (from 0): labels must be at least 0, or",
        ),
        ({"input_ids": GOOD, "labels": [[1, 2], [3, 4], [6]]}, ", row 2 (from 0): labels must be as long as"),
        (
            {"input_ids": GOOD, "attention_mask": [[1, 1], [1, 1], [2, 1]]},
            "attention_mask must be 0 or 1, got 2",
        ),
        (
            {"input_ids": GOOD, "labels": [[1, 2], [3, 4], [5, -100]]},
            ", row 2 (from 0): no token of the example",
        ),
    ],
)
def test_a_bad_row_is_named(tmp_path, columns, message):
    path = write(tmp_path / "x.parquet", groups=9, **columns)
    fault = run(tmp_path, path).fault
    assert fault.startswith(str(path))
    assert message in fault


def test_a_column_of_something_else_is_refused(tmp_path):
    pq.write_table(pa.table({"input_ids": ["a"]}), tmp_path / "x.parquet")
    assert (
        "input_ids must be a list or large_list of integers, got string"
        in run(tmp_path, tmp_path / "x.parquet").fault
    )


@pytest.mark.parametrize("first", [True, False])
def test_files_with_and_without_labels_are_not_mixed(tmp_path, first):
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "a.parquet", input_ids=GOOD, **({"labels": GOOD} if first else {}))
    write(tmp_path / "in" / "b.parquet", input_ids=GOOD, **({} if first else {"labels": GOOD}))
    has, lacks = ("a", "b") if first else ("b", "a")
    fault = run(tmp_path, tmp_path / "in").fault
    assert f"in/{has}.parquet has a column 'labels' and {tmp_path}/in/{lacks}.parquet has none" in fault


def test_what_is_no_parquet_or_has_a_tokenizer_is_refused(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"input_ids": [1]}\n')
    with pytest.raises(PrepareError, match=r"x\.jsonl is no Parquet file, and rows 'tokens'"):
        run(tmp_path, tmp_path / "x.jsonl")
    path = write(tmp_path / "x.parquet", input_ids=GOOD)
    with pytest.raises(PrepareError, match="tokenizer is not for rows 'tokens'"):
        run(tmp_path, path, tokenizer="tokenizer.json")
    pq.write_table(pa.table({"text": ["a"]}), path)
    with pytest.raises(PrepareError, match=r"field 'input_ids' is missing .* choose rows 'text'"):
        run(tmp_path, path)
