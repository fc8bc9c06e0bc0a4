#!/bin/bash
# The base image prepares CANN in root's .bashrc, which nobody reads here.
set -e
for script in \
    /usr/local/Ascend/ascend-toolkit/set_env.sh \
    /usr/local/Ascend/nnal/atb/set_env.sh; do
    if [[ -r $script ]]; then
        # shellcheck disable=SC1090
        source "$script"
    fi
done
export LD_LIBRARY_PATH="/usr/local/Ascend/driver/lib64:/usr/local/lib:${LD_LIBRARY_PATH:-}"
allocator="/usr/lib/$(uname -m)-linux-gnu/libjemalloc.so.2"
if [[ -r $allocator ]]; then
    export LD_PRELOAD="$allocator${LD_PRELOAD:+:$LD_PRELOAD}"
fi
exec mindie-gateway "$@"
