# Two commands do everything: `make demo` and `make test`. Variables to override:
PYTHON ?= python3
# cuda13 for an NVIDIA GPU; cpu adds nothing on a Mac, where mlx brings Metal itself.
BACKEND ?= cpu
# More arguments for pytest, such as PYTEST_FLAGS='-k softmax'.
PYTEST_FLAGS ?=
# Each test process computes with threads too, and takes up to 3 GiB: not one a core of a large one.
PARALLEL := --numprocesses auto --maxprocesses 4 --dist worksteal

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --retries 10

# A build without a compiler is over at once, and pip shows nothing of the other.
define say_what_takes_long
@if [ "$$(uname)" = Linux ] && [ "$$TORCHMLX_NATIVE" != skip ] && command -v $${CXX:-c++} >/dev/null; \
then echo "installing; building the C++ kernels takes some minutes"; fi
endef

.PHONY: demo test test-full test-sanitized lint bench native clean

demo: $(VENV)/installed  ## the models in the package write and code a clip, then one is fetched
	$(BIN)/torchmlx demo
	-$(BIN)/torchmlx demo text --model smollm2  # offline the first has to do

test: $(VENV)/installed-dev  ## the fast suite
	$(BIN)/python -m pytest $(PARALLEL) $(PYTEST_FLAGS)

test-full: $(VENV)/installed-dev  ## also slow, huge and network tests
	$(BIN)/python -m pytest -m "" $(PYTEST_FLAGS)

# In a clone of what is committed, so that no other build is touched. Python and MLX are not built for
# sanitizers: their leaks are not looked for, and MLX has no type information for virtual calls.
SANITIZED := build/sanitized
SANITIZE := -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize=vptr \
	-fsanitize-recover=address
ASAN := detect_leaks=0:verify_asan_link_order=0:allocator_may_return_null=1:halt_on_error=0
PRELOAD = $(foreach name,asan ubsan stdc++,$(shell g++ -print-file-name=lib$(name).so))

test-sanitized: $(VENV)/installed-dev  ## the fast suite, C++ under Address- and UBSanitizer
	rm -rf $(SANITIZED)/clone $(SANITIZED)/report*
	git clone --quiet . $(SANITIZED)/clone
	PATH=$(CURDIR)/$(BIN):$$PATH cmake -S $(SANITIZED)/clone/kernels/cpu -B $(SANITIZED)/objects \
		-DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python -DCMAKE_CXX_FLAGS_RELEASE="$(SANITIZE)"
	PATH=$(CURDIR)/$(BIN):$$PATH cmake --build $(SANITIZED)/objects --parallel
	cp $(SANITIZED)/objects/_native*.so $(SANITIZED)/clone/kernels
	cd $(SANITIZED)/clone && PYTHONPATH=$$PWD LD_PRELOAD="$(PRELOAD)" \
		ASAN_OPTIONS=$(ASAN):log_path=$$PWD/../report \
		UBSAN_OPTIONS=print_stacktrace=1:log_path=$$PWD/../report \
		$(CURDIR)/$(BIN)/python -m pytest $(PARALLEL) --ignore tests/packaging $(PYTEST_FLAGS)
	! grep -s -E -A30 'ERROR: |runtime error: ' $(SANITIZED)/report*

lint: $(VENV)/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(VENV)/installed  ## BENCH='name ...' runs some, none lists them
	$(BIN)/python -m bench $(BENCH)

native: $(VENV)/installed-dev  ## rebuild the C++ kernels after a change, in place
	PATH=$(CURDIR)/$(BIN):$$PATH TORCHMLX_NATIVE=require $(BIN)/python setup.py -q build_ext --inplace

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache kernels/_native*.so

# Each stamp is newer than what it was installed from, so a second run starts at once.
$(VENV)/python:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/installed: pyproject.toml setup.py | $(VENV)/python
	$(say_what_takes_long)
	$(PIP) --editable '.[$(BACKEND),video]'
	touch $@

$(VENV)/installed-dev: pyproject.toml setup.py | $(VENV)/python
	$(say_what_takes_long)
	$(PIP) --editable '.[$(BACKEND),dev,video]'
	touch $@ $(VENV)/installed
