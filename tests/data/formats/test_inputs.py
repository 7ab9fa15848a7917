"""Files and folders are found in order and cut by themselves alone; lines keep their numbers."""

import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raypack.data.formats.columns import row_columns
from raypack.data.formats.inputs import find_inputs
from raypack.data.formats.row import RowFault
from raypack.data.formats.rows import located, read_rows
from raypack.data.ingest.chunks import cut_chunks
from raypack.errors import PrepareError

TEXTS = st.lists(st.text(max_size=12), max_size=12)


def names(files):
    return [os.path.basename(file.name) for file in files]


def read(path, chunk_bytes=1 << 20):
    chunks = cut_chunks(find_inputs([path]), chunk_bytes)
    columns = row_columns("text", "text", None)
    rows = [row for chunk in chunks for piece in chunk.pieces for row in read_rows(piece, columns)]
    for row in rows:
        row.text("text", columns.names)
    return rows


def texts_of(rows):
    return [row.fields["text"] for row in rows]


def fault(path, chunk_bytes=1 << 20):
    with pytest.raises(RowFault) as caught:
        read(path, chunk_bytes)
    return located(caught.value)


def test_folders_are_walked_and_sorted_and_inputs_keep_their_order(tmp_path):
    for name in ("b/z.txt", "b/a.jsonl", "b/a/x.txt", "b/a-1.txt", "b/.hidden", "b/.git/x.txt", "a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("x")
    files = find_inputs([tmp_path / "b", str(tmp_path / "a.txt")])
    assert [file.name.removeprefix(f"{tmp_path}/") for file in files] == [
        "b/a/x.txt",
        "b/a-1.txt",
        "b/a.jsonl",
        "b/z.txt",
        "a.txt",
    ]
    assert [file.format.kind for file in files] == ["text", "text", "jsonl", "text", "text"]


@pytest.mark.parametrize(
    "name", ["x.parquet.gz", "x.json.gz", "x.ZIP", "x.json", "x.csv", "x.arrow", "x.npy", "x.tar", "x.tar.gz"]
)
@pytest.mark.parametrize("in_folder", [True, False])
def test_a_kind_that_is_not_read_is_refused_by_name(tmp_path, name, in_folder):
    (tmp_path / name).write_text("x")
    with pytest.raises(PrepareError, match=rf"{name} is .* which is not read; \w+"):
        find_inputs(tmp_path if in_folder else tmp_path / name)


def test_missing_empty_and_repeated_inputs_are_refused(tmp_path):
    with pytest.raises(PrepareError, match="nowhere does not exist"):
        find_inputs(tmp_path / "nowhere")
    with pytest.raises(PrepareError, match="holds no files"):
        find_inputs(tmp_path)
    with pytest.raises(PrepareError, match="at least one"):
        find_inputs([])
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(PrepareError, match=r"a\.txt comes twice"):
        find_inputs([tmp_path, tmp_path / "a.txt"])
    with pytest.raises(TypeError, match="inputs must be"):
        find_inputs(3)


def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "p")
    with pytest.raises(PrepareError, match="neither a file nor a folder"):
        find_inputs(tmp_path / "p")


def test_small_files_share_a_chunk_and_large_lines_files_are_cut(tmp_path):
    for name, size in (("a.txt", 4), ("b.txt", 5), ("c.jsonl", 25), ("d.txt", 99), ("e.txt", 0)):
        (tmp_path / name).write_bytes(b"x" * size)
    chunks = cut_chunks(find_inputs(tmp_path), 10)
    assert [[(names([p.file])[0], p.start, p.stop) for p in c.pieces] for c in chunks] == [
        [("a.txt", 0, 4), ("b.txt", 0, 5)],
        [("c.jsonl", 0, 10)],
        [("c.jsonl", 10, 20)],
        [("c.jsonl", 20, 25)],
        [("d.txt", 0, 99)],
        [("e.txt", 0, 0)],
    ]
    assert [chunk.number for chunk in chunks] == list(range(6))
    assert sum(chunk.bytes for chunk in chunks) == 4 + 5 + 25 + 99


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=TEXTS, size=st.integers(1, 60), end=st.booleans(), blank=st.booleans(), ascii_only=st.booleans())
def test_any_cut_of_a_lines_file_gives_each_document_once(tmp_path, texts, size, end, blank, ascii_only):
    lines = [json.dumps({"text": text}, ensure_ascii=ascii_only) for text in texts]
    data = ("\n\n" if blank else "\n").join(lines) + ("\n" if end and lines else "")
    path = tmp_path / "x.jsonl"
    path.write_bytes(data.encode())
    documents = read(path, size)
    assert texts_of(documents) == texts
    places = [located(row.fault("")) for row in documents]
    step = 2 if blank else 1
    assert places == [f"{path}, line {1 + step * i}: " for i in range(len(texts))]


def test_windows_line_ends_a_byte_order_mark_and_unicode_line_ends_are_understood(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "a"}\r\n{"text": "b\xe2\x80\xa8c"}\r\n   \r\n')
    assert texts_of(read(path)) == ["a", "b\u2028c"]
    text = tmp_path / "x.txt"
    text.write_bytes(b"\xef\xbb\xbfa\r\nb")
    assert texts_of(read(text)) == ["a\r\nb"]


@pytest.mark.parametrize("size", [7, 30, 1000])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "invalid JSON"),
        (b"nonsense", "invalid JSON"),
        (b"[" * 100_000, "invalid JSON"),
        (b'"text"', "a line must be a JSON object, got str"),
        (b'{"body": "x"}', "there are ['body']); name the one with the text by text_field"),
        (b'{"text": null}', "field 'text' must be a string, got NoneType"),
        (b'{"text": ["x"]}', "field 'text' must be a string, got list"),
        (b'{"text": "\xff"}', r"invalid UTF-8 (byte 0xff)"),
        (b'{"text": "\\ud800"}', "half a surrogate pair"),
    ],
)
def test_a_bad_line_is_named_whatever_the_cut(tmp_path, size, line, message):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"text": "good"}\n{"text": "good"}\n\n' + line + b'\n{"text": "good"}\n')
    text = fault(path, size)
    assert text.startswith(f"{path}, line 4: ")
    assert message in text


def test_invalid_utf8_in_a_text_file_is_named_with_its_line(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes(b"one\ntwo\nth\xe9ee\n")
    assert fault(path) == f"{path}, line 3: invalid UTF-8 (byte 0xe9); convert the file to UTF-8"


@pytest.mark.parametrize("name", ["x.txt", "x.jsonl"])
def test_a_file_that_changed_meanwhile_is_refused(tmp_path, name):
    path = tmp_path / name
    path.write_text('{"text": "a"}\n')
    chunks = cut_chunks(find_inputs(path), 1 << 20)
    path.write_text("")
    with pytest.raises(RowFault, match="had 14 bytes when the job began and has 0 now"):
        list(read_rows(chunks[0].pieces[0], row_columns("text", "text", None)))
