# shellcheck shell=bash disable=SC2154 # read by run, which sets what is not set here
# What the kit needs of a machine, and what the machine is.

# What the kit needs of this machine, before anything runs.
require() {
    local have
    [[ $(uname -m) == x86_64 ]] ||
        fail "the programs are for x86_64, this machine is $(uname -m): pack the kit on such a one"
    have=$(getconf GNU_LIBC_VERSION 2>/dev/null) ||
        fail "the programs need glibc $glibc or newer, and this machine has another C library"
    have=${have#* }
    [[ $(printf '%s\n%s\n' "$glibc" "$have" | sort -V | head -n 1) == "$glibc" ]] ||
        fail "the programs need glibc $glibc, this machine has $have: pack the kit with cargo-zigbuild installed"
    command -v gzip timeout awk >/dev/null || fail "gzip, timeout or awk is missing"
}

# Starts an MPS in folders of its own, by which processes run on the GPU at once. What they need for it is then in
# SHARED, which is empty where there is none: they take turns, and each hop between them costs a time slice.
SHARED=()
begin_mps() {
    SHARED=()
    [[ -z $VIRTUAL && -n $MPS ]] || return 0
    local folders=(CUDA_MPS_PIPE_DIRECTORY="$OUT/mps/pipe" CUDA_MPS_LOG_DIRECTORY="$OUT/mps/log")
    mkdir -p "$OUT/mps/pipe" "$OUT/mps/log"
    if ! command -v nvidia-cuda-mps-control >/dev/null; then
        cannot MPS "no nvidia-cuda-mps-control: PEs that are processes take turns on the GPU"
    elif step "start MPS" 20 env "${folders[@]}" nvidia-cuda-mps-control -d; then
        # MPS has some 96 queues for all processes on a GPU, which are 8 here at most.
        SHARED=("${folders[@]}" CUDA_DEVICE_MAX_CONNECTIONS=12)
    fi
}

end_mps() {
    ((${#SHARED[@]} == 0)) || timeout 20 env "${SHARED[@]}" nvidia-cuda-mps-control <<<quit >/dev/null 2>&1
    SHARED=()
}

# Where everything finds the driver, the PTX and room for what the driver compiles of it.
environment() {
    local packed list=
    mkdir -p "$OUT/ptx"
    for packed in "$KIT"/ptx/*.ptx.gz; do
        local plain=$OUT/ptx/${packed##*/}
        plain=${plain%.gz}
        [[ -s $plain && $plain -nt $packed ]] || gzip -dc "$packed" >"$plain" || fail "$packed cannot be unpacked"
        list+=${list:+,}$plain
    done
    export CONGRUENT_PTX=$list CONGRUENT_MACHINE=cuda
    # So that what waits in vain says so, and leaves time for the rest.
    export CONGRUENT_DEADLINE_MS=${CONGRUENT_DEADLINE_MS:-10000}
    # Kernels of PEs in one process wait for each other: each stream has its own queue, and no function is loaded late.
    export CUDA_DEVICE_MAX_CONNECTIONS=32 CUDA_MODULE_LOADING=EAGER
    export CUDA_CACHE_PATH=$OUT/cache CUDA_CACHE_MAXSIZE=4294967296
    [[ -z $VIRTUAL ]] || export LD_LIBRARY_PATH=$KIT/virtual${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
        CONGRUENT_VIRTUAL_DRIVER=engine=native
}

# What the report is of: a name and a value a line.
describe() {
    local gpu asked=--query-gpu=name,driver_version,memory.total,clocks.max.sm
    printf 'date\t%s\n' "$(date -u +%FT%TZ)"
    printf 'congruent\t%s\n' "$commit"
    printf 'glibc\t%s\n' "$(getconf GNU_LIBC_VERSION)"
    printf 'kernel\t%s\n' "$(uname -sr)"
    printf 'cores\t%s\n' "$(getconf _NPROCESSORS_ONLN)"
    if [[ -n $VIRTUAL ]]; then
        printf 'gpu\tnone: the virtual driver, on the CPU\n'
    elif gpu=$(nvidia-smi "$asked" --format=csv,noheader 2>/dev/null | head -n 1) && [[ -n $gpu ]]; then
        printf 'gpu\t%s\n' "${gpu%%,*}"
        printf 'driver\t%s\n' "$(cut -d, -f2 <<<"$gpu" | tr -d ' ')"
        printf 'memory\t%s\n' "$(cut -d, -f3 <<<"$gpu" | sed 's/^ //')"
        printf 'highest clock\t%s\n' "$(cut -d, -f4 <<<"$gpu" | sed 's/^ //')"
    else
        printf 'gpu\tnone that nvidia-smi knows\n'
    fi
}
