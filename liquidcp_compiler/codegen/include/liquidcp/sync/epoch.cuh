#pragma once
// Protocol words: u64 = epoch << 32 | value. A word of an older launch counts as value 0, so nothing is cleared
// between launches; within a launch the value only grows. (The epoch wraps after 2^32 launches.)
#include <liquidcp/ptx/ld_st.cuh>

namespace liquidcp {

// Value of a `merged` word while one CTA reads and writes the state.
constexpr u32 LOCKED = 0xffffffffu;

LIQUIDCP_DEVICE u64 tagged(u32 epoch, u32 value) { return static_cast<u64>(epoch) << 32 | value; }

LIQUIDCP_DEVICE bool is_current(u64 word, u32 epoch) { return static_cast<u32>(word >> 32) == epoch; }

LIQUIDCP_DEVICE u32 value_of(u64 word, u32 epoch) { return is_current(word, epoch) ? static_cast<u32>(word) : 0; }

// 0, 1, 2, ... in each launch. The max lifts the word into this epoch, however late it comes.
LIQUIDCP_DEVICE u32 take_ticket(u64* word, u32 epoch) {
  ptx::red_max_relaxed_gpu(word, tagged(epoch, 0));
  return static_cast<u32>(ptx::atom_add_relaxed_gpu(word, 1));
}

// The same for things that are done: how many, with this one. Whoever counts the last sees what all others did.
LIQUIDCP_DEVICE u32 count_done(u64* word, u32 epoch) {
  ptx::red_max_relaxed_gpu(word, tagged(epoch, 0));
  return static_cast<u32>(ptx::atom_add_acq_rel_gpu(word, 1)) + 1;
}

}  // namespace liquidcp
