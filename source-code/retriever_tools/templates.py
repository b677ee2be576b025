"""Checks that a tool's graph query is one statement that only reads, before any database sees it.

A database opened to read may still write files, read files and load extensions when a query asks
it to, so the check does not rely on that: it lets only known reading clauses through.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import lru_cache

from .template_tokens import MAX_TEMPLATE, Language, TemplateError, Token, shorten, tokenize

__all__ = [
    "CYPHER_KEYWORDS",
    "MAX_TEMPLATE",
    "RESERVED",
    "TemplateError",
    "check_aql",
    "check_cypher",
]


class IncompleteTemplateError(TemplateError):
    """A template that only reads lacks something.

    Args:
        lacking: What it lacks.
        parameters: The names of the parameters that it uses.
    """

    def __init__(self, lacking: Sequence[str], parameters: set[str]) -> None:
        super().__init__(". Also: ".join(lacking))
        self.parameters = parameters


RESERVED = frozenset({"nodes", "top_k", "relations_collection", "partition_ids"})
"""The parameters that a run sets itself, so that neither a tool nor a request can."""


def check_cypher(template: str) -> set[str]:
    """Check that a Cypher template only reads, and return the parameters that it uses.

    Args:
        template: One statement of MATCH, OPTIONAL MATCH, WHERE, WITH, UNWIND, RETURN, ORDER BY,
            SKIP, LIMIT and UNION that uses `$nodes`; at most `MAX_TEMPLATE` characters.

    Returns:
        The names of the parameters, without `$`.

    Raises:
        TemplateError: If it could do anything else, could be read in two ways, or calls a function
            that makes a value of any size out of a number, which a request's parameter may be.
        TypeError: If it is not a string.
    """
    if not isinstance(template, str):
        tokenize(template, "cypher")  # says what was given instead
    return set(_cypher_parameters(template))


@lru_cache(maxsize=256)  # a tool's run asks three times, and each takes as long as a small search
def _cypher_parameters(template: str) -> frozenset[str]:
    tokens = tokenize(template, "cypher")
    _check_to_json(template)
    if tokens and tokens[-1].kind == ";":
        tokens.pop()
    _check_words(tokens, "cypher", _CYPHER_REFUSED, _CYPHER_FUNCTIONS)
    _check_order(tokens)
    _check_first(tokens, _CYPHER_FIRST)
    return frozenset(_parameters(tokens, "$nodes"))


def check_aql(template: str) -> set[str]:
    """Check that an AQL template only reads, and return the parameters that it uses.

    Functions and ranges that make a value of any size out of a number (`1..@n`) are let through,
    unlike in Cypher: ArangoDB holds each query to the store's `memory_limit`.

    Collections of ArangoDB's own, whose names begin with `_`, are refused where a template names
    them outside strings; what `DOCUMENT` may fetch is for the rights of the database's user.

    Args:
        template: One query of FOR, LET, FILTER, SEARCH, SORT, LIMIT, COLLECT, WINDOW, PRUNE,
            OPTIONS, WITH and RETURN that uses `@nodes`; at most `MAX_TEMPLATE` characters. In a
            cluster, ArangoDB wants WITH before a traversal; that is not checked here.

    Returns:
        The names of the parameters without the first `@`, so `@@edges` is given as `@edges`.

    Raises:
        TemplateError: If it could do anything else, or could be read in two ways.
        TypeError: If it is not a string.
    """
    tokens = tokenize(template, "aql")
    _check_words(tokens, "aql", _AQL_REFUSED, _AQL_FUNCTIONS)
    _check_own_collections(tokens)
    _check_first(tokens, _AQL_FIRST)
    return _parameters(tokens, "@nodes")


def _with_neighbours(
    tokens: Sequence[Token],
) -> Iterator[tuple[Token, Token | None, Token | None]]:
    """Yield each token with the one before it and the one behind it."""
    return zip(tokens, [None, *tokens], [*tokens[1:], None], strict=False)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _because(**reasons: str) -> dict[str, str]:
    """Return each refused word with the reason that its group gives."""
    texts = {
        "writes": "it changes the database, and a template only reads",
        "files": "it reads or writes files, and a template only reads the database",
        "settings": "it changes how the database runs, and a template only reads",
        "transactions": "it controls a transaction, and a template is one reading statement",
        "plans": "it describes a query in place of running it; write the query alone",
        "calls": "it runs a procedure, and a template only reads",
    }
    return {word: texts[group] for group, words in reasons.items() for word in words.split()}


_CYPHER_FIRST = _words("MATCH OPTIONAL UNWIND WITH RETURN")
_CYPHER_REFUSED = _because(
    writes="ALTER COMMENT CREATE DELETE DETACH DROP FOREACH MACRO MERGE REMOVE RENAME SET UPDATE",
    files="ATTACH COPY EXPORT IMPORT LOAD USE",
    settings="ANALYZE FORCE INSTALL UNINSTALL",
    transactions=(
        "BEGIN CHECKPOINT COMMIT COMMIT_SKIP_CHECKPOINT ROLLBACK ROLLBACK_SKIP_CHECKPOINT"
    ),
    plans="EXPLAIN PROFILE",
    calls="CALL PROJECT YIELD",
)
_ACTS = "does more than read; leave it out"
# ladybug has no limit on the memory of a query outside its buffers, where these values are.
_ANY_SIZE = "makes a value of any size out of a number; give a parameter the {} in its place"
# Sequences are written when they are read, a seed changes later answers, embeddings call a server.
_CYPHER_FUNCTIONS = {
    **dict.fromkeys(_words("NEXTVAL CURRVAL SETSEED CREATE_EMBEDDING"), _ACTS),
    **dict.fromkeys(_words("LPAD REPEAT RPAD"), _ANY_SIZE.format("text")),
    "RANGE": _ANY_SIZE.format("list of numbers, and UNWIND it"),
}
CYPHER_KEYWORDS = _words(
    "ACYCLIC ALL AND ANY ASC ASCENDING CASE CAST COLUMN COMMIT_SKIP_CHECKPOINT CREATE CSR DBTYPE "
    "DEFAULT DESC DESCENDING DISTINCT ELSE END ENDS EXISTS FALSE FOR GLOB GROUP HEADERS HINT IN "
    "INDEX INSTALL JOIN MACRO MULTI_JOIN NONE NOT NULL ON ONLY OPTIONAL OPTIONS OR ORDER PRIMARY "
    "PROFILE ROLLBACK_SKIP_CHECKPOINT SHORTEST SINGLE SORTED STARTS TABLE THEN TRAIL TRUE UNION "
    "UNWIND WHEN WHERE WITH WSHORTEST XOR"
)
"""The words that ladybug does not read as the name of a parameter, in any case: `$end`."""

_AQL_FIRST = _words("FOR LET FILTER SORT LIMIT COLLECT WITH RETURN")
_AQL_REFUSED = _because(writes="INSERT UPDATE REPLACE REMOVE UPSERT")
# Two call any function by its name, one holds a thread, one fails, one moves the query elsewhere.
_AQL_FUNCTIONS = dict.fromkeys(_words("APPLY CALL SLEEP FAIL V8"), _ACTS)

# The words that may stand behind a value in Cypher; an unknown clause would stand there too.
_CYPHER_GOES_ON = _words(
    "AND AS ASC ASCENDING CONTAINS DESC DESCENDING ELSE END ENDS IN IS LIMIT MATCH OPTIONAL OR "
    "ORDER RETURN SKIP STARTS THEN UNION UNWIND WHEN WHERE WITH XOR"
)
# Keywords that are not values themselves, so that a value or another keyword may follow.
_CYPHER_OPENS = (_CYPHER_GOES_ON - _words("ASC ASCENDING DESC DESCENDING END")) | _words(
    "ACYCLIC ALL BY CASE DISTINCT NOT SHORTEST TRAIL WSHORTEST"
)
_CYPHER_VALUES = _words("word name string number parameter ) ] }")


def _check_words(
    tokens: Sequence[Token],
    language: Language,
    refused: Mapping[str, str],
    functions: Mapping[str, str],
) -> None:
    """Refuse a second statement, and every word that does more than read."""
    # Behind these signs stands a property (or, in Cypher, a label): never a keyword.
    named = (".", ":") if language == "cypher" else (".",)
    for token, before, behind in _with_neighbours(tokens):
        if token.kind == ";":
            raise TemplateError("; would begin a second statement; write only one", token.line, ";")
        if token.kind == "::":
            what = ":: calls a user-defined function, which may do anything; use AQL's own"
            raise TemplateError(what, token.line, "::")
        if token.kind not in ("word", "name"):
            continue
        if behind is not None and behind.kind == "(" and token.upper in functions:
            what = f"the function {token.text} {functions[token.upper]}"
            raise TemplateError(what, token.line, token.text)
        if before is not None and before.kind in named:
            continue
        if token.kind == "word" and token.upper in refused:
            what = (
                f"{token.text} is refused, as {refused[token.upper]} "
                f"(a name of your own goes between backticks: `{token.text}`)"
            )
            raise TemplateError(what, token.line, token.text)


def _check_to_json(template: str) -> None:
    """Refuse what ladybug's Python client would fill in before the database reads the query.

    It replaces `to_json($name)` by the value, in strings and comments too, where a quote of the
    value would end the string.
    """
    found = re.search("to_json", template, re.IGNORECASE)
    if found:
        line = template.count("\n", 0, found.start()) + 1
        what = (
            f"{found.group()} would be filled in as text, not as a parameter, wherever it stands; "
            "leave the word out"
        )
        raise TemplateError(what, line, found.group())


def _check_order(tokens: Sequence[Token]) -> None:
    """Refuse a word behind a value that is none of the Cypher keywords that go on from there."""
    value, before = False, None
    for token in tokens:
        named = before is not None and (before.kind in (".", ":") or before.upper == "AS")
        keyword = token.kind == "word" and not named
        goes_on = named or (keyword and token.upper in _CYPHER_GOES_ON)
        if value and token.kind in ("word", "name") and not goes_on:
            what = (
                f"{shorten(token.text)} cannot stand here; a template has only MATCH, OPTIONAL "
                "MATCH, WHERE, WITH, UNWIND, RETURN, ORDER BY, SKIP, LIMIT and UNION"
            )
            raise TemplateError(what, token.line, token.text)
        opens = keyword and token.upper in _CYPHER_OPENS
        value = token.kind in _CYPHER_VALUES and not opens
        before = token


def _check_own_collections(tokens: Sequence[Token]) -> None:
    """Refuse AQL names that begin with `_`, but not attributes and the keys of objects."""
    for token, before, behind in _with_neighbours(tokens):
        own = token.kind in ("word", "name") and token.upper.startswith("_")
        attribute = before is not None and before.kind == "."
        # Behind `?` it is a value, though a colon follows: `true ? _users : []`.
        begins = before is not None and before.kind in ("{", ",")
        key = begins and behind is not None and behind.kind == ":"
        if own and not attribute and not key:
            what = (
                f"{shorten(token.text)} begins with _ as the collections of ArangoDB's own do, "
                "which a template does not read; use another name"
            )
            raise TemplateError(what, token.line, token.text)


def _check_first(tokens: Sequence[Token], first: Set[str]) -> None:
    if not tokens:
        raise TemplateError("the template is empty; write a reading statement that ends in RETURN")
    if tokens[0].kind != "word" or tokens[0].upper not in first:
        what = (
            f"a template cannot begin with {shorten(tokens[0].text)}; "
            f"begin with {', '.join(sorted(first - {'WITH'}))} or WITH"
        )
        raise TemplateError(what, tokens[0].line, tokens[0].text)


def _parameters(tokens: Sequence[Token], nodes: str) -> set[str]:
    """Return the names of the parameters, and refuse a template without `nodes` or a RETURN."""
    lacking = []
    if not any(
        token.kind == "word"
        and token.upper == "RETURN"
        and (before is None or before.kind not in (".", ":"))
        for token, before, _ in _with_neighbours(tokens)
    ):
        lacking.append("the template returns nothing; end it with RETURN")
    used = {token.text[1:] for token in tokens if token.kind == "parameter"}
    if nodes[1:] not in used:
        what = f"the template does not use {nodes}, the ids of the nodes that the search found"
        lacking.append(what)
    if lacking:
        raise IncompleteTemplateError(lacking, used)
    return used
