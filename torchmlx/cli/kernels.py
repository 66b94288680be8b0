"""`torchmlx kernels`: our kernels and what serves them on this machine."""

import argparse

from . import terminal


def add(commands) -> None:
    """Add the command and its subcommands to `commands`."""
    parser = commands.add_parser(
        "kernels",
        help="list the kernels and what serves them here",
        description="Our kernels: what backends each has, and which one serves it here.",
    )
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    listing = actions.add_parser(
        "list",
        help="a table of all kernels",
        description="One line a kernel: which backend serves it on this machine's device, which\n"
        "backends it has, and the variants its Metal code chooses from.",
    )
    listing.add_argument("--json", action="store_true", help="a JSON list on stdout")
    listing.set_defaults(run=run_list)


def run_list(args: argparse.Namespace) -> int:
    """Print the table."""
    found = collect()
    if args.json:
        terminal.print_json(found)
    else:
        print_kernels(found)
    return 0


def collect() -> list[dict]:
    """Every kernel: its name, the backend that serves it here, its backends and variants."""
    from ..kernels import registry

    return [registry.describe(kernel) for kernel in registry.kernels()]


def print_kernels(found: list[dict]) -> None:
    """The kernels as a table."""
    rows = [
        (
            kernel["name"],
            kernel["serves"],
            ", ".join(kernel["backends"]),
            ", ".join(kernel["variants"]) or "-",
        )
        for kernel in found
    ]
    terminal.print_table(("kernel", "served by", "backends", "variants"), rows)
