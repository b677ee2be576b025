"""Cut a graph query into the same tokens as the database does, or refuse to.

Where two readers could disagree, the text is refused: a comment that ends in `**/` (ladybug reads
on behind it), an escape that the language does not know, a lone carriage return, a word that
touches a number, letters outside ASCII between strings. There is always a plain way to write it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

MAX_TEMPLATE = 20_000
"""The most characters that a template may have."""

Language = Literal["cypher", "aql"]


class TemplateError(ValueError):
    """A template is not one statement that only reads.

    Args:
        what: What is wrong and what to do.
        line: The line of the template, counted from 1; 0 when it is about all of it.
        word: The word or sign at fault.
    """

    def __init__(self, what: str, line: int = 0, word: str = "") -> None:
        self.line = line
        self.word = word
        super().__init__(f"line {line}: {what}" if line else what)


@dataclass(frozen=True)
class Token:
    """A piece of a query.

    Args:
        kind: `word`, `name` (between backticks), `string`, `number`, `parameter`, or the sign.
        text: How it is written.
        line: Its line, counted from 1.
    """

    kind: str
    text: str
    line: int

    @property
    def upper(self) -> str:
        """The text without backticks, in capitals, as keywords and functions are compared."""
        return self.text.replace("`", "").upper()


_SHARED = r"""
    (?P<comment>//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)
  | (?P<space>[ \t\n]+)
  | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
"""

_PIECES = {
    "cypher": re.compile(
        _SHARED
        + r"""
  | (?P<string>'(?:[^'\\]|\\(?:[\\'"bfnrtBFNRT]|[xX][0-9a-fA-F]{2}|[uU][0-9a-fA-F]{4}))*'
      |"(?:[^"\\]|\\(?:[\\'"bfnrtBFNRT]|[xX][0-9a-fA-F]{2}|[uU][0-9a-fA-F]{4}))*")
  | (?P<name>(?:`[^`]*`)+)
  | (?P<parameter>\$[A-Za-z_][A-Za-z0-9_]*)
  | (?P<number>(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE]-?[0-9]+)?)
  | (?P<sign>\.\.|<=|>=|<>|<<|>>|=~|:=|[-+*%^=<>!|&.,:;(){}\[\]]|/(?!\*))
    """,
        re.VERBOSE,
    ),
    "aql": re.compile(
        _SHARED
        + r"""
  | (?P<string>'(?:[^'\\]|\\[^\n])*'|"(?:[^"\\]|\\[^\n])*")
  | (?P<name>`[^`\\]*`)
  | (?P<parameter>@@?[A-Za-z_][A-Za-z0-9_]*)
  | (?P<number>0[xX][0-9a-fA-F]+|0[bB][01]+
      |(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)
  | (?P<sign>\.\.\.|\.\.|::|<=|>=|==|!=|=~|!~|&&|\|\||\?\?|[-+*%=<>!?|&.,:;(){}\[\]]|/(?!\*))
    """,
        re.VERBOSE,
    ),
}


def tokenize(template: str, language: Language) -> list[Token]:
    """Return the tokens of a template; comments and spaces are left out.

    Args:
        template: The query.
        language: Whose signs and strings it has.

    Raises:
        TemplateError: If it is too long, or no text of the language, or may be read in two ways.
        TypeError: If it is not a string.
    """
    if not isinstance(template, str):
        raise TypeError(f"A template is text, not {type(template).__name__}.")
    if len(template) > MAX_TEMPLATE:
        raise TemplateError(
            f"the template has {len(template):,} characters; shorten it to {MAX_TEMPLATE:,}"
        )
    template = template.replace("\r\n", "\n")
    _check_characters(template)
    tokens: list[Token] = []
    at, line, touching = 0, 1, False
    while at < len(template):
        found = _PIECES[language].match(template, at)
        if found is None:
            raise _unreadable(template, at, line, language)
        kind, text = str(found.lastgroup), found.group()
        if text[:2] == "/*" and text.endswith("**/", 2):
            raise TemplateError("end this comment with ` */`, not with `**/`", line, "**/")
        wordlike = kind in ("word", "name", "number", "parameter")
        if wordlike and touching:
            raise TemplateError(
                f"put a space before {shorten(text)}: it touches what is before it", line, text
            )
        touching = wordlike
        if kind not in ("comment", "space"):
            tokens.append(Token(text if kind == "sign" else kind, text, line))
        line += text.count("\n")
        at = found.end()
    return tokens


def shorten(text: str) -> str:
    """Return the beginning of a text, for a message."""
    return text if len(text) <= 40 else text[:40] + "…"


def _check_characters(template: str) -> None:
    """Refuse characters that no reader sees, or that cannot be sent."""
    found = re.search("[^\t\n -~\xa0-\ud7ff\ue000-\U0010ffff]", template)
    if found is None:
        return
    sign = found.group()
    line = template.count("\n", 0, found.start()) + 1
    raise TemplateError(
        f"the hidden character U+{ord(sign):04X} does not belong in a template; "
        "remove it, or give the text in a parameter",
        line,
        sign,
    )


def _unreadable(template: str, at: int, line: int, language: Language) -> TemplateError:
    """Return the error for text that is no token of the language."""
    sign = template[at]
    mark = "$" if language == "cypher" else "@"
    if sign in "'\"":
        what = (
            "a string that begins here does not end, or has an escape that is not allowed; "
            "give the text in a parameter"
        )
    elif sign in "`´":
        what = "a name that begins here does not end, or is not in plain backticks; write `name`"
    elif sign == "/":
        what = "a comment that begins here does not end; end it with */"
    elif sign in "$@":
        what = f"{sign} begins no parameter here; write {mark}name, of letters, digits and _"
    elif not sign.isascii():
        what = (
            f"{sign} (U+{ord(sign):04X}) is none of the signs of a query; "
            "put a name between backticks, and a text in a parameter"
        )
    else:
        what = f"{sign} does not belong in this query language; remove it"
    return TemplateError(what, line, sign)
