"""What theory says of attention over k neighbors, checked on a fitted bank: claims that can fail.

Softmax attention over all n rows of a bank is the truth here; logits are scale * similarity in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike

from attnknn.errors import InvalidInput, MissingExtra
from attnknn.metrics import Estimate, bootstrap_interval, nll, seed_interval
from attnknn.metrics.inputs import as_floats, checked_count, checked_labels
from attnknn.metrics.scores import true_probability
from attnknn.ops import Metric, distance_matrix, evidence, exact_topk, similarity, softmax, unit, vote
from attnknn.ops.similarity import checked_metric
from attnknn.study.beyond import (
    Floats,
    Ints,
    Sampler,
    certificate,
    lazy_winner,
    missing_mass,
    sampling_numbers,
    tail_numbers,
    truncation_gaps,
)
from attnknn.study.verdicts import fine, short

Verdict: TypeAlias = Literal["pass", "fail", "reported", "not run"]
Bound: TypeAlias = Callable[[Floats, int, float], Floats]

KS: Final = (1, 4, 16, 64, 256, 1024)
EFFORTS: Final = (16, 32, 64, 128, 256, 512)
TOLERANCE: Final = 1e-9
"""Differences of weights that are taken for rounding."""

_WINNERS = 10_000  # draws
_LEAST_P = 1e-3
_HNSW_ROWS = 20_000  # building a larger graph takes longer than all the rest
_TIED = 1e-12  # inner products of unit vectors that float64 hardly tells apart


@dataclass(frozen=True, slots=True)
class Check:
    """A claim and what became of it."""

    name: str
    verdict: Verdict
    claim: str
    found: str
    numbers: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Searched:
    """Logits of all rows of a bank, and which rows a search found."""

    logits: Floats  # (queries, n)
    rows: Ints  # (queries, most k), nearest first

    @property
    def n(self) -> int:
        """Rows of the bank."""
        return int(self.logits.shape[1])

    def top(self, k: int) -> Floats:
        """(queries, k) logits of the nearest."""
        return np.take_along_axis(self.logits, self.rows[:, :k], axis=1)


def check_theory(
    keys: ArrayLike,
    queries: ArrayLike,
    key_labels: ArrayLike,
    query_labels: ArrayLike,
    *,
    scale: float,
    metric: str,
    k: int,
    classes: int,
    seed: int = 0,
    ks: Sequence[int] = KS,
    most_queries: int = 200,
    bias: float = 0.0,
) -> list[Check]:
    """Run every check.

    Args:
        keys: (n, dim) vectors as the bank holds them.
        queries: (q, dim) vectors that are not in the bank.
        key_labels: (n,) from 0 to ``classes - 1``.
        query_labels: (q,).
        scale: Inverse temperature of the attention, for distances as the bank gives them.
        metric: ``l2``, ``cosine`` or ``ip``.
        k: Neighbors that are served.
        classes: How many there are.
        seed: Of everything drawn.
        ks: Further k to look at, as far as the bank has rows.
        most_queries: Of more than these, some are drawn.
        bias: What learned biases add to a logit at most; infinite where no bound is known.
    """
    measure, k, classes = checked_metric(metric), checked_count(k, "k"), checked_count(classes, "classes")
    if not (math.isfinite(scale) and scale > 0):
        raise InvalidInput(f"scale must be a positive number, got {scale!r}")
    held, asked = _vectors(keys, "keys"), _vectors(queries, "queries")
    if held.shape[1] != asked.shape[1]:
        raise InvalidInput(f"queries must be as wide as the keys, {held.shape[1]}, got {asked.shape[1]}")
    labels = checked_labels(key_labels, len(held), classes)
    truth = checked_labels(query_labels, len(asked), classes)
    if (labels < 0).any():
        raise InvalidInput(f"key_labels must lie within 0 and {classes - 1}, row {(labels < 0).argmax()} does not")
    if len(asked) > checked_count(most_queries, "most_queries"):
        some = np.sort(np.random.default_rng(seed).choice(len(asked), most_queries, replace=False))
        asked, truth = asked[some], truth[some]
    every = sorted({min(checked_count(each, "ks"), len(held)) for each in (*ks, k)})
    seen = searched(held, asked, scale, measure, every[-1])
    below = [each for each in every if each < len(held)]
    return [
        check_truncation(seen, below),
        check_certificate(seen, below, bias=bias),
        check_gumbel(seen.logits, k, seed=seed),
        check_tail(seen, labels, classes, k=k, seed=seed),
        check_metrics_agree(_unit(held), _unit(asked), k),
        check_hnsw(held, asked, k, measure, seed=seed),
        check_k(seen, labels, truth, classes, k=k, ks=every, seed=seed),
        check_norms(held, asked),
    ]


def searched(keys: Floats, queries: Floats, scale: float, metric: Metric, k: int) -> Searched:
    """All logits, and the k nearest rows by exact search."""
    asked, held = torch.from_numpy(queries), torch.from_numpy(keys)
    logits = scale * similarity(distance_matrix(asked, held, metric), metric)
    return Searched(logits.numpy(), exact_topk(asked, held, k, metric=metric).rows.numpy())


def check_truncation(seen: Searched, ks: Sequence[int]) -> Check:
    """Total variation of attention over k neighbors to attention over all rows, for each k below n."""
    name = "truncation"
    claim = "Keeping only k neighbors changes the attention weights by exactly the weight of the rows left out."
    if not ks:
        return _not_run(name, claim, f"no k is below the {seen.n} rows of the bank, so none is left out")
    weights, by_k = _softmax(seen.logits), []
    for k in ks:
        gaps = np.abs(truncation_gaps(weights, seen.rows[:, :k], _softmax(seen.top(k))))
        by_k.append({"k": k, "violations": int((~(gaps <= TOLERANCE)).sum()), "largest": float(gaps.max())})
    violations, largest = sum(each["violations"] for each in by_k), max(each["largest"] for each in by_k)
    found = (
        f"{violations} violations in {len(weights)} queries at {len(ks)} k each: "
        f"the largest difference is {largest:.0e}, where rounding may make {TOLERANCE:.0e}."
    )
    numbers = {"violations": violations, "queries": len(weights), "tolerance": TOLERANCE, "by_k": by_k}
    return Check(name, "pass" if violations == 0 else "fail", claim, found, numbers)


def check_certificate(
    seen: Searched, ks: Sequence[int], *, bias: float = 0.0, bound: Bound = certificate
) -> Check:
    """The weight outside the k nearest against a bound on it, with the worst biases: ``bias`` for all outside."""
    name, claim = "certificate", "The k neighbors found bound the weight of all rows that were not found."
    if bias < 0:
        raise InvalidInput(f"bias must not be negative, got {bias!r}")
    if not math.isfinite(bias):
        return _not_run(name, claim, "no bound is known on what the learned biases add to a logit")
    if not ks:
        return _not_run(name, claim, f"no k is below the {seen.n} rows of the bank, so none is left out")
    weights, by_k = _softmax(seen.logits), []
    for k in ks:
        bounds, missing = bound(seen.top(k), seen.n, bias), missing_mass(weights, seen.rows[:, :k], bias)
        medians = {"certificate": float(np.median(bounds)), "missing": float(np.median(missing))}
        broken = ~(missing <= bounds + TOLERANCE)  # also where a bound is NaN
        by_k.append({"k": k, "violations": int(broken.sum()), **medians})
    violations, last = sum(each["violations"] for each in by_k), by_k[-1]
    found = (
        f"{violations} violations in {len(weights)} queries at {len(ks)} k each; at k = {last['k']} the median "
        f"bound is {fine(last['certificate'])} and the median weight left out {fine(last['missing'])}."
    )
    numbers = {"violations": violations, "queries": len(weights), "bias": bias, "by_k": by_k}
    return Check(name, "pass" if violations == 0 else "fail", claim, found, numbers)


def check_gumbel(
    logits: Floats, k: int, *, seed: int = 0, draws: int = _WINNERS, sampler: Sampler = lazy_winner
) -> Check:
    """Winners of lazy sampling against the softmax, for one query of ``logits`` (queries, n) and some rows."""
    name = "gumbel"
    claim = "Lazy Gumbel sampling draws from the attention over all rows and looks at few beyond the k neighbors."
    if logits.shape[1] <= k:
        return _not_run(name, claim, f"k = {k} takes in all {logits.shape[1]} rows, so there is no tail")
    got = sampling_numbers(logits, k, draws, np.random.default_rng(seed), sampler)
    few = got["mean_looked"] <= got["bound"] + 3 * got["standard_error"]
    if got["bins"] < 2 and few:
        return _not_run(name, claim, "one row has all the weight, so any sampler fits", got)
    found = (
        f"The fit of {draws:,} winners to the softmax over {got['n']} rows has p = {got['p']:.2g}; beyond "
        f"k = {got['k']} a draw looked at {got['mean_looked']:.2f} rows on average, of {got['bound']:.2f} allowed."
    )
    return Check(name, "pass" if got["p"] > _LEAST_P and few else "fail", claim, found, got)


def check_tail(seen: Searched, labels: Ints, classes: int, *, k: int, seed: int = 0) -> Check:
    """Class probabilities of the k nearest against those with a sampled tail beside them."""
    name = "tail"
    claim = "A few random rows beside the k neighbors bring class probabilities closer to attention over all rows."
    if seen.n <= k:
        return _not_run(name, claim, f"k = {k} takes in all {seen.n} rows, so there is no tail")
    got = tail_numbers(seen.logits, seen.rows[:, :k], labels, classes, np.random.default_rng(seed))
    if got["truncation"] <= TOLERANCE:
        return _not_run(name, claim, f"k = {k} of {seen.n} rows give the class probabilities of all already", got)
    found = (
        f"Mean total variation to attention over all {seen.n} rows is {fine(got['truncation'])} with k = {k}, "
        f"{fine(got['with_tail'])} with {got['tail_size']} random rows more: {_interval(got['difference'])}."
    )
    low, high = got["difference"]["low"], got["difference"]["high"]
    return Check(name, "pass" if high < 0 else "fail" if low > 0 else "reported", claim, found, got)


def check_metrics_agree(keys: Floats, queries: Floats, k: int) -> Check:
    """Ranks by inner product against ranks by distance, of vectors of length 1; zero vectors are left out."""
    name, claim = "metrics agree", "On unit vectors, inner product and Euclidean distance rank neighbors alike."
    held, asked = (each[each.any(axis=1)] for each in (keys, queries))
    if not (len(held) and len(asked)):
        return _not_run(name, claim, "all vectors of the bank or of the queries are zero, which has no direction")
    by_product, by_distance = (
        exact_topk(torch.from_numpy(asked), torch.from_numpy(held), k, metric=metric).rows.numpy()
        for metric in ("ip", "l2")
    )
    query, rank = np.nonzero(by_product != by_distance)
    one, other = (np.einsum("id,id->i", asked[query], held[by[query, rank]]) for by in (by_product, by_distance))
    parted = np.abs(one - other) > _TIED
    wrong, most = len(np.unique(query[parted])), by_product.shape[1]
    found = f"{wrong} of {len(asked)} queries have their {most} nearest in another order, rounding aside."
    numbers = {"violations": wrong, "queries": len(asked), "n": len(held), "k": most, "ties": int((~parted).sum())}
    return Check(name, "pass" if wrong == 0 else "fail", claim, found, numbers)


def check_hnsw(
    keys: Floats, queries: Floats, k: int, metric: Metric, *, seed: int = 0, efforts: Sequence[int] = EFFORTS
) -> Check:
    """Recall of the bank's HNSW index by search effort; of many rows, some are drawn."""
    name, claim = "hnsw recall", "An HNSW index finds more of the exact neighbors the harder it searches."
    some = np.sort(np.random.default_rng(seed).permutation(len(keys))[:_HNSW_ROWS])
    k = min(k, len(some))
    try:
        curve = recall_curve(keys[some], queries, k, metric, efforts)
    except MissingExtra as missing:
        return _not_run(name, claim, str(missing))
    ends = " and ".join(
        f"{short(at['recall'])} at efSearch {at['ef_search']}" for at in curve[:: len(curve) - 1 or 1]
    )
    found = f"The recall of the {k} nearest of {len(some)} rows is {ends}."
    numbers = {"n": len(some), "k": k, "queries": len(queries), "curve": curve}
    return Check(name, "reported", claim, found, numbers)


def recall_curve(
    keys: Floats, queries: Floats, k: int, metric: Metric, efforts: Sequence[int]
) -> list[dict[str, float]]:
    """Share of the k nearest that the bank's HNSW index finds at each search effort, which it may raise.

    Raises:
        MissingExtra: There is no FAISS.
    """
    from attnknn.bank.faiss import HnswIndex  # slow to import, and optional

    class Graph(HnswIndex):
        effort = 0

        def _options(self, fetch: int, selector: Any) -> Any:
            options = super()._options(fetch, selector)
            self.effort = options.efSearch = max(self.effort, fetch)
            return options

    graph, found = Graph(keys.shape[1], metric), {}
    graph.rebuild(keys)
    worst = exact_topk(torch.from_numpy(queries), torch.from_numpy(keys), k, metric=metric).distances[:, -1:]
    for effort in sorted(efforts):
        if effort <= graph.effort:  # it had to be raised above this one
            continue
        graph.effort = effort
        hits = graph.search(queries, k, None).distances <= worst  # not by row: of equal ones, any will do
        found[graph.effort] = float(hits.double().mean())
    return [{"ef_search": effort, "recall": recall} for effort, recall in found.items()]


def check_k(
    seen: Searched, labels: Ints, truth: Ints, classes: int, *, k: int, ks: Sequence[int], seed: int = 0
) -> Check:
    """NLL of the softmax vote at each of ``ks``, among them the served ``k``, and how far apart its logits are."""
    k, by_k, losses = min(k, seen.n), {}, {}
    for each in ks:
        probabilities = _vote(seen.top(each), labels[seen.rows[:, :each]], labels, classes)
        low, high = bootstrap_interval(nll, probabilities, truth, seed=seed)
        by_k[each] = Estimate(nll(probabilities, truth), low, high)
        with np.errstate(divide="ignore"):  # a class that the bank does not hold
            losses[each] = -np.log(true_probability(probabilities, truth))
    best = min(by_k, key=lambda each: by_k[each].value)
    gap = seed_interval(losses[k] - losses[best]) if np.isfinite([*losses.values()]).all() else None
    ratio, apart = k / math.sqrt(seen.n), float(np.median(seen.top(k)[:, 0] - seen.top(k)[:, -1]))
    found = (
        f"NLL is lowest at k = {best}, {_interval(asdict(by_k[best]), sign=False)}; {_compared(k, best, gap)}. "
        f"k / sqrt(n) is {ratio:.2f}; the nearest logit exceeds the k-th by {apart:.3g} in the median."
    )
    numbers: dict[str, Any] = {
        "k": k,
        "n": seen.n,
        "k_over_sqrt_n": ratio,
        "logit_span": apart,
        "best_k": best,
    }
    numbers["by_k"] = [
        {"k": each, "nll": got.value, "low": got.low, "high": got.high} for each, got in by_k.items()
    ]
    numbers["difference"] = None if gap is None else asdict(gap)
    return Check("k", "reported", "How good probabilities are depends on k and on the scale.", found, numbers)


def check_norms(keys: Floats, queries: Floats) -> Check:
    """How long the vectors are."""
    spreads = (np.quantile(np.linalg.norm(each, axis=1), [0, 0.5, 1]).tolist() for each in (keys, queries))
    of_keys, of_queries = (dict(zip(("min", "median", "max"), each, strict=True)) for each in spreads)
    low, middle, high = of_keys.values()
    found = f"The bank's vectors have lengths from {low:.4g} to {high:.4g}, {middle:.4g} in the median."
    claim = "Metrics agree only as far as vectors are equally long."
    return Check("norms", "reported", claim, found, {"keys": of_keys, "queries": of_queries})


def _vote(top: Floats, near: Ints, labels: Ints, classes: int) -> Floats:
    """Class probabilities of neighbors with these logits and labels, (queries, k) both; prior mass 1 / k."""
    weighed = evidence(torch.from_numpy(_softmax(top)), torch.from_numpy(near), classes)
    prior = torch.from_numpy(np.bincount(labels, minlength=classes) / len(labels))
    voted: Floats = vote(weighed, prior, 1 / top.shape[1]).numpy()
    return voted


def _compared(k: int, best: int, gap: Estimate | None) -> str:
    """What the paired interval of the served k and the best one allows to say."""
    if k == best:
        return "that is the k served"
    if gap is None or math.isnan(gap.low):
        return f"the k served, {k}, cannot be compared with it"
    said = f"the k served, {k}, has higher NLL" if gap.low > 0 else f"no difference found to the k served, {k}"
    return f"{said}: {_interval(asdict(gap))}"


def _interval(got: dict[str, float], *, sign: bool = True) -> str:
    ends = "" if math.isnan(got["low"]) else f" [{fine(got['low'])}, {fine(got['high'])}]"
    return fine(got["value"], sign=sign) + ends


def _softmax(logits: Floats) -> Floats:
    weights: Floats = softmax(torch.from_numpy(logits)).numpy()
    return weights


def _unit(vectors: Floats) -> Floats:
    scaled: Floats = unit(torch.from_numpy(vectors)).numpy()
    return scaled


def _not_run(name: str, claim: str, why: str, numbers: dict[str, Any] | None = None) -> Check:
    return Check(name, "not run", claim, f"Not run: {why}.", numbers or {})


def _vectors(values: ArrayLike, name: str) -> Floats:
    """Vectors in float64, in memory that torch may share."""
    array = np.require(as_floats(values, name), requirements=["C", "W"])
    if array.ndim != 2 or 0 in array.shape:
        raise InvalidInput(f"{name} must have shape (n, dim) with at least one of each, got {array.shape}")
    return array
