#pragma once
// Shared memory of the current CTA and what an access must keep to.
#include <emulator/scheduler.h>

#include <cstring>

namespace emulator {

// What shared memory holds before anybody writes it: NaN in every float format.
constexpr int POISON = 0xff;

// `bytes` of dynamic shared memory from a 32-bit shared address on, which must be a multiple of `bytes`.
inline unsigned char* shared_bytes(unsigned address, unsigned bytes) {
  auto& smem = scheduler.current->cta->dynamic_smem;
  if (address % bytes != 0) scheduler.fail("misaligned shared address " + std::to_string(address));
  if (address + bytes > smem.size()) scheduler.fail("shared address " + std::to_string(address) + " is past the end");
  return smem.data() + address;
}

inline void check_global(const void* address, unsigned bytes) {
  if (reinterpret_cast<uintptr_t>(address) % bytes != 0) scheduler.fail("misaligned global address");
}

// The one T of the current CTA.
template <class T>
T& static_shared() {
  auto& bytes = scheduler.current->cta->static_smem[typeid(T)];
  if (!bytes) {
    bytes = std::make_unique<unsigned char[]>(sizeof(T));
    memset(bytes.get(), POISON, sizeof(T));
  }
  return *reinterpret_cast<T*>(bytes.get());
}

}  // namespace emulator
