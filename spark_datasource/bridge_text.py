"""What Python leaves for the bridge in the bytes that Spark pickles: JSON between two markers."""

from __future__ import annotations

import json


def text_for_bridge(name: str, content: object) -> str:
    """The text in which the bridge finds ``content``; in ASCII, and with one opening marker."""
    return f"<{name}>" + json.dumps(content).replace("<", "\\u003c") + f"</{name}>"
