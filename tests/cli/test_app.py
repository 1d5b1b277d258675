"""Exit status, and who gets to see what when something goes wrong."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import resstream as rs
import resstream_cli.inputs
from resstream_cli.app import app

Call = Callable[..., Any]


def raising(error: BaseException) -> Callable[..., Any]:
    def load(*arguments: object, **options: object) -> Any:
        raise error

    return load


@pytest.fixture
def broken_load(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Makes loading a model raise an error."""

    def breaking(error: BaseException) -> None:
        monkeypatch.setattr(resstream_cli.inputs.rs, "load", raising(error), raising=False)

    return breaking


def test_help_names_every_verb_and_the_exit_status(call: Call) -> None:
    shown = call("--help")
    assert shown.exit_code == 0
    for verb in ("inspect", "record", "ablate", "check", "inject"):
        assert f" {verb} " in shown.stdout
    assert "Exit status: 0" in shown.stdout


def test_version(call: Call) -> None:
    assert call("--version").stdout == f"resstream {rs.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["chek", "demo"],
        ["check"],
        ["check", "demo", "--fail-on", "never"],
        ["ablate", "demo", "--x"],
    ],
)
def test_wrong_usage_exits_with_2(call: Call, arguments: list[str]) -> None:
    shown = call(*arguments)
    assert shown.exit_code == 2
    assert shown.stdout == ""
    (line,) = shown.stderr.splitlines()
    assert line.startswith("resstream: error: ")
    assert line.endswith(" --help")


def test_an_error_of_the_library_is_one_line(
    call: Call, broken_load: Callable[[BaseException], None]
) -> None:
    broken_load(rs.CheckpointError("no such\ncheckpoint: x"))
    shown = call("inspect", "x")
    assert shown.exit_code == 2
    assert shown.stdout == ""
    assert shown.stderr == "resstream: error: no such checkpoint: x\n"


def test_an_error_of_the_system_is_one_line(
    call: Call, broken_load: Callable[[BaseException], None]
) -> None:
    broken_load(OSError(28, "No space left on device", "weights"))
    shown = call("inspect", "x")
    assert shown.exit_code == 2
    assert shown.stderr == "resstream: error: [Errno 28] No space left on device: 'weights'\n"


def test_control_characters_do_not_reach_the_terminal(
    call: Call, broken_load: Callable[[BaseException], None]
) -> None:
    broken_load(rs.CheckpointError("bad name \x1b[31m"))
    assert call("inspect", "x").stderr == "resstream: error: bad name \\x1b[31m\n"


def test_interruption_is_one_line(call: Call, broken_load: Callable[[BaseException], None]) -> None:
    broken_load(KeyboardInterrupt())
    shown = call("inspect", "x")
    assert shown.exit_code == 130
    assert shown.stderr == "resstream: interrupted\n"


def test_a_bug_keeps_its_traceback(
    call: Call, broken_load: Callable[[BaseException], None]
) -> None:
    broken_load(ZeroDivisionError("a bug"))
    shown = call("inspect", "x")
    assert isinstance(shown.exception, ZeroDivisionError)
    assert "resstream: error" not in shown.stderr


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """For a command line in a process of its own."""
    root = Path(__file__).parents[2]
    yield {"PYTHONPATH": f"{root}:{root / 'cli'}", "PATH": "", "HF_HUB_OFFLINE": "1"}


def test_as_a_process_stdout_is_json_and_nothing_else(
    checkpoint: Path, environment: dict[str, str]
) -> None:
    import json

    ended = subprocess.run(
        [sys.executable, "-m", "resstream_cli", "inspect", checkpoint, "--json"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["schema"] == "resstream.inspect/1"
    assert f"load {checkpoint}" in ended.stderr


def test_a_reader_that_goes_away_gets_no_traceback(
    checkpoint: Path, environment: dict[str, str]
) -> None:
    command = [sys.executable, "-m", "resstream_cli", "inspect", str(checkpoint), "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert process.returncode == 141
    assert "Traceback" not in said


def test_unwritable_stdout_is_one_line(checkpoint: Path, environment: dict[str, str]) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    with full.open("w") as stdout:
        ended = subprocess.run(
            [sys.executable, "-m", "resstream_cli", "inspect", checkpoint, "--json"],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            check=False,
        )
    assert ended.returncode == 2
    assert "resstream: error: [Errno 28] No space left on device" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_entry_point_is_the_app() -> None:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        scripts = distribution("resstream").entry_points
    except PackageNotFoundError:
        pytest.skip("resstream is not installed here, only on the path")
    (script,) = scripts.select(group="console_scripts", name="resstream")
    assert script.load() is app
