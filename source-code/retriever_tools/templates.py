"""Checks that a tool's graph query is one statement that only reads, before any database sees it.

A database opened to read may still write files, read files and load extensions when a query asks
it to, so the check does not rely on it. A template is cut into the same tokens as the database
would cut it into. Where two readers could disagree (a comment ending in `**/`, an unknown escape,
a lone carriage return, letters outside ASCII), the template is refused: there is always a plain way
to write it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass

MAX_TEMPLATE = 20_000
"""The most characters that a template may have."""

RESERVED = frozenset({"nodes", "top_k", "relations_collection", "partition_ids"})
"""The parameters that a run sets itself, so that neither a tool nor a request can."""


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


def check_cypher(template: str) -> set[str]:
    """Check that a Cypher template only reads, and return the parameters that it uses.

    Args:
        template: One statement of MATCH, OPTIONAL MATCH, WHERE, WITH, UNWIND, RETURN, ORDER BY,
            SKIP, LIMIT and UNION that uses `$nodes`; at most `MAX_TEMPLATE` characters.

    Returns:
        The names of the parameters, without `$`.

    Raises:
        TemplateError: If it could do anything else, or could be read in two ways.
        TypeError: If it is not a string.
    """
    tokens = _tokens(template, _CYPHER)
    if tokens and tokens[-1].kind == ";":
        tokens.pop()
    _check_words(tokens, _CYPHER)
    _check_order(tokens)
    return _parameters(tokens, "$nodes")


def check_aql(template: str) -> set[str]:
    """Check that an AQL template only reads, and return the parameters that it uses.

    Args:
        template: One query of FOR, LET, FILTER, SEARCH, SORT, LIMIT, COLLECT, WINDOW, PRUNE,
            OPTIONS, WITH and RETURN that uses `@nodes`; at most `MAX_TEMPLATE` characters.

    Returns:
        The names of the parameters without the first `@`, so `@@edges` is given as `@edges`.

    Raises:
        TemplateError: If it could do anything else, or could be read in two ways.
        TypeError: If it is not a string.
    """
    tokens = _tokens(template, _AQL)
    _check_words(tokens, _AQL)
    return _parameters(tokens, "@nodes")


@dataclass(frozen=True)
class _Token:
    """`kind` is word, name (in backticks), string, number, parameter, or the sign itself."""

    kind: str
    text: str
    line: int

    @property
    def upper(self) -> str:
        return self.text.upper()


@dataclass(frozen=True)
class _Language:
    name: str
    pieces: re.Pattern[str]
    first: Set[str]
    refused: Mapping[str, str]
    functions: Set[str]
    after: Set[str]  # a word behind one of these signs is a property or label, not a keyword


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WRITES = "it changes the database, and a template only reads"
_FILES = "it reads or writes files, and a template only reads the database"
_SETTINGS = "it changes how the database runs, and a template only reads"
_TRANSACTIONS = "it controls a transaction, and a template is one reading statement"
_PLANS = "it describes a query in place of running it; write the query alone"
_CALLS = "it runs a procedure; a template has only MATCH, WITH, UNWIND and RETURN"

_COMMENTS = r"""
    (?P<comment>//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)
  | (?P<space>[ \t\n]+)
"""

_CYPHER = _Language(
    name="Cypher",
    pieces=re.compile(
        _COMMENTS
        + r"""
  | (?P<string>'(?:[^'\\]|\\(?:[\\'"bfnrtBFNRT]|[xX][0-9a-fA-F]{2}|[uU][0-9a-fA-F]{4}))*'
      |"(?:[^"\\]|\\(?:[\\'"bfnrtBFNRT]|[xX][0-9a-fA-F]{2}|[uU][0-9a-fA-F]{4}))*")
  | (?P<name>(?:`[^`]*`)+)
  | (?P<parameter>\$[A-Za-z_][A-Za-z0-9_]*)
  | (?P<number>(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE]-?[0-9]+)?)
  | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<sign>\.\.|<=|>=|<>|<<|>>|=~|:=|[-+*/%^=<>!|&.,:;(){}\[\]])
    """,
        re.VERBOSE,
    ),
    first=_words("MATCH OPTIONAL UNWIND WITH RETURN"),
    refused={
        **dict.fromkeys(
            _words(
                "ALTER COMMENT CREATE DELETE DETACH DROP FOREACH MACRO MERGE REMOVE RENAME SET "
                "UPDATE"
            ),
            _WRITES,
        ),
        **dict.fromkeys(_words("ATTACH COPY EXPORT IMPORT LOAD USE"), _FILES),
        **dict.fromkeys(_words("ANALYZE FORCE INSTALL UNINSTALL"), _SETTINGS),
        **dict.fromkeys(
            _words(
                "BEGIN CHECKPOINT COMMIT COMMIT_SKIP_CHECKPOINT ROLLBACK ROLLBACK_SKIP_CHECKPOINT"
            ),
            _TRANSACTIONS,
        ),
        **dict.fromkeys(_words("EXPLAIN PROFILE"), _PLANS),
        **dict.fromkeys(_words("CALL PROJECT YIELD"), _CALLS),
    },
    functions=_words("NEXTVAL CURRVAL SETSEED CREATE_EMBEDDING"),
    after=frozenset({".", ":"}),
)

_AQL = _Language(
    name="AQL",
    pieces=re.compile(
        _COMMENTS
        + r"""
  | (?P<string>'(?:[^'\\]|\\[^\n])*'|"(?:[^"\\]|\\[^\n])*")
  | (?P<name>`[^`\\]*`)
  | (?P<parameter>@@?[A-Za-z_][A-Za-z0-9_]*)
  | (?P<number>0[xX][0-9a-fA-F]+|0[bB][01]+
      |(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)
  | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<sign>\.\.\.|\.\.|::|<=|>=|==|!=|=~|!~|&&|\|\||\?\?|[-+*/%=<>!?|&.,:;(){}\[\]])
    """,
        re.VERBOSE,
    ),
    first=_words("FOR LET FILTER SORT LIMIT COLLECT WITH RETURN"),
    refused=dict.fromkeys(_words("INSERT UPDATE REPLACE REMOVE UPSERT"), _WRITES),
    functions=_words("APPLY CALL FAIL SLEEP V8"),
    after=frozenset({"."}),
)

# The words that may stand behind a value in Cypher; an unknown clause stands there too.
_CYPHER_GOES_ON = _words(
    "AND AS ASC ASCENDING CONTAINS DESC DESCENDING ELSE END ENDS IN IS LIMIT MATCH OPTIONAL OR "
    "ORDER RETURN SKIP STARTS THEN UNION UNWIND WHEN WHERE WITH XOR"
)
# Keywords that are not values themselves, so that a value or another keyword may follow.
_CYPHER_OPENS = (_CYPHER_GOES_ON - _words("ASC ASCENDING DESC DESCENDING END")) | _words(
    "ALL BY CASE DISTINCT NOT ACYCLIC SHORTEST TRAIL WSHORTEST"
)
_CYPHER_OPERANDS = _words("word name string number parameter")
_CYPHER_VALUES = _CYPHER_OPERANDS | _words(") ] }")


def _tokens(template: str, language: _Language) -> list[_Token]:
    """Cut a template into tokens; comments and spaces are left out."""
    if not isinstance(template, str):
        raise TypeError(f"A template is text, not {type(template).__name__}.")
    if len(template) > MAX_TEMPLATE:
        raise TemplateError(
            f"the template has {len(template):,} characters; shorten it to {MAX_TEMPLATE:,}"
        )
    template = template.replace("\r\n", "\n")
    tokens: list[_Token] = []
    at, line, joined = 0, 1, False
    while at < len(template):
        found = language.pieces.match(template, at)
        if found is None:
            raise _unreadable(template, at, line, language)
        kind, text = str(found.lastgroup), found.group()
        _check_characters(text, line, outside=kind in ("space", "sign"))
        if kind == "comment" and text.startswith("/*") and text[2:].endswith("**/"):
            raise TemplateError("end this comment with ` */`, not with `**/`", line, "**/")
        if kind in ("word", "number", "parameter", "name"):
            if joined:
                raise TemplateError(
                    f"put a space before {_shown(text)}: it touches the word before it", line, text
                )
            joined = True
        else:
            joined = False
        if kind not in ("comment", "space"):
            tokens.append(_Token(text if kind == "sign" else kind, text, line))
        line += text.count("\n")
        at = found.end()
    return tokens


def _check_characters(text: str, line: int, outside: bool) -> None:
    """Refuse characters that no reader sees, or that cannot be sent."""
    for character in text:
        if (ord(character) < 32 and character not in "\t\n") or ord(character) == 127:
            raise TemplateError(
                f"the control character U+{ord(character):04X} does not belong in a template; "
                "remove it, or give it in a parameter",
                line + text[: text.index(character)].count("\n"),
                character,
            )
        if 0xD800 <= ord(character) <= 0xDFFF:
            raise TemplateError(
                f"U+{ord(character):04X} is half a character; write the whole one", line, character
            )


def _unreadable(template: str, at: int, line: int, language: _Language) -> TemplateError:
    """Return the error for text that is no token of the language."""
    sign = template[at]
    _check_characters(sign, line, outside=True)
    if sign in "'\"":
        what = (
            "a string that begins here does not end, or has an escape that "
            f"{language.name} does not know; give the text in a parameter"
        )
    elif sign in "`´":
        what = "a name that begins here does not end, or is not in plain backticks; write `name`"
    elif template.startswith("/*", at):
        what = "a comment that begins here does not end; end it with */"
    elif sign in "$@":
        mark = "$" if language is _CYPHER else "@"
        what = (
            f"{sign} does not begin a parameter here; write {mark}name, "
            "with letters, digits and _ only"
        )
    elif not sign.isascii():
        what = (
            f"{sign} (U+{ord(sign):04X}) is not a letter from A to Z; "
            "put such a name between backticks, or the text in a parameter"
        )
    else:
        what = f"{sign} does not belong in {language.name}; remove it"
    return TemplateError(what, line, sign)


def _check_words(tokens: list[_Token], language: _Language) -> None:
    """Refuse what is empty, begins unknown, is two statements, or names what does more."""
    if not tokens:
        raise TemplateError("the template is empty; write a reading statement that ends in RETURN")
    for token, before, behind in zip(
        tokens, [None, *tokens[:-1]], [*tokens[1:], None], strict=True
    ):
        if token.kind == ";":
            raise TemplateError("; would begin a second statement; write only one", token.line, ";")
        if token.kind == "::":
            raise TemplateError(
                ":: calls a user-defined function, which may do anything; "
                "use the functions that AQL has",
                token.line,
                "::",
            )
        if token.kind not in ("word", "name"):
            continue
        bare = token.text.replace("`", "").upper()
        if behind is not None and behind.kind == "(" and bare in language.functions:
            raise TemplateError(
                f"the function {token.text} does more than read; leave it out", token.line, bare
            )
        if before is not None and before.kind in language.after:
            continue
        if language is _AQL and bare.startswith("_") and (behind is None or behind.kind != ":"):
            raise TemplateError(
                f"{token.text} begins with _ as ArangoDB's own collections do, which a template "
                "does not read; use another name",
                token.line,
                token.text,
            )
        if token.kind == "word" and bare in language.refused:
            raise TemplateError(
                f"{token.text} is refused, as {language.refused[bare]} "
                f"(a name of your own goes between backticks: `{token.text}`)",
                token.line,
                token.text,
            )
    first = tokens[0]
    if first.kind != "word" or first.upper not in language.first:
        raise TemplateError(
            f"a template cannot begin with {_shown(first.text)}; "
            f"begin with {' or '.join(sorted(language.first))}",
            first.line,
            first.text,
        )


def _check_order(tokens: list[_Token]) -> None:
    """Refuse a word behind a value that is none of the keywords known to go on from there."""
    value = False
    before = None
    for token in tokens:
        name = before is not None and (before.kind in (".", ":") or before.upper == "AS")
        goes_on = token.kind == "word" and token.upper in _CYPHER_GOES_ON
        if value and not name and token.kind in _CYPHER_OPERANDS and not goes_on:
            raise TemplateError(
                f"{_shown(token.text)} cannot stand here; a template has only MATCH, OPTIONAL "
                "MATCH, WHERE, WITH, UNWIND, RETURN, ORDER BY, SKIP, LIMIT and UNION",
                token.line,
                token.text,
            )
        keyword = token.kind == "word" and not name and token.upper in _CYPHER_OPENS
        value = token.kind in _CYPHER_VALUES and not keyword
        before = token


def _parameters(tokens: list[_Token], nodes: str) -> set[str]:
    """Return the names of the parameters, and refuse a template without `nodes` or a RETURN."""
    if not any(
        token.kind == "word" and token.upper == "RETURN" and before.kind not in (".", ":")
        for before, token in zip([tokens[0], *tokens[:-1]], tokens, strict=True)
    ):
        raise TemplateError("the template returns nothing; end it with RETURN")
    used = {token.text[1:] for token in tokens if token.kind == "parameter"}
    if nodes[1:] not in used:
        raise TemplateError(
            f"the template does not use {nodes}, the ids of the nodes that the search found"
        )
    return used


def _shown(text: str) -> str:
    return text if len(text) <= 40 else text[:40] + "…"
