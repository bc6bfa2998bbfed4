"""From a client's request to the conversation with the model endpoint."""

from __future__ import annotations

from ..errors import InvalidRequestError
from .bridge import to_chat
from .catalog import Route
from .conversation import ChatConversation, Conversation, ResponsesConversation
from .past import expand_items, expand_messages, foreign
from .request import (
    Json,
    Surface,
    function_names,
    input_items,
    internal_name,
    rewrite_choice,
    rewrite_tools,
    strip,
)
from .responses import ENCRYPTED
from .store import Stored
from .turn import API


def begin(
    body: Json,
    surface: Surface,
    api: API,
    route: Route,
    previous: Stored | None,
    *,
    output_limit: int,
    sees: bool,
) -> Conversation:
    """The conversation that a request opens, over the API that is to be called.

    Arguments:
        previous: the response that the request goes on from.
        output_limit, sees: see Conversation.

    Raises:
        InvalidRequestError: the request is wrong, or says what a chat endpoint cannot take.
    """
    name = internal_name(body)
    base = strip(body)
    if body.get("tools"):
        base["tools"] = rewrite_tools(body["tools"], name, surface)
    if body.get("tool_choice") is not None:
        base["tool_choice"] = rewrite_choice(body["tool_choice"], name, surface, function_names(body))
    if surface == "chat":
        base["messages"] = expand_messages(_messages(body), name, route.provider)
        return ChatConversation(base, name, route.provider, output_limit=output_limit, sees=sees)
    history, items = _past(previous, route, api)
    items = expand_items([*items, *input_items(body.get("input"))], name, route.provider)
    if api == "chat":
        base = to_chat({**base, "input": items})
        head = 1 if body.get("instructions") else 0
        base["messages"][head:head] = history
        return ChatConversation(base, name, route.provider, output_limit=output_limit, sees=sees)
    base["input"] = [*history, *items]
    if body.get("store") is False and route.provider.name in ("openai", "azure"):
        # Else its reasoning could not be sent back in the next turn.
        base["include"] = [*{*base.get("include", []), ENCRYPTED}]
    return ResponsesConversation(base, name, route.provider, output_limit=output_limit, sees=sees)


def _messages(body: Json) -> list[Json]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise InvalidRequestError("messages must be a list of messages.", param="messages")
    return messages


def _past(previous: Stored | None, route: Route, api: API) -> tuple[list[Json], list[Json]]:
    """What the endpoint itself said and was told, verbatim if it is still the same one; else the client's items."""
    if previous is None:
        return [], []
    if previous.origin == route.origin and previous.api == api:
        return previous.history, []
    return [], foreign(previous.conversation())
