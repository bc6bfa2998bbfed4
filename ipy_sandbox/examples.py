"""A scripted stand-in for a model, for notebooks and tests without a key. It is no model: it knows a few questions.

with ScriptedModel() as model:
    %config AIMagics.base_url = model.base_url
"""

from __future__ import annotations

import http.server
import json
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

NAME = "scripted-example"

UNKNOWN = (
    "I am a scripted example and no model: I only know the questions of the notebooks. Configure a real model to ask "
    "anything else."
)


@dataclass(frozen=True)
class Scripted:
    """One question it knows: `code` runs in the sandbox first, `{output}` in `answer` is what that printed."""

    question: str
    code: str
    answer: str


PRIMES = Scripted(
    r"primes",
    "def is_prime(n):\n    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))\n\n"
    "print(sum(is_prime(n) for n in range(1000)))",
    "There are **{output}** primes below 1000.",
)
CHART = Scripted(
    r"chart|plot|draw",
    "import matplotlib.pyplot as plt\nimport numpy as np\n\nx = np.linspace(0, 20, 400)\n"
    'plt.figure(figsize=(6, 2.5))\nplt.plot(x, np.sin(x) * np.exp(-x / 8))\nplt.title("A damped oscillation")\n'
    'plt.show()\nprint("drawn")',
    "The chart shows $\\sin(x)\\,e^{-x/8}$: the swings die away as $x$ grows.",
)
MEAN = Scripted(
    r"heights|mean",
    "print(heights.cm.mean().round(1))",
    "The mean height is **{output} cm**.",
)
FIX = Scripted(
    r"Explain this error",
    'text = "42"\ntotal = int(text) + 1\nprint(total)',
    "A text and a number cannot be added. Make a number of the text first:\n\n"
    "```python\ntotal = int(text) + 1\n```\n\nThat gives {output}.",
)
SQUARES = Scripted(
    r"squares", "print(sum(i * i for i in range(1, 11)))", "The sum of the first ten squares is {output}."
)
SCRIPT = (FIX, PRIMES, MEAN, SQUARES, CHART)


class ScriptedModel:
    """An OpenAI-compatible chat endpoint on loopback that plays a script.

    Arguments:
        script: the questions it knows; the first whose pattern is found in the last user message is played.
        delay: seconds between two words of a streamed answer.
    """

    def __init__(self, script: Sequence[Scripted] = SCRIPT, delay: float = 0.0) -> None:
        self.script = script
        self.delay = delay
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.base_url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> ScriptedModel:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def message(self, body: dict[str, Any]) -> dict[str, Any]:
        """The assistant's next message."""
        messages = body["messages"]
        last = max(i for i, message in enumerate(messages) if message["role"] == "user")
        question = _text(messages[last]["content"])
        outputs = [_text(message["content"]) for message in messages[last:] if message["role"] == "tool"]
        scripted = next((s for s in self.script if re.search(s.question, question, re.IGNORECASE)), None)
        if scripted is None:
            return {"role": "assistant", "content": UNKNOWN}
        if outputs or not body.get("tools"):
            answer = scripted.answer.replace("{output}", outputs[-1].strip() if outputs else "?")
            return {"role": "assistant", "content": answer}
        name = body["tools"][0]["function"]["name"]
        call = {"name": name, "arguments": json.dumps({"code": scripted.code})}
        calls = [{"id": f"call_{time.time_ns()}", "type": "function", "function": call}]
        return {"role": "assistant", "content": None, "tool_calls": calls}


def _text(content: Any) -> str:
    return content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)


def _handler(model: ScriptedModel) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            listed = {"id": NAME, "object": "model", "created": 0, "owned_by": "ipy-sandbox"}
            self._answer({"object": "list", "data": [listed]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not self.path.endswith("/chat/completions"):
                error = {"message": "There is only chat here.", "type": "invalid_request_error", "param": None}
                self._answer({"error": {**error, "code": None}}, 404)
            elif body.get("stream"):
                self._stream(model.message(body))
            else:
                self._answer(_completion(model.message(body)))

        def _answer(self, body: dict[str, Any], status: int = 200) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _stream(self, message: dict[str, Any]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for chunk in _chunks(message):
                self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
                time.sleep(model.delay)
            self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


def _completion(message: dict[str, Any]) -> dict[str, Any]:
    choice = {"index": 0, "message": message, "finish_reason": _finish(message)}
    return {**_head("chat.completion"), "choices": [choice], "usage": _usage(message)}


def _chunks(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    head = _head("chat.completion.chunk")
    for delta in _deltas(message):
        yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish(message)}]}
    yield {**head, "choices": [], "usage": _usage(message)}


def _deltas(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for call in message.get("tool_calls", []):
        function = call["function"]
        yield {"role": "assistant", "tool_calls": [{**call, "index": 0, "function": {**function, "arguments": ""}}]}
        for piece in re.findall(r".{1,12}", function["arguments"]):
            yield {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}
    for word in re.findall(r"\s*\S+\s*", message["content"] or ""):
        yield {"content": word}


def _head(kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{time.time_ns()}", "object": kind, "created": int(time.time()), "model": NAME}


def _finish(message: dict[str, Any]) -> str:
    return "tool_calls" if "tool_calls" in message else "stop"


def _usage(message: dict[str, Any]) -> dict[str, int]:
    # It counts words: there are no tokens without a model.
    words = len(json.dumps(message).split())
    return {"prompt_tokens": words, "completion_tokens": words, "total_tokens": 2 * words}
