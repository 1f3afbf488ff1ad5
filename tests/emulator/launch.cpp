// One generated kernel (KERNEL_FILE, with the entry KERNEL_NAME) as a function of the host that runs all its threads.
#include <emulator/cuda.h>
#include <emulator/memory.h>

#include KERNEL_FILE

#include <algorithm>
#include <cstdio>

namespace {

using namespace emulator;

const liquidcp::KernelParams* kernel_params;

void thread_body() {
  KERNEL_NAME(*kernel_params);
  const Thread& thread = *scheduler.current;
  const bool copies = !thread.open_copies.empty() ||
                      std::any_of(thread.copy_groups.begin(), thread.copy_groups.end(),
                                  [](const auto& group) { return !group.empty(); });
  if (copies) scheduler.fail("leaves the kernel with copies on their way");
  scheduler.finish();
}

std::vector<Cta> make_ctas(int num_ctas) {
  std::vector<Cta> ctas(num_ctas);
  for (int c = 0; c < num_ctas; ++c) {
    ctas[c].idx = c;
    ctas[c].num_threads = liquidcp::config::NUM_THREADS;
    ctas[c].dynamic_smem.assign(liquidcp::config::SMEM_BYTES, POISON);
    ctas[c].warps.resize(liquidcp::config::NUM_THREADS / WARP_SIZE);
  }
  return ctas;
}

}  // namespace

// Returns 0, or 1 with a message. One launch of a process at a time.
extern "C" __attribute__((visibility("default"))) int emulator_launch(const void* params, int num_ctas, uint64_t seed,
                                                                       char* message, size_t message_bytes) {
  constexpr int NUM_THREADS = liquidcp::config::NUM_THREADS;
  kernel_params = static_cast<const liquidcp::KernelParams*>(params);
  scheduler.num_ctas = static_cast<unsigned>(num_ctas);
  std::vector<Cta> ctas = make_ctas(num_ctas);
  std::vector<Thread> threads(static_cast<size_t>(num_ctas) * NUM_THREADS);
  const Stacks stacks(threads.size());
  if (!stacks.exist()) {
    snprintf(message, message_bytes, "no memory for the stacks of %zu threads", threads.size());
    return 1;
  }
  for (size_t i = 0; i < threads.size(); ++i) {
    threads[i].idx = static_cast<int>(i % NUM_THREADS);
    threads[i].cta = &ctas[i / NUM_THREADS];
    threads[i].context.start_at(thread_body, stacks.stack(i), Stacks::BYTES);
  }
  const std::string error = scheduler.run(threads, seed);
  snprintf(message, message_bytes, "%s", error.c_str());
  return error.empty() ? 0 : 1;
}
