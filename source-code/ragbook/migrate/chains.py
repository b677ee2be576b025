"""Leave a class that is given an old chain, or one that answers with an object."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst
from libcst import matchers

from ragbook.migrate.plan import Plan
from ragbook.migrate.table import Retired
from ragbook.migrate.values import Left

ARGUMENT = "llm_chain"
OLD_CHAIN = "LLMChain"
OBJECTS = ("PydanticOutputParser", "with_structured_output")
"""What makes a chain answer with an object."""


def check_chain(plan: Plan, row: Retired, call: cst.Call) -> None:
    """Check the chain that a call gives.

    Raises:
        Left: If it is an `LLMChain`, or may be one, or answers with an object.
    """
    for argument in call.args:
        if not argument.keyword or argument.keyword.value != ARGUMENT:
            continue
        values = _values(plan, argument.value)
        if _is_used(plan) and not all(isinstance(one, cst.BinaryOperation) for one in values):
            said = "give a chain prompt | llm | parser, which answers with text"
            raise Left(f"an LLMChain answers with a dictionary: {said}")
        if row.name == "MultiQueryRetriever" and _answers_with_objects(plan):
            raise Left("its chain may answer with an object: give a parser that makes a list")


def _is_used(plan: Plan) -> bool:
    """Tell whether the module builds old chains."""
    return any(use.name == OLD_CHAIN for use in plan.module.uses)


def _values(plan: Plan, value: cst.BaseExpression) -> Sequence[cst.CSTNode | None]:
    """Return what a name is bound to, or the expression itself."""
    scope = plan.module.scope(value)
    if not isinstance(value, cst.Name) or scope is None:
        return [value]
    return [plan.module.bound_value(one) for one in scope[value.value]] or [None]


def _answers_with_objects(plan: Plan) -> bool:
    named = matchers.Name(value=matchers.MatchIfTrue(lambda name: name in OBJECTS))
    return bool(matchers.findall(plan.module.wrapper.module, named))
