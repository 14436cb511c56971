"""Shares of classes by fused kernels against torch: on a GPU, or else by the interpreter of Triton."""

from __future__ import annotations

import logging

import pytest
import torch

from attnknn.errors import InvalidInput
from attnknn.ops import backends, fused_shares
from attnknn.train.losses import class_shares

pytest.importorskip("triton", reason="Triton is not installed")

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
pytestmark = [pytest.mark.usefixtures("one_thread"), *[pytest.mark.gpu] * CUDA]  # there all of them count
on_gpu = pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
TINY = 1e-290


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """The interpreter goes through programs one by one."""
    if not CUDA:
        monkeypatch.setattr(fused_shares, "_tile", lambda: {"ROWS": 16, "COLUMNS": 32})
        monkeypatch.setattr(fused_shares, "_AT_ONCE", 6)


def drawn(queries=20, keys=150, dim=24, classes=5, groups=1, seed=0):
    random = torch.Generator().manual_seed(seed)
    asked, held = (torch.randn(count, dim, generator=random) for count in (queries, keys))
    owners = (3 * torch.randn(keys, classes, generator=random)).softmax(dim=1)
    own = torch.randint(9, (queries, groups), generator=random)
    theirs = torch.randint(9, (keys,), generator=random)
    prior = torch.randn(keys, generator=random)
    prior[::7] = -torch.inf
    return [each.to(DEVICE) for each in (asked, held, owners, own, theirs, prior)]


def agree(asked, held, owners, scale, *, within=2e-4, **options):
    """Shares, and the gradients of their logarithms; returns the least share."""
    asked = asked.clone().requires_grad_()
    scale = torch.tensor(float(scale), device=DEVICE, requires_grad=True)
    found = []
    for backend in ("torch", "triton"):
        shares = class_shares(asked, held, owners, scale, backend=backend, **options)
        assert shares.dtype == torch.float64
        slope = torch.rand(shares.shape, generator=torch.Generator().manual_seed(3)).to(shares)
        loss = (slope * torch.where(shares > TINY, shares, 1.0).log()).sum()
        found.append((shares.detach(), *torch.autograd.grad(loss, (asked, scale))))
    (want, *slopes), (got, *turned) = found
    assert torch.equal(want > TINY, got > TINY)
    torch.testing.assert_close(got, want, rtol=4 * within, atol=0)
    for one, other in zip(slopes, turned, strict=True):
        assert one.dtype == other.dtype
        assert one.isfinite().all()
        assert (one - other).norm() <= within * one.norm().clamp(min=1e-2), (one, other)
    return float(want.min())


@pytest.mark.parametrize("scale", [0.0, 1.0, 10.0, 45.0, 100.0])
def test_shares_and_gradients_are_those_of_torch(scale):
    asked, held, owners, own, theirs, prior = drawn()
    agree(asked, held, owners, scale, leave_out=(own, theirs), key_prior=prior)


@pytest.mark.parametrize(
    ("queries", "keys", "dim", "classes", "groups"),
    [(1, 1, 1, 1, 0), (1, 33, 16, 2, 1), (17, 64, 3, 15, 2), (40, 31, 40, 16, 4), (5, 300, 130, 100, 1)],
)
def test_of_any_size(queries, keys, dim, classes, groups):
    asked, held, owners, own, theirs, _ = drawn(queries, keys, dim, classes, groups)
    agree(asked, held, owners, 8.0, leave_out=(own, theirs))


def test_without_groups_or_prior():
    asked, held, owners, *_ = drawn()
    agree(asked, held, owners, 20.0)


@pytest.mark.parametrize("scale", [30.0, 60.0, 99.0])
def test_a_class_far_away_keeps_its_share(scale):
    asked, _, _, _, _, _ = drawn(queries=4, dim=8)
    held = torch.cat([asked[:1] + 0.01 * torch.randn(30, 8, device=DEVICE), -asked[:1].expand(3, 8)])
    owners = torch.nn.functional.one_hot((torch.arange(33, device=DEVICE) >= 30).long(), 3).float()
    shares = class_shares(asked, held, owners, scale, backend="triton")
    assert 0 < shares[0, 1] < 1e-20
    assert (shares[:, 2] == 0).all()  # no key is of this class
    agree(asked, held, owners, scale)


def test_keys_that_weigh_little_count_little():
    asked, held, owners, *_, prior = drawn()
    agree(asked, held, owners, 40.0, key_prior=10 * prior)


def test_a_prior_may_lie_in_memory_as_it_likes():
    asked, held, owners, *_, prior = drawn()
    for laid in (torch.stack([prior, prior * 3], dim=1)[:, 0], torch.zeros((), device=DEVICE).expand(len(held))):
        agree(asked, held, owners, 9.0, key_prior=laid)


def test_what_a_hidden_key_holds_is_harmless():
    asked, held, owners, *_, prior = drawn()
    want = class_shares(asked, held, owners, 9.0, key_prior=prior, backend="triton")
    held[prior == -torch.inf] = torch.nan
    assert torch.equal(class_shares(asked, held, owners, 9.0, key_prior=prior, backend="triton"), want)


def test_whatever_the_usual_type_is():
    asked, held, owners, *_ = drawn()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        agree(asked, held, owners, torch.tensor(9.0, dtype=torch.float32))
    finally:
        torch.set_default_dtype(before)


def test_compiled_once_for_any_number_of_queries():
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    asked, held, owners, *_ = drawn(queries=40)
    ask = torch.compile(class_shares, backend=counter)
    for queries in (11, 17, 23, 40):
        got = ask(asked[:queries], held, owners, 9.0, backend="triton")
        torch.testing.assert_close(got, class_shares(asked[:queries], held, owners, 9.0, backend="triton"))
    assert counter.frame_count <= 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler itself
def test_a_compiler_keeps_all_of_the_numbers():
    asked, held, owners, own, theirs, prior = drawn()
    asked.requires_grad_()
    found = []
    for shares in (class_shares, torch.compile(class_shares)):
        got = shares(asked, held, owners, 9.0, leave_out=(own, theirs), key_prior=prior, backend="triton")
        found.append((got, *torch.autograd.grad(got.log().sum(), asked)))
    for plain, compiled in zip(*found, strict=True):
        assert (plain - compiled).norm() < 1e-5 * plain.norm()


def test_who_may_see_nothing_has_no_shares():
    asked, held, owners, own, theirs, prior = drawn(queries=3)
    theirs[:], own[:2], own[2] = 4, 4, 5
    shares = class_shares(asked, held, owners, 9.0, leave_out=(own, theirs), backend="triton")
    assert (shares[:2] == 0).all()
    torch.testing.assert_close(float(shares[2].sum()), 1.0, rtol=1e-6, atol=0)
    nobody = torch.full_like(prior, -torch.inf)
    assert (class_shares(asked, held, owners, 9.0, key_prior=nobody, backend="triton") == 0).all()


@pytest.mark.parametrize("at", ["asked", "held"])
def test_what_is_no_number_is_seen(at):
    asked, held, owners, *_ = drawn()
    {"asked": asked, "held": held}[at][2, 3] = torch.nan
    shares = class_shares(asked, held, owners, 9.0, backend="triton")
    assert shares[2 if at == "asked" else slice(None)].isnan().all()


def test_what_the_kernels_do_not_serve_is_said(monkeypatch):
    asked, held, owners, own, theirs, _ = drawn()
    hidden = torch.zeros(len(asked), len(held), dtype=torch.bool, device=DEVICE)
    for reason, given, options in (
        ("leave_out is a matrix", (asked, held, owners), {"leave_out": hidden}),
        ("keys ask for a gradient", (asked, held.clone().requires_grad_(), owners), {}),
        ("vectors are float64", (asked.double(), held.double(), owners), {}),
        ("vectors are 300 wide, more than 256", (asked.new_ones(2, 300), asked.new_ones(5, 300), owners[:5]), {}),
        ("128 classes, more than 127", (asked, held, owners.new_ones(len(held), 128)), {}),
        ("5 groups, more than 4", (asked, held, owners), {"leave_out": (own.expand(-1, 5), theirs)}),
        ("there are no queries or no keys", (asked, held[:0], owners[:0]), {}),
    ):
        with pytest.raises(InvalidInput, match=reason):
            class_shares(*given, 5.0, backend="triton", **options)
    monkeypatch.setattr(fused_shares, "HAS_TRITON", False)
    with pytest.raises(InvalidInput, match="not installed"):
        class_shares(asked, held, owners, 5.0, backend="triton")


def test_a_second_derivative_is_refused():
    asked, held, owners, *_ = drawn()
    asked.requires_grad_()
    shares = class_shares(asked, held, owners, 5.0, backend="triton")
    (slope,) = torch.autograd.grad(shares[:, 0].sum(), asked, create_graph=True)
    with pytest.raises(InvalidInput, match="second derivatives"):
        slope.square().sum().backward()


def test_the_same_on_every_run():
    asked, held, owners, own, theirs, prior = drawn()
    asked.requires_grad_()
    options = {"leave_out": (own, theirs), "key_prior": prior, "backend": "triton"}
    runs = []
    for _ in range(2):
        shares = class_shares(asked, held, owners, 12.0, **options)
        runs.append((shares, *torch.autograd.grad(shares[:, 0].sum(), asked)))
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))


@on_gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_as_a_training_asks(compiled):
    asked, held, owners, _, _, prior = drawn(512, 50_000, 128, 10)
    own, theirs = torch.arange(512, device=DEVICE)[:, None], torch.arange(50_000, device=DEVICE)
    shares = torch.compile(class_shares) if compiled else class_shares
    asked.requires_grad_()
    for scale in (10.0, 30.0, 90.0):
        factor = torch.tensor(scale, device=DEVICE, requires_grad=True)
        found = []
        for way, backend in ((class_shares, "torch"), (shares, "triton")):
            got = way(asked, held, owners, factor, leave_out=(own, theirs), key_prior=prior, backend=backend)
            found.append((got, *torch.autograd.grad(got.log().sum(), (asked, factor))))
        for want, other in zip(*found, strict=True):
            added = got.numel() if want.ndim == 0 else 0  # the slope of the scale is a sum in which much cancels
            assert (want - other).norm() < 1e-3 * want.norm() + 2e-6 * added


@on_gpu
def test_a_recording_replays_it():
    asked, held, owners, *_ = drawn(64, 3000, 32, 10)
    for _ in range(2):
        class_shares(asked, held, owners, 10.0, backend="triton")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        shares = class_shares(asked, held, owners, 10.0, backend="triton")
    asked.copy_(asked.flip(0))
    graph.replay()
    torch.testing.assert_close(shares, class_shares(asked, held, owners, 10.0, backend="torch"), rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    ("keys", "dim", "classes", "reason"),
    [
        (4095, 64, 10, "fewer than 4,096 keys"),
        (4096, 128, 31, None),
        (5000, 128, 32, "128 dimensions and 32 classes"),
        (5000, 256, 2, "256 dimensions and 2 classes"),
    ],
)
def test_torch_is_kept_where_it_is_as_fast(keys, dim, classes, reason):
    found = fused_shares.slow(torch.empty(keys, dim), torch.empty(keys, classes))
    assert (found is None) == (reason is None)
    assert (reason or "") in (found or "")


@on_gpu
def test_a_gpu_is_served_by_the_kernels(caplog):
    backends._tell.cache_clear()
    asked, held, owners, *_ = drawn(64, 5000, 128, 10)
    with caplog.at_level(logging.INFO, logger=backends.__name__):
        class_shares(asked, held, owners, 10.0)
        class_shares(asked, held[:100], owners[:100], 10.0)
    told = [each.split(":")[0] for each in caplog.messages]
    assert told == ["shares of classes by triton", "shares of classes by torch"]
