"""Errors that say what a user can mend."""


class InputError(ValueError):
    """Bad input from outside (a file, a flag, a prompt): one line, what is wrong and what to do.

    The command line prints it on stderr and exits with code 2.
    """
