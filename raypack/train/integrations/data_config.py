"""Packed data through ``ray.train.get_dataset_shard``, alongside other datasets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import ray.data
import torch
from ray.train import Checkpoint, DataConfig

from raypack.errors import LoaderError
from raypack.train.elastic.restoring import LAST, REFUSE
from raypack.train.elastic.start import get_loader
from raypack.train.loader import PackedLoader
from raypack.train.recipe import PackedData

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class PackedDataConfig(DataConfig):
    """Gives each rank a `PackedShard` where its train function asks for a recipe's name.

        config = PackedDataConfig({"train": recipe})
        TorchTrainer(train, datasets={**config.datasets, "other": dataset}, dataset_config=config)

    Args:
        recipes: Recipes by the names that the train function asks for.
        more: What `ray.train.DataConfig` takes, for the other datasets.

    Raises:
        TypeError: A recipe is no `PackedData`.
    """

    def __init__(self, recipes: Mapping[str, PackedData], **more: Any) -> None:
        super().__init__(**more)
        for name, recipe in recipes.items():
            if not isinstance(recipe, PackedData):
                raise TypeError(f"recipes[{name!r}] must be a PackedData, got {type(recipe).__name__}")
        self._recipes = dict(recipes)

    @property
    def datasets(self) -> dict[str, Any]:
        """What ``TorchTrainer(datasets=...)`` is given for the recipes: names without data of their own."""
        return dict.fromkeys(self._recipes, _nothing)

    @property
    def recipes(self) -> dict[str, PackedData]:
        """Recipes by their names."""
        return dict(self._recipes)

    def configure(
        self,
        datasets: dict[str, Any],
        world_size: int,
        worker_handles: Any,
        worker_node_ids: Any,
        **more: Any,
    ) -> list[dict[str, Any]]:
        """Return each rank's shards; called by Ray Train."""
        others = {name: dataset for name, dataset in datasets.items() if name not in self._recipes}
        shards = super().configure(others, world_size, worker_handles, worker_node_ids, **more)
        for name in datasets.keys() & self._recipes.keys():
            for shard in shards:
                shard[name] = PackedShard(self._recipes[name])
        return shards


def _nothing() -> Any:
    return ray.data.range(0)


@dataclass(slots=True)
class PackedShard:
    """This rank's part of a recipe; a context that opens its loader.

    with ray.train.get_dataset_shard("train") as loader:
        for step in loader: ...
    """

    recipe: PackedData
    _loader: PackedLoader | None = None

    def open(
        self,
        *,
        name: str | None = None,
        device: torch.device | str | None = None,
        may_change: Collection[str] = (),
        mesh: DeviceMesh | None = None,
        data_dim: str | Sequence[str] | None = None,
        checkpoint: Checkpoint | str | None = LAST,
        foreign: str = REFUSE,
    ) -> PackedLoader:
        """Return the loader; see `get_loader`."""
        return get_loader(
            self.recipe,
            name=name,
            device=device,
            may_change=may_change,
            mesh=mesh,
            data_dim=data_dim,
            checkpoint=checkpoint,
            foreign=foreign,
        )

    def __enter__(self) -> PackedLoader:
        self._loader = self.open()
        return self._loader.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loader is not None:
            self._loader.__exit__(kind, error, trace)
            self._loader = None

    def iter_torch_batches(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: batches without their steps cannot be committed."""
        raise LoaderError(
            "a packed shard gives optimizer steps, not loose batches: write "
            "'with ray.train.get_dataset_shard(...) as loader' and 'for step in loader'"
        )

    iter_batches = iter_rows = iter_torch_batches
