"""What a query's answer looks like in a terminal and as JSON."""

import math
from typing import Any, NamedTuple

import typer

from dpjax import __version__, suspicion
from dpjax.cli._print import complain, named, print_json, print_table, rounded


class Question(NamedTuple):
    """A mechanism and what is asked about it.

    Attributes:
      mechanism: a record of dpjax.
      target: ``delta`` or ``log_delta``, which ask for epsilon, or ``epsilon``, which asks for delta, with its value.
      adjacency: a member of ``dpjax.Adjacency``.
      method, rtol: as for ``dpjax.epsilon``.
    """

    mechanism: Any
    target: dict[str, float]
    adjacency: Any
    method: str
    rtol: float


def question_target(target: dict[str, Any], records: Any = None) -> None:
    """Asks back about the delta of a target, if it has one."""
    log = target.get("log_delta")
    suspicion.question_delta(math.exp(min(log, 0.0)) if log is not None else target.get("delta"), records)


def show(
    question: Question, inputs: dict[str, Any], derived: dict[str, str], *, as_json: bool, statement: bool
) -> None:
    """Answers and prints; ``derived`` has the formulas of inputs that were not given themselves."""
    import dpjax

    name = "delta" if "epsilon" in question.target else "epsilon"
    records = inputs.get("dataset_size") or suspicion.dataset_size(question.mechanism)
    question_target(question.target, records)
    if statement:
        given = question.target
        if "log_delta" in given:
            raise ValueError("--statement needs --delta or --epsilon, not --log-delta.")
        print(
            dpjax.statement(question.mechanism, **given, adjacency=question.adjacency, method=question.method)  # type: ignore[arg-type]
        )
        return
    query = dpjax.epsilon_bounds if name == "epsilon" else dpjax.delta_bounds
    bounds = query(
        question.mechanism,
        **question.target,  # type: ignore[arg-type]
        adjacency=question.adjacency,
        method=question.method,
        rtol=question.rtol,
    )
    if getattr(bounds.upper, "ndim", 0):
        raise ValueError("the file describes a batch of mechanisms; ask about one.")
    if name == "epsilon":
        suspicion.question_zero(question.target.get("delta"), bounds.upper)
    method, status = dpjax.Method(int(bounds.method)).name.lower(), named(dpjax.Status(int(bounds.status)))
    inputs = {**inputs, **question.target, "adjacency": question.adjacency.value, "rtol": question.rtol}
    nodes = int(bounds.nodes)
    lower, estimate, upper = (float(x) for x in bounds[:3])
    if math.isnan(upper):
        raise typer.Exit(complain(f"no answer: {name} is NaN, which is a fault of dpjax; please report it.", status=1))
    if as_json:
        print_json(
            {
                name: upper,
                "lower": lower,
                "estimate": estimate,
                "upper": upper,
                "method": method,
                "status": status,
                "nodes": nodes,
                "inputs": inputs,
                "dpjax": __version__,
            }
        )
        return
    rows = {
        name: rounded(upper, up=True),
        "certified interval": f"[{rounded(lower, up=False)}, {rounded(upper, up=True)}]",
    }
    for key, value in inputs.items():
        formula = derived.get(key)
        rows[key] = f"{value:.10g} = {formula}" if formula else f"{value}"
    rows |= {"method": f"{method}, {nodes} nodes" if nodes else method, "status": status}
    print_table(rows, bold_first=True)
