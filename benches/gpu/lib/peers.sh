# shellcheck shell=bash disable=SC2154 # read by run, which sets what is not set here
# Other libraries on the same GPU: found, compiled here, and run.

# The path of a program of the CUDA toolkit.
tool() {
    local place
    command -v "$1" && return
    for place in "${CUDA_HOME:-/usr/local/cuda}/bin" /usr/local/cuda*/bin "$(packages)"/nvidia/cu*/bin; do
        [[ -x $place/$1 ]] && echo "$place/$1" && return
    done
    return 1
}

# Where Python keeps its packages.
packages() {
    python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' 2>/dev/null
}

# Finds a library: its home, if the user says, its folder among Python's packages, the names of its header and of its
# file. Prints the folder of the header, that of the file, and the file.
find_library() {
    local home=$1 package=$2 header=$3 library=$4 root file
    for root in ${home:+"$home"} "$(packages)/nvidia/$package" "$(packages)"/nvidia/cu* \
        /usr/local/"$package" /usr /usr/local /usr/local/cuda; do
        local include=$root/include
        # Debian keeps headers of NVSHMEM in a folder for each version of CUDA.
        [[ -e $include/$header ]] || include=$(compgen -G "$root/include/$package*/$header" | head -n 1)
        [[ -f $include ]] && include=${include%/*}
        [[ -n $include && -e $include/$header ]] || continue
        for file in "$root"/lib/"$library"* "$root"/lib64/"$library"* "$root"/lib/x86_64-linux-gnu/"$library"* \
            "$root"/lib/x86_64-linux-gnu/"$package"/*/"$library"*; do
            [[ -e $file ]] && printf '%s\n%s\n%s\n' "$include" "${file%/*}" "${file##*/}" && return
        done
    done
    return 1
}

# Compiles a peer for this GPU: its name, then what nvcc takes besides.
compile() {
    local name=$1
    shift
    step "compile $name" 200 "$NVCC" -O3 -std=c++17 -arch=native -cudart static -L"${NVCC%/bin/nvcc}/lib" \
        -o "$OUT/$name" "$KIT/peers/$name.cu" "$@"
}

# Runs a peer as a step and keeps its samples: the step's name, the seconds, the command.
peer() {
    local name=$1
    step "$@"
    # Of a peer that failed on the way, what it had measured counts.
    awk -v name="$name" '
        function value(key,    at, rest) {
            at = index($0, "\"" key "\":"); if (!at) return ""
            rest = substr($0, at + length(key) + 3)
            if (rest ~ /^"/) { rest = substr(rest, 2); return substr(rest, 1, index(rest, "\"") - 1) }
            sub(/[,}].*/, "", rest); return rest
        }
        /^\{"peer"/ {
            printf "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", name, value("peer"), value("work"), value("how"),
                value("pes"), value("ctas"), value("threads"), value("bytes"),
                value("us"), value("algbw"), value("busbw")
        }' "$OUT/logs/${name//[^A-Za-z0-9_.-]/_}.log" >>"$FIGURES" 2>/dev/null
}

part_peers() {
    if [[ -n $VIRTUAL ]]; then
        cannot peers "peers need a GPU"
        return
    fi
    if ! NVCC=$(tool nvcc); then
        cannot peers "no nvcc in PATH, CUDA_HOME or among Python's packages: install a CUDA toolkit"
        return
    fi
    local nccl=() nvshmem=()
    mapfile -t nccl < <(find_library "${NCCL_HOME:-}" nccl nccl.h libnccl.so)
    mapfile -t nvshmem < <(find_library "${NVSHMEM_HOME:-}" nvshmem nvshmem.h libnvshmem_host.so)
    rm -f "$OUT"/{device_copy,nccl_perf,nvshmem_perf}
    compile device_copy &
    if ((${#nccl[@]} == 3)); then
        compile nccl_perf -I"${nccl[0]}" -L"${nccl[1]}" -l:"${nccl[2]}" &
    else
        cannot nccl "no nccl.h with its library: pip install nvidia-nccl-cu13, or set NCCL_HOME"
    fi
    if ((${#nvshmem[@]} == 3)); then
        compile nvshmem_perf -rdc=true -I"${nvshmem[0]}" -L"${nvshmem[1]}" -lnvshmem_device -l:"${nvshmem[2]}" &
    else
        cannot nvshmem "no nvshmem.h with its library: pip install nvidia-nvshmem-cu13, or set NVSHMEM_HOME"
    fi
    wait
    [[ ! -x $OUT/device_copy ]] || peer "device copy" 60 "$OUT/device_copy"
    [[ ! -x $OUT/nccl_perf ]] || peers_of_nccl "${nccl[1]}"
    [[ ! -x $OUT/nvshmem_perf ]] || peers_of_nvshmem "${nvshmem[1]}"
}

# NCCL, pinned: what is compared with our one-shot, with our direct (in two shots) and with our ring.
peers_of_nccl() {
    local nccl=(env LD_LIBRARY_PATH="$1${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}")
    nccl+=(NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=0)
    peer "nccl AGxLL_R" 60 "${nccl[@]}" NCCL_SYM_KERNEL=AllReduce_AGxLL_R NCCL_SYM_CTAS=1 \
        "$OUT/nccl_perf" "$PES" 1 8 16384
    peer "nccl in-kernel" 60 "${nccl[@]}" NCCL_SYM_KERNEL=AllReduce_AGxLL_R NCCL_SYM_CTAS=1 NCCL_PERF_IN_KERNEL=1 \
        "$OUT/nccl_perf" "$PES" 1 8 8
    peer "nccl RSxLD_AGxST" 60 "${nccl[@]}" NCCL_SYM_KERNEL=AllReduce_RSxLD_AGxST NCCL_SYM_CTAS=16 \
        "$OUT/nccl_perf" "$PES" 16 16777216 67108864
    # Without windows: for buffers that are symmetric NCCL has no ring.
    nccl+=(NCCL_WIN_ENABLE=0)
    peer "nccl ring simple" 60 "${nccl[@]}" NCCL_ALGO=Ring NCCL_PROTO=Simple \
        "$OUT/nccl_perf" "$PES" 16 16777216 67108864
    peer "nccl ring LL" 60 "${nccl[@]}" NCCL_ALGO=Ring NCCL_PROTO=LL "$OUT/nccl_perf" "$PES" 1 8 65536
}

# NVSHMEM: its PEs are processes.
peers_of_nvshmem() {
    local path="$1${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" pes share=()
    begin_mps
    for pes in 2 "$PES"; do
        # NVSHMEM has PEs share a GPU in full only where MPS gives each no more than its part.
        ((${#SHARED[@]} == 0)) || share=("${SHARED[@]}" CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=$((100 / pes)))
        peer "nvshmem $pes" 90 env LD_LIBRARY_PATH="$path" "${share[@]}" "$OUT/nvshmem_perf" "$pes"
    done
    end_mps
}
