"""Text of other people's files and models, made fit for a terminal."""

from __future__ import annotations

import re

# Control characters, those that turn the direction of writing, and halves of characters.
_STEERING = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def harmless(text: str) -> str:
    """Return text without characters that would steer a terminal; line ends and tabs stay."""
    return _STEERING.sub("�", text)


def one_line(text: str) -> str:
    """Return text on one line, without characters that would steer a terminal."""
    return harmless(" ".join(text.split()))
