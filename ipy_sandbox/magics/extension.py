"""Loading and unloading: exactly one of everything, and nothing left behind. Nothing is printed or opened."""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING, Any

from .ai import AIMagics
from .completion import Completion
from .sandbox import SandboxMagics
from .transforms import hoist_cell_magic

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_installed: dict[int, tuple[SandboxMagics, AIMagics, Completion]] = {}
"""By shell: tests and embedded shells have several in one process."""


def load(shell: InteractiveShell) -> None:
    """Register all magics with `shell`, once."""
    if id(shell) in _installed:
        return
    magics = SandboxMagics(shell)
    ai = AIMagics(shell, magics)
    completion = Completion(magics)
    shell.register_magics(magics, ai)
    shell.Completer.custom_matchers.append(completion.matcher)
    # First of all: `hoist_cell_magic` must see what the user wrote.
    shell.input_transformers_cleanup[:0] = [hoist_cell_magic, magics.whole_notebook]
    shell.events.register("post_run_cell", magics.after_cell)
    shell.push({"Err": magics.errors}, interactive=False)
    atexit.register(magics.at_exit)
    if magics.spare == "at_load":
        magics.sessions.open("local")
    _installed[id(shell)] = (magics, ai, completion)


def unload(shell: InteractiveShell) -> None:
    """Take everything back and delete the sandboxes."""
    if id(shell) not in _installed:
        return
    magics, ai, completion = _installed.pop(id(shell))
    atexit.unregister(magics.at_exit)
    shell.Completer.custom_matchers.remove(completion.matcher)
    shell.drop_by_id({"Err": magics.errors})
    shell.events.unregister("post_run_cell", magics.after_cell)
    shell.input_transformers_cleanup.remove(hoist_cell_magic)
    shell.input_transformers_cleanup.remove(magics.whole_notebook)
    for registered in (magics, ai):
        _unregister(shell, registered)
    magics.close()


def _unregister(shell: Any, magics: Any) -> None:
    # IPython has no way back from register_magics.
    for kind, table in magics.magics.items():
        registered = shell.magics_manager.magics[kind]
        for name, function in table.items():
            if registered.get(name) == function:
                del registered[name]
    shell.magics_manager.registry.pop(type(magics).__name__, None)
    shell.configurables.remove(magics)
