// Kernels of the dataplane: the resident copy kernel, and a checksum and a fill for verifying on the GPU.
// Compiled to PTX for compute_80 by ops/ptx; the text beside this file is what is shipped.

typedef unsigned int u32;
typedef unsigned long long u64;

// ---- Resident copy kernel ------------------------------------------------------------------------------------------------
//
// One block stays on the GPU, polls commands in page-locked host memory and copies. The host writes commands in order into
// a ring of slots, each of 16 bytes, which the kernel reads by one load (a second one would wait for the first, and each is
// a trip over the bus):
//   word 0: source address in 47 bits, then the low 17 bits of the sequence number
//   word 1: target address in 47 bits, then bytes - 1 in 16 bits, then the phase
// The host writes word 1 before word 0. The phase changes with each lap of the ring, so a word 1 that is still that of the
// lap before is seen, whatever the bus makes of the load. A source of 0 stops the kernel.

static constexpr u64 ADDRESS = (1ull << 47) - 1;

struct Command {
    u64 source;
    u64 target;
};

// Why the kernel ended, in the upper half of the word `ended`; the last sequence done is in the lower.
static constexpr u64 ENDED_STOPPED = 1;
static constexpr u64 ENDED_IDLE = 2;

// Each word on a cache line of its own: the GPU writes them while the host polls them.
struct State {
    u64 done; // Sequence of the last command whose copy everybody can see.
    u64 pad0[7];
    u64 ended;
    u64 pad1[7];
};

__device__ __forceinline__ Command load_command(const Command *at) {
    Command command;
    asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(command.source), "=l"(command.target)
                 : "l"(at)
                 : "memory");
    return command;
}

// For everybody: GPUs and host.
__device__ __forceinline__ void store_release(u64 *at, u64 value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(at), "l"(value) : "memory");
}

// Volatile: this kernel never ends, so what its first-level cache once held would be old. Both kinds go past it.
__device__ __forceinline__ uint4 load_16(const uint4 *at) {
    uint4 value;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(at)
                 : "memory");
    return value;
}

__device__ __forceinline__ u64 now_ns() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

__device__ void copy_units(uint4 *target, const uint4 *source, u32 units) {
    const u32 step = blockDim.x;
    u32 at = threadIdx.x;
    // Four loads on their way before the first store: over PCIe a load takes more than a microsecond.
    for (; at + 3 * step < units; at += 4 * step) {
        const uint4 a = load_16(source + at);
        const uint4 b = load_16(source + at + step);
        const uint4 c = load_16(source + at + 2 * step);
        const uint4 d = load_16(source + at + 3 * step);
        target[at] = a;
        target[at + step] = b;
        target[at + 2 * step] = c;
        target[at + 3 * step] = d;
    }
    for (; at < units; at += step)
        target[at] = load_16(source + at);
}

__device__ void copy_bytes(unsigned char *target, const volatile unsigned char *source, u32 bytes) {
    for (u32 at = threadIdx.x; at < bytes; at += blockDim.x)
        target[at] = source[at];
}

__device__ void copy_all(u64 target, u64 source, u32 bytes) {
    if (((target ^ source) & 15) != 0) {
        copy_bytes((unsigned char *)target, (const volatile unsigned char *)source, bytes);
        return;
    }
    const u32 lead = (u32)(-target & 15);
    const u32 head = lead < bytes ? lead : bytes;
    const u32 units = (bytes - head) / 16;
    const u32 tail = bytes - head - units * 16;
    copy_bytes((unsigned char *)target, (const volatile unsigned char *)source, head);
    copy_units((uint4 *)(target + head), (const uint4 *)(source + head), units);
    copy_bytes((unsigned char *)(target + bytes - tail), (const volatile unsigned char *)(source + bytes - tail), tail);
}

// `slots` is a power of two. Without a command for `idle_ns` the kernel ends by itself: a host that is gone or asleep does
// not keep a multiprocessor, nor hold up work that waits for the device.
//
// No fence stands between the sight of a command and the loads of the copy. They cannot begin before it, since the command
// holds their addresses, and each of them is a strong load of system scope that goes past the first-level cache. A fence
// there would cost 0.3 us of some 3.4.
extern "C" __global__ void railhead_resident(const Command *commands, u32 slots, u32 done, State *state, u64 idle_ns) {
    __shared__ Command next;
    __shared__ u64 reason;
    u64 last = now_ns();
    u32 polls = 0;
    // The clock is read only where there is time for it.
    bool fresh = false;
    for (;;) {
        const u32 wanted = done + 1;
        if (threadIdx.x == 0) {
            const Command *slot = commands + (wanted & (slots - 1));
            // The first lap has phase 1: the ring begins with zeroes.
            const u64 phase = ((wanted / slots) & 1) ^ 1;
            for (;;) {
                const Command seen = load_command(slot);
                if (seen.source >> 47 == (wanted & 0x1ffff) && seen.target >> 63 == phase) {
                    next = seen;
                    reason = (seen.source & ADDRESS) == 0 ? ENDED_STOPPED : 0;
                    break;
                }
                if ((++polls & 63) != 0)
                    continue;
                if (fresh)
                    last = now_ns();
                fresh = false;
                if (now_ns() - last > idle_ns) {
                    reason = ENDED_IDLE;
                    break;
                }
            }
        }
        __syncthreads();
        if (reason != 0) {
            if (threadIdx.x == 0)
                store_release(&state->ended, reason << 32 | done);
            return;
        }
        copy_all(next.target & ADDRESS, next.source & ADDRESS, (u32)(next.target >> 47 & 0xffff) + 1);
        // The barrier puts all stores of the block before the release of thread 0: who sees the word sees the bytes.
        __syncthreads();
        done = wanted;
        if (threadIdx.x == 0) {
            store_release(&state->done, done);
            fresh = true;
        }
    }
}

// ---- Verifying -----------------------------------------------------------------------------------------------------------
//
// The checksum is the sum, modulo 2^64, of mix(word + index * STEP) over the little-endian words of 8 bytes, the last one
// filled up with zeroes: words may be added in any order, and two that change places change it. `checksum` in
// src/checksum.rs is the same on the host.

static constexpr u64 STEP = 0x9e3779b97f4a7c15ull;

__device__ __forceinline__ u64 mix(u64 value) {
    value ^= value >> 30;
    value *= 0xbf58476d1ce4e5b9ull;
    value ^= value >> 27;
    value *= 0x94d049bb133111ebull;
    return value ^ (value >> 31);
}

__device__ __forceinline__ u64 word_at(const unsigned char *data, u64 bytes, u64 index) {
    const u64 at = index * 8;
    if (((u64)data & 7) == 0 && at + 8 <= bytes)
        return *(const u64 *)(data + at);
    u64 word = 0;
    for (u32 byte = 0; byte < 8 && at + byte < bytes; byte++)
        word |= (u64)data[at + byte] << (8 * byte);
    return word;
}

// Adds to *sum, which the caller has set to 0.
extern "C" __global__ void railhead_checksum(const unsigned char *data, u64 bytes, u64 *sum) {
    const u64 words = (bytes + 7) / 8;
    u64 part = 0;
    for (u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x; index < words; index += (u64)gridDim.x * blockDim.x)
        part += mix(word_at(data, bytes, index) + index * STEP);
    for (u32 lane = 16; lane > 0; lane /= 2)
        part += __shfl_down_sync(0xffffffffu, part, lane);
    if ((threadIdx.x & 31) == 0)
        atomicAdd(sum, part);
}

// Fills with the bytes of mix(seed + index * STEP): `pattern` in src/checksum.rs is the same on the host.
extern "C" __global__ void railhead_fill(unsigned char *data, u64 bytes, u64 seed) {
    const u64 words = (bytes + 7) / 8;
    for (u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x; index < words; index += (u64)gridDim.x * blockDim.x) {
        const u64 word = mix(seed + index * STEP);
        for (u32 byte = 0; byte < 8 && index * 8 + byte < bytes; byte++)
            data[index * 8 + byte] = (unsigned char)(word >> (8 * byte));
    }
}

// ---- For tests of order: a producer that takes its time, and a consumer that runs before its data is there ---------------

// Waits, then writes `value` to every word.
extern "C" __global__ void railhead_produce(u32 *words, u64 count, u32 value, u64 wait_ns) {
    const u64 start = now_ns();
    while (now_ns() - start < wait_ns) {
    }
    for (u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x; index < count; index += (u64)gridDim.x * blockDim.x)
        words[index] = value;
}

// One block: waits until (signal - value) is not negative, then counts the words that are not `value`. Gives up after
// `limit_ns`, which counts as one more.
extern "C" __global__ void railhead_consume(const u32 *signal, u32 value, const u32 *words, u64 count, u64 limit_ns, u64 *wrong) {
    const u64 start = now_ns();
    if (threadIdx.x == 0) {
        u32 seen;
        do {
            asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(signal) : "memory");
        } while ((int)(seen - value) < 0 && now_ns() - start < limit_ns);
        if ((int)(seen - value) < 0)
            atomicAdd(wrong, 1ull);
    }
    __syncthreads();
    u64 part = 0;
    for (u64 index = threadIdx.x; index < count; index += blockDim.x) {
        u32 seen;
        asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(words + index) : "memory");
        part += seen != value;
    }
    if (part != 0)
        atomicAdd(wrong, part);
}
