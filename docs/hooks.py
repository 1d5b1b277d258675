"""Hooks of the documentation's build: what must not be written by hand is put in here.

``<!-- options: VERB -->`` becomes the table of the options that the command line has.
"""

import re
from typing import Any

_OPTIONS = re.compile(r"<!-- options: (\w+) -->")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in tables of options; called by MkDocs for every page."""
    del page
    return _OPTIONS.sub(lambda found: _options(found[1]), markdown)


def _options(verb: str) -> str:
    import typer.main

    from resstream_cli.app import app

    command: Any = typer.main.get_command(app)
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for parameter in command.commands[verb].params:
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        if parameter.param_type_name == "argument":
            names = f"`{parameter.metavar or parameter.name.upper()}`"
        rows.append(f"| {names} | {_default(parameter)} | {_cell(parameter.help or '')} |")
    return "\n".join(rows)


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    if isinstance(parameter.show_default, str):
        return _cell(parameter.show_default)
    value = parameter.default
    if value is None or value is False or value == ():
        return ""
    return f"`{value}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
