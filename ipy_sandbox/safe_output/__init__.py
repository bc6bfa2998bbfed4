"""What of a sandbox's or a model's output may be shown, and how.

A notebook page runs what a cell's output brings with the reader's own login, so nothing is published as it came:
`policy` has the table of all MIME types, `safe_bundle` applies it. Only the standard library is imported here; nh3
and markdown-it come on first use.
"""

from .html import safe_html
from .markdown import safe_markdown
from .policy import OutputPolicy, SafeBundle, safe_bundle
from .text import TextFilter, safe_text

__all__ = ["OutputPolicy", "SafeBundle", "TextFilter", "safe_bundle", "safe_html", "safe_markdown", "safe_text"]
