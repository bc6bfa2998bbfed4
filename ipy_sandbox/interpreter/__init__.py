"""The code_interpreter loop over any OpenAI-compatible model: no HTTP server, no notebook."""
