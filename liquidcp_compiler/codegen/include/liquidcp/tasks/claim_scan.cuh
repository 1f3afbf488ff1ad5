#pragma once
// Which task comes next: compute CTAs claim KV intervals of rows, in plan order, until every row is claimed.
#include <liquidcp/tasks/context.cuh>

namespace liquidcp {

// Fewest KV tiles that a task takes when the last ones are shared out: a merge costs about as much as one.
constexpr i32 MIN_SHARE = 16;

// One warp of a CTA scans; what it keeps from claim to claim lies in shared memory. A lane looks at one unit (row,
// query tile, query head) at a time.
class ClaimScan {
 public:
  LIQUIDCP_DEVICE ClaimScan(const Context& context)
      : context_(context),
        num_workers_(context.params.ctas_per_rank / config::CLUSTER),
        units_per_row_(context.plan.header().units_per_row),
        heads_(context.params.qheads_per_kvhead / config::CLUSTER),
        per_row_(units_per_row_ / context.params.num_heads_q * heads_),
        per_block_(context.plan.header().num_rows * per_row_),
        num_units_(per_block_ * (context.params.num_heads_q / context.params.qheads_per_kvhead)),
        lane_(ptx::thread_idx() & 31) {}

  // Once in a launch, one thread, before a barrier.
  LIQUIDCP_DEVICE static void begin(SharedWords& shared) { shared.first_open = 0; }

  // Whole warp. False: nothing is left to claim, or the launch is given up. A claim of the ready interval is one CAS
  // on the row's word C; whoever fails it saw another CTA make progress.
  LIQUIDCP_DEVICE bool next(Claim& claim) {
    u64 start = 0, last_progress = ~0ull;
    i32 first_open = context_.shared.first_open;
    __syncwarp();
    while (!__any_sync(FULL_WARP, context_.watch.aborted())) {
      i32 first = num_units_;
      Unit blocked = {};
      for (i32 base = first_open; base < num_units_; base += 32) {
        const Unit unit = inspect(base + lane_);
        const u32 open = __ballot_sync(FULL_WARP, unit.open);
        if (open != 0 && first == num_units_) {
          const i32 leader = __ffs(static_cast<i32>(open)) - 1;
          first = base + leader;
          blocked = broadcast(unit, leader);
        }
        if (take_one(unit, base, claim)) {
          if (lane_ == 0) context_.shared.first_open = first;
          return true;
        }
      }
      first_open = first;
      if (first == num_units_) return false;
      if (!may_wait(first, blocked, start, last_progress)) return false;
    }
    return false;
  }

 private:
  struct Unit {
    bool open, claimable;
    i32 place;  // row * units_per_row + unit
    i32 sequence, num_local, claimed, ready, wanted, lo, hi;
    u64 word, next;  // the claim word as it is, and as a claim would leave it
  };

  LIQUIDCP_DEVICE u64* word(i32 unit) const { return context_.rank.claims + unit; }

  LIQUIDCP_DEVICE Unit inspect(i32 unit) const {
    Unit u = {};
    if (unit >= num_units_) return u;
    const i32 block = unit / per_block_, rest = unit % per_block_, row_idx = rest / per_row_, in_row = rest % per_row_;
    const RowDesc& row = context_.plan.rows()[row_idx];
    const i32 q = in_row / heads_, head = block * context_.params.qheads_per_kvhead + in_row % heads_ * config::CLUSTER;
    if (q >= row.q_hi - row.q_lo) return u;
    u.place = row_idx * units_per_row_ + q * context_.params.num_heads_q + head;
    u.word = ptx::ld_relaxed_gpu(word(u.place));
    const i32 claimed = static_cast<i32>(value_of(u.word, context_.watch.epoch));
    if (row.formation == static_cast<i32>(Formation::READY) && row.num_kv_tiles > 0) {
      inspect_ready(u, row, claimed, share_of_rest(row, block, in_row));
    } else if (row.formation != static_cast<i32>(Formation::NONE)) {  // whole rows, empty ones too
      u.open = u.claimable = claimed == 0;
      u.next = tagged(context_.watch.epoch, 1);
      u.lo = 0;
      u.hi = row.num_kv_tiles;
    }
    return u;
  }

  // A worker's share of the KV tiles from this unit on, in the order of the scan.
  LIQUIDCP_DEVICE i32 share_of_rest(const RowDesc& row, i32 block, i32 in_row) const {
    const RowDesc& first = context_.plan.rows()[0];
    const f32 tiles = static_cast<f32>(first.tiles_after) + first.num_kv_tiles * (first.q_hi - first.q_lo);
    const i32 units_left = (row.q_hi - row.q_lo) * heads_ - in_row, blocks_left = num_units_ / per_block_ - 1 - block;
    const f32 left = (tiles * blocks_left + row.tiles_after) * heads_ + static_cast<f32>(row.num_kv_tiles) * units_left;
    return static_cast<i32>(fminf(left / num_workers_, static_cast<f32>(MAX_I32 / 2)));
  }

  // C tiles are claimed and R are ready: tasks take [C, E), E = C + min(R - C, tau_max), once there is enough of it;
  // less towards the end, so that all CTAs end at the same time.
  LIQUIDCP_DEVICE void inspect_ready(Unit& u, const RowDesc& row, i32 claimed, i32 share) const {
    const u64 prefix = ptx::ld_relaxed_gpu(context_.rank.prefixes + row.sequence);
    const i32 arrived = static_cast<i32>(value_of(prefix, context_.watch.epoch));
    u.sequence = row.sequence;
    u.num_local = row.local_hi - row.local_lo;
    u.claimed = claimed;
    u.ready = u.num_local + min_of(arrived, row.num_arrivals);
    u.wanted = min_of(claimed + row.tau_min, row.num_kv_tiles);
    u.open = claimed < row.num_kv_tiles;
    u.claimable = u.open && u.ready > claimed && (u.ready >= u.wanted || u.ready == row.num_kv_tiles);
    u.lo = claimed;
    u.hi = claimed + min_of(u.ready - claimed, min_of(row.tau_max, max_of(share, MIN_SHARE)));
    u.next = tagged(context_.watch.epoch, static_cast<u32>(u.hi));
  }

  // Tries the claimable units of the window, each CTA from another lane on, so that they do not all want the same.
  LIQUIDCP_DEVICE bool take_one(const Unit& unit, i32 base, Claim& claim) const {
    u32 candidates = __ballot_sync(FULL_WARP, unit.claimable);
    const u32 turn = static_cast<u32>(context_.watch.cta) & 31;
    while (candidates != 0) {
      const u32 rotated = __funnelshift_r(candidates, candidates, turn);
      const i32 pick = static_cast<i32>(__ffs(static_cast<i32>(rotated)) - 1 + turn) & 31;
      bool won = false;
      if (lane_ == pick) won = ptx::atom_cas_relaxed_gpu(word(unit.place), unit.word, unit.next) == unit.word;
      if (__shfl_sync(FULL_WARP, static_cast<i32>(won), pick)) {
        ptx::fence_acq_rel_gpu();  // with the relaxed load of the prefix: the claimed tiles are visible
        const i32 place = __shfl_sync(FULL_WARP, unit.place, pick);
        claim = {place / units_per_row_, place % units_per_row_, __shfl_sync(FULL_WARP, unit.lo, pick),
                 __shfl_sync(FULL_WARP, unit.hi, pick)};
        return true;
      }
      candidates &= ~(1u << pick);
    }
    return false;
  }

  LIQUIDCP_DEVICE Unit broadcast(const Unit& unit, i32 leader) const {
    Unit u = unit;
    u.sequence = __shfl_sync(FULL_WARP, unit.sequence, leader);
    u.num_local = __shfl_sync(FULL_WARP, unit.num_local, leader);
    u.claimed = __shfl_sync(FULL_WARP, unit.claimed, leader);
    u.ready = __shfl_sync(FULL_WARP, unit.ready, leader);
    u.wanted = __shfl_sync(FULL_WARP, unit.wanted, leader);
    return u;
  }

  // Nothing is ready: sleep, and give up if the first open unit has not moved for the whole budget.
  LIQUIDCP_DEVICE bool may_wait(i32 first, const Unit& blocked, u64& start, u64& last_progress) const {
    const u64 progress = static_cast<u64>(static_cast<u32>(first)) << 40 ^
                         static_cast<u64>(static_cast<u32>(blocked.ready)) << 20 ^ static_cast<u32>(blocked.claimed);
    if (progress != last_progress) {
      last_progress = progress;
      start = ptx::globaltimer_ns();
    }
    const u64 waited = __shfl_sync(FULL_WARP, context_.watch.waited_since(start), 0);
    if (waited > context_.params.budget_ns) {
      if (lane_ == 0) {
        context_.watch.task = first % per_block_ / per_row_;
        context_.watch.fail(ErrorCode::PREFIX, context_.watch.rank, blocked.sequence,
                            blocked.wanted - blocked.num_local, blocked.ready - blocked.num_local, waited);
      }
      return false;
    }
    ptx::nanosleep(200);
    return true;
  }

  const Context& context_;
  i32 num_workers_, units_per_row_, heads_, per_row_, per_block_, num_units_, lane_;
};

}  // namespace liquidcp
