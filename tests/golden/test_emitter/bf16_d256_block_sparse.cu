// forward_bf16_d256_block_sparse_q128_kv128
//
// One persistent kernel of LiquidCP 0.1.0: it pulls KV tiles from peer ranks, attends to what has landed, and
// merges the parts, following the tables of a packed plan. What it is compiled for:
//
//   dtype        bf16
//   head_dim     256
//   mask         block_sparse
//   block_q      128
//   block_kv     128
//   softcap      no
//   CTA          256 threads, 131072 bytes of dynamic shared memory
//   cluster      1 CTAs
//   built with   nothing more
//   path         portable: mma.sync and cp.async, sm_80 and up
//   layout hash  (layout hash)
//
// The file that instantiates it is this one; the algorithm is in <liquidcp/...>: read kernel/persistent_kernel.cuh
// first. To compile it as one file, write GeneratedKernel.self_contained() to disk:
//
//   nvcc -std=c++20 -arch=sm_80 -cubin forward_bf16_d256_block_sparse_q128_kv128.cu
//   nvcc -std=c++20 -gencode=arch=compute_90a,code=sm_90a -cubin forward_bf16_d256_block_sparse_q128_kv128.cu
#include <liquidcp/generated/config.cuh>
#include <liquidcp/generated/layout.cuh>
#include <liquidcp/kernel/persistent_kernel.cuh>
#include <liquidcp/kernel/portable_compute.cuh>

extern "C" __global__ void __launch_bounds__(liquidcp::config::NUM_THREADS, 1)
forward_bf16_d256_block_sparse_q128_kv128(const __grid_constant__ liquidcp::KernelParams params) {
  liquidcp::persistent_kernel(params, liquidcp::PortableCompute{});
}

// ---- liquidcp/generated/config.cuh
#pragma once
// What this kernel is specialised on. Lengths, placement, splits, orders and the data of masks are data of the plan;
// scales, strides and sinks come with the launch.
#include <liquidcp/generated/layout.cuh>

namespace liquidcp::config {

constexpr i32 HEAD_DIM = 256;
constexpr i32 BLOCK_Q = 128;  // rows of a query tile: 16 a warp
constexpr i32 BLOCK_KV = 128;  // rows of a KV tile
constexpr i32 KV_STEP = 32;  // rows of it in shared memory at a time
constexpr i32 MASK_KEYS = 32;  // keys that masks look at at a time, a bit a key
constexpr i32 NUM_THREADS = 256;
constexpr i32 CLUSTER = 1;  // CTAs that share every KV tile, each for a query head of its own
constexpr u32 SMEM_BYTES = 131072;  // dynamic: the query tile, two steps of K and of V
constexpr u32 SMEM_ALIGNMENT = 128;
constexpr bool FP16 = false;  // else bf16
constexpr MaskKind MASK = MaskKind::BLOCK_SPARSE;
constexpr bool SOFTCAP = false;
constexpr bool FAULTS = false;  // does wrong what the launch says, for tests
constexpr bool TRACE = false;  // records a timeline

}  // namespace liquidcp::config
