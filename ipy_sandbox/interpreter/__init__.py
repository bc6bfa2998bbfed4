"""The `code_interpreter` loop: OpenAI's hosted tool for any model, on sandboxes of one's own; no server, no notebook.

    client's body ─ request, prepare, bridge, past ─▶ conversation ─▶ loop ─▶ events (calls) ─▶ responses or chat
                                                                      │ ▲
                               upstream (sse, accumulate_*: turn) ◀───┘ └─── workspace (Session, SessionPool)

`interpreter.Interpreter` puts these together for one event loop, `api` for those who call functions.
"""
