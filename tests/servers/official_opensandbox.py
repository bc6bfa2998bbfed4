"""The official client, in a process of its own: runs the snippets of its input on a server and prints what it saw.

python official_opensandbox.py HOST:PORT < snippets.json
"""

from __future__ import annotations

import json
import sys

from code_interpreter import CodeInterpreterSync
from code_interpreter.models.code import SupportedLanguage
from opensandbox.config import ConnectionConfigSync
from opensandbox.sync.sandbox import SandboxSync


def main() -> None:
    sandbox = SandboxSync.create(
        "opensandbox/code-interpreter:v1.1.0",
        entrypoint=["/opt/code-interpreter/code-interpreter.sh"],
        connection_config=ConnectionConfigSync(domain=sys.argv[1], protocol="http"),
    )
    codes = CodeInterpreterSync.create(sandbox).codes
    context = codes.create_context(SupportedLanguage.PYTHON)
    found = []
    for code in json.load(sys.stdin):
        done = codes.run(code, context=context)
        error = None if done.error is None else [done.error.name, done.error.value]
        stdout, stderr = ("".join(message.text for message in log) for log in (done.logs.stdout, done.logs.stderr))
        found.append([stdout, stderr, error])
    sandbox.kill()
    json.dump(found, sys.stdout)


main()
