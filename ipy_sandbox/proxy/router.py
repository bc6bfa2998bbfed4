"""Which deployments serve a model, and in which order they are tried."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Iterator, Mapping

from ..errors import ConfigurationError
from ..interpreter.catalog import LocalServer, Route, resolve
from .config import Config, ModelEntry, ModelParams
from .errors import ApiError

COOLDOWN_SECONDS = 30.0
"""How long a deployment that failed is tried last."""


class Deployment:
    """One entry of `model_list`. The name `*` alone stands for whatever `provider/name` the client asks for."""

    def __init__(self, entry: ModelEntry, environ: Mapping[str, str], clock: Callable[[], float]) -> None:
        self.name = entry.model_name
        self.weight = entry.litellm_params.weight
        self._params = entry.litellm_params
        self._environ = environ
        self._clock = clock
        self._cooling_until = 0.0
        self._route = None if entry.litellm_params.model == "*" else self._resolve(entry.litellm_params.model)

    def route(self, model: str) -> Route | None:
        """Where `model` goes, or None if this deployment does not serve it."""
        before, star, after = self.name.partition("*")
        if not star:
            return self._route if model == self.name else None
        if len(model) < len(before + after) or not (model.startswith(before) and model.endswith(after)):
            return None
        if self._route is None:
            return self._any(model)
        matched = model[len(before) : len(model) - len(after)]
        return dataclasses.replace(self._route, model=self._route.model.replace("*", matched))

    def public_name(self, model: str) -> str | None:
        """What a client calls the endpoint's `model`; None if no name leads to it."""
        before, star, after = self.name.partition("*")
        if not star:
            return self.name if self._route and self._route.model == model else None
        head, _, tail = (self._route.model if self._route else "*").partition("*")
        if not (model.startswith(head) and model.endswith(tail)):
            return None
        return before + model[len(head) : len(model) - len(tail)] + after

    def _any(self, model: str) -> Route | None:
        for name in (model, f"openai/{model}"):
            try:
                return self._resolve(name)
            except ConfigurationError:
                continue
        return None

    def _resolve(self, model: str) -> Route:
        key = self._params.api_key
        return resolve(
            model,
            base_url=self._params.api_base,
            api_key=key.get_secret_value() if key else None,
            extra_headers=self._params.extra_headers,
            env=self._environ,
        )

    @property
    def cooling(self) -> bool:
        """Whether it failed lately."""
        return self._clock() < self._cooling_until

    def failed(self, retry_after: float | None = None) -> None:
        """Try the others first for a while."""
        self._cooling_until = self._clock() + (retry_after or COOLDOWN_SECONDS)


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """A deployment with the route that a request takes through it."""

    deployment: Deployment
    model: str
    route: Route

    @property
    def place(self) -> str:
        """Where an answer came from, without any secret: the endpoint, and the model as the client called it."""
        return f"{self.route.base_url} {self.model}"


class Router:
    """The deployments of a configuration.

    Raises:
        ConfigurationError: a model's provider is unknown or its key is missing; names the entry.
    """

    def __init__(self, config: Config, environ: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        self._deployments = []
        for i, entry in enumerate(config.model_list):
            try:
                self._deployments.append(Deployment(entry, environ, clock))
            except ConfigurationError as error:
                raise ConfigurationError(f"model_list[{i}].litellm_params: {error}") from None

    def choices(self, model: str) -> list[Choice]:
        """The deployments of `model` in the order to try: at random by weight, those that failed lately last.

        Raises:
            ApiError: 404, no deployment serves it.
        """
        found = [Choice(d, model, route) for d in self._deployments if d.name == model and (route := d.route(model))]
        found = found or [Choice(d, model, route) for d in self._deployments if (route := d.route(model))]
        if not found:
            raise ApiError(
                404,
                f"The model {model[:200]!r} does not exist here: GET /v1/models lists those that do.",
                code="model_not_found",
                param="model",
            )
        if len(found) > 1:
            found.sort(key=lambda c: (c.deployment.cooling, -(random.random() ** (1 / c.deployment.weight))))
        return found

    def at(self, place: str) -> Route | None:
        """The route to a place that `Choice.place` named before, if there still is one."""
        model = place.partition(" ")[2]
        found = (Choice(d, model, route) for d in self._deployments if (route := d.route(model)))
        return next((choice.route for choice in found if choice.place == place), None)

    def names(self) -> list[str]:
        """The models that are named outright, without those behind a `*`."""
        return list(dict.fromkeys(d.name for d in self._deployments if "*" not in d.name))

    def wildcards(self) -> Iterator[Choice]:
        """The deployments that serve more names than they say."""
        for deployment in self._deployments:
            if "*" in deployment.name and (route := deployment.route(deployment.name)):
                yield Choice(deployment, deployment.name, route)


def entries_without_a_file(environ: Mapping[str, str], servers: list[LocalServer]) -> list[ModelEntry]:
    """The `model_list` of a proxy that was given none.

    With `OPENAI_API_KEY` or `OPENAI_BASE_URL`: any `provider/name` whose key is set, and other names at OpenAI or that
    address. Else the model servers that run on this machine.

    Raises:
        ConfigurationError: there is neither.
    """
    if environ.get("OPENAI_API_KEY") or environ.get("OPENAI_BASE_URL"):
        return [ModelEntry(model_name="*", litellm_params=ModelParams(model="*"))]
    if not servers:
        raise ConfigurationError(
            "There is no model: set OPENAI_API_KEY or OPENAI_BASE_URL, start a model server on this machine "
            "(such as Ollama), or give --config."
        )
    named = [_entry(s, m, m) for s in servers for m in s.models]
    return [*named, _entry(servers[0], "*", "*")]


def _entry(server: LocalServer, name: str, model: str) -> ModelEntry:
    params = ModelParams(model=f"{server.provider}/{model}", api_base=server.base_url)
    return ModelEntry(model_name=name, litellm_params=params)
