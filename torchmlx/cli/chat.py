"""`torchmlx chat`: a conversation in the terminal."""

import argparse
import contextlib
import io
import json
import sys
from pathlib import Path

from ..errors import InputError
from . import generate, terminal

HELP = """\
/help          this list
/clear         forget the conversation, keep the system message
/system TEXT   set the system message and forget the conversation
/undo          take back the last question and its answer
/again         answer the last question anew
/history       print the conversation
/save FILE     write the conversation as JSON
/exit          leave; so does the end of the input
A line that ends in \\ goes on in the next one; lines between two lines of
\"\"\" belong together."""


def add(commands) -> None:
    """Add the command and its flags to `commands`."""
    parser = commands.add_parser(
        "chat",
        help="talk with a model in the terminal",
        description="Talk with a model. Its answers go to stdout; /help lists what else it takes.",
        epilog=HELP,
    )
    parser.set_defaults(run=run)
    flag = parser.add_argument
    generate.add_model_flag(flag)
    flag("--system", metavar="TEXT", help="system message (default: the chat template's)")
    generate.add_template_flag(flag)
    generate.add_sampling_flags(parser)
    generate.add_model_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Load the model and talk until the input ends."""
    with contextlib.suppress(ImportError):  # line editing and its history, where Python has them
        import readline  # noqa: F401
    model, tokenizer = generate.load_model(args)
    if tokenizer.chat_template is None:
        raise InputError("this model has no chat template, so it cannot chat: use generate")
    chat = Chat(model, tokenizer, args)
    if isinstance(sys.stdin, io.TextIOWrapper):  # its own error would end the conversation
        sys.stdin.reconfigure(errors="surrogateescape")
    while (text := read_message()) is not None:
        if not text.strip():
            continue
        if any("\ud800" <= char <= "\udfff" for char in text):
            print("error: that is not valid UTF-8", file=sys.stderr)
            continue
        if text.startswith("/"):
            if not chat.command(text):
                break
            continue
        chat.ask(text)
    return 0


def read_message() -> str | None:
    """One message, of several lines where they say so; None at the end of the input."""
    prompt = "> " if sys.stdin.isatty() else ""
    try:
        line = input(prompt)
        if line.strip() == '"""':
            lines = []
            while (line := input()).strip() != '"""':
                lines.append(line)
            return "\n".join(lines)
        lines = [line]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(input())
        return "\n".join(lines)
    except EOFError:
        return None


class Chat:
    """A conversation; what the model has read of it is not read again."""

    def __init__(self, model, tokenizer, args: argparse.Namespace):
        from ..models.prompt_cache import PromptCache

        self.model, self.tokenizer, self.args = model, tokenizer, args
        self.prompts = PromptCache(entries=2)
        self.messages: list[dict] = []
        self._begin(args.system)

    def _begin(self, system: str | None) -> None:
        self.messages = [] if system is None else [{"role": "system", "content": system}]

    def ask(self, text: str) -> None:
        """Answer a message; what cannot be answered is taken back."""
        self.messages.append({"role": "user", "content": text})
        try:
            answer = self._answer()
        except InputError as error:
            self.messages.pop()
            print(f"error: {error}", file=sys.stderr)
            return
        self.messages.append({"role": "assistant", "content": answer})

    def _answer(self) -> str:
        ids = self.tokenizer.encode_chat(self.messages, **dict(self.args.template_var))
        parts = []
        # The bar has gone before the first word: stdout and stderr share a terminal.
        with terminal.bar("reading") as progress:
            given = {"prompt_cache": self.prompts, "progress": progress}
            responses = generate.stream(self.model, self.tokenizer, ids, self.args, **given)
            try:
                for response in responses:
                    parts.append(response.text)
                    print(response.text, end="", flush=True)
            except KeyboardInterrupt:  # ends the answer, not the conversation
                pass
        print(flush=True)
        return "".join(parts)

    def command(self, text: str) -> bool:
        """Do what a line that begins with / says; False to leave."""
        name, _, rest = text[1:].strip().partition(" ")
        if name in ("exit", "quit"):
            return False
        commands = {
            "help": lambda: print(HELP),
            "clear": lambda: self._begin(self._system()),
            "system": lambda: self._begin(rest.strip() or None),
            "undo": self._undo,
            "again": self._again,
            "history": self._print_history,
            "save": lambda: self._save(rest.strip()),
        }
        if name in commands:
            commands[name]()
        else:
            print(f"no command /{name}; /help lists them", file=sys.stderr)
        return True

    def _system(self) -> str | None:
        first = self.messages[:1]
        return first[0]["content"] if first and first[0]["role"] == "system" else None

    def _undo(self) -> str | None:
        """Take back the last exchange and return its question."""
        if not self.messages or self.messages[-1]["role"] == "system":
            print("there is nothing to take back", file=sys.stderr)
            return None
        self.messages.pop()
        return self.messages.pop()["content"]

    def _again(self) -> None:
        question = self._undo()
        if question is not None:
            self.ask(question)

    def _print_history(self) -> None:
        for message in self.messages:
            print(f"{message['role']}: {message['content']}")

    def _save(self, name: str) -> None:
        if not name:
            print("/save needs a file's name", file=sys.stderr)
            return
        try:
            text = json.dumps(self.messages, indent=2, ensure_ascii=False) + "\n"
            Path(name).write_text(text, encoding="utf-8")
        except (OSError, ValueError) as error:  # the latter of a NUL in the name
            reason = error.strerror if isinstance(error, OSError) else error
            print(f"{name!r}: cannot write it: {reason}", file=sys.stderr)
