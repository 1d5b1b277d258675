"""Runs the command line as ``python -m resstream_cli``."""

from resstream_cli.app import app

app(prog_name="resstream")
