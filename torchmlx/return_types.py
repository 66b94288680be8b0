"""torch.return_types: the named tuples that operations with several results return."""

from __future__ import annotations

from collections import namedtuple


class _Printed:
    """Prints as torch's structseqs do: one field a line."""

    __slots__ = ()
    _fields: tuple[str, ...]

    def __repr__(self):
        body = ",\n".join(f"{f}={getattr(self, f)!r}" for f in self._fields)
        return f"torch.return_types.{type(self).__name__}(\n{body})"


def _define(name: str, fields: str) -> type:
    kind = namedtuple(name, fields)  # noqa: PYI024 (the fields are data here)
    return type(name, (_Printed, kind), {"__slots__": (), "__module__": __name__})


for _name in (
    "max", "min", "sort", "topk", "kthvalue", "median", "nanmedian", "mode", "cummax", "cummin",
):  # fmt: skip
    globals()[_name] = _define(_name, "values indices")

aminmax = _define("aminmax", "min max")
histogram = _define("histogram", "hist bin_edges")
frexp = _define("frexp", "mantissa exponent")
qr = _define("qr", "Q R")
svd = _define("svd", "U S V")
slogdet = _define("slogdet", "sign logabsdet")
triangular_solve = _define("triangular_solve", "solution cloned_coefficient")
linalg_svd = _define("linalg_svd", "U S Vh")
linalg_qr = _define("linalg_qr", "Q R")
linalg_slogdet = _define("linalg_slogdet", "sign logabsdet")
linalg_eigh = _define("linalg_eigh", "eigenvalues eigenvectors")
linalg_eig = _define("linalg_eig", "eigenvalues eigenvectors")
linalg_inv_ex = _define("linalg_inv_ex", "inverse info")
linalg_cholesky_ex = _define("linalg_cholesky_ex", "L info")
linalg_solve_ex = _define("linalg_solve_ex", "result info")
geqrf = _define("geqrf", "a tau")
lu_unpack = _define("lu_unpack", "P L U")
linalg_lu_factor_ex = _define("linalg_lu_factor_ex", "LU pivots info")
linalg_lu = _define("linalg_lu", "P L U")
linalg_lu_factor = _define("linalg_lu_factor", "LU pivots")
linalg_lstsq = _define("linalg_lstsq", "solution residuals rank singular_values")


def make(name: str, *results):
    """The named tuple `name` of some results."""
    return globals()[name](*results)
