"""Do the kernel tests pass on every supported Triton?  One command says it.

    python tests/kernels/run_versions.py [--only 3.6.0] [-- pytest arguments]

Each version is installed into a folder of its own below ``.cache/`` and put in front of the current
environment; the tests run there in a process of their own.  Prints one line for each version.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSIONS: dict[str, tuple[str, ...]] = {
    # Its interpreter turns arrays of one element into integers, which NumPy 2.4 refuses.
    "3.6.0": ("numpy<2.4",),
    "3.7.1": (),
    "3.9.0": (),
}
"""Triton version -> what else has to be of another version with it."""


def install(version: str) -> Path:
    """The folder with this Triton, filled on first use."""
    folder = ROOT / ".cache" / f"triton-{version}"
    if not (folder / "triton").is_dir():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        wanted = (f"triton=={version}", *VERSIONS[version])
        subprocess.run([*pip, "--target", str(folder), *wanted], check=True)
    return folder


def run(version: str, arguments: list[str]) -> int:
    """Run the tests on this version; pytest's exit status."""
    folder = install(version)
    path = os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {
        **os.environ,
        "PYTHONPATH": path.rstrip(os.pathsep),
        "TRITON_CACHE_DIR": str(folder / "cache"),
        "EXPECTED_TRITON": version,
    }
    command = [sys.executable, "-m", "pytest", "-q", "tests/kernels", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def main() -> int:
    """Run all versions, then say which passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", choices=VERSIONS)
    parser.add_argument("arguments", nargs="*", help="passed on to pytest, after --")
    options = parser.parse_args()
    status = {version: run(version, options.arguments) for version in options.only or VERSIONS}
    for version, code in status.items():
        sys.stdout.write(f"triton {version}: {'passed' if code == 0 else f'failed ({code})'}\n")
    return max(status.values())


if __name__ == "__main__":
    sys.exit(main())
