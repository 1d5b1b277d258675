"""How are activations of chosen sites kept on disk, and read back without loading all of them?

A directory holds shards ``activations-00000.safetensors``, ... and ``index.json``.  In each shard a
site's name leads to its rows ``[row, d_model]`` in the model's own dtype; ``rows.sequence``,
``rows.position`` and ``rows.token`` say where each row comes from (token -1 if the model reads
none).  The index is written last: a directory without it is not complete, and is refused.
"""

import json
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from resstream.errors import OutputError, ResultError
from resstream.stream.files import write_directory
from resstream.stream.provenance import Provenance
from resstream.stream.result import from_plain, to_plain
from resstream.stream.sites import Key, name_of_key, resolve_site
from resstream.stream.texts import Batch

SCHEMA = "resstream.activations/1"

_INDEX = "index.json"
_SHARD = "activations-{:05d}.safetensors"
_ROWS = ("rows.sequence", "rows.position", "rows.token")
_SHARD_BYTES = 128 << 20


class ActivationWriter:
    """Collects rows and writes a shard when there are enough; made by `keep_activations`.

    Args:
        directory: Where shards go.
        sites: Sites whose values are kept.
    """

    def __init__(self, directory: Path, sites: Sequence[str]) -> None:
        self._directory = directory
        self._sites = tuple(sites)
        self._current: dict[str, Tensor] = {}
        self._pending: list[dict[str, Tensor]] = []
        self._shards: list[dict[str, Any]] = []
        self._kinds: dict[str, tuple[str, int]] = {}

    def readers(self) -> Iterator[tuple[str, Callable[[Tensor], None]]]:
        """Each site with the function that takes its value."""
        for site in self._sites:
            yield site, self._reader(site)

    def _reader(self, site: str) -> Callable[[Tensor], None]:
        def read(value: Tensor) -> None:
            self._current[site] = value.detach().to("cpu", copy=True)

        return read

    def close_batch(self, batch: Batch, n_positions: int) -> None:
        """Take what was read in the run of `batch`, whose sequences have `n_positions` each."""
        n_rows = len(batch.rows) * n_positions
        part = {site: value.reshape(n_rows, -1) for site, value in self._current.items()}
        part["rows.sequence"] = torch.tensor(batch.rows).repeat_interleave(n_positions)
        part["rows.position"] = torch.arange(n_positions).repeat(len(batch.rows))
        is_tokens = batch.tokens.ndim == 2 and not batch.tokens.is_floating_point()
        part["rows.token"] = batch.tokens.flatten() if is_tokens else torch.full((n_rows,), -1)
        self._current = {}
        self._pending.append(part)
        if sum(value.nbytes for item in self._pending for value in item.values()) >= _SHARD_BYTES:
            self._write_shard()

    def _write_shard(self) -> None:
        name = _SHARD.format(len(self._shards))
        whole = {key: torch.cat([part[key] for part in self._pending]) for key in self._pending[0]}
        try:
            save_file(whole, self._directory / name)
        except SafetensorError as err:
            raise OutputError(f"cannot write {name}: {err}") from err
        self._shards.append({"file": name, "rows": len(whole["rows.sequence"])})
        self._kinds = {
            site: (str(whole[site].dtype).removeprefix("torch."), whole[site].shape[1])
            for site in self._sites
        }
        self._pending = []

    def finish(self, provenance: Provenance) -> None:
        """Write the last shard and the index."""
        if self._pending:
            self._write_shard()
        n_rows = sum(shard["rows"] for shard in self._shards)
        sites = {
            site: {"dtype": dtype, "shape": [n_rows, width]}
            for site, (dtype, width) in self._kinds.items()
        }
        index = {
            "schema": SCHEMA,
            "provenance": to_plain(provenance),
            "sites": sites,
            "shards": self._shards,
        }
        (self._directory / _INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")


@contextmanager
def keep_activations(
    directory: str | Path, sites: Sequence[str], provenance: Provenance
) -> Generator[ActivationWriter, None, None]:
    """Give a writer; `directory` gets its files when the context ends well, and is untouched else.

    Activations that were there before are replaced; other files stay.

    Raises:
        OutputError: The directory can't be written.
    """
    goal = Path(directory)
    if goal.exists() and not goal.is_dir():
        raise OutputError(f"cannot write {goal}: it is a file, and activations need a directory")
    with write_directory(goal) as part:
        writer = ActivationWriter(part, sites)
        yield writer
        writer.finish(provenance)
        _remove_old(goal)  # the index first, so that old and new shards are never taken for one


def _remove_old(goal: Path) -> None:
    (goal / _INDEX).unlink(missing_ok=True)
    for shard in goal.glob("activations-*.safetensors"):
        shard.unlink()


@dataclass(frozen=True, slots=True)
class Activations:
    """Activations on disk, opened by `open_activations`; nothing is loaded until asked for."""

    directory: Path
    provenance: Provenance
    shapes: dict[str, tuple[int, int]]
    """Rows and width of every site."""
    dtypes: dict[str, str]
    shards: tuple[str, ...]

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that were kept."""
        return tuple(self.shapes)

    def chunks(self, site: str) -> Iterator[Float[Tensor, "row d_model"]]:
        """The rows of `site`, one shard at a time.

        Raises:
            UnknownSiteError: The site was not kept.
        """
        return self._chunks(resolve_site(site, self.sites))

    def read(self, site: str) -> Float[Tensor, "row d_model"]:
        """All rows of `site` in memory.

        Raises:
            UnknownSiteError: The site was not kept.
        """
        return torch.cat(list(self.chunks(site)))

    def __getitem__(self, key: Key) -> Float[Tensor, "row d_model"]:
        """All rows of a site, asked for as in `ActivationCache`: ``kept["resid_post", 3]``."""
        blocks = {name.split(".")[1] for name in self.sites if name.startswith("blocks.")}
        n_layers = 1 + max(map(int, blocks), default=-1)
        return self.read(name_of_key(key, n_layers=n_layers))

    def rows(self) -> dict[str, Int[Tensor, " row"]]:
        """Where each row comes from: ``sequence``, ``position`` and ``token``."""
        return {key.removeprefix("rows."): torch.cat(list(self._chunks(key))) for key in _ROWS}

    def _chunks(self, key: str) -> Iterator[Tensor]:
        for name in self.shards:
            with safe_open(self.directory / name, framework="pt") as shard:
                yield shard.get_tensor(key)


def open_activations(directory: str | Path) -> Activations:
    """Open what `record(..., keep=directory)` wrote.

    Raises:
        ResultError: There is no complete set of activations.
    """
    place = Path(directory)
    try:
        index = json.loads((place / _INDEX).read_text(encoding="utf-8"))
    except FileNotFoundError as err:
        raise ResultError(f"{place} has no {_INDEX}: no activations, or not complete") from err
    except (OSError, ValueError) as err:
        raise ResultError(f"cannot read {place / _INDEX}: {err}") from err
    found = index.get("schema") if isinstance(index, dict) else None
    if found != SCHEMA:
        raise ResultError(f"{place / _INDEX} must have schema {SCHEMA!r}, got {found!r}")
    shards = tuple(shard["file"] for shard in index["shards"])
    missing = [name for name in shards if not (place / name).is_file()]
    if missing:
        raise ResultError(f"{place} lacks {len(missing)} of its shards, first {missing[0]}")
    sites = index["sites"]
    return Activations(
        directory=place,
        provenance=from_plain(Provenance, index["provenance"]),
        shapes={site: (entry["shape"][0], entry["shape"][1]) for site, entry in sites.items()},
        dtypes={site: entry["dtype"] for site, entry in sites.items()},
        shards=shards,
    )
