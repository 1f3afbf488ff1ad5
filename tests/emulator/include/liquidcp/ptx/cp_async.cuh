#pragma once
// Emulated: a copy that was started happens as late as it may, in the wait of the thread that started it; till then its
// target is poison.
#include <emulator/memory.h>
#include <liquidcp/common/types.cuh>

namespace liquidcp::ptx {

LIQUIDCP_DEVICE void cp_async_16(u32 smem, const void* gmem, bool valid) {
  emulator::check_global(gmem, 16);
  memset(emulator::shared_bytes(smem, 16), emulator::POISON, 16);
  emulator::scheduler.current->open_copies.push_back({smem, valid ? gmem : nullptr});
}
LIQUIDCP_DEVICE void cp_async_commit() {
  emulator::Thread& thread = *emulator::scheduler.current;
  thread.copy_groups.push_back(std::exchange(thread.open_copies, {}));
}
template <i32 PENDING>
LIQUIDCP_DEVICE void cp_async_wait() {
  auto& groups = emulator::scheduler.current->copy_groups;
  while (groups.size() > PENDING) {
    for (const emulator::PendingCopy& copy : groups.front()) {
      unsigned char* target = emulator::shared_bytes(copy.target, 16);
      if (copy.source == nullptr) memset(target, 0, 16);
      else memcpy(target, copy.source, 16);
    }
    groups.erase(groups.begin());
  }
}

}  // namespace liquidcp::ptx
