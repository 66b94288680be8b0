"""Compiling as Apple's compiler does: with real address spaces."""


def check_syntax(*a, **k):
    raise NotImplementedError
