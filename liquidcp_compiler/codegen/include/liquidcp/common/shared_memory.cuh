#pragma once
// The two kinds of shared memory of a CTA: the only place that declares any.
#include <liquidcp/generated/config.cuh>

namespace liquidcp {

// Where dynamic shared memory begins, as the 32-bit address that copies and matrix loads take.
LIQUIDCP_DEVICE u32 dynamic_smem_address() {
  extern __shared__ __align__(config::SMEM_ALIGNMENT) u8 dynamic_smem[];
  return static_cast<u32>(__cvta_generic_to_shared(dynamic_smem));
}

// The CTA's one T, not initialised.
template <class T>
LIQUIDCP_DEVICE T& static_smem() {
  __shared__ T object;
  return object;
}

}  // namespace liquidcp
