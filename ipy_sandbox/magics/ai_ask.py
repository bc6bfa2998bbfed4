"""Asking: from a question in a cell to the answer below it."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Literal

from ..interpreter.calls import LoopEvent
from ..interpreter.catalog import Route
from ..interpreter.interpreter import Interpreter, Request
from ..interpreter.limits import Limits
from ..sandbox.session import Session
from .ai_conversation import Conversation, Exchange, Usage
from .ai_model import choose
from .ai_view import AnswerView
from .bridge import pump, wait
from .frontend import count, show_line
from .problems import SandboxInterrupted

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from .ai import AIMagics
    from .memory import ErrorMemory
    from .sandbox import SandboxMagics
    from .sessions import NotebookSession

INSTRUCTIONS = (
    "You help in a Jupyter notebook. Python code that you run keeps its state from one call to the next, and the user "
    "sees its output and charts as it runs, so do not repeat them: compute, then answer in short Markdown."
)

STOPPED = "(The previous answer was stopped by the user; code of it may have run.)"


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a model answered: `text` is its last text, `code` what it ran, `usage` what it took."""

    text: str
    code: list[str]
    model: str
    usage: Usage

    def __repr__(self) -> str:
        return self.text


class Question:
    """A request to the interpreter, as a source for `bridge.pump`."""

    def __init__(self, interpreter: Interpreter, request: Request) -> None:
        self._interpreter = interpreter
        self._request = request

    async def items(self) -> AsyncGenerator[LoopEvent, None]:
        """The events of the loop."""
        async for event in self._interpreter.events(self._request):
            if event is not None:
                yield event

    async def stop(self) -> bool:
        """There is nothing to ask: cancelling ends the model's call and the code."""
        return False


class Asker:
    """Asks models, and keeps the conversations of the notebook by session.

    Arguments:
        shell: where to publish.
        settings: model, limits and prices.
        sandbox: the magics whose sessions the code runs in.
    """

    def __init__(self, shell: InteractiveShell, settings: AIMagics, sandbox: SandboxMagics) -> None:
        self.conversations: dict[str, Conversation] = {}
        self.shell = shell
        self.settings = settings
        self._sandbox = sandbox

    @property
    def errors(self) -> ErrorMemory:
        """The errors of the notebook's cells."""
        return self._sandbox.errors

    def target(self, args: argparse.Namespace) -> NotebookSession:
        """The session that `args` name."""
        return self._sandbox.sessions.get(args.session)

    def conversation(self, args: argparse.Namespace) -> Conversation:
        """The conversation of the session that `args` name."""
        name = self.target(args).name
        return self.conversations.setdefault(name, Conversation(self.settings.max_history))

    def route(self, args: argparse.Namespace) -> Route:
        """The model endpoint that `args`, the settings or the environment name."""
        route = wait(choose(args.model or self.settings.model, self.settings.base_url))
        if args.api is None:
            return route
        support: Literal["none", "stateless"] = "none" if args.api == "chat" else "stateless"
        return dataclasses.replace(route, provider=dataclasses.replace(route.provider, responses=support))

    def ask(self, prompt: str, args: argparse.Namespace) -> None:
        """Ask and show the answer as it comes."""
        target, route = self.target(args), self.route(args)
        if args.new:
            self.conversations.pop(target.name, None)
        conversation = self.conversation(args)
        conversation.max_history = self.settings.max_history
        if args.input:
            self._sandbox.transfer.push(target, args.input)
        request = self._request(prompt, args, conversation, route, target)
        exchange = Exchange(prompt, route.model)
        conversation.exchanges.append(exchange)
        view = AnswerView(self.shell, target, exchange, self._sandbox.progress_after)
        outcome = pump(Question(self._interpreter(conversation, args), request), view)
        usage = view.finish()
        exchange.stopped = outcome.stopped
        if view.refused:
            show_line(self.shell, view.refused)
        if usage.turns or outcome.error is None:
            show_line(self.shell, self._footer(exchange, usage))
        if args.result:
            self.shell.push({args.result: Answer(exchange.text, exchange.code, exchange.model, usage)})
        if outcome.stopped:
            raise SandboxInterrupted("you stopped the answer.")
        if outcome.error is not None:
            raise outcome.error

    def _interpreter(self, conversation: Conversation, args: argparse.Namespace) -> Interpreter:
        turns = args.max_turns or self.settings.max_turns
        if turns not in conversation.interpreters:
            conversation.interpreters[turns] = Interpreter(Session, limits=Limits(turns=turns), store=conversation)
        return conversation.interpreters[turns]

    def _request(
        self,
        prompt: str,
        args: argparse.Namespace,
        conversation: Conversation,
        route: Route,
        target: NotebookSession,
    ) -> Request:
        text = f"{STOPPED}\n\n{prompt}" if conversation.was_stopped and conversation.max_history != 0 else prompt
        body: dict[str, Any] = {
            **self.settings.parameters,
            "model": route.model,
            "instructions": INSTRUCTIONS,
            "input": [{"role": "user", "content": text}],
        }
        if not args.no_code:
            body["tools"] = [{"type": "code_interpreter", "container": {"type": "auto"}}]
        if (previous := conversation.previous_id) is not None:
            body["previous_response_id"] = previous
        return Request("responses", body, route, identity="notebook", session=target.session)

    def _footer(self, exchange: Exchange, usage: Usage) -> str:
        parts = [exchange.model, count(usage.turns, "turn")]
        if usage.runs:
            parts.append(count(usage.runs, "run"))
        if usage.input_tokens is not None or usage.output_tokens is not None:
            parts.append(f"{usage.input_tokens or 0} + {usage.output_tokens or 0} tokens")
        parts.append(f"{usage.seconds:.1f} s")
        if (price := self.price(exchange.model, usage)) is not None:
            parts.append(f"${price:.4f}")
        return " · ".join(parts)

    def price(self, model: str, usage: Usage) -> float | None:
        """What `usage` cost by the configured prices; None if the model has none."""
        if model not in self.settings.prices:
            return None
        per_input, per_output = self.settings.prices[model]
        return float((usage.input_tokens or 0) * per_input + (usage.output_tokens or 0) * per_output) / 1e6
