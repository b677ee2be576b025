"""Move a project away from LangChain's retired classes: find them, and rewrite what is safe.

A map of the package. `ragbook/migrate_cli.py` is the command; it calls `run.migrate`, and then
`report`. The steps of `run`, each with the modules that do it:

1. Read the files (`files`, `notebooks`; `rewrite_file.python_of` joins a notebook's cells).
2. Compare them: `imports` parses each, once, with `ast`, and says what its names stand for; `links`
   which file a path leads to; `survey` notes what each file has from others, `said` the words in
   other files that say how an object is used, `layout` which folders are packages. One file gets
   of this what `plan.Surroundings` holds.
3. Choose where the copies go: `project`.
4. Draft each file, with `libcst`: `rewrite_file` calls `rewrite`, which goes through
   - `uses`: find the imports of old packages, and each place that uses what they bring (in
     `loggers`, what only names a logger);
   - `decide`: fill a `plan.Plan` with what is rewritten, and what is left and why. Its docstring
     states the rules. It asks
     - of a name: `meaning` (can it stand for something else?), `places` (is it only a type?);
     - of a call: `makers`, `stores`, `chains`, `runnables`, `fuse`, `calls` with `values`;
     - of an object: `objects` (where it goes for sure), `reach` (where else it may be), `members`
       (its attributes, pickles), `searches` (keywords that it is searched with) and `filters`;
     - of other files: `together` (classes that move together or not at all);
   - `naming`: choose names and imports; `methods`: rename `get_relevant_documents`,
     also of what `hints` finds annotated as a retriever, and where `overrides` finds that a class
     defines it;
   - `listing`: make a `findings.Finding` of each place; `classic`: import what is
     left from langchain-classic; `branches`: see that no two branches import the same.
   What one file keeps can keep more in another, so files are drafted again until nothing is added.
5. Sum up in a `result.Migration`: `failing` finds what still cannot be imported, `refused` which
   classes langchain-core 1 does not make, `packages` reads which distributions the project
   lists, `dependencies` says what to install and what to take out.
6. With `--write`: `write`, after `git` was asked whether it could undo it.
7. `lines`: what is reported has the lines of the files as they lie there now.

What is known of LangChain is in tables: `table` reads retired.toml (classes that are replaced),
moves.toml and earlier.toml (names that moved to langchain-core or to their maker, the publisher of
a package such as langchain-openai), makers.toml (how such a maker's class differs) and advice.toml
(what to do by hand); `classic` reads classic.toml (what langchain-classic has).

Two modules are no part of the command: `page` makes the tables of book/migration.md, and
`same_answers` is a script that readers copy.
"""

CLASSIC = True
"""Whether what is left is imported from langchain-classic where nobody says otherwise."""
