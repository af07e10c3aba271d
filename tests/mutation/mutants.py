"""Mutants of a module by Cosmic Ray, without those that cannot change what the code does."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.ast.ast_query import ASTQuery
from cosmic_ray.mutating import mutate_code

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# One replacement of each operator: its neighbour or its opposite. The others make mutants that the same tests
# kill, and would take ten times as long.
_OPERATORS: Final = re.compile(
    r"core/(AddNot|Replace(TrueWithFalse|FalseWithTrue|AndWithOr|OrWithAnd|BreakWithContinue|ContinueWithBreak)"
    r"|NumberReplacer|ZeroIterationForLoop|ReplaceUnaryOperator_(USub_UAdd|Delete_Not|Delete_Invert)"
    r"|ReplaceComparisonOperator_(Eq_NotEq|NotEq_Eq|Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt|Is_IsNot|IsNot_Is)"
    r"|ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Add|Div_Mul|FloorDiv_Mul|Mod_Mul|BitAnd_BitOr|BitOr_BitAnd"
    r"|BitXor_BitAnd|LShift_RShift|RShift_LShift))$"
)


class Mutant(NamedTuple):
    """One change of a module. `before` and `after` are its changed lines; they identify it in reviews."""

    module: str
    line: int
    before: str
    after: str
    code: str

    @property
    def key(self) -> tuple[str, str, str]:
        """Identity that other changes of the module leave alone."""
        return self.module, self.before, self.after


class Position(NamedTuple):
    """Place of a module that an operator of Cosmic Ray can change."""

    module: str
    operator: str
    occurrence: int
    line: int


def positions_of(root: Path, module: str) -> Iterator[Position]:
    """Yield the positions in a module below `root` where a change may decide something."""
    path = root / module
    idle = _idle_positions(path.read_text())
    nodes = list(ast_nodes(get_ast_from_path(path)))
    for name in sorted(filter(_OPERATORS.match, plugins.operator_names())):
        operator = plugins.get_operator(name)()
        found = ((node, start) for node in nodes for start, _ in operator.mutation_positions(node))
        for occurrence, (node, start) in enumerate(found):
            if not _is_idle(start, idle) and ASTQuery(node).get_definition_name() is not None:
                yield Position(module, name, occurrence, start[0])


def mutant_at(root: Path, position: Position) -> Mutant | None:
    """Return the mutant of a position; None if Python sees no difference, or no valid code."""
    source = (root / position.module).read_text()
    changed = mutate_code(source, plugins.get_operator(position.operator)(), position.occurrence)
    if changed is None or _same_code(source, changed):
        return None
    return Mutant(position.module, position.line, *_changed_lines(source, changed), changed)


def _idle_positions(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the spans of annotations, messages of errors, `strict` and prefetching: they decide nothing."""
    spans = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            spans.append(_span(node.annotation))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            spans += [_span(node.returns)] if node.returns is not None else []
            spans += map(_span, _prefetching(node))
        elif isinstance(node, ast.JoinedStr):
            spans.append(_span(node))
        elif isinstance(node, ast.keyword) and node.arg == "strict":
            spans.append(_span(node.value))
    return spans


def _prefetching(function: ast.AST) -> set[ast.stmt]:
    """Return the statements of a function that prefetch, guard it, or compute what only they use."""
    statements = [each for each in ast.walk(function) if isinstance(each, ast.stmt) and each is not function]
    idle = {each for each in statements if _is_prefetch(each)}
    found = idle
    while found:
        used = set(_loaded_names(function, idle))
        found = {each for each in statements if each not in idle and _only_prefetches(each, idle, used)}
        idle |= found
    return idle


def _is_prefetch(node: ast.stmt) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "prefetch"


def _only_prefetches(node: ast.stmt, idle: set[ast.stmt], used: set[str]) -> bool:
    if isinstance(node, ast.If | ast.For):
        return idle.issuperset([*node.body, *node.orelse])
    return isinstance(node, ast.Assign) and all(
        isinstance(target, ast.Name) and target.id not in used for target in node.targets
    )


def _loaded_names(node: ast.AST, idle: set[ast.stmt]) -> Iterator[str]:
    """Yield the names that a function reads outside of its idle statements."""
    if node in idle:
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    for child in ast.iter_child_nodes(node):
        yield from _loaded_names(child, idle)


def _span(node: ast.expr | ast.stmt) -> tuple[tuple[int, int], tuple[int, int]]:
    return (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)


def _is_idle(position: tuple[int, int], spans: list[tuple[tuple[int, int], tuple[int, int]]]) -> bool:
    return any(start <= position < end for start, end in spans)


def _same_code(source: str, changed: str) -> bool:
    try:
        return ast.dump(ast.parse(source)) == ast.dump(ast.parse(changed))
    except SyntaxError:
        return True


def _changed_lines(source: str, changed: str) -> tuple[str, str]:
    """Return the lines that differ, without indentation; a mutation changes adjacent lines only."""
    old, new = source.splitlines(), changed.splitlines()
    start = next(
        (index for index, (one, other) in enumerate(zip(old, new, strict=False)) if one != other),
        min(len(old), len(new)),
    )
    same_tail = 0
    while same_tail < min(len(old), len(new)) - start and old[-1 - same_tail] == new[-1 - same_tail]:
        same_tail += 1
    return tuple(
        " ".join(line.strip() for line in lines[start : len(lines) - same_tail]) for lines in (old, new)
    )  # type: ignore[return-value]  # two lists make two strings
