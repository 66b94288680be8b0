"""`torchmlx serve`: a checkpoint behind OpenAI's protocol."""

import argparse
import socket
import sys

from ..errors import InputError
from . import generate, values

EXAMPLES = """\
examples:
  torchmlx serve --model ./SmolLM2-135M
  curl localhost:8080/v1/chat/completions -d '{"messages": [{"role": "user", "content": "Hi"}]}'
"""
# Connections that may be open beyond those whose requests run or wait: most clients keep some.
SPARE = 256


def add(commands) -> None:
    """Add the command and its flags to `commands`."""
    parser = commands.add_parser(
        "serve",
        help="serve a checkpoint by OpenAI's HTTP protocol",
        description="Serve /v1/chat/completions, /v1/completions, /v1/models and /health.\n"
        "Requests share one batch. There is no authentication: only this machine can reach it,\n"
        "unless --host says otherwise.",
        epilog=EXAMPLES,
    )
    parser.set_defaults(run=run)
    flag = parser.add_argument
    generate.add_model_flag(flag)
    count = values.max_tokens
    flag("--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1)")
    flag("--port", type=values.port, default=8080, metavar="N", help="default: 8080; 0: any free")
    flag("--rows", type=count, default=32, metavar="N", help="requests at a time (default: 32)")
    flag(
        *("--waiting",),
        type=count,
        default=128,
        metavar="N",
        help="requests that may wait before others get status 429 (default: 128)",
    )
    flag(
        "--max-tokens",
        type=count,
        default=4096,
        metavar="N",
        help="the most tokens that a request may ask for (default: 4096)",
    )
    flag(
        "--timeout",
        type=values.seconds,
        default=600.0,
        metavar="S",
        help="seconds that one answer may take (default: 600)",
    )
    flag(
        "--prompt-cache-size",
        type=count,
        default=10,
        metavar="N",
        help="prompts whose keys and values are kept for others that begin alike (default: 10)",
    )
    flag(
        "--prompt-cache-gib",
        type=values.gibibytes,
        default=4.0,
        metavar="G",
        help="and the most memory for them, in GiB (default: 4)",
    )
    flag("--kv-bits", type=int, choices=(4, 8), help="keep keys and values in so many bits")
    generate.add_model_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Load the model and serve until interrupted."""
    from ..models import PromptCache
    from ..models.server import Limits, Server

    check_address(args.host, args.port)
    model, tokenizer = generate.load_model(args)
    limits = Limits(
        max_tokens=args.max_tokens,
        connections=args.rows + args.waiting + SPARE,
        answer_seconds=args.timeout,
    )
    try:
        server = Server(
            (args.host, args.port),
            args.model,
            model,
            tokenizer,
            limits,
            rows=args.rows,
            waiting=args.waiting,
            kv_bits=args.kv_bits,
            prompts=PromptCache(args.prompt_cache_size, int(args.prompt_cache_gib * 2**30)),
        )
    except OSError as error:
        raise InputError(f"cannot listen at {args.host}:{args.port}: {error.strerror}") from None
    print(f"http://{args.host}:{server.server_port}/v1 serves {args.model}", file=sys.stderr)
    try:
        server.serve_forever()
    finally:
        server.server_close()
    return 0


def check_address(host: str, port: int) -> None:
    """Refuse an address that cannot be listened at, before a model is read for it."""
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            probe.bind((host, port))
    except OSError as error:
        raise InputError(f"cannot listen at {host}:{port}: {error.strerror}") from None
