#!/bin/bash
# Runs one training stage: tools/train/run.sh STAGE [options of train.py]. Needs a Python with a recent PyTorch, see README.md.
set -e
cd "$(dirname "$0")/../.."
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE
# Freed memory stays with the process: mapping it anew for every large tensor costs a fifth of a step.
export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184
# An allocator made for threads that exchange blocks saves a tenth of a step where it is installed.
jemalloc=/usr/lib/x86_64-linux-gnu/libjemalloc.so.2
if [ -e $jemalloc ]; then export LD_PRELOAD=$jemalloc MALLOC_CONF=dirty_decay_ms:-1,muzzy_decay_ms:-1; fi
export OMP_WAIT_POLICY=passive ONEDNN_PRIMITIVE_CACHE_CAPACITY=4096
PYTHON=${PYTHON:-build/venv-train/bin/python}
mkdir -p build/train
exec nice -n 10 "$PYTHON" tools/train/train.py --stage "$@"
