"""What does the stream pass on its way, and which of its points is each write added to?"""

from dataclasses import dataclass

from resstream.stream.sites import block_site, has_resid_mid
from resstream.stream.spec import BlockSpec, StreamSpec, WriteSpec


@dataclass(frozen=True, slots=True)
class Stop:
    """One place on the way: a point of the stream, or a write."""

    site: str
    write: int | None
    """Index of the write; None for a point of the stream."""


@dataclass(frozen=True, slots=True)
class Route:
    """All stops in the order of execution."""

    stops: tuple[Stop, ...]
    writes: tuple[WriteSpec, ...]
    before: tuple[str | None, ...]
    """For each write the site of the stream that it is added to; None if that has no site."""
    additive: tuple[bool, ...]
    """For each write whether the stream behind it is the stream before it plus the write."""

    @property
    def points(self) -> tuple[str, ...]:
        """Sites of the stream, depth 0 first."""
        return tuple(stop.site for stop in self.stops if stop.write is None)


def plan_route(spec: StreamSpec) -> Route:
    """The route of a model whose stream is described by `spec`."""
    stops: list[Stop] = []
    before: list[str | None] = []
    additive: list[bool] = []
    for block in spec.blocks:
        stops.append(Stop(block_site(block.layer, "resid_pre"), None))
        for index, write in enumerate(block.writes):
            if index == 1 and has_resid_mid(block):
                stops.append(Stop(block_site(block.layer, "resid_mid"), None))
            stops.append(Stop(write.site, len(before)))
            before.append(_before(block, index))
            additive.append(not block.stream_norms and write.skip_scale == 1.0)
    stops.append(Stop(block_site(spec.blocks[-1].layer, "resid_post"), None))
    return Route(tuple(stops), spec.writes, tuple(before), tuple(additive))


def _before(block: BlockSpec, index: int) -> str | None:
    if index == 0 or (block.parallel and len(block.writes) == 2):
        return block_site(block.layer, "resid_pre")
    return block_site(block.layer, "resid_mid") if has_resid_mid(block) else None
