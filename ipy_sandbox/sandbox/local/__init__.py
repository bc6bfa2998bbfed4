"""The embedded provider: an ipykernel on this machine, isolated by bubblewrap, seccomp and limits.

It is a barrier against the mistakes and the ordinary malice of the code it runs, not against a flaw in the operating
system's kernel, which it shares with the host; for that, use e2b or OpenSandbox.
"""
