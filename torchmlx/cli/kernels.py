"""`torchmlx kernels`: our kernels and what serves them on this machine."""

import argparse
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import InputError
from . import terminal


def add(commands) -> None:
    """Add the command and its subcommands to `commands`."""
    parser = commands.add_parser(
        "kernels",
        help="list, check and bench: who serves our kernels here, are they right, how fast",
        description="Our kernels: what serves each of them here, whether it is right on this\n"
        "machine's device or in the simulator of Apple's GPUs, and how fast it is.",
    )
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    listing = actions.add_parser(
        "list",
        help="a table of all kernels",
        description="One line a kernel: the backend that serves it on this machine's device, why,\n"
        "and the variants that its Metal code chooses from. --json tells more: every backend's\n"
        "obstacle, what each variant is for, and the variant for each of the kernel's cases.",
    )
    listing.add_argument("--json", action="store_true", help="a JSON list on stdout")
    listing.set_defaults(run=run_list)
    _add_runner(
        actions,
        "check",
        "run the kernels' cases and compare with float64",
        "Runs every case of the kernels on this machine's device (on a Mac: the GPU) and compares\n"
        "with a float64 reference: error, GB/s, and the fraction of a measured copy. This is how\n"
        "to prove our kernels on your chip. With --simulate it runs their Metal code on the CPU\n"
        "and looks for races, accesses out of bounds and the like. Exit code 1 if a case fails.",
        run_check,
    )
    bench = _add_runner(
        actions,
        "bench",
        "time the kernels, or count their memory traffic",
        "Times every case of the kernels on this machine's device. With --simulate it counts\n"
        "what their Metal code asks of memory, which no hardware enters, and holds it to bars:\n"
        "  minimum    bytes that the call must move\n"
        "  requested  bytes that the threads ask for\n"
        "  /min       bytes through a cache (LRU, lines of 128 bytes, 4 MiB) over the minimum: at\n"
        "             most 1.05, or 1.55 for a softmax in two passes\n"
        "  /tile      requested over what the tiles of a matrix product ask for: at most 1.1\n"
        "  coalesced  loads that touch no more lines than their bytes need: at least 90%\n"
        "  chain      bounds for the longest chain of loads, each waiting for the one before\n"
        "A call below 40 KiB is `small` and not judged; where rows are no whole lines (`ragged`),\n"
        "coalescing is not. Exit code 1 if a bar is missed.",
        run_bench,
    )
    bench.add_argument(
        "--published",
        action="store_true",
        help="with --simulate: beside ours MLX's own softmax and gemv, from its macOS wheel;"
        " fetches that from the package index, once",
    )


def _add_runner(
    actions, name: str, help: str, description: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=help, description=description)
    parser.add_argument("names", metavar="NAME", nargs="*", help="kernels; default: all")
    parser.add_argument(
        "--simulate", action="store_true", help="in the simulator; needs clang, no GPU"
    )
    parser.add_argument(
        "--all", action="store_true", help="also cases that take the simulator over ten seconds"
    )
    parser.add_argument("--json", action="store_true", help="a JSON list on stdout")
    parser.set_defaults(run=run)
    return parser


def run_list(args: argparse.Namespace) -> int:
    """Print the table."""
    found = collect()
    if args.json:
        terminal.print_json(found)
    else:
        print_kernels(found)
    return 0


def collect() -> list[dict]:
    """A row a kernel, as `kernels.registry.listing` describes it."""
    from ..kernels import dispatch, registry

    try:
        return registry.listing()
    except dispatch.OverrideError as error:
        raise InputError(str(error)) from error


def print_kernels(found: list[dict]) -> None:
    """The kernels as a table."""
    rows = [
        (row["kernel"], row["backend"], ", ".join(row["variants"]) or "none", row["why"])
        for row in found
    ]
    terminal.print_table(("kernel", "served by", "Metal variants", "because"), rows)


def run_check(args: argparse.Namespace) -> int:
    """Print a row a case; 1 if one fails."""
    rows = list(_rows(args, _check_one(args.simulate)))
    if args.json:
        terminal.print_json(rows)
    else:
        print_checks(rows, args.simulate)
    return 1 if any(row["fault"] or row.get("reports") for row in rows) else 0


def run_bench(args: argparse.Namespace) -> int:
    """Print a row a case; 1 if one misses a bar."""
    if args.published and not args.simulate:
        raise InputError("--published goes with --simulate: it compares memory traffic")
    rows = list(_traffic_rows(args) if args.simulate else _rows(args, _check_one(False)))
    if args.json:
        terminal.print_json(rows)
    elif args.simulate:
        print_traffic(rows)
    else:
        print_checks(rows, False)
    return 1 if any(row.get("missed") for row in rows) else 0


def _traffic_rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of our cases, each followed by that of MLX's kernel where one was asked for."""
    from ..kernels.simulator import published, traffic

    def both(kernel, case, dtype):
        beside = traffic.published(kernel, case, dtype) if args.published else None
        return [traffic.traffic(kernel, case, dtype), *([beside] if beside else [])]

    try:
        if args.published:
            published.headers()
        for rows in _rows(args, both):
            yield from rows
    except published.NotFetched as error:
        raise InputError(f"{error}; leave out --published to do without") from error


def _check_one(simulate: bool) -> Callable[..., dict[str, Any]]:
    if simulate:
        from ..kernels.simulator import report

        return report.check
    from ..kernels import measure

    return measure.check


def _rows(args: argparse.Namespace, run: Callable[..., Any]) -> Iterator[Any]:
    """What `run` gives for each case; InputError for an unknown kernel or a missing compiler."""
    from ..kernels import measure
    from ..kernels.dispatch import OverrideError
    from ..kernels.simulator import NoClang, find_clang, report

    try:
        if args.simulate:
            find_clang()
        picked = list((report if args.simulate else measure).cases(args.names))
    except (KeyError, NoClang) as error:
        raise InputError(str(error.args[0])) from error
    for kernel, case, dtype, *_ in picked:
        if args.simulate and not args.all and report.work(kernel, case, dtype) > report.LARGE:
            continue
        with terminal.status(f"{kernel.name} {case.label} {dtype}"):
            try:
                yield run(kernel, case, dtype)
            except OverrideError as error:
                raise InputError(str(error)) from error


def print_checks(rows: list[dict[str, Any]], simulate: bool) -> None:
    """Pass or fail and the error; the simulator's mode and reports, or the device's speed."""
    columns = ("kernel", "case", "dtype", "verdict", "nmse", "allowed")
    more = ("mode",) if simulate else ("backend", "ms", "GB/s", "of a copy")
    lines = []
    for row in rows:
        passed = not row["fault"] and not row.get("reports")
        common = (row["kernel"], row["case"], row["dtype"], "pass" if passed else "FAIL")
        error = (f"{row['nmse']:.1e}", f"{row['limit']:.1e}")
        lines.append((*common, *error, *((row["mode"],) if simulate else _speed(row))))
    terminal.print_table((*columns, *more), lines)
    for row in rows:
        for fault in [*([row["fault"]] if row["fault"] else []), *row.get("reports", [])]:
            print(f"{row['kernel']} {row['case']} {row['dtype']}: {fault}")
    failed = sum(line[3] == "FAIL" for line in lines)
    print(f"{len(rows) - failed} of {len(rows)} cases pass")


def _speed(row: dict[str, Any]) -> tuple[str, str, str, str]:
    served = ":".join(part for part in (row["backend"], row["variant"]) if part)
    bandwidth = f"{row['bandwidth'] / 1e9:.1f}"
    return served, f"{row['seconds'] * 1e3:.3f}", bandwidth, f"{row['of_copy']:.0%}"


def print_traffic(rows: list[dict[str, Any]]) -> None:
    """The traffic counters as a table, and how many cases are within their bars."""
    columns = ("kernel", "case", "dtype", "minimum", "requested", "/min", "/tile", "coalesced")
    more = ("threadgroups", "threads", "barriers", "chain", "bars")
    terminal.print_table((*columns, *more), [_traffic_cells(row) for row in rows])
    judged = [row for row in rows if row["unjudged"] in ("", "ragged")]
    missed = sum(bool(row["missed"]) for row in judged)
    small = sum(row["unjudged"] == "small" for row in rows)
    print(f"{len(judged) - missed} of {len(judged)} cases within their bars; {small} small ones")


def _traffic_cells(row: dict[str, Any]) -> tuple[str, ...]:
    tile = "" if row["tile_ratio"] is None else f"{row['tile_ratio']:.2f}"
    return (
        *(row["kernel"], row["case"], row["dtype"], f"{row['minimum']:,}"),
        *(f"{row['requested']:,}", f"{row['cached_ratio']:.2f}", tile, f"{row['coalesced']:.0%}"),
        *(f"{row[name]:,}" for name in ("threadgroups", "threads", "barriers")),
        f"{row['most_phases']}-{row['most_loads']}",
        "FAIL: " + "; ".join(row["missed"]) if row["missed"] else row["unjudged"] or "pass",
    )
