#pragma once
// What runs: the threads, warps and CTAs of one launch.
#include <emulator/fiber.h>

#include <map>
#include <memory>
#include <typeindex>
#include <vector>

namespace emulator {

constexpr int WARP_SIZE = 32;

struct Cta;

// A 16-byte copy from global to shared memory that has been started; `source` is null for one that writes zeros.
struct PendingCopy {
  unsigned target;
  const void* source;
};

struct Thread {
  int idx;  // in its CTA
  Cta* cta;
  Context context;
  bool done = false;
  const char* waits_for = nullptr;
  std::vector<PendingCopy> open_copies;                // since the last commit
  std::vector<std::vector<PendingCopy>> copy_groups;  // committed, oldest first
};

// A warp-wide operation on its way: who has come so far, each with its argument.
struct Warp {
  int num_arrived = 0;
  void (*operation)() = nullptr;
  void* arguments[WARP_SIZE];
  Thread* threads[WARP_SIZE];
};

struct Cta {
  int idx;
  int num_threads;
  std::vector<unsigned char> dynamic_smem;
  std::map<std::type_index, std::unique_ptr<unsigned char[]>> static_smem;
  std::vector<Warp> warps;
  std::vector<Thread*> at_barrier;
  bool barrier_reduces = false;
  bool barrier_and = true, barrier_result = true;
};

}  // namespace emulator
