"""torch.distributions against torch 2.13: samples of a seed, densities, entropies, divergences."""

from __future__ import annotations

import numpy as np
import pytest

import torchmlx
from torchmlx.aten.incomplete import gamma_slope

torch = pytest.importorskip("torch", reason="torch 2.13 CPU is the oracle of parity tests")

LOC, SCALE = [[0.5, -1.0, 2.0], [0.0, 3.0, -0.2]], [[1.0, 0.3, 2.5], [0.7, 1.0, 0.1]]
PROBS = [[0.2, 0.5, 0.9], [0.01, 0.6, 0.3]]
WEIGHTS = [[0.2, 0.5, 0.3], [0.0, 0.9, 0.1]]
LOGITS = [[0.2, -1.5, 3.0], [0.0, 2.0, -4.0]]
SMALL, LARGE = [0.3, 1.0, 4.5], [25.0, 12.0, 300.0]
COVARIANCE = [[2.0, 0.5, 0.1], [0.5, 1.0, -0.2], [0.1, -0.2, 0.5]]


def t(values):
    """A recipe of a tensor, for either library."""
    return lambda lib: lib.tensor(values)


def made(name, *args, **kwargs):
    """A recipe of a distribution of recipes, for either library."""

    def build(lib):
        def of(value):
            if isinstance(value, list):
                return [of(v) for v in value]
            return value(lib) if callable(value) else value

        kind = getattr(lib.distributions, name)
        return kind(*map(of, args), **{k: of(v) for k, v in kwargs.items()})

    return build


CASES = {
    "Normal": made("Normal", t(LOC), t(SCALE)),
    "Normal of numbers": made("Normal", 1.0, 2.0),
    "Uniform": made("Uniform", t([-1.0, 0.0]), t([2.0, 0.5])),
    "Laplace": made("Laplace", t(LOC), t(SCALE)),
    "Cauchy": made("Cauchy", t(LOC), t(SCALE)),
    "Exponential": made("Exponential", t(SMALL)),
    "LogNormal": made("LogNormal", t(SMALL), t([0.1, 0.5, 1.0])),
    "HalfNormal": made("HalfNormal", t(SMALL)),
    "Gumbel": made("Gumbel", t(LOC), t(SCALE)),
    "Bernoulli": made("Bernoulli", t(PROBS)),
    "Bernoulli logits": made("Bernoulli", logits=t(LOGITS)),
    "Geometric": made("Geometric", t(PROBS)),
    "Categorical": made("Categorical", t(WEIGHTS)),
    "Categorical logits": made("Categorical", logits=t(LOGITS)),
    "OneHotCategorical": made("OneHotCategorical", t(WEIGHTS)),
    "Gamma": made("Gamma", t(SMALL), t([1.0, 0.5, 3.0])),
    "Chi2": made("Chi2", t(SMALL)),
    "Beta": made("Beta", t(SMALL), t([0.5, 2.0, 1.0])),
    "Dirichlet": made("Dirichlet", t([[0.3, 1.0, 4.0], [2.0, 2.0, 2.0]])),
    "StudentT": made("StudentT", t(SMALL), t([0.0, 1.0, 2.0]), t([1.0, 2.0, 0.5])),
    "Poisson": made("Poisson", t(SMALL)),
    "Poisson of many": made("Poisson", t(LARGE)),
    "Binomial": made("Binomial", 7, t(PROBS)),
    "Binomial of many": made("Binomial", 400, logits=t(LOGITS)),
    "Multinomial": made("Multinomial", 9, t(WEIGHTS)),
    "NegativeBinomial": made("NegativeBinomial", t([3.0, 10.0]), t([0.4, 0.7])),
    "MultivariateNormal": made("MultivariateNormal", t(LOC), t(COVARIANCE)),
    "MultivariateNormal precision": made(
        "MultivariateNormal", t(LOC), precision_matrix=t(COVARIANCE)
    ),
    "Independent": made("Independent", made("Normal", t(LOC), t(SCALE)), 1),
    "Mixture": made(
        "MixtureSameFamily",
        made("Categorical", t([[0.3, 0.3, 0.4], [0.2, 0.2, 0.6]])),
        made("Normal", t(LOC), t(SCALE)),
    ),
    "Mixture of vectors": made(
        "MixtureSameFamily",
        made("Categorical", t([0.3, 0.7])),
        made("Independent", made("Normal", t(LOC), t(SCALE)), 1),
    ),
    "SAC's policy": made(
        "TransformedDistribution",
        made("Independent", made("Normal", t(LOC), t(SCALE)), 1),
        [made("TanhTransform", cache_size=1), made("AffineTransform", t([1.0, 2.0, 3.0]), 2.0)],
    ),
    "LogitNormal": made(
        "TransformedDistribution", made("Normal", t(0.5), t(1.0)), made("SigmoidTransform")
    ),
    "Softplus of a power": made(
        "TransformedDistribution",
        made("Normal", t([0.5, 1.0]), t(1.0)),
        [made("SoftplusTransform"), made("PowerTransform", 2.0)],
    ),
    "Affine that broadcasts": made(
        "TransformedDistribution",
        made("Normal", 0.0, 1.0),
        made("AffineTransform", t([1.0, 2.0]), -3.0),
    ),
    "RelaxedBernoulli": made("RelaxedBernoulli", t(0.5), t(PROBS)),
    "RelaxedOneHotCategorical": made("RelaxedOneHotCategorical", t(0.7), logits=t(LOGITS)),
}


def equal(ours, theirs, tolerance=2e-5):
    assert tuple(ours.shape) == tuple(theirs.shape)
    assert str(ours.dtype).removeprefix("torchmlx.") == str(theirs.dtype)
    expected = theirs.detach().numpy()
    np.testing.assert_allclose(ours.detach().numpy(), expected, rtol=tolerance, atol=tolerance)


def either(function, *libraries):
    """What both give, or that both refuse."""
    results = []
    for lib in libraries:
        try:
            results.append(function(lib))
        except NotImplementedError:
            results.append(None)
    ours, theirs = results
    assert (ours is None) == (theirs is None)
    return ours, theirs


@pytest.fixture(params=CASES)
def pair(request):
    return CASES[request.param](torchmlx), CASES[request.param](torch)


def test_shapes_and_moments(pair):
    ours, theirs = pair
    assert ours.batch_shape == tuple(theirs.batch_shape)
    assert ours.event_shape == tuple(theirs.event_shape)
    assert ours.has_rsample == theirs.has_rsample
    for name in ("mean", "variance", "stddev", "mode"):
        got, expected = either(lambda d, name=name: getattr(d, name), ours, theirs)
        if expected is not None:
            equal(got, expected, 2e-4)


@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_samples(pair, shape):
    ours, theirs = pair
    for lib in (torchmlx, torch):
        lib.manual_seed(5)
    equal(ours.sample(shape), theirs.sample(shape), 2e-4)
    assert torchmlx.rand(3).tolist() == torch.rand(3).tolist()  # as many draws were made


def test_log_probabilities(pair):
    ours, theirs = pair
    torch.manual_seed(1)
    value = theirs.sample((6,))
    got = ours.log_prob(torchmlx.tensor(value.numpy()))
    equal(got, theirs.log_prob(value), 5e-4)


def test_entropy_and_cumulative(pair):
    ours, theirs = pair
    got, expected = either(lambda d: d.entropy(), ours, theirs)
    if expected is not None:
        equal(got, expected, 2e-4)
    torch.manual_seed(1)
    value = theirs.sample((5,))
    if not isinstance(theirs, torch.distributions.Gamma):  # needs gammainc, which is not here
        got, expected = either(
            lambda d: d.cdf(value if d is theirs else torchmlx.tensor(value.numpy())), ours, theirs
        )
        if expected is not None:
            equal(got, expected, 2e-4)
    even = torch.tensor([0.1, 0.5, 0.9]).reshape((3,) + (1,) * len(theirs.batch_shape))
    got, expected = either(
        lambda d: d.icdf(even if d is theirs else torchmlx.tensor(even.numpy())), ours, theirs
    )
    if expected is not None:
        equal(got, expected, 5e-4)


def test_expansion(pair):
    ours, theirs = pair
    shape = (2, *theirs.batch_shape)
    ours, theirs = ours.expand(shape), theirs.expand(shape)
    assert ours.batch_shape == tuple(theirs.batch_shape) == shape
    torch.manual_seed(2)
    torchmlx.manual_seed(2)
    value = theirs.sample((3,))
    equal(ours.sample((3,)), value, 2e-4)
    equal(ours.log_prob(torchmlx.tensor(value.numpy())), theirs.log_prob(value), 5e-4)


def test_supported_values(pair):
    ours, theirs = pair
    if theirs.has_enumerate_support:
        for expand in (True, False):
            got, expected = either(
                lambda d, expand=expand: d.enumerate_support(expand), ours, theirs
            )
            equal(got, expected)


REJECTED = ("Gamma", "Chi2", "Beta", "Dirichlet", "StudentT")  # by implicit reparameterisation


@pytest.mark.parametrize("name", ["Normal", "Laplace", "Uniform", "Exponential", "Gumbel"])
def test_gradients_of_samples(name):
    grads = []
    for lib in (torchmlx, torch):
        lib.manual_seed(3)
        parameters = [lib.tensor(SMALL, requires_grad=True)]
        if name != "Exponential":
            parameters.append(lib.tensor([5.0, 6.0, 7.0], requires_grad=True))
        drawn = getattr(lib.distributions, name)(*parameters).rsample((4,))
        drawn.square().sum().backward()
        grads.append([p.grad.numpy() for p in parameters])
    np.testing.assert_allclose(*grads, rtol=1e-4)


@pytest.mark.parametrize("name", REJECTED)
@pytest.mark.parametrize("size", [0.2, 1.0, 3.0, 40.0])
def test_gradients_of_samples_that_are_rejected(name, size):
    """torch's slopes are polynomials, exact to 1e-3; ours are exact to 1e-9."""
    grads = []
    for lib in (torchmlx, torch):
        lib.manual_seed(3)
        a = lib.tensor([size, 1.5 * size, 2 * size], requires_grad=True)
        arguments = {"Gamma": (a, a), "Beta": (a, a.flip(0))}.get(name, (a,))
        drawn = getattr(lib.distributions, name)(*arguments).rsample((5,))
        (drawn * lib.tensor([1.0, -2.0, 0.5])).sum().backward()
        grads.append(a.grad.numpy())
    np.testing.assert_allclose(*grads, rtol=2e-3, atol=2e-3 * np.abs(grads[1]).max())


def test_a_gamma_number_follows_its_concentration():
    """Where its distribution function stays what it was."""
    for alpha, x in ((0.3, 0.01), (2.0, 1.5), (2.0, 9.0), (50.0, 61.0)):
        a = torchmlx.tensor([alpha], dtype=torchmlx.float64)
        slope = gamma_slope(np.array([alpha]), np.array([x]))[0]
        ends = [
            torchmlx.igamma(a + h, torchmlx.tensor([x + h * slope], dtype=a.dtype)).item()
            for h in (-1e-4 * alpha, 1e-4 * alpha)
        ]
        assert ends[0] == pytest.approx(ends[1], abs=1e-9)


def test_policy_gradient():
    """REINFORCE and its entropy bonus, as scripts write it."""
    grads = []
    for lib in (torchmlx, torch):
        logits = lib.tensor(LOGITS, requires_grad=True)
        policy = lib.distributions.Categorical(logits=logits)
        action = lib.tensor([2, 0])
        loss = -policy.log_prob(action) * lib.tensor([1.0, -2.0]) - 0.1 * policy.entropy()
        loss.sum().backward()
        grads.append(logits.grad.numpy())
    np.testing.assert_allclose(*grads, rtol=1e-5, atol=1e-6)


KL = {
    "Normal": ("Normal", (t(LOC), t(SCALE)), (t(SCALE), t(SCALE))),
    "Bernoulli": ("Bernoulli", (t([0.2, 0.0, 1.0]),), (t([0.5, 0.3, 1.0]),)),
    "Categorical": ("Categorical", (t(WEIGHTS),), (t(PROBS),)),
    "OneHotCategorical": ("OneHotCategorical", (t(WEIGHTS),), (t(PROBS),)),
    "Beta": ("Beta", (t(SMALL), t([1.0, 2.0, 3.0])), (t([2.0, 2.0, 2.0]), t(SMALL))),
    "Dirichlet": ("Dirichlet", (t(SMALL),), (t([1.0, 2.0, 3.0]),)),
    "Exponential": ("Exponential", (t(SMALL),), (t([1.0, 2.0, 3.0]),)),
    "Gamma": ("Gamma", (t(SMALL), t([1.0, 2.0, 3.0])), (t([2.0, 2.0, 2.0]), t(SMALL))),
    "Geometric": ("Geometric", (t([0.2, 0.5]),), (t([0.6, 0.1]),)),
    "Gumbel": ("Gumbel", (t(LOC), t(SCALE)), (t(SCALE), t(SCALE))),
    "HalfNormal": ("HalfNormal", (t(SMALL),), (t([1.0, 2.0, 3.0]),)),
    "Laplace": ("Laplace", (t(LOC), t(SCALE)), (t(SCALE), t(SCALE))),
    "LogNormal": ("LogNormal", (t(LOC), t(SCALE)), (t(SCALE), t(SCALE))),
    "Poisson": ("Poisson", (t(SMALL),), (t([1.0, 2.0, 3.0]),)),
    "Uniform": ("Uniform", (t([0.0, 0.0]), t([1.0, 1.0])), (t([-1.0, 0.5]), t([2.0, 2.0]))),
    "Binomial": ("Binomial", (5, t([0.2, 0.4])), (5, t([0.5, 0.4]))),
    "MultivariateNormal": (
        "MultivariateNormal",
        (t(LOC), t(COVARIANCE)),
        (t([1.0, 0.0, 1.0]), t(np.eye(3, dtype=np.float32).tolist())),
    ),
}


@pytest.mark.parametrize("name", KL)
def test_divergences(name):
    kind, p, q = KL[name]
    results = [
        lib.distributions.kl_divergence(made(kind, *p)(lib), made(kind, *q)(lib))
        for lib in (torchmlx, torch)
    ]
    equal(*results, 1e-4)


def test_divergence_of_independent():
    results = []
    for lib in (torchmlx, torch):
        p, q = (
            lib.distributions.Independent(made("Normal", *args)(lib), 1)
            for args in ((t(LOC), t(SCALE)), (t(SCALE), t(SCALE)))
        )
        results.append(lib.distributions.kl_divergence(p, q))
    equal(*results)


@pytest.fixture
def checks():
    """torch.compile, which a test before this one may have called, turns torch's off."""
    torch.distributions.Distribution.set_default_validate_args(True)


def test_divergences_that_are_not_there():
    d = torchmlx.distributions
    with pytest.raises(NotImplementedError, match="p type Normal and q type Gamma"):
        d.kl_divergence(d.Normal(0.0, 1.0), d.Gamma(1.0, 1.0))

    class Mine(d.Normal):
        pass

    @d.register_kl(Mine, d.Normal)
    def divergence(p, q):
        return torchmlx.tensor(7.0)

    assert d.kl_divergence(Mine(0.0, 1.0), d.Normal(0.0, 1.0)).item() == 7
    assert d.kl_divergence(d.Normal(0.0, 1.0), Mine(0.0, 1.0)).item() == 0


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("Normal", ([0.0, 1.0], [1.0, -1.0]), "Expected parameter scale"),
        ("Normal", (float("nan"), 1.0), "Expected parameter loc"),
        ("Uniform", (1.0, 0.0), "Expected parameter low"),
        ("Bernoulli", ([0.2, 1.5],), "Expected parameter probs"),
        ("Categorical", ([-0.2, 1.5],), "Expected parameter probs"),
        ("Dirichlet", ([0.0, 1.0],), "Expected parameter concentration"),
        ("Geometric", ([0.0, 0.5],), "to be positive"),
    ],
)
def test_bad_parameters(checks, name, arguments, words):
    messages = []
    for lib in (torchmlx, torch):
        given = [lib.tensor(a) if isinstance(a, list) else a for a in arguments]
        with pytest.raises(ValueError, match=words) as caught:
            getattr(lib.distributions, name)(*given)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    given = [torchmlx.tensor(a) if isinstance(a, list) else a for a in arguments]
    getattr(torchmlx.distributions, name)(*given, validate_args=False)


@pytest.mark.parametrize(
    ("name", "arguments", "value"),
    [
        ("Bernoulli", ([0.2, 0.5],), [0.5, 1.0]),
        ("Categorical", ([0.2, 0.8],), [2]),
        ("Exponential", ([1.0],), [-1.0]),
        ("Uniform", (0.0, 1.0), [1.5]),
        ("Normal", ([0.0, 1.0], 1.0), [1.0, 2.0, 3.0]),
        ("Dirichlet", ([1.0, 1.0],), [0.5, 0.6]),
        ("Dirichlet", ([1.0, 1.0],), [0.5, 0.2, 0.3]),
        ("Poisson", ([1.0],), [0.5]),
    ],
)
def test_bad_values(checks, name, arguments, value):
    messages = []
    for lib in (torchmlx, torch):
        given = [lib.tensor(a) if isinstance(a, list) else a for a in arguments]
        chosen = getattr(lib.distributions, name)(*given)
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words are compared
            chosen.log_prob(lib.tensor(value))
        messages.append(str(caught.value).replace("torchmlx.", "torch."))
    assert messages[0] == messages[1]


def test_either_probs_or_logits():
    for lib in (torchmlx, torch):
        for name in ("Bernoulli", "Categorical", "Geometric", "Binomial"):
            with pytest.raises(ValueError, match="Either `probs` or `logits`"):
                getattr(lib.distributions, name)()


def test_text():
    for name in ("Normal", "Categorical", "Independent", "Gamma"):
        assert repr(CASES[name](torchmlx)) == repr(CASES[name](torch))


def test_submodules_of_torch():
    from torchmlx.distributions.categorical import Categorical
    from torchmlx.distributions.normal import Normal
    from torchmlx.distributions.utils import broadcast_all

    assert (Normal, Categorical) == (
        torchmlx.distributions.Normal,
        torchmlx.distributions.Categorical,
    )
    a, b = broadcast_all(torchmlx.zeros(2, 1), 3)
    assert a.shape == b.shape == (2, 1)
    with pytest.raises(ValueError, match="must all be instances"):
        broadcast_all("x")


def test_a_cache_inverts_exactly():
    transform = torchmlx.distributions.TanhTransform(cache_size=1)
    x = torchmlx.tensor([20.0])
    y = transform(x)
    assert transform.inv(y) is x
    assert torchmlx.distributions.TanhTransform().inv(y.clone()).item() == float("inf")


@pytest.mark.parametrize("name", ["poisson", "binomial"])
def test_bad_rates(name):
    if name == "poisson":
        with pytest.raises(RuntimeError, match="non-negative"):
            torchmlx.poisson(torchmlx.tensor([-1.0]))
    else:
        with pytest.raises(RuntimeError, match="dtype"):
            torchmlx.binomial(torchmlx.ones(2), torchmlx.ones(2, dtype=torchmlx.float64))
