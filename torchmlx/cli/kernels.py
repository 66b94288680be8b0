"""`torchmlx kernels`: our kernels and what serves them on this machine."""

import argparse

from ..errors import InputError
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
        description="One line a kernel: the backend that serves it on this machine's device, why,\n"
        "and the variants that its Metal code chooses from. --json tells more: every backend's\n"
        "obstacle, what each variant is for, and the variant for each of the kernel's cases.",
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
