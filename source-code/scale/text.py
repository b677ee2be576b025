"""Decode a file of text: UTF-8, or an error that says where it is not and how to mend it."""

from __future__ import annotations

import shlex


class NotText(ValueError):
    """Bytes are no text in UTF-8; the message goes on after the name of the file."""


def decoded(data: bytes, path: str | None) -> str:
    r"""Decode the bytes of a file, with or without a byte order mark; line ends become `\n`.

    Args:
        data: The whole file.
        path: Where it lies on this machine, for the command that converts it; None: elsewhere.

    Raises:
        NotText: If it is not UTF-8, or holds a NUL.
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise NotText(f"is UTF-16, not UTF-8. {_cure(path, 'UTF-16')}")
    if (position := data.find(0)) >= 0:
        raise NotText(
            f"is not text: byte {position} is NUL, as in a binary file. "
            "Take it out of the folder, or export it as UTF-8 text."
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The codec counts from behind a byte order mark.
        position = error.start + len(data) - len(error.object)
        line = data.count(b"\n", 0, position) + 1
        raise NotText(
            f"is not UTF-8: byte {position}, in line {line}, is 0x{data[position]:02X}, "
            f"which cannot stand there. {_cure(path, 'WINDOWS-1252')}"
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _cure(path: str | None, encoding: str) -> str:
    if path is None:
        return "Save it as UTF-8."
    name = shlex.quote(path)
    return (
        "Save it as UTF-8 in an editor, or convert it: "
        f"iconv -f {encoding} -t UTF-8 {name} > new.tmp && mv new.tmp {name}"
    )
