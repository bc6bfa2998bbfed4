"""The OpenAI-compatible endpoint over the interpreter, as an ASGI application."""
