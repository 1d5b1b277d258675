"""Names of places in the stream: TransformerLens's, with a short form and globs.

``blocks.3.hook_resid_mid`` and ``blocks.3.resid_mid`` are the same site; ``blocks.*.mlp_out`` is
all of its kind.
"""

import difflib
import fnmatch
from collections.abc import Iterable, Sequence

from resstream.errors import UnknownSiteError
from resstream.stream.spec import BlockSpec, StreamSpec

EMBED = "hook_embed"
FINAL_NORM = "ln_final.hook_normalized"

Key = str | tuple[str] | tuple[str, int | None] | tuple[str, int | None, str | None]
"""How an activation is asked for: ``"blocks.3.resid_post"`` or ``("resid_post", 3)``."""


def block_site(layer: int, name: str) -> str:
    """The full name of site `name` (``resid_pre``, ``attn_out``, ...) of a block."""
    return f"blocks.{layer}.hook_{name}"


def has_resid_mid(block: BlockSpec) -> bool:
    """True if the block writes twice, one after the other: then there is a stream between."""
    return len(block.writes) == 2 and not block.parallel


def site_names(spec: StreamSpec) -> tuple[str, ...]:
    """Every site of a model in order of execution."""
    names = [EMBED] if spec.embed else []
    for block in spec.blocks:
        names.append(block_site(block.layer, "resid_pre"))
        for index, write in enumerate(block.writes):
            names.append(block_site(block.layer, f"{write.name}_branch"))
            names.append(block_site(block.layer, f"{write.name}_out"))
            if index == 0 and has_resid_mid(block):
                names.append(block_site(block.layer, "resid_mid"))
        names.append(block_site(block.layer, "resid_post"))
    if spec.readout.norm:
        names.append(FINAL_NORM)
    return tuple(names)


def canonical(name: str) -> str:
    """The full form of a site name: ``blocks.3.resid_mid`` becomes ``blocks.3.hook_resid_mid``."""
    head, _, last = name.rpartition(".")
    if last.startswith("hook_") or not last:
        return name
    return f"{head}.hook_{last}" if head else f"hook_{last}"


def resolve_site(name: str, known: Sequence[str]) -> str:
    """The site that `name` means.

    Raises:
        UnknownSiteError: There is none; the message has the nearest names.
    """
    full = canonical(name)
    if full in known:
        return full
    near = difflib.get_close_matches(full, known, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    blocks = len({site.split(".")[1] for site in known if site.startswith("blocks.")})
    raise UnknownSiteError(
        f"unknown site {name!r}: this model has {blocks} blocks (0..{blocks - 1}){hint}"
    )


def name_of_key(key: Key, *, n_layers: int) -> str:
    """The name that a key of an activation cache stands for, by TransformerLens's rules.

    ``("resid_post", 3)`` is ``blocks.3.hook_resid_post``, a negative layer counts from the end, and
    ``("normalized", None, "ln_final")`` is ``ln_final.hook_normalized``.

    Args:
        key: A name, or a tuple of name, layer and part of the block.
        n_layers: Blocks of the model.
    """
    if isinstance(key, str):
        return key
    name = key[0]
    layer = key[1] if len(key) > 1 else None
    part = key[2] if len(key) > 2 else None
    where: list[str] = []
    if layer is not None:
        where += ["blocks", str(layer + n_layers if layer < 0 else layer)]
    if part is not None:
        where.append(str(part))
    return ".".join([*where, f"hook_{name}"])


def match_sites(patterns: Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    """All sites that fit one of the names or globs, in the order of execution.

    Raises:
        UnknownSiteError: A name or a glob fits none.
    """
    chosen: set[str] = set()
    for pattern in patterns:
        if any(sign in pattern for sign in "*?["):
            found = fnmatch.filter(known, canonical(pattern))
            if not found:
                raise UnknownSiteError(f"no site fits {pattern!r}; sites look like {known[1]!r}")
            chosen.update(found)
        else:
            chosen.add(resolve_site(pattern, known))
    return tuple(site for site in known if site in chosen)
