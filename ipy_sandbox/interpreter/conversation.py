"""The conversation with the model endpoint, growing turn by turn, in the words of the API that is called."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from .calls import CodeCall
from .catalog import Provider
from .render import Image
from .request import Json, later_choice
from .turn import API, Turn

SMALLEST_BUDGET = 16
"""OpenAI refuses a smaller max_output_tokens."""


class Conversation(ABC):
    """A request body and what the loop has added to it.

    Everything is sent in full each time, so that endpoints without a memory do as well.

    Arguments:
        base: the request of the first turn; its `messages` or `input` is a list.
        name: the code tool's name.
        output_limit: characters of one execution that the model sees.
        sees: send pictures; else they are described.
    """

    api: ClassVar[API]
    key: ClassVar[str]
    budgets: ClassVar[tuple[str, ...]]

    def __init__(self, base: Json, name: str, provider: Provider, *, output_limit: int, sees: bool = True) -> None:
        self.base = base
        self.name = name
        self.sees = sees
        self.messages: list[Json] = []
        """What was added, as chat messages with text only."""
        self._provider = provider
        self._output_limit = output_limit
        # What was added, for a model that sees, and for one that does not.
        self._seeing: list[Json] = []
        self._blind: list[Json] = []

    @property
    def has_images(self) -> bool:
        """Whether pictures were added that a blind model would not get."""
        return self.sees and self._seeing != self._blind

    def history(self) -> list[Json]:
        """All of it, as the endpoint takes it back."""
        return [*self.base[self.key], *(self._seeing if self.sees else self._blind)]

    def body(self, *, first: bool, final: bool, spent: int) -> Json:
        """The next turn's request.

        Arguments:
            first: forced tool choices still count.
            final: the model shall answer without the tool.
            spent: output tokens of the earlier turns.
        """
        body = {**self.base, self.key: self.history()}
        choice = body.get("tool_choice")
        if not first:
            choice = later_choice(choice)
        if final:
            choice = self._without_the_tool(body)
        if choice is not None:
            body["tool_choice"] = self._provider.required_word if choice == "required" else choice
        for budget in self.budgets:
            if body.get(budget) is not None:
                body[budget] -= spent
        return body

    def _without_the_tool(self, body: Json) -> str:
        """Take the tool out of `body`, and give the tool_choice that goes with what is left."""
        others = [tool for tool in body.get("tools") or [] if self.name not in (tool.get("name"), _nested_name(tool))]
        if others:
            body["tools"] = others
            return "none" if self.base.get("tool_choice") == "none" else "auto"
        # Alone it stays declared: some servers refuse calls in the history otherwise, and their caches stay warm.
        return "none"

    def budget_left(self, spent: int) -> bool:
        """Whether the client's limit of output tokens leaves room for another turn."""
        limits = [limit for budget in self.budgets if (limit := self.base.get(budget)) is not None]
        return not spent or all(limit - spent >= SMALLEST_BUDGET for limit in limits)

    def add(self, turn: Turn, calls: list[CodeCall] | None = None) -> None:
        """Add what a turn gave, and the answers to its calls of the code tool."""
        added = self._turn(turn)
        calls = calls or []
        self._seeing += [*added, *self._answers(calls, sees=True)]
        self._blind += [*added, *self._answers(calls, sees=False)]
        self.messages.append(_shown(turn))
        self.messages += [_tool_message(call, self._answer(call, sees=False)) for call in calls]

    def _answer(self, call: CodeCall, *, sees: bool) -> str:
        text = call.rendering.for_model(self._output_limit, sees=sees)
        return f"{call.notice}\n{text}" if call.notice else text

    @abstractmethod
    def _turn(self, turn: Turn) -> list[Json]:
        """What the model said, to be sent back as it came."""

    @abstractmethod
    def _answers(self, calls: list[CodeCall], *, sees: bool) -> list[Json]:
        """The results of its calls."""


class ChatConversation(Conversation):
    """Over chat completions."""

    api = "chat"
    key = "messages"
    budgets = ("max_completion_tokens", "max_tokens")

    def _turn(self, turn: Turn) -> list[Json]:
        return [turn.message]

    def _answers(self, calls: list[CodeCall], *, sees: bool) -> list[Json]:
        answers = [_tool_message(call, self._answer(call, sees=sees)) for call in calls]
        # Tool messages take no pictures: they follow in a user message, after the last of them.
        if sees and (images := [image for call in calls for image in call.rendering.sendable]):
            parts = [{"type": "image_url", "image_url": {"url": image.url}} for image in images]
            answers.append({"role": "user", "content": [{"type": "text", "text": "The images:"}, *parts]})
        return answers


class ResponsesConversation(Conversation):
    """Over the Responses API."""

    api = "responses"
    key = "input"
    budgets = ("max_output_tokens",)

    def _turn(self, turn: Turn) -> list[Json]:
        return turn.output

    def _answers(self, calls: list[CodeCall], *, sees: bool) -> list[Json]:
        images = [call.rendering.sendable if sees else [] for call in calls]
        inside = self._provider.image_outputs
        answers = [
            _output_item(call, self._answer(call, sees=sees), shown if inside else [])
            for call, shown in zip(calls, images, strict=True)
        ]
        if not inside and any(images):
            text = {"type": "input_text", "text": "The images:"}
            parts = [_image_part(image) for shown in images for image in shown]
            answers.append({"type": "message", "role": "user", "content": [text, *parts]})
        return answers


def _nested_name(tool: Json) -> Any:
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else None


def _image_part(image: Image) -> Json:
    return {"type": "input_image", "image_url": image.url, "detail": "auto"}


def _output_item(call: CodeCall, text: str, images: list[Image]) -> Json:
    output: Any = text
    if images:
        output = [{"type": "input_text", "text": text}, *map(_image_part, images)]
    return {"type": "function_call_output", "call_id": call.call_id, "output": output}


def _tool_message(call: CodeCall, text: str) -> Json:
    return {"role": "tool", "tool_call_id": call.call_id, "content": text}


def _shown(turn: Turn) -> Json:
    message: Json = {"role": "assistant", "content": turn.text or None}
    if turn.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in turn.tool_calls
        ]
    return message
