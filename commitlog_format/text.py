"""Text on disk is UTF-8, read as Java reads it."""

from __future__ import annotations

import re

_ENCODED_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT = "\ufffd".encode()


def decode_text(data: bytes) -> str:
    """UTF-8 as Java reads it: what is malformed becomes U+FFFD, it is not an error.

    Python and Java count malformed sequences alike, except that an encoded surrogate is one for
    Java.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return _ENCODED_SURROGATE.sub(_REPLACEMENT, data).decode("utf-8", errors="replace")
