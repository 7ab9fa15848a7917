"""What is read from a checkpoint is never trusted: each fault is refused with the file's name."""

import json
import random
import shutil

import pyarrow.fs as pafs
import pytest

from raypack.checkpoint.files import entry_of
from raypack.checkpoint.reading import read_state
from raypack.checkpoint.sealing import sealed, unsealed
from raypack.errors import CheckpointError
from tests.conftest import long_tailed
from tests.support.state_factory import name_of, trained, write

LOCAL = pafs.LocalFileSystem()


@pytest.fixture
def source(make_source):
    return make_source(long_tailed(120))


@pytest.fixture
def state(source):
    return trained(source, steps=5)


@pytest.fixture
def checkpoint(tmp_path, state):
    directory = tmp_path / name_of(state)
    write(directory, state)
    return directory


def read(directory, name=None):
    return read_state(LOCAL, str(directory), name)


def test_a_state_comes_back_as_it_was(checkpoint, state):
    assert read(checkpoint) == state


def test_named_loaders_lie_beside_each_other(tmp_path, source):
    one, two = trained(source, steps=2), trained(source, steps=3)
    write(tmp_path / "c", one, "train")
    write(tmp_path / "c", two, "extra")
    assert read(tmp_path / "c", "train") == one
    assert read(tmp_path / "c", "extra") == two
    for name in ("other", None):
        with pytest.raises(CheckpointError, match=r"is missing: .*the loaders 'extra', 'train'; give"):
            read(tmp_path / "c", name)
    (tmp_path / "c/raypack/train/manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"train/manifest\.json is missing: .* incomplete"):
        read(tmp_path / "c", "train")


def test_the_name_of_a_loader_that_has_none_is_refused(checkpoint):
    with pytest.raises(CheckpointError, match=r"train is missing: .*a loader without a name; give none"):
        read(checkpoint, "train")


def test_the_state_is_a_few_kib(checkpoint):
    assert (checkpoint / "raypack/state.json").stat().st_size < 4096


def test_a_checkpoint_without_raypack_is_named(tmp_path):
    (tmp_path / "model.pt").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"raypack is missing: the checkpoint .* holds no state"):
        read(tmp_path)


@pytest.mark.parametrize("file", ["state.json", "manifest.json"])
def test_a_missing_file_is_named(checkpoint, file):
    (checkpoint / "raypack" / file).unlink()
    with pytest.raises(CheckpointError, match=f"{file} is missing"):
        read(checkpoint)


@pytest.mark.parametrize("file", ["state.json", "manifest.json"])
@pytest.mark.parametrize("keep", [0, 1, 0.5, 0.99])
def test_a_truncated_file_is_named(checkpoint, file, keep):
    path = checkpoint / "raypack" / file
    data = path.read_bytes()
    path.write_bytes(data[: int(keep if keep == 1 else keep * len(data))])
    with pytest.raises(CheckpointError, match=f"{file}: "):
        read(checkpoint)


@pytest.mark.parametrize("file", ["state.json", "manifest.json"])
def test_any_changed_byte_is_found(checkpoint, file):
    path = checkpoint / "raypack" / file
    data = path.read_bytes()
    rng = random.Random(0)
    for _ in range(200):
        place = rng.randrange(len(data) - 1)
        broken = bytearray(data)
        broken[place] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(broken))
        try:
            read(checkpoint)
        except CheckpointError as error:
            assert file in str(error)  # noqa: PT017
        else:
            assert json.loads(bytes(broken)) == json.loads(data)  # white space


def test_an_edited_number_is_found(checkpoint):
    path = checkpoint / "raypack/state.json"
    path.write_text(path.read_text().replace('"steps": 5', '"steps": 4'))
    with pytest.raises(CheckpointError, match=r"state\.json: "):
        read(checkpoint)


def test_a_state_of_another_report_is_stale(checkpoint, source, tmp_path):
    other = trained(source, steps=5, report_id="b" * 32)
    write(tmp_path / "other", other)
    shutil.copy(tmp_path / "other/raypack/state.json", checkpoint / "raypack/state.json")
    with pytest.raises(CheckpointError, match=r"state\.json: is stale: it belongs to the report 'b"):
        read(checkpoint)


def test_a_folder_copied_from_another_checkpoint_is_stale(checkpoint, source):
    shutil.rmtree(checkpoint / "raypack")
    write(checkpoint, trained(source, steps=3, report_id="c" * 32))
    with pytest.raises(CheckpointError, match=r"manifest\.json is stale"):
        read(checkpoint)


def test_an_extra_file_is_named(checkpoint):
    (checkpoint / "raypack/rank_00003.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"rank_00003\.json is not in manifest\.json"):
        read(checkpoint)


def test_a_foreign_file_is_refused(checkpoint):
    (checkpoint / "raypack/manifest.json").write_bytes(sealed({"hello": "world"}))
    with pytest.raises(CheckpointError, match=r"manifest\.json: raypack checkpoint: missing fields"):
        read(checkpoint)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": 99}, "step must be 5"),
        ({"version": 2}, "version 1"),
        ({"deal": "cards"}, "deal global or rank"),
        ({"deal": "rank"}, "must be those of the manifest"),
        ({"world_size": 0}, "must be those of the manifest"),
        ({"world_size": 2**60}, "must be those of the manifest"),
        ({"source": 3}, "source must be an object"),
        ({"plan": {}}, "step planner state"),
        ({"ledger": {"attempts": [], "epochs": []}}, "plan stands at step 5 of epoch 0, the ledger has 0"),
        ({"extra": 1}, "unknown fields"),
    ],
)
def test_a_state_that_was_sealed_with_wrong_values_is_refused(checkpoint, change, message):
    folder = checkpoint / "raypack"
    values = {**unsealed((folder / "state.json").read_bytes()), **change}
    data = sealed(values)
    (folder / "state.json").write_bytes(data)
    manifest = unsealed((folder / "manifest.json").read_bytes())
    manifest["files"]["state.json"] = entry_of(data)
    (folder / "manifest.json").write_bytes(sealed(manifest))
    with pytest.raises(CheckpointError, match=message) as caught:
        read(checkpoint)
    assert "state.json" in str(caught.value)


def test_names_are_unique_for_attempt_world_and_report(source):
    names = {name_of(trained(source, steps=5, report_id=n * 32, world_size=w)) for n in "ab" for w in (2, 3)}
    assert len(names) == 4
