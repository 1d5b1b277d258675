"""The rules of the house that no linter knows."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import resstream

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "transformers", "transformer_lens", "plotly", "pandas", "scipy", "triton")
FOLDERS = ("resstream", "cli", "tests", "benchmarks", "examples", ".ci")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
PACKAGE = sorted((ROOT / "resstream").rglob("*.py"))


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_files_stay_small() -> None:
    lengths = {relative(path): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: n for name, n in lengths.items() if n > 400} == {}


def test_no_module_is_a_drawer_for_everything() -> None:
    drawers = {"utils", "util", "helpers", "common", "base", "misc", "manager"}
    assert [relative(path) for path in SOURCES if path.stem in drawers] == []


def test_rooms_reexport_nothing() -> None:
    for path in PACKAGE:
        if path.name == "__init__.py" and path.parent != ROOT / "resstream":
            body = ast.parse(path.read_text()).body
            assert len(body) == 1, f"{relative(path)} must hold a docstring only"
            assert ast.get_docstring(ast.Module(body, [])), relative(path)


def test_every_room_has_a_docstring_file() -> None:
    rooms = [path for path in (ROOT / "resstream").iterdir() if list(path.glob("*.py"))]
    assert [room.name for room in rooms if not (room / "__init__.py").exists()] == []


def test_every_module_says_what_it_answers() -> None:
    modules = [path for path in SOURCES if not ast.get_docstring(ast.parse(path.read_text()))]
    assert [relative(path) for path in modules] == []


def test_tensor_annotations_are_not_strings() -> None:
    """Stringified annotations may escape the shape checks without a word."""
    for path in PACKAGE:
        text = path.read_text()
        if "from jaxtyping import" in text:
            assert "from __future__ import annotations" not in text, relative(path)


def test_public_names_shadow_no_room() -> None:
    rooms = {path.name for path in (ROOT / "resstream").iterdir() if path.is_dir()}
    modules = {path.stem for path in (ROOT / "resstream").glob("*.py")}
    assert (rooms | modules) & set(resstream.__all__) == set()


def test_face_is_the_same_three_times() -> None:
    table = resstream._FACE
    assert sorted({*table, "__version__"}) == sorted(resstream.__all__) == dir(resstream)
    tree = ast.parse((ROOT / "resstream" / "__init__.py").read_text())
    (guard,) = (node for node in tree.body if isinstance(node, ast.If))
    typed = {
        name.name: node.module
        for node in guard.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    assert typed == table


@pytest.mark.parametrize("name", sorted(resstream._FACE))
def test_face_gives_what_it_promises(name: str) -> None:
    module = resstream._FACE[name]
    value = getattr(resstream, name)
    assert value is getattr(import_module(module), name)
    assert value.__module__ == module, "the table must name the module that defines it"


def test_face_refuses_other_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        resstream.lode  # noqa: B018


def loaded_by(code: str) -> set[str]:
    """Heavy packages that are in memory after `code` ran in a new interpreter."""
    ask = f"import sys; print([name for name in {HEAVY} if name in sys.modules])"
    ended = subprocess.run(
        [sys.executable, "-c", f"{code}\n{ask}"],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'cli'}", "PATH": ""},
    )
    return set(ast.literal_eval(ended.stdout.splitlines()[-1]))


def test_import_is_light() -> None:
    assert loaded_by("import resstream; resstream.ResstreamError") == set()


def test_help_is_light() -> None:
    call = "from resstream_cli.app import app; app({arguments}, standalone_mode=False)"
    for arguments in (["--help"], ["check", "--help"], ["inject", "--help"]):
        assert loaded_by(call.format(arguments=arguments)) == set()


def test_the_probe_of_light_imports_works() -> None:
    assert "torch" in loaded_by("import torch")
