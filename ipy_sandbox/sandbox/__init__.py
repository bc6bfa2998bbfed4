"""Run code in a sandbox: no model, no notebook."""
