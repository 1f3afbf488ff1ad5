#pragma once
// The committed prefix of a sequence (paper A.3): comm CTAs insert landed KV tiles into the arrival map, in whatever
// order they land, and compute CTAs read one number, the length of the prefix that has no holes.
#include <liquidcp/sync/faults.cuh>

namespace liquidcp {

// One thread, after a barrier behind the CTA's stores of the tile: tile `kv_tile` is the next arrival of a sequence.
LIQUIDCP_DEVICE bool publish_arrival(const Watch& watch, const RankParams& rank, const SequenceDesc& sequence,
                                     i32 sequence_idx, i32 kv_tile, bool back) {
  u64* prefix = rank.prefixes + sequence_idx;
  fault_delay(watch, DelayPoint::SIGNAL);
  if (fault_drops(watch, FaultKind::PREFIX, kv_tile)) return true;
  // Tiles that front-half queries do not need come after all that they do need.
  if (back && !watch.wait(prefix, sequence.num_front_arrivals, ErrorCode::PREFIX, watch.rank, sequence_idx)) {
    return false;
  }
  i32 slot = static_cast<i32>(value_of(ptx::ld_acquire_gpu(prefix), watch.epoch));
  while (true) {
    if (slot >= sequence.num_arrivals) {
      watch.fail(ErrorCode::ARRIVALS, watch.rank, sequence_idx, sequence.num_arrivals, slot + 1, 0);
      return false;
    }
    u64* entry = rank.arrivals + sequence.arrival_base + slot;
    // Either way of finding the slot taken acquires what its owner stored: the release below covers that tile too.
    const u64 old = ptx::ld_acquire_gpu(entry);
    if (!is_current(old, watch.epoch) &&
        ptx::atom_cas_acq_rel_gpu(entry, old, tagged(watch.epoch, kv_tile + 1)) == old) {
      break;
    }
    ++slot;
  }
  ptx::red_max_release_gpu(prefix, tagged(watch.epoch, slot + 1));
  return true;
}

// Index in `kv_tiles` of an arrival below the committed prefix.
LIQUIDCP_DEVICE i32 arrival_at(const RankParams& rank, const SequenceDesc& sequence, i32 arrival) {
  return static_cast<i32>(static_cast<u32>(ptx::ld_relaxed_gpu(rank.arrivals + sequence.arrival_base + arrival))) - 1;
}

}  // namespace liquidcp
