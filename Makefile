# make demo and make test set up .venv by themselves. On a machine with a GPU name the torch build
# that fits it, for instance: make demo TORCH='torch==2.13.0 --index-url https://download.pytorch.org/whl/cu128'

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
QUESTION ?= What does the with statement do?

.PHONY: demo test lint format clean

demo: $(VENV)/demo.done
	$(BIN)/rapid models fetch demo
	$(BIN)/rapid ask python-reference "$(QUESTION)" --show-drafts

test: $(VENV)/dev.done
	$(BIN)/rapid models fetch demo
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n 2 --dist loadgroup $(ARGS)

lint: $(VENV)/dev.done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/dev.done
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV)

# torch goes first: any other package would bring the largest build of the newest release.
$(VENV)/demo.done: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet -e '.[retrieval]'
	touch $@

$(VENV)/dev.done: $(VENV)/demo.done pyproject.toml
	$(BIN)/python -m pip install --quiet -e '.[langchain,llama-index,examples]' --group dev
	touch $@
