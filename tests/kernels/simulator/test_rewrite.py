"""Metal to C++: what the rewriter changes, that lines stay, and what it refuses."""

import pytest

from torchmlx.kernels.simulator.rewrite import RewriteError, rewrite


def test_threadgroup_variables():
    source = (
        "void f() {\n  threadgroup vec<half, 4> a[N == 2 ? 1 : N][3], // two\n    b;\n  x = 1;\n}"
    )
    assert rewrite(source, {}) == (
        "void f() {\n"
        '  auto& a = sim::threadgroup_variable<vec<half, 4>[N == 2 ? 1 : N][3], 1>("a"); '
        'auto& b = sim::threadgroup_variable<vec<half, 4>, 2>("b")\n;\n'
        "  x = 1;\n}"
    )


def test_threadgroup_pointers_and_parameters_stay():
    source = "void f(threadgroup float* p) { threadgroup half* q = p; threadgroup half& r = *q; }"
    assert rewrite(source, {}) == source


@pytest.mark.parametrize("source", ["threadgroup float a[2] = {1, 2};", "threadgroup float a{0};"])
def test_an_unknown_form_is_refused(source):
    """It would be private to each thread, silently."""
    with pytest.raises(RewriteError, match="unknown form of a threadgroup variable: threadgroup"):
        rewrite(f"void f() {{ {source} }}", {})


def test_attributes_go_and_subscripts_stay():
    source = "[[kernel]] void f(uint i [[thread_position_in_grid]]) {\n  a[b[i]] = c[ [&]{}() ];\n}"
    assert rewrite(source, {}) == (" void f(uint i ) {\n  a[b[i]] = c[ [&]{}() ];\n}")


def test_definitions_that_differ_by_space_alone():
    """The first one stays; comments, strings and directives are no code."""
    source = (
        "template <typename T> struct E<device T*> { int a; };\n"
        "template <typename T> struct E<threadgroup T*> { int a; };\n"
        "struct S {\n  int get() const thread { return 1; }\n"
        "  int get() const device { return 2; }\n};\n"
        '// void f(device int*) {\n#define X "void f(threadgroup int*) {"\n'
        "void f(device int* a) { g(a); }\nvoid f(threadgroup int* a) { h(a); }\nvoid f(int a) {}\n"
    )
    kept = rewrite(source, {})
    assert kept.count("\n") == source.count("\n")
    assert "E<threadgroup" not in kept and "return 2" not in kept and "h(a)" not in kept
    assert "E<device" in kept and "return 1" in kept and "g(a)" in kept and "f(int a)" in kept
    assert '#define X "void f(threadgroup int*) {"' in kept


def test_definitions_under_conditions_stay():
    source = "#if A\nvoid f(int a) { g(); }\n#else\nvoid f(int a) { h(); }\n#endif\n"
    assert rewrite(source, {}) == source


def test_function_constants():
    source = (
        "constant bool wide [[function_constant(3)]];\nconstant int n [[function_constant(4)]];"
    )
    assert rewrite(source, {3: True, 4: 7}) == (
        "constant constexpr bool wide = true;\nconstant constexpr int n = 7;"
    )
    with pytest.raises(RewriteError, match=r"function constant 4 \(n\) has no value"):
        rewrite(source, {3: True})


def test_vectors_for_the_syntax_check():
    source = "x = (float4)y; z = f(float4)(y); w = metal::vec<T, 4>(1); u = static_cast<half2>(v);"
    assert rewrite(source, {}, syntax=True) == (
        "x = sim::cast<float4>{}->*y; z = f(float4)(y); w = sim::make<metal::vec<T, 4>>(1); "
        "u = sim::make<half2>(v);"
    )
