"""Which stream is each write added to, in blocks of every shape."""

from typing import Any

import pytest

from resstream.recording.route import plan_route
from resstream.stream.spec import BlockSpec, ReadoutSpec, StreamSpec, WriteSpec


def spec_of(
    *names: str, parallel: bool = False, norms: tuple[str, ...] = (), **write: Any
) -> StreamSpec:
    def block(layer: int) -> BlockSpec:
        writes = tuple(
            WriteSpec(layer=layer, name=name, module=name, scale=1.0, residue=0.0, **write)  # type: ignore[arg-type]
            for name in names
        )
        return BlockSpec(
            layer=layer, module=f"h.{layer}", placement="pre", parallel=parallel, writes=writes,
            opaque=False, reason=None, stream_norms=norms,
        )  # fmt: skip

    return StreamSpec(
        model="m", n_layers=2, d_model=4, d_vocab=9, embed="e", blocks=(block(0), block(1)),
        readout=ReadoutSpec(norm=None, head=None), replay_error=0.0, causal=True, family="f",
    )  # fmt: skip


def test_sequential_writes() -> None:
    route = plan_route(spec_of("attn", "mlp"))
    assert [stop.site.removeprefix("blocks.") for stop in route.stops] == [
        "0.hook_resid_pre", "0.hook_attn_out", "0.hook_resid_mid", "0.hook_mlp_out",
        "1.hook_resid_pre", "1.hook_attn_out", "1.hook_resid_mid", "1.hook_mlp_out",
        "1.hook_resid_post",
    ]  # fmt: skip
    assert route.before[2:] == ("blocks.1.hook_resid_pre", "blocks.1.hook_resid_mid")
    assert [stop.write for stop in route.stops] == [None, 0, None, 1, None, 2, None, 3, None]
    assert all(route.additive)


def test_parallel_writes_share_one_stream() -> None:
    route = plan_route(spec_of("attn", "mlp", parallel=True))
    assert route.before == ("blocks.0.hook_resid_pre",) * 2 + ("blocks.1.hook_resid_pre",) * 2
    assert route.points == (
        "blocks.0.hook_resid_pre", "blocks.1.hook_resid_pre", "blocks.1.hook_resid_post",
    )  # fmt: skip


def test_one_write() -> None:
    route = plan_route(spec_of("mixer"))
    assert route.before == ("blocks.0.hook_resid_pre", "blocks.1.hook_resid_pre")
    assert len(route.points) == 3


def test_later_ones_of_three_writes_have_no_site() -> None:
    route = plan_route(spec_of("mixer", "attn", "mlp"))
    assert route.before[:3] == ("blocks.0.hook_resid_pre", None, None)


@pytest.mark.parametrize("changes", [{"norms": ("n",)}, {"skip_scale": 2.0}])
def test_a_stream_that_is_normed_or_scaled_is_not_additive(changes: dict[str, Any]) -> None:
    assert not any(plan_route(spec_of("attn", "mlp", **changes)).additive)
